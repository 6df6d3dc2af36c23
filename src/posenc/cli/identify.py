"""`posenc identify`: what position code computes, where nobody has said what it should."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from posenc.cli import output
from posenc.cli.verify import announce, repeat, run_here

if TYPE_CHECKING:
    from posenc.verify.identity.identify import Identification

_WIDTH = 100
_LABEL = 20  # columns of a line's name


def identify_implementation(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="FILE.py or package.module:OBJECT; a file has build().")
    ],
    convention: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="How it is called: rope_fn, hf_rope, ...", show_default="STYLE, or found"),
    ] = None,
    head_dim: Annotated[
        int | None,
        typer.Option(metavar="N", min=2, max=4096, help="Lanes of a head to feed.", show_default="SPEC's, or found"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="What was found as JSON.")] = False,
    in_process: Annotated[
        bool, typer.Option("--in-process", help="Run the code here, without limits of time and memory.")
    ] = False,
) -> None:
    """Say what position code computes, without being told what it should; `posenc verify` judges it.

    Pairing, rotated width, base, scaling, gain, direction, first position and precisions; or why they cannot be told.
    The code is imported and run. Exit codes: 0 told, 2 wrong use, 3 cannot tell.
    """
    from posenc.verify import child, conventions
    from posenc.verify.child.target import parse

    where = parse(target)
    if convention is not None:
        conventions.named(convention, "--convention")
    announce("identify", target, in_process, child.TIME_LIMIT, child.MEMORY_LIMIT)
    spec = None if head_dim is None else {"head_dim": head_dim}
    run = run_here if in_process else child.run
    outcome = run(where, convention=convention, spec=spec, task="identify")
    repeat(outcome.printed)
    found = outcome.identified
    if found is None:
        raise ValueError(outcome.refused)
    if as_json:
        output.write_json({"target": target, "told": found.told, **found.to_dict()})
    else:
        output.write(_text(found, target))
    if not found.told:
        raise typer.Exit(3)


def _text(found: "Identification", target: str) -> str:
    """Return the verdict, a line for each thing that is known, and one for each that is not."""
    from posenc.verify.formats import printable

    convention = f" as {found.convention}" if found.convention else ""
    lines = [f"{'told' if found.told else 'cannot tell'}: {target}{convention}"]
    if found.kind == "rotation":
        lines += [_line(name, said) for name, said in _rotation(found)]
    elif found.kind != "unknown":
        lines.append(output.wrap(found.sentence(), _WIDTH, "    ", "  "))
    lines += [_line("cannot tell", " ".join(why.split())) for why in found.unknown]
    return "\n".join(printable(part) for line in lines for part in line.split("\n"))


def _line(name: str, said: str) -> str:
    return output.wrap(said, _WIDTH, " " * (_LABEL + 2), f"  {name:<{_LABEL}}")


def _rotation(found: "Identification") -> list[tuple[str, str]]:
    from posenc.verify.identity.identify import number

    told: list[tuple[str, Any]] = [("pairing", found.pairing)]
    if found.rotary_dim is not None:
        begin = "" if found.first_lane is None else f", from lane {found.first_lane} on"
        told.append(("rotated width", f"{found.rotary_dim} of {found.head_dim} lanes{begin}"))
    told.append(("base", found.base))
    if found.scaling is not None:
        listed = ", ".join(f"{key} {number(value)}" for key, value in found.parameters.items() if value is not None)
        told.append(("scaling", f"{found.scaling}{f' ({listed})' if listed else ''}"))
    told += [("gain", found.gain), ("direction", found.direction), ("first position", found.first_position)]
    for dtype, parts in found.precision.items():
        told.append((f"fed {dtype}", ", ".join(f"{what} in {name}" for what, name in parts.items())))
    return [(name, value if isinstance(value, str) else number(value)) for name, value in told if value is not None]
