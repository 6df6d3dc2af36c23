"""`posenc study`: compare encodings on your own text and on tasks. This file only reads the arguments."""

import json
import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from posenc import languages

if TYPE_CHECKING:
    from rich.console import Console

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_PLAN: dict[str, type] = {  # the keys of a plan and their types
    "text": list, "task": list, "encodings": list, "size": list, "train_len": int, "test_len": list, "seeds": int,
    "budget": str, "steps": int, "lengths": dict,
}  # fmt: skip

_PATH = click.Path(path_type=Path)
_folder = click.argument("folder", type=_PATH, metavar="DIR", help="A study's directory.")
_callback = click.option(
    "--callback",
    multiple=True,
    metavar="NAME,...",
    help="Report each finished cell to tensorboard, mlflow, wandb, or package.module:function.",
)
_as_json = click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
_lang = click.option(
    "--lang", type=click.Choice(languages.LANGUAGES), default="en", help="The language of the report and the summary."
)


@click.group(invoke_without_command=True)
@click.option(
    "--text",
    multiple=True,
    metavar="FILE,...",
    help="Text files to train and test on.",
    show_default="the built-in text",
)
@click.option(
    "--task",
    multiple=True,
    metavar="NAME,...",
    help="Tasks, such as text, copy, addition:reversed@coupling.",
    show_default="text",
)
@click.option(
    "--encodings",
    multiple=True,
    metavar="NAME,...",
    help="Names of encodings, or package.module:Class for your own.",
    show_default="some of each family",
)
@click.option(
    "--size", multiple=True, metavar="WxLxH,...", help="Sizes of models: width, layers, heads.", show_default="64x2x4"
)
@click.option(
    "--train-len", type=click.IntRange(1), metavar="N", help="Length of a training text, in bytes.", show_default="64"
)
@click.option(
    "--test-len",
    multiple=True,
    metavar="N,...",
    help="Test lengths.",
    show_default="1, 2, 4, 8 and 16 times train-len",
)
@click.option("--seeds", type=click.IntRange(1), metavar="N", help="Training runs of each encoding.", show_default="2")
@click.option("--budget", metavar="TIME", help="Time for the whole study: 240s, 4m, 1h.", show_default="270s")
@click.option("--steps", type=click.IntRange(1), metavar="N", help="Training steps per cell, instead of a budget.")
@click.option("--plan", type=_PATH, metavar="FILE", help="A plan in TOML; options override it.")
@click.option("--dry-run", is_flag=True, help="Print the cells and their cost without training.")
@click.option("--engine", default="local", metavar="NAME", help="local, or ray for a Ray cluster.")
@click.option("--address", metavar="ADDRESS", help="The address of the Ray cluster: auto, or host:port.")
@click.option(
    "--workers",
    type=click.IntRange(0),
    metavar="N",
    help="Cells to train at a time; 0 leaves them to `posenc study worker`.",
    show_default="by number of cores",
)
@_callback
@_lang
@click.option("--out", default="study", metavar="DIR", help="The directory of the results and the report.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.pass_context
def study_encodings(
    ctx: click.Context,
    text: tuple[str, ...],
    task: tuple[str, ...],
    encodings: tuple[str, ...],
    size: tuple[str, ...],
    train_len: int | None,
    test_len: tuple[str, ...],
    seeds: int | None,
    budget: str | None,
    steps: int | None,
    plan: Path | None,
    dry_run: bool,
    engine: str,
    address: str | None,
    workers: int | None,
    callback: tuple[str, ...],
    lang: str,
    out: str,
    as_json: bool,
) -> None:
    """Train small models with each encoding on short texts and tasks, and test them on longer ones."""
    if ctx.invoked_subcommand:
        ctx.default_map = {"report": {"lang": lang}}  # `posenc study --lang zh report DIR` means the report's language
        return
    lists = {"text": text, "task": task, "encodings": encodings, "size": size, "test_len": test_len}
    asked: dict[str, Any] = {} if plan is None else _read_plan(ctx, plan)
    for name, given in lists.items():
        if given:
            asked[name] = split_list(given)
            if not asked[name]:
                _refuse(ctx, name, "got nothing between the commas. Give a value, or leave the option out.")
    asked |= {name: n for name, n in (("train_len", train_len), ("seeds", seeds)) if n is not None}
    if budget is not None and steps is not None:
        _refuse(
            ctx, "budget", f"a budget sets the number of steps; got {budget} and --steps {steps}. Give one of them."
        )
    if budget is not None or steps is not None:
        asked |= {"budget": budget, "steps": steps}
    if workers == 0 and not asked.get("steps"):
        _refuse(
            ctx,
            "workers",
            "with 0 workers no step is timed here, so a budget cannot set the number of steps. Give --steps.",
        )
    if engine not in ("local", "ray") or (address and engine != "ray"):
        _refuse(ctx, "engine", f"must be local or ray, and --address is only for ray; got {engine!r}.")
    asked["test_len"] = [_read_length(ctx, item) for item in asked.get("test_len", ())]
    with languages.use(lang):
        code = _run(ctx, asked, engine, address, workers, out, split_list(callback), dry_run, as_json)
    raise click.exceptions.Exit(code)


def _run(
    ctx: click.Context,
    asked: dict[str, Any],
    engine: str,
    address: str | None,
    workers: int | None,
    out: str,
    callbacks: list[str],
    dry_run: bool,
    as_json: bool,
) -> int:
    from posenc.study.command import run  # here, since it imports torch
    from posenc.study.config import make_config
    from posenc.study.engines import Engine, Local

    steps = asked.get("steps")
    config = make_config(
        asked.get("encodings", ()),
        asked.get("train_len", 64),
        asked["test_len"],
        asked.get("seeds", 2),
        None if steps else _read_duration(ctx, asked.get("budget") or "270s"),
        steps,
        asked.get("task", ()),
        asked.get("size", ()),
        asked.get("lengths"),
    )
    chosen: Engine = Local(workers)
    if engine == "ray":
        from posenc.study.on_ray import OnRay

        chosen = OnRay(address, workers)
    given: dict[str, Any] = {"callbacks": callbacks, "dry_run": dry_run, "wait": workers != 0, "as_json": as_json}
    return run(config, asked.get("text", ()), out, chosen, **given)


@study_encodings.command("worker")
@_folder
@click.option("--device", default="", metavar="NAME", help="cpu, cuda, cuda:1, ...", show_default="a GPU")
def work(folder: Path, device: str) -> None:
    """Train a study's cells until none is left. Run any number of workers, on any machines that share DIR."""
    from posenc.study.worker import work as work_on

    raise click.exceptions.Exit(0 if work_on(folder, device, say=click.echo) else 1)


@study_encodings.command("report")
@_folder
@_callback
@_lang
def write_report(folder: Path, callback: tuple[str, ...], lang: str) -> None:
    """Write DIR's report from the finished cells."""
    from posenc.study.command import report

    with languages.use(lang):
        code = report(folder, split_list(callback))
    raise click.exceptions.Exit(code)


@study_encodings.command("status")
@_folder
@_as_json
def show_status(folder: Path, as_json: bool) -> None:
    """Show a study's progress: cells done, running, waiting and failed."""
    from posenc.study import status

    found = status.status(folder)
    _print(found, status.print_status, as_json)
    raise click.exceptions.Exit(1 if found["failed"] else 0)


@study_encodings.command("compare")
@click.argument("a", type=_PATH, help="A study's directory.")
@click.argument("b", type=_PATH, help="Another study's directory.")
@_as_json
def compare_studies(a: Path, b: Path, as_json: bool) -> None:
    """Compare two studies by the cells that they share."""
    from posenc.study import compare

    _print(compare.compare(a, b), compare.print_comparison, as_json)


@study_encodings.command("export")
@_folder
@click.option("--to", default="csv", help="The format: csv or parquet.")
def export_results(folder: Path, to: str) -> None:
    """Write DIR/results.csv or DIR/results.parquet: a row for each cell, measure and length."""
    from posenc.study.export import export

    click.echo(str(export(folder, to)))


def _print(found: dict[str, Any], show: "Callable[[dict[str, Any], Console], None]", as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(found))
    else:
        from rich.console import Console

        show(found, Console(highlight=False))


def _read_plan(ctx: click.Context, path: Path) -> dict[str, Any]:
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        _refuse(ctx, "plan", f"cannot read {path}: {error}.")
    for key, value in found.items():
        kind = _PLAN.get(key)
        if kind is None or not isinstance(value, kind) or isinstance(value, bool):
            known = ", ".join(f"{name} ({kind.__name__})" for name, kind in _PLAN.items())
            _refuse(ctx, "plan", f"{path} contains {key} = {value!r}. A plan may contain: {known}.")
        if isinstance(value, list):
            found[key] = [str(item) for item in value]
    if {"budget", "steps"} <= found.keys():
        _refuse(
            ctx, "plan", f"{path} contains both budget and steps. A budget sets the number of steps. Give one of them."
        )
    return found


def split_list(given: Sequence[str]) -> list[str]:
    """Split values at commas, whether an option was given once or several times.

    >>> split_list(["rope, alibi", "t5"])
    ['rope', 'alibi', 't5']
    """
    return [item.strip() for value in given for item in value.split(",") if item.strip()]


def read_seconds(text: str) -> float:
    """Read a duration: seconds, or a number with s, m or h.

    Raises:
        ValueError: `text` is no duration above zero.

    >>> read_seconds("4m"), read_seconds("1.5h"), read_seconds("90")
    (240.0, 5400.0, 90.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip().lower(), re.ASCII)
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"must be a time above zero, such as 240s, 4m, 1h or a number of seconds; got {text!r}.")
    return seconds


def _read_duration(ctx: click.Context, given: str) -> float:
    try:
        return read_seconds(given)
    except ValueError as error:
        _refuse(ctx, "budget", str(error))


def _read_length(ctx: click.Context, given: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,8}", given, re.ASCII):
        _refuse(ctx, "test_len", f"lengths must be whole numbers above zero, separated by commas; got {given!r}.")
    return int(given)


def _refuse(ctx: click.Context, option: str, why: str) -> NoReturn:
    raise click.BadParameter(why, ctx=ctx, param_hint=f"--{option.replace('_', '-')}")
