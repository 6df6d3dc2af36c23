"""`posenc write`: a longer context in a stack's own keys or flags, checked by its rules before it is written."""

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
@click.argument("target", help="A config.json, a directory with one, or a known name such as qwen3-8b.")
@click.option("--method", required=True, metavar="NAME", help="linear, ntk, dynamic, yarn, llama3, base, longrope.")
@click.option("--to", required=True, metavar="STACK", help="hf5, hf4, vllm, sglang, llamacpp, gguf, mlx, ...")
@click.option("--factor", type=float, help="Target length / trained length.")
@click.option("--target-len", type=int, metavar="N", help="The wanted context length, in positions.")
@click.option(
    "--trained-len", type=int, metavar="N", help="The trained length, in positions.", show_default="that of the file"
)
@click.option("--option", multiple=True, metavar="KEY=VALUE", help="A parameter of the method; @FILE reads JSON.")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="Write to this file; a config.json is written whole."
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option("--json", "as_json", is_flag=True, help="Print the text, lengths and remarks as JSON.")
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
    """Write the exact keys or flags that extend the context in a stack; remarks go to stderr.

    Exit codes: 0 written, 2 usage error, or a method that the stack cannot express.
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
        output.complain(f"write: {to}: remove {', '.join(written.dropped)} from the file, or use --out FILE.")
    for remark in written.remarks:
        output.complain(f"write: {remark}")


def _whole(written: "Written") -> str:
    return written.text if written.whole is None else json.dumps(written.whole, indent=2, ensure_ascii=False)


def _save(path: Path, text: str, force: bool) -> None:
    """Write a file atomically."""
    if path.is_dir():
        raise ValueError(f"write: --out must name a file; got the directory {str(path)!r}.")
    if path.exists() and not force:
        raise ValueError(f"write: {str(path)!r} exists. Give another name, or --force to replace it.")
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
