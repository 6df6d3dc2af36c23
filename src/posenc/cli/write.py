"""`posenc write`: a longer context in the words of a stack, read back by its rules before it is written."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posenc.cli import output
from posenc.cli.parameters import parameters

if TYPE_CHECKING:
    from posenc.extend.stretch import Stretched
    from posenc.extend.write import Written


def write_context(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A config.json, a directory with one, or a name as qwen3-8b.")
    ],
    method: Annotated[str, typer.Option(metavar="NAME", help="linear, ntk, dynamic, yarn, llama3, base, longrope.")],
    to: Annotated[str, typer.Option(metavar="STACK", help="hf5, hf4, vllm, sglang, llamacpp, gguf, mlx, ...")],
    factor: Annotated[float | None, typer.Option(help="How many times longer than the texts of training.")] = None,
    target_len: Annotated[int | None, typer.Option(metavar="N", help="The length wanted, in positions.")] = None,
    trained_len: Annotated[
        int | None, typer.Option(metavar="N", help="The length of the texts of training.", show_default="as known")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A parameter of the method; @FILE for JSON in a file.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it there; of a config.json the whole.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The text, lengths and remarks as JSON.")] = False,
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
        options=parameters("write", option or []),
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
    target = Path(os.path.realpath(path))  # a link stays a link
    if target.is_dir():
        raise ValueError(f"write: --out must name a file; got the directory {str(path)!r}.")
    if target.exists() and not force:
        raise ValueError(f"write: {str(path)!r} is there already. Take another name, or --force to replace it.")
    aside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        try:
            aside.write_text(text + "\n", "utf-8")
            os.replace(aside, target)
        finally:
            aside.unlink(missing_ok=True)
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
