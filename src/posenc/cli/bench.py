"""`posenc bench`: what attention with a bias and what rotary cost here. Only the arguments are read in this file."""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posenc.cli import output
from posenc.cli.study import split_list

DTYPES = ("float32", "bfloat16", "float16")
INTERRUPTED = 130  # as a shell reports a program that was interrupted

if TYPE_CHECKING:
    from posenc.bench.rows import Row

Lines = Callable[..., None]  # writes lines
Length = Annotated[list[str] | None, typer.Option(metavar="N,...", help="Tokens.", show_default="1024 to 16384 by row")]
Dtype = Annotated[
    list[str] | None, typer.Option(metavar="NAME,...", help=f"Of {', '.join(DTYPES)}.", show_default="by row")
]
AsJson = Annotated[bool, typer.Option("--json", help="The same as a JSON object.")]
app = typer.Typer(help="Measure on this machine what position costs.", rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def _start(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        output.write(ctx.get_help())


@app.command("attend", short_help="Attention with each bias next to plain SDPA.")
def bench_attend(
    ctx: typer.Context,
    length: Length = None,
    dtype: Dtype = None,
    only: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Rows with this in their name: t5, train, 't5.*.4096.float32'."),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Also 65,536 tokens, growth, long peers: an hour.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="256 tokens, 2 rounds: shows that it runs.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="What each backend says; measures nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure attention with each position bias next to plain SDPA: time and memory.

    Rows with goals are compared with plain SDPA in the same round, and with
    other ways to the same result where they are installed. Ctrl-C prints what
    was measured so far.
    """
    lengths, dtypes = _read_lists(ctx, length, dtype)
    from posenc.bench import attend, report, rows  # here, since they import torch

    small = attend.QUICK if quick else None
    chosen = rows.choose(attend.templates(), lengths, dtypes, only, full=full, quick=small)
    _check_any(ctx, chosen, only, [template.row.name for template in attend.templates()])
    options = {"lengths": lengths, "dtypes": dtypes, "only": only, "full": full, "quick": quick, "explain": explain}
    found = report.begin("attend", chosen, **options)
    _run(found, as_json, lambda write: _measure(found, chosen, write, explain=explain))


@app.command("rotary", short_help="Rotation of queries and keys next to a copy.")
def bench_rotary(
    ctx: typer.Context,
    length: Annotated[
        list[str] | None, typer.Option(metavar="N,...", help="Tokens of long rows.", show_default="4096")
    ] = None,
    dtype: Dtype = None,
    only: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Rows with this in their name: decode, llama, 'long.*.float32'."),
    ] = None,
    reuse_pages: Annotated[
        bool, typer.Option("--reuse-pages", help="Call posenc.reuse_pages() first (Linux, glibc).")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="64 tokens, 2 rounds: shows that it runs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure rotation of queries and keys next to a copy of them.

    Ours by backend, in place, into given memory and with a fresh output,
    other libraries where they are installed, and a small Llama of
    transformers with and without posenc.hf.use. Ctrl-C prints what was
    measured so far.
    """
    lengths, dtypes = _read_lists(ctx, length, dtype)
    from posenc import memory
    from posenc.bench import report, rotary, rows  # here, since they import torch

    small = rotary.QUICK if quick else None
    chosen = rows.choose(rotary.templates(), lengths, dtypes, only, quick=small)
    _check_any(ctx, chosen, only, [template.row.name for template in rotary.templates()])
    if reuse_pages and not memory.reuse_pages():
        said = "malloc is not glibc's here, so nothing can be set. Leave the option out."
        raise typer.BadParameter(said, ctx=ctx, param_hint="--reuse-pages")
    options = {"lengths": lengths, "dtypes": dtypes, "only": only, "quick": quick, "reuse_pages": reuse_pages}
    found = report.begin("rotary", chosen, **options)
    _run(found, as_json, lambda write: _measure(found, chosen, write))


def _run(report: dict[str, Any], as_json: bool, measure: Callable[[Lines], None]) -> None:
    """Measure row after row into the report, each written as soon as it is there, until the end or Ctrl-C."""

    def write(*lines: str) -> None:
        if not as_json:
            output.write("\n".join(_fold(line) for line in lines))

    try:
        measure(write)
        report["complete"] = True
    except KeyboardInterrupt:
        write(f"\nInterrupted: {len(report['rows'])} of {report['asked']} rows are above.")
    if as_json:
        output.write_json(report)
    raise typer.Exit(0 if report["complete"] else INTERRUPTED)


def _measure(found: dict[str, Any], chosen: "list[Row]", write: Lines, *, explain: bool = False) -> None:
    from posenc.bench import attend, machine, report

    write(f"{machine.sentence(found['machine'])}.")
    if not explain:
        write(report.NOTE, "", report.HEADING)
    for row in (row for row in chosen if row.kind == "attend" or not explain):
        one = attend.explain_row(row) if explain else report.measure_row(row)
        found["rows"].append(one)
        write("", *(attend.verdict_lines(one) if "verdicts" in one else report.row_lines(one)))


def _fold(line: str) -> str:
    """Break a sentence that is too long; tables are not."""
    width = output.console().width
    return line if len(line) <= width else output.wrap(line, width, "    ", "")


def _check_any(ctx: typer.Context, chosen: Sequence[object], only: str | None, names: list[str]) -> None:
    if not chosen:
        known = ", ".join(dict.fromkeys(names))
        why = f"no row matches {only!r}. The rows are {known}, each with .LENGTH.DTYPE behind."
        raise typer.BadParameter(why, ctx=ctx, param_hint="--only")


def _read_lists(ctx: typer.Context, length: list[str] | None, dtype: list[str] | None) -> tuple[list[int], list[str]]:
    lengths = [_read_length(ctx, item) for item in split_list(length)]
    dtypes = [_read_dtype(ctx, item) for item in split_list(dtype)]
    for option, given, read in (("--length", length, lengths), ("--dtype", dtype, dtypes)):
        if given is not None and not read:
            said = "got nothing between the commas; name something, or leave the option out."
            raise typer.BadParameter(said, ctx=ctx, param_hint=option)
    return lengths, dtypes


def _read_length(ctx: typer.Context, given: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,8}", given, re.ASCII) or int(given) < 16:
        said = f"lengths are whole numbers from 16 with commas between; got {given!r}."
        raise typer.BadParameter(said, ctx=ctx, param_hint="--length")
    return int(given)


def _read_dtype(ctx: typer.Context, given: str) -> str:
    if given not in DTYPES:
        raise typer.BadParameter(f"takes {', '.join(DTYPES)}; got {given!r}.", ctx=ctx, param_hint="--dtype")
    return given
