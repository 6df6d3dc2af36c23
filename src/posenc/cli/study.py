"""`posenc study`: compare encodings on one's own text and on tasks. Only the arguments are read here."""

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_PLAN: dict[str, type] = {  # what a plan may say, and of which kind it is
    "text": list, "task": list, "encodings": list, "size": list, "train_len": int, "test_len": list, "seeds": int,
    "budget": str, "steps": int, "lengths": dict,
}  # fmt: skip

app = typer.Typer(rich_markup_mode=None, add_completion=False)
_Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A study's directory.")]
_Callback = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME,...",
        help="What hears of a cell that is done: tensorboard, mlflow, wandb, or package.module:function.",
        show_default=False,
    ),
]
_AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]


@app.callback(invoke_without_command=True)
def study_encodings(
    ctx: typer.Context,
    text: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE,...", help="Text files to train and test on.", show_default="the built-in text"),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME,...", help="Such as text, copy, addition:reversed@coupling.", show_default="text"),
    ] = None,
    encodings: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,...",
            help="Names, or package.module:Class for your own.",
            show_default="a choice from each family",
        ),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(metavar="WxLxH,...", help="Models: width, layers, heads.", show_default="64x2x4"),
    ] = None,
    train_len: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Bytes in a training sequence of text.", show_default="64")
    ] = None,
    test_len: Annotated[
        list[str] | None,
        typer.Option(metavar="N,...", help="Lengths to test at.", show_default="1, 2, 4, 8 and 16 times train-len"),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Trainings of each encoding.", show_default="2")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time for all of it: 240s, 4m, 1h.", show_default="270s")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Training steps of a cell, instead of a budget.", show_default=False),
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A plan in TOML; options go before it.", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the cells and their cost, and train none.")] = False,
    engine: Annotated[str, typer.Option(metavar="NAME", help="local, or ray for a Ray cluster.")] = "local",
    address: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Of the Ray cluster: auto, or host:port.", show_default=False)
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, help="Cells at a time; 0 leaves them to `posenc study worker`.", show_default="by cores"
        ),
    ] = None,
    callback: _Callback = None,
    out: Annotated[str, typer.Option(metavar="DIR", help="Where the report goes.")] = "study",
    as_json: Annotated[bool, typer.Option("--json", help="The findings as JSON.")] = False,
) -> None:
    """Train small models with each encoding on short texts and tasks, and test them on longer ones."""
    if ctx.invoked_subcommand:
        return
    lists = {"text": text, "task": task, "encodings": encodings, "size": size, "test_len": test_len}
    asked: dict[str, Any] = {} if plan is None else _read_plan(ctx, plan)
    for name, given in lists.items():
        if given is not None:
            asked[name] = split_list(given)
            if not asked[name]:
                _refuse(ctx, name, "got nothing between the commas; name something, or leave the option out.")
    asked |= {name: n for name, n in (("train_len", train_len), ("seeds", seeds)) if n is not None}
    if budget is not None and steps is not None:
        _refuse(
            ctx, "budget", f"a budget sets the number of steps; got {budget} and --steps {steps}. Give one of them."
        )
    if budget is not None or steps is not None:
        asked |= {"budget": budget, "steps": steps}
    if workers == 0 and not asked.get("steps"):
        _refuse(ctx, "workers", "with 0 nothing is timed here, so that a budget sets no steps. Give --steps.")
    if engine not in ("local", "ray") or (address and engine != "ray"):
        _refuse(ctx, "engine", f"must be local or ray, and --address is of ray; got {engine!r}.")
    asked["test_len"] = [_read_length(ctx, item) for item in asked.get("test_len", ())]
    raise typer.Exit(_run(ctx, asked, engine, address, workers, out, split_list(callback), dry_run, as_json))


def _run(
    ctx: typer.Context,
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


@app.command("worker")
def work(
    folder: _Folder,
    device: Annotated[str, typer.Option(metavar="NAME", help="cpu, cuda, cuda:1, ...", show_default="a GPU")] = "",
) -> None:
    """Work on a study's cells until none is left: in any number of processes, on any machines that share DIR."""
    from posenc.study.worker import work as work_on

    raise typer.Exit(0 if work_on(folder, device, say=typer.echo) else 1)


@app.command("report")
def write_report(folder: _Folder, callback: _Callback = None) -> None:
    """Write DIR's report from the cells that are done."""
    from posenc.study.command import report

    raise typer.Exit(report(folder, split_list(callback)))


@app.command("status")
def show_status(folder: _Folder, as_json: _AsJson = False) -> None:
    """Say how far a study is: cells done, running, waiting and failed."""
    from posenc.study import status

    found = status.status(folder)
    _print(found, status.print_status, as_json)
    raise typer.Exit(1 if found["failed"] else 0)


@app.command("compare")
def compare_studies(
    a: Annotated[Path, typer.Argument(metavar="A", help="A study's directory.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another one's.")],
    as_json: _AsJson = False,
) -> None:
    """Compare two studies by the cells that both have."""
    from posenc.study import compare

    _print(compare.compare(a, b), compare.print_comparison, as_json)


@app.command("export")
def export_results(folder: _Folder, to: Annotated[str, typer.Option(help="csv or parquet.")] = "csv") -> None:
    """Write DIR/results.csv or DIR/results.parquet: a row for each cell, measure and length."""
    from posenc.study.export import export

    typer.echo(str(export(folder, to)))


def _print(found: dict[str, Any], show: "Callable[[dict[str, Any], Console], None]", as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found))
    else:
        from rich.console import Console

        show(found, Console(highlight=False))


def _read_plan(ctx: typer.Context, path: Path) -> dict[str, Any]:
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        _refuse(ctx, "plan", f"cannot read {path}: {error}.")
    for key, value in found.items():
        kind = _PLAN.get(key)
        if kind is None or not isinstance(value, kind) or isinstance(value, bool):
            known = ", ".join(f"{name} ({kind.__name__})" for name, kind in _PLAN.items())
            _refuse(ctx, "plan", f"{path} says {key} = {value!r}. A plan may say: {known}.")
        if isinstance(value, list):
            found[key] = [str(item) for item in value]
    if {"budget", "steps"} <= found.keys():
        _refuse(ctx, "plan", f"{path} gives a budget and steps. A budget sets the number of steps; give one of them.")
    return found


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
        _refuse(ctx, "budget", str(error))


def _read_length(ctx: typer.Context, given: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,8}", given, re.ASCII):
        _refuse(ctx, "test_len", f"lengths are whole numbers above zero with commas between; got {given!r}.")
    return int(given)


def _refuse(ctx: typer.Context, option: str, said: str) -> NoReturn:
    raise typer.BadParameter(said, ctx=ctx, param_hint=f"--{option.replace('_', '-')}")
