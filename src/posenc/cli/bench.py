"""`posenc bench`: what attention with a bias and what rotary cost here. Only the arguments are read in this file."""

import re
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from posenc.cli import output
from posenc.cli.study import split_list

DTYPES = ("float32", "bfloat16", "float16")
INTERRUPTED = 130  # as a shell reports a program that was interrupted

if TYPE_CHECKING:
    from posenc.bench.rows import Row

Length = Annotated[list[str] | None, typer.Option(metavar="N,...", help="Tokens.", show_default="by row")]
Dtype = Annotated[
    list[str] | None, typer.Option(metavar="NAME,...", help=f"Of {', '.join(DTYPES)}.", show_default="by row")
]
Only = Annotated[
    str | None, typer.Option(metavar="PATTERN", help="Rows with this in their name: t5, decode, '*.4096.float32'.")
]
Quick = Annotated[bool, typer.Option("--quick", help="256 tokens, 2 rounds: shows that it runs.")]
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
    only: Only = None,
    quick: Quick = False,
    explain: Annotated[bool, typer.Option("--explain", help="What each backend says; measures nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure attention with each position bias next to plain SDPA: time and memory.

    Rows with goals are compared with plain SDPA in the same round, and with
    other ways to the same result where they are installed. Ctrl-C prints what
    was measured so far.
    """
    _run(ctx, "attend", length, dtype, only, quick, as_json, explain=explain)


@app.command("rotary", short_help="Rotation of queries and keys next to a copy.")
def bench_rotary(
    ctx: typer.Context,
    length: Length = None,
    dtype: Dtype = None,
    only: Only = None,
    reuse_pages: Annotated[
        bool, typer.Option("--reuse-pages", help="Call posenc.reuse_pages() first (Linux, glibc).")
    ] = False,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Measure rotation of queries and keys next to a copy of them.

    Ours by backend, in place, into given memory and with a fresh output,
    other libraries where they are installed, and a small Llama of
    transformers with and without posenc.hf.use. Ctrl-C prints what was
    measured so far.
    """
    _run(ctx, "rotary", length, dtype, only, quick, as_json, reuse_pages=reuse_pages)


def _run(
    ctx: typer.Context,
    command: str,
    length: list[str] | None,
    dtype: list[str] | None,
    only: str | None,
    quick: bool,
    as_json: bool,
    **more: bool,
) -> None:
    """Choose rows and measure them; `more` are the options that only one command has."""
    lengths = [_read_length(ctx, item) for item in _split(ctx, "--length", length)]
    dtypes = [_read_dtype(ctx, item) for item in _split(ctx, "--dtype", dtype)]
    from posenc import memory
    from posenc.bench import report, rows  # here, since they import torch

    chosen = rows.choose(command, lengths, dtypes, only, quick=quick)
    if not chosen:
        known = ", ".join(dict.fromkeys(row.name for of, row, _ in rows.ROWS if of == command))
        _refuse(ctx, "--only", f"no row matches {only!r}. The rows are {known}, each with .LENGTH.DTYPE behind.")
    if more.get("reuse_pages") and not memory.reuse_pages():
        _refuse(ctx, "--reuse-pages", "malloc is not glibc's here, so nothing can be set. Leave the option out.")
    options = {"lengths": lengths, "dtypes": dtypes, "only": only, "quick": quick} | more
    _measure(report.begin(command, chosen, **options), chosen, as_json)


def _measure(found: dict[str, Any], chosen: "list[Row]", as_json: bool) -> None:
    """Measure row after row into the report, each written as soon as it is there, until the end or Ctrl-C."""
    from posenc.bench import machine, report

    def write(*lines: str) -> None:
        if not as_json:
            output.write("\n".join(_fold(line) for line in lines))

    explain = found["options"].get("explain", False)
    try:
        write(f"{machine.sentence(found['machine'])}.", *(() if explain else (report.NOTE, "", report.HEADING)))
        for row in (row for row in chosen if row.kind == "attend" or not explain):
            found["rows"].append(report.explain_row(row) if explain else report.measure_row(row))
            write("", *report.row_lines(found["rows"][-1]))
        found["complete"] = True
    except KeyboardInterrupt:
        write(f"\nInterrupted: {len(found['rows'])} of {found['asked']} rows are above.")
    if as_json:
        output.write_json(found)
    raise typer.Exit(0 if found["complete"] else INTERRUPTED)


def _fold(line: str) -> str:
    """Break a sentence that is too long; tables are not."""
    width = output.console().width
    return line if len(line) <= width else output.wrap(line, width, "    ", "")


def _refuse(ctx: typer.Context, option: str, why: str) -> NoReturn:
    raise typer.BadParameter(why, ctx=ctx, param_hint=option)


def _split(ctx: typer.Context, option: str, given: list[str] | None) -> list[str]:
    read = split_list(given)
    if given is not None and not read:
        _refuse(ctx, option, "got nothing between the commas; name something, or leave the option out.")
    return read


def _read_length(ctx: typer.Context, given: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,8}", given, re.ASCII) or int(given) < 16:
        _refuse(ctx, "--length", f"lengths are whole numbers from 16 with commas between; got {given!r}.")
    return int(given)


def _read_dtype(ctx: typer.Context, given: str) -> str:
    if given not in DTYPES:
        _refuse(ctx, "--dtype", f"takes {', '.join(DTYPES)}; got {given!r}.")
    return given
