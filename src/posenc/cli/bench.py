"""`posenc bench`: time and memory of attention with a bias, and of rotation. This file only reads the arguments."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from posenc.cli import output
from posenc.cli.study import split_list

DTYPES = ("float32", "bfloat16", "float16")
INTERRUPTED = 130  # as a shell reports a program that was interrupted

if TYPE_CHECKING:
    from posenc.bench.rows import Row

_length = click.option(
    "--length", multiple=True, metavar="N,...", help="Sequence lengths in tokens.", show_default="by row"
)
_dtype = click.option(
    "--dtype", multiple=True, metavar="NAME,...", help=f"Any of {', '.join(DTYPES)}.", show_default="by row"
)
_only = click.option(
    "--only", metavar="PATTERN", help="Measure only rows whose name contains this: t5, decode, '*.4096.float32'."
)
_quick = click.option("--quick", is_flag=True, help="256 tokens and 2 rounds: only shows that it runs.")
_as_json = click.option("--json", "as_json", is_flag=True, help="Print the results as a JSON object.")


@click.group(invoke_without_command=True)
@click.pass_context
def bench(ctx: click.Context) -> None:
    """Measure the time and memory of encodings on this machine."""
    if ctx.invoked_subcommand is None:
        output.write(ctx.get_help())


@bench.command("attend", short_help="Measure attention with each bias against plain SDPA.")
@_length
@_dtype
@_only
@_quick
@click.option(
    "--explain", is_flag=True, help="Print which backends accept each row, and why others refuse; measure nothing."
)
@_as_json
@click.pass_context
def bench_attend(
    ctx: click.Context,
    length: tuple[str, ...],
    dtype: tuple[str, ...],
    only: str | None,
    quick: bool,
    explain: bool,
    as_json: bool,
) -> None:
    """Measure time and memory of attention with each position bias against plain SDPA.

    Rows with goals are compared with plain SDPA in the same round, and with
    other implementations that are installed. Ctrl-C prints the results so
    far.
    """
    _run(ctx, "attend", length, dtype, only, quick, as_json, explain=explain)


@bench.command("rotary", short_help="Measure the rotation of queries and keys against a copy.")
@_length
@_dtype
@_only
@click.option("--reuse-pages", is_flag=True, help="Call posenc.reuse_pages() first (Linux, glibc).")
@_quick
@_as_json
@click.pass_context
def bench_rotary(
    ctx: click.Context,
    length: tuple[str, ...],
    dtype: tuple[str, ...],
    only: str | None,
    reuse_pages: bool,
    quick: bool,
    as_json: bool,
) -> None:
    """Measure the rotation of queries and keys against a copy of them.

    Covers posenc's backends (in place, into given memory, into new memory),
    other libraries that are installed, and a small Llama of transformers
    with and without posenc.hf.use. Ctrl-C prints the results so far.
    """
    _run(ctx, "rotary", length, dtype, only, quick, as_json, reuse_pages=reuse_pages)


def _run(
    ctx: click.Context,
    command: str,
    length: Sequence[str],
    dtype: Sequence[str],
    only: str | None,
    quick: bool,
    as_json: bool,
    **more: bool,
) -> None:
    """Choose rows and measure them; `more` holds the options that only one command has."""
    lengths = [_read_length(ctx, item) for item in _split(ctx, "--length", length)]
    dtypes = [_read_dtype(ctx, item) for item in _split(ctx, "--dtype", dtype)]
    from posenc import memory
    from posenc.bench import report, rows  # here, since they import torch

    chosen = rows.choose(command, lengths, dtypes, only, quick=quick)
    if not chosen:
        known = ", ".join(dict.fromkeys(row.name for of, row, _ in rows.ROWS if of == command))
        _refuse(ctx, "--only", f"no row matches {only!r}. The rows are {known}, each followed by .LENGTH.DTYPE.")
    if more.get("reuse_pages") and not memory.reuse_pages():
        _refuse(
            ctx,
            "--reuse-pages",
            "this process does not use glibc's malloc, so there is nothing to set. Leave the option out.",
        )
    options = {"lengths": lengths, "dtypes": dtypes, "only": only, "quick": quick} | more
    _measure(report.begin(command, chosen, **options), chosen, as_json)


def _measure(found: dict[str, Any], chosen: "list[Row]", as_json: bool) -> None:
    """Measure the rows one by one and print each as soon as it is measured, until the end or Ctrl-C."""
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
    raise click.exceptions.Exit(0 if found["complete"] else INTERRUPTED)


def _fold(line: str) -> str:
    """Wrap a long sentence; the lines of tables fit already."""
    width = output.console().width
    return line if len(line) <= width else output.wrap(line, width, "    ", "")


def _refuse(ctx: click.Context, option: str, why: str) -> NoReturn:
    raise click.BadParameter(why, ctx=ctx, param_hint=option)


def _split(ctx: click.Context, option: str, given: Sequence[str]) -> list[str]:
    read = split_list(given)
    if given and not read:
        _refuse(ctx, option, "got nothing between the commas. Give a value, or leave the option out.")
    return read


def _read_length(ctx: click.Context, given: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,8}", given, re.ASCII) or int(given) < 16:
        _refuse(ctx, "--length", f"lengths are whole numbers from 16 with commas between; got {given!r}.")
    return int(given)


def _read_dtype(ctx: click.Context, given: str) -> str:
    if given not in DTYPES:
        _refuse(ctx, "--dtype", f"must be one of {', '.join(DTYPES)}; got {given!r}.")
    return given
