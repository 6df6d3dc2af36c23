"""The live leaderboard: a table that redraws itself in a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from posenc.study.config import Config


class Board:
    """Shows what is finished, what runs, and how long it will still take.

    Args:
        config: The study.
        console: Where to; a table that redraws itself if it is a terminal.
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
        """Print a line that stays."""
        self.console.print(Text(line), soft_wrap=True)

    def draw(self, results: list[dict[str, Any]], running: Iterable[str], left_s: float | None) -> None:
        """Redraw the table, in a terminal."""
        if self.live:
            rest = "timing the first steps" if left_s is None else f"about {clock(left_s)} left"
            status = Text(f"{clock(time.monotonic() - self.begin)} gone, {rest}   " + "   ".join(running))
            self.live.update(Group(self.table(results), status), refresh=True)

    def finished(self, result: dict[str, Any], left_s: float) -> None:
        """Print a line for a finished cell."""
        bits, lengths = result["bits_by_length"], (self.config.train_len, self.config.test_lens[-1])
        shown = ", ".join(f"{bits[str(length)]:.3f} at {length}" for length in lengths)
        note = ", undertrained" if result["undertrained"] else ""
        self.say(f"{result['encoding']} s{result['seed']}: {shown} bytes{note} ({clock(left_s)} left)")

    def table(self, results: list[dict[str, Any]]) -> Table:
        """Return the leaderboard, best at the longest context first; means over the seeds so far."""
        table = Table(title="bits per byte by length of context", title_justify="left", box=None, pad_edge=False)
        table.add_column("encoding", no_wrap=True)
        for length in self.config.test_lens:
            table.add_column(f"{length}", justify="right")
        table.add_column(f"vs {self.config.train_len}", justify="right")
        table.add_column("seeds", justify="right")
        rows = []
        for name in self.config.encodings:
            cells = [r["bits_by_length"] for r in results if r["encoding"] == name]
            if cells:
                rows.append((name, [sum(c[str(n)] for c in cells) / len(cells) for n in self.config.test_lens], cells))
        trained = self.config.test_lens.index(self.config.train_len)
        for name, bits, cells in sorted(rows, key=lambda row: row[1][-1]):
            change = f"{bits[-1] - bits[trained]:+.3f}"
            table.add_row(Text(name), *(f"{b:.3f}" for b in bits), change, f"{len(cells)}/{len(self.config.seeds)}")
        return table


def clock(seconds: float) -> str:
    """Format seconds as 3:07."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    return f"{minutes}:{rest:02d}"
