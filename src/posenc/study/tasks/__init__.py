"""Synthetic tasks that separate position encodings: `find` one by name, `sample` its lines, `score` an answer."""

from difflib import get_close_matches
from typing import Any

from posenc.study.tasks import chomsky, flip_flop, retrieval, sums, words  # noqa: F401 - each registers its tasks
from posenc.study.tasks.task import TASKS, Batch, Score, Task, score

__all__ = ["FORMATS", "NAMES", "Batch", "Score", "Task", "cards", "find", "label", "score", "split"]

NAMES = tuple(sorted(name for name in TASKS if ":" not in name))
FORMATS = tuple(sorted(set(TASKS) - set(NAMES)))  # other formats of the same tasks, such as addition:reversed


def find(name: str) -> Task:
    """Return the task with a name, optionally with a format, such as `addition:reversed`.

    Raises:
        ValueError: No task has this name; the message lists the nearest ones.

    >>> find("parity").arxiv
    '2305.19466'
    """
    if name in TASKS:
        return TASKS[name]
    near = get_close_matches(name.lower(), TASKS, n=3, cutoff=0.5)
    raise ValueError(
        f"unknown task {name!r}"
        + (f": did you mean {' or '.join(map(repr, near))}?" if near else ".")
        + f" Known: {', '.join((*NAMES, *FORMATS))}."
    )


def cards() -> list[dict[str, Any]]:
    """Return the card of every task, in alphabetical order."""
    return [find(name).card() for name in (*NAMES, *FORMATS)]


def split(label: str) -> tuple[Task, str]:
    """Return the task and the position stream of a label such as `addition:all_reversed@abacus`.

    Raises:
        ValueError: There is no such task, or it has no such stream.

    >>> split("copy@randomised")[1], split("copy")[1]
    ('randomised', 'index')
    """
    name, _, stream = label.partition("@")
    task = find(name)
    if (stream or "index") not in task.streams:
        raise ValueError(f"tasks: {name} has no stream {stream!r}. Known: {', '.join(task.streams)}.")
    return task, stream or "index"


def label(given: str) -> str:
    """Return the label of a task in its short form, without the stream `index`; raises as `split` does."""
    task, stream = split(given)
    return task.name if stream == "index" else f"{task.name}@{stream}"
