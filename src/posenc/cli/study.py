"""`posenc study`: compare encodings on one's own text. Only the arguments are read here."""

import re
from typing import Annotated

import typer

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def study_encodings(
    ctx: typer.Context,
    text: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE,...", help="Text files to train and test on.", show_default="the built-in text"),
    ] = None,
    encodings: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,...",
            help="Names, or package.module:Class for your own.",
            show_default="a choice from each family",
        ),
    ] = None,
    train_len: Annotated[int, typer.Option(metavar="N", min=1, help="Tokens in a training sequence.")] = 64,
    test_len: Annotated[
        list[str] | None,
        typer.Option(metavar="N,...", help="Lengths to test at.", show_default="1, 2, 4, 8 and 16 times train-len"),
    ] = None,
    seeds: Annotated[int, typer.Option(metavar="N", min=1, help="Trainings of each encoding.")] = 2,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time for all of it: 240s, 4m, 1h.", show_default="240s")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Training steps of a cell, instead of a budget.", show_default=False),
    ] = None,
    out: Annotated[str, typer.Option(metavar="DIR", help="Where the report goes.")] = "study",
    as_json: Annotated[bool, typer.Option("--json", help="The findings as JSON.")] = False,
) -> None:
    """Train small models on short text with each encoding, and test them on longer text."""
    test_lens = [_read_length(ctx, item) for item in split_list(test_len)]
    if budget is not None and steps is not None:
        said = f"a budget sets the number of steps; got --budget {budget} and --steps {steps}. Give one of them."
        raise typer.BadParameter(said, ctx=ctx, param_hint="--budget")
    budget_s = None if steps else _read_duration(ctx, "240s" if budget is None else budget)
    files, names = split_list(text), split_list(encodings)
    for option, given, found in (("--text", text, files), ("--encodings", encodings, names)):
        if given is not None and not found:
            said = "got nothing between the commas; name something, or leave the option out."
            raise typer.BadParameter(said, ctx=ctx, param_hint=option)
    from posenc.study.command import run  # here, since it imports torch

    raise typer.Exit(run(files, names, train_len, test_lens, seeds, budget_s, steps, out, as_json))


def split_list(given: list[str] | None) -> list[str]:
    """Split values at commas, whether an option was given once or several times.

    >>> split_list(["rope, alibi", "t5"])
    ['rope', 'alibi', 't5']
    """
    return [item.strip() for value in given or () for item in value.split(",") if item.strip()]


def read_seconds(text: str) -> float:
    """Read a duration: seconds, or a number with s, m or h.

    Raises:
        ValueError: It is no duration above zero.

    >>> read_seconds("4m"), read_seconds("1.5h"), read_seconds("90")
    (240.0, 5400.0, 90.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip().lower(), re.ASCII)
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"must be a time above zero, as 240s, 4m, 1h or plain seconds; got {text!r}.")
    return seconds


def _read_duration(ctx: typer.Context, given: str) -> float:
    try:
        return read_seconds(given)
    except ValueError as error:
        raise typer.BadParameter(str(error), ctx=ctx, param_hint="--budget") from error


def _read_length(ctx: typer.Context, given: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,8}", given, re.ASCII):
        said = f"lengths are whole numbers above zero with commas between; got {given!r}."
        raise typer.BadParameter(said, ctx=ctx, param_hint="--test-len")
    return int(given)
