"""The live leaderboard: a table that is redrawn in a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from posenc.languages import tr
from posenc.study.config import TEXT, Config


class Board:
    """Shows which cells are finished and running, and the remaining time.

    Args:
        config: The study.
        console: Where to print; a terminal gets a table that is redrawn.
    """

    def __init__(self, config: Config, console: Console) -> None:
        self.config, self.console = config, console
        self.live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self.begin = time.monotonic()

    def __enter__(self) -> "Board":
        if self.live:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.live.stop()

    def say(self, line: str) -> None:
        """Print a permanent line."""
        self.console.print(Text(line), soft_wrap=True)

    def draw(
        self, results: list[dict[str, Any]], running: Callable[[], list[str]], left: Callable[[], float | None]
    ) -> None:
        """Redraw the table, if this is a terminal."""
        if self.live:
            left_s = left()
            rest = "timing the first steps" if left_s is None else f"about {clock(left_s)} left"
            status = Text(f"{clock(time.monotonic() - self.begin)} elapsed, {rest}   " + "   ".join(running()))
            self.live.update(Group(*self.tables(results), status), refresh=True)

    def finished(self, result: dict[str, Any], left_s: float) -> None:
        """Print a line for a finished cell."""
        if result["task"] == TEXT:
            bits, lengths = result["bits_by_length"], (self.config.train_len, self.config.test_lens[-1])
            shown = ", ".join(f"{bits[str(length)]:.3f} at {length}" for length in lengths) + " bytes"
            note = ", undertrained" if result["undertrained"] else ""
        else:
            exact = result["exact_by_length"]
            shown = f"{result['task']} " + ", ".join(f"{share:.2f} at {length}" for length, share in exact.items())
            note = ", not learned" if result["undertrained"] else ""
        size = f" {result['size']}" if len(self.config.sizes) > 1 else ""
        self.say(f"{result['encoding']}{size} s{result['seed']}: {shown}{note} ({clock(left_s)} left)")

    def tables(self, results: list[dict[str, Any]]) -> list[Table]:
        """Return a leaderboard for each task and size, best at the longest length first; means over seeds."""
        both = [(size, task) for size in self.config.sizes for task in self.config.tasks]
        return [self._table(size, task, results) for size, task in both]

    def _table(self, size: str, task: str, results: list[dict[str, Any]]) -> Table:
        config, text = self.config, task == TEXT
        lengths = config.test_lens if text else config.lengths_of(task)[1]
        trained = config.train_len if text else max(n for n in lengths if n <= max(config.lengths_of(task)[0]))
        title = tr("bits per byte by length of context") if text else tr("{task}: exact lines by length", task=task)
        title = tr("{table}, {size}", table=title, size=size) if len(config.sizes) > 1 else title
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        table.add_column(tr("encoding"), no_wrap=True)
        for head in (*map(str, lengths), tr("vs {length}", length=trained), tr("seeds")):
            table.add_column(head, justify="right")
        key, rows = "bits_by_length" if text else "exact_by_length", []
        for name in config.encodings:
            found = [r[key] for r in results if (r["encoding"], r["task"], r["size"]) == (name, task, size)]
            if found:
                rows.append((name, [sum(c[str(n)] for c in found) / len(found) for n in lengths], len(found)))
        for name, means, seeds in sorted(rows, key=lambda row: row[1][-1] if text else -row[1][-1]):
            digits = 3 if text else 2
            change = f"{means[-1] - means[lengths.index(trained)]:+.{digits}f}"
            values = (f"{mean:.{digits}f}" for mean in means)
            table.add_row(Text(name), *values, change, f"{seeds}/{len(config.seeds)}")
        return table


def clock(seconds: float) -> str:
    """Format seconds as 3:07."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    return f"{minutes}:{rest:02d}"
