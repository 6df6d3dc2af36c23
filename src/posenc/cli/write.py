"""`posenc write`: a longer context in the words of a stack, read back by its rules before it is written."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from posenc.cli import output
from posenc.cli.parameters import parameters
from posenc.replacing import replaced

if TYPE_CHECKING:
    from posenc.extend.stretch import Stretched
    from posenc.extend.write import Written


@click.command()
@click.argument("target", help="A config.json, a directory with one, or a name as qwen3-8b.")
@click.option("--method", required=True, metavar="NAME", help="linear, ntk, dynamic, yarn, llama3, base, longrope.")
@click.option("--to", required=True, metavar="STACK", help="hf5, hf4, vllm, sglang, llamacpp, gguf, mlx, ...")
@click.option("--factor", type=float, help="How many times longer than the texts of training.")
@click.option("--target-len", type=int, metavar="N", help="The length wanted, in positions.")
@click.option(
    "--trained-len", type=int, metavar="N", help="The length of the texts of training.", show_default="as known"
)
@click.option(
    "--option", multiple=True, metavar="KEY=VALUE", help="A parameter of the method; @FILE for JSON in a file."
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="Write it there; of a config.json the whole."
)
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.option("--json", "as_json", is_flag=True, help="The text, lengths and remarks as JSON.")
def write_context(
    target: str,
    method: str,
    to: str,
    factor: float | None,
    target_len: int | None,
    trained_len: int | None,
    option: tuple[str, ...],
    out: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write exactly the keys or flags with which a stack reads longer texts; remarks go to stderr.

    Exit codes: 0 written, 2 wrong use, or what the stack cannot say.
    """
    from posenc.config.known import find
    from posenc.extend.stretch import stretch
    from posenc.extend.write import write

    source, known = find(target, "write")
    stretched = stretch(
        source,
        method,
        factor=factor,
        target_len=target_len,
        trained_len=known if trained_len is None else trained_len,
        options=parameters("write", option),
    )
    written = write(stretched, to)
    if out is not None:
        _save(out, _whole(written), force)
    if as_json:
        output.write_json(_as_json(target, stretched, written))
    elif out is None:
        output.write(written.text)
    if written.dropped and out is None:
        output.complain(f"write: {to}: remove {', '.join(written.dropped)} from the file, or take --out FILE.")
    for remark in written.remarks:
        output.complain(f"write: {remark}")


def _whole(written: "Written") -> str:
    return written.text if written.whole is None else json.dumps(written.whole, indent=2, ensure_ascii=False)


def _save(path: Path, text: str, force: bool) -> None:
    """Write a file so that it is there whole, or as it was before."""
    if path.is_dir():
        raise ValueError(f"write: --out must name a file; got the directory {str(path)!r}.")
    if path.exists() and not force:
        raise ValueError(f"write: {str(path)!r} is there already. Take another name, or --force to replace it.")
    try:
        with replaced(path) as aside:
            aside.write_text(text + "\n", "utf-8")
    except OSError as error:
        raise ValueError(f"write: cannot write {str(path)!r}: {error.strerror or error}.") from error


def _as_json(target: str, stretched: "Stretched", written: "Written") -> dict[str, Any]:
    return {
        "target": target,
        "method": stretched.method.name,
        "factor": stretched.factor,
        "trained_len": stretched.trained_len,
        "target_len": stretched.target_len,
        "to": written.to,
        "stack": written.rules.stack,
        "version": written.rules.version,
        "text": written.text,
        "score_scale": written.score_scale,
        "dropped": list(written.dropped),
        "remarks": list(written.remarks),
    }
