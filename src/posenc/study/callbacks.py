"""Callbacks for finished cells: MLflow, Weights & Biases, TensorBoard, or a user's function."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

Metrics = Sequence[Mapping[str, float]]  # one mapping per logged step: step, bits, lr, seconds, cpu_s
Callback = Callable[[Path, Mapping[str, Any], Metrics], None]  # the cell's directory, its result, its metrics
FACTS = ("encoding", "task", "size", "seed", "steps", "undertrained", "parameters", "position_parameters")


def find(name: str) -> Callback:
    """Return a callback: tensorboard, mlflow, wandb, or package.module:function.

    Raises:
        ValueError: There is no such callback, or its package is not installed.
    """
    module, _, function = name.partition(":")
    needed = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}.get(name, module)
    try:
        found = import_module(needed)
        callback = _KNOWN[name] if name in _KNOWN else getattr(found, function)
    except (ImportError, AttributeError, ValueError) as error:
        known = f"Known: {', '.join(_KNOWN)}, or package.module:function."
        raise ValueError(
            f"study: cannot load the callback {name!r}: {error}. {known} Each needs its package."
        ) from error
    return callback


def call(
    callbacks: Mapping[str, Callback], directory: Path, result: Mapping[str, Any], say: Callable[[str], None]
) -> None:
    """Call the callbacks with a finished cell; report one that raises, and go on."""
    metrics = []
    with suppress(OSError), (directory / "metrics.jsonl").open("rb") as lines:
        for line in lines:
            with suppress(ValueError):  # a truncated line
                metrics.append(json.loads(line))
    for name, callback in callbacks.items():
        try:
            callback(directory, result, metrics)
        except Exception as error:  # an unreachable service, or anything that a user's function raises
            say(f"callback {name}: {type(error).__name__}: {error}")


def _numbers(result: Mapping[str, Any]) -> Iterator[tuple[str, int, float]]:
    """Yield the measures of a result by length."""
    for measure in ("bits", "exact", "right"):
        for length, value in (result.get(f"{measure}_by_length") or {}).items():
            yield measure, int(length), value


def tensorboard(directory: Path, result: Mapping[str, Any], metrics: Metrics) -> None:
    """Write DIR/tensorboard/NAME: training by step, tests by length."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(directory.parents[1] / "tensorboard" / directory.name)) as writer:
        for row in metrics:
            writer.add_scalar("train/bits", row["bits"], int(row["step"]))
        for measure, length, value in _numbers(result):
            writer.add_scalar(f"test/{measure}_by_length", value, length)
        writer.add_text("cell", ", ".join(f"{fact} {result.get(fact)}" for fact in FACTS))


def mlflow(directory: Path, result: Mapping[str, Any], metrics: Metrics) -> None:
    """Add a run to MLflow at MLFLOW_TRACKING_URI."""
    import mlflow

    with mlflow.start_run(run_name=directory.name):
        mlflow.log_params({fact: result.get(fact) for fact in FACTS})
        for row in metrics:
            mlflow.log_metric("train_bits", row["bits"], step=int(row["step"]))
        for measure, length, value in _numbers(result):
            mlflow.log_metric(f"{measure}_by_length", value, step=length)


def wandb(directory: Path, result: Mapping[str, Any], metrics: Metrics) -> None:
    """Add a run to the project posenc of Weights & Biases; WANDB_MODE sets whether it is online."""
    import wandb

    config = {fact: result.get(fact) for fact in FACTS}
    with wandb.init(project="posenc", name=directory.name, dir=str(directory.parents[1]), config=config) as run:
        for row in metrics:
            run.log({"train_bits": row["bits"], "step": row["step"]})
        run.summary.update({f"{measure}_at_{length}": value for measure, length, value in _numbers(result)})


_KNOWN: dict[str, Callback] = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}
