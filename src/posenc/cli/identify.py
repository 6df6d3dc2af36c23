"""`posenc identify`: what position code computes, without a specification."""

from typing import TYPE_CHECKING

import click

from posenc.cli import output
from posenc.cli.verify import announce, repeat, run_here

if TYPE_CHECKING:
    from posenc.verify.identity.identify import Identification

_WIDTH = 100
_LABEL = 20  # characters of the column of names


@click.command()
@click.argument("target", help="FILE.py or package.module:OBJECT; a file has build().")
@click.option(
    "--convention", metavar="NAME", help="Its calling convention: rope_fn, hf_rope, ...", show_default="STYLE, or found"
)
@click.option(
    "--head-dim",
    type=click.IntRange(2, 4096),
    metavar="N",
    help="The head dimension of the inputs.",
    show_default="SPEC's, or found",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("--in-process", is_flag=True, help="Run the code in this process, without limits on time and memory.")
def identify_implementation(
    target: str, convention: str | None, head_dim: int | None, as_json: bool, in_process: bool
) -> None:
    """Report what position code computes, without a specification; `posenc verify` judges it.

    Reports pairing, rotary_dim, base, scaling, gain, direction, first position and precision, or why one of them
    cannot be determined. The code is imported and run. Exit codes: 0 identified, 2 usage error, 3 cannot tell.
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
        refused = (outcome.refused or "").removeprefix("verify: ")
        raise ValueError(f"identify: {refused}")
    if as_json:
        output.write_json({"target": target, "told": found.is_known, **found.to_dict()})
    else:
        output.write(_text(found, target))
    if not found.is_known:
        raise click.exceptions.Exit(3)


def _text(found: "Identification", target: str) -> str:
    """Return the verdict, a line for each known property, and a line for each unknown one."""
    from posenc.verify.sentences import printable

    convention = f" as {found.convention}" if found.convention else ""
    lines = [f"{'identified' if found.is_known else 'cannot tell'}: {target}{convention}"]
    for name, value in [*found.lines().items(), *(("cannot tell", " ".join(why.split())) for why in found.unknown)]:
        lines.append(output.wrap(value, _WIDTH, " " * (_LABEL + 2), f"  {name:<{_LABEL}}"))
    return "\n".join(printable(part) for line in lines for part in line.split("\n"))
