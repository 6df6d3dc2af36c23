"""`posenc identify`: what position code computes, without a specification."""

from typing import TYPE_CHECKING

import click

from posenc.cli import output
from posenc.cli.verify import announce, repeat, run_here

if TYPE_CHECKING:
    from posenc.verify.identity.identify import Identification

_WIDTH = 100
_LABEL = 20  # columns of a line's name


@click.command()
@click.argument("target", help="FILE.py or package.module:OBJECT; a file has build().")
@click.option(
    "--convention", metavar="NAME", help="How it is called: rope_fn, hf_rope, ...", show_default="STYLE, or found"
)
@click.option(
    "--head-dim",
    type=click.IntRange(2, 4096),
    metavar="N",
    help="Head dimension to feed.",
    show_default="SPEC's, or found",
)
@click.option("--json", "as_json", is_flag=True, help="What was found as JSON.")
@click.option("--in-process", is_flag=True, help="Run the code here, without limits of time and memory.")
def identify_implementation(
    target: str, convention: str | None, head_dim: int | None, as_json: bool, in_process: bool
) -> None:
    """Report what position code computes, without a specification; `posenc verify` judges it.

    Pairing, rotated width, base, scaling, gain, direction, first position and precisions; or why they cannot be read.
    The code is imported and run. Exit codes: 0 identified, 2 wrong use, 3 cannot tell.
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
        output.write_json({"target": target, "told": found.is_known, **found.to_dict()})
    else:
        output.write(_text(found, target))
    if not found.is_known:
        raise click.exceptions.Exit(3)


def _text(found: "Identification", target: str) -> str:
    """Return the verdict, a line for each thing that is known, and one for each that is not."""
    from posenc.verify.sentences import printable

    convention = f" as {found.convention}" if found.convention else ""
    lines = [f"{'identified' if found.is_known else 'cannot tell'}: {target}{convention}"]
    for name, value in [*found.lines().items(), *(("cannot tell", " ".join(why.split())) for why in found.unknown)]:
        lines.append(output.wrap(value, _WIDTH, " " * (_LABEL + 2), f"  {name:<{_LABEL}}"))
    return "\n".join(printable(part) for line in lines for part in line.split("\n"))
