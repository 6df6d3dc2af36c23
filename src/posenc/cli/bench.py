"""`posenc bench attend`: what attention with a position bias costs here. Only the arguments are read in this file."""

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posenc.cli import output
from posenc.cli.study import split_list

if TYPE_CHECKING:
    from posenc.bench.rows import Row

DTYPES = ("float32", "bfloat16", "float16")
INTERRUPTED = 130  # as a shell reports a program that was interrupted

app = typer.Typer(help="Measure on this machine what position costs.", rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def _start(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        output.write(ctx.get_help())


@app.command("attend", short_help="Attention with each bias beside plain SDPA.")
def bench_attend(
    ctx: typer.Context,
    length: Annotated[
        list[str] | None, typer.Option(metavar="N,...", help="Tokens.", show_default="1024 to 16384 by row")
    ] = None,
    dtype: Annotated[
        list[str] | None, typer.Option(metavar="NAME,...", help=f"Of {', '.join(DTYPES)}.", show_default="by row")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Rows with this in their name: t5, train, 't5.*.4096.float32'."),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Also 65,536 tokens, growth, long peers: an hour.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="256 tokens, 2 rounds: shows that it runs.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="What each backend says; measures nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The same as a JSON object.")] = False,
) -> None:
    """Measure attention with each position bias beside plain SDPA: time and memory.

    Rows with goals are compared with plain SDPA in the same round, and with
    other ways to the same result where they are installed. Ctrl-C prints what
    was measured so far.
    """
    lengths = [_read_length(ctx, item) for item in split_list(length)]
    dtypes = [_read_dtype(ctx, item) for item in split_list(dtype)]
    for option, given, read in (("--length", length, lengths), ("--dtype", dtype, dtypes)):
        if given is not None and not read:
            said = "got nothing between the commas; name something, or leave the option out."
            raise typer.BadParameter(said, ctx=ctx, param_hint=option)
    from posenc.bench import attend, rows  # here, since they import torch

    chosen = rows.choose(lengths, dtypes, only, full=full, quick=quick)
    if not chosen:
        names = ", ".join(dict.fromkeys(row.name for row in rows.choose([], [], None, full=True)))
        said = f"no row matches {only!r}. The rows are {names}, each with .LENGTH.DTYPE behind."
        raise typer.BadParameter(said, ctx=ctx, param_hint="--only")
    options = {"lengths": lengths, "dtypes": dtypes, "only": only, "full": full, "quick": quick, "explain": explain}
    report = attend.begin(chosen, **options)
    try:
        _go(report, chosen, explain=explain, full=full, as_json=as_json)
        report["complete"] = True
    except KeyboardInterrupt:
        if not as_json:
            output.write(f"\nInterrupted: {len(report['rows'])} of {len(chosen)} rows are above.")
    if as_json:
        output.write_json(report)
    raise typer.Exit(0 if report["complete"] else INTERRUPTED)


def _go(report: dict[str, Any], chosen: "list[Row]", *, explain: bool, full: bool, as_json: bool) -> None:
    """Measure row after row into the report, each written as soon as it is there."""
    from posenc.bench import attend, machine, text

    def say(*lines: str) -> None:
        if not as_json:
            output.write("\n".join(_fold(line) for line in lines))

    say(f"{machine.sentence(report['machine'])}.")
    if not explain:
        say(text.NOTE, "", text.HEADING)
    for row in chosen:
        found = attend.explain_row(row) if explain else attend.measure_row(row, full=full)
        report["rows"].append(found)
        say("", *(text.verdict_lines(found) if explain else text.row_lines(found)))
    for growth in () if explain else attend.grow(report["rows"]):
        report["growth"].append(growth)
        say("", *text.growth_lines(growth))


def _fold(line: str) -> str:
    """Break a sentence that is too long; tables are not."""
    width = output.console().width
    return line if len(line) <= width else output.wrap(line, width, "    ", "")


def _read_length(ctx: typer.Context, given: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,8}", given, re.ASCII) or int(given) < 16:
        said = f"lengths are whole numbers from 16 with commas between; got {given!r}."
        raise typer.BadParameter(said, ctx=ctx, param_hint="--length")
    return int(given)


def _read_dtype(ctx: typer.Context, given: str) -> str:
    if given not in DTYPES:
        raise typer.BadParameter(f"takes {', '.join(DTYPES)}; got {given!r}.", ctx=ctx, param_hint="--dtype")
    return given
