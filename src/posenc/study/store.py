"""A study's directory: every file appears whole, finished cells survive anything, foreign ones are refused."""

import json
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from posenc.study.config import Cell
from posenc.study.queue import FOLDERS, NO_ROOM, read_json, write

SCHEMA = 2
_SAID = {  # what a user calls the parts of an identity
    "encodings": "--encodings", "train_len": "--train-len", "test_lens": "--test-len", "seeds": "--seeds",
    "budget_s": "--budget in seconds", "fixed_steps": "--steps", "text": "the hash of --text", "code": "the code",
    "tasks": "--task", "sizes": "--size", "lengths": "the lengths of tasks",
}  # fmt: skip
_FOLDERS = ("cells", "timings", *FOLDERS)


class Store:
    """The directory of one study.

    Args:
        path: Made if it is not there.
        identity: What makes two studies the same: the configuration and the text's hash.

    Raises:
        ValueError: The directory cannot be written, holds something else, belongs to another
            configuration, or is in use by another process.
    """

    def __init__(self, path: str | Path, identity: dict[str, Any]) -> None:
        self.path = Path(path)
        self.identity = identity
        self._claim()

    def _claim(self) -> None:
        path = self.path
        try:
            self._made = not path.exists()
            found = set() if self._made else {e.name for e in path.iterdir() if not _is_ours_and_empty(e)}
            self.run: dict[str, Any] = self._read_run() if "run.json" in found else {}
            if found and not self.run:
                raise ValueError(
                    f"study: {path} holds {', '.join(sorted(found)[:3])} and no run.json, so it is not a study's "
                    "directory, and nothing in it was touched. Choose another --out."
                )
            if self.run.get("status") == "timing":  # ended before it began: no cell, and no promise
                self.run = {}
            self._compare()
            path.mkdir(parents=True, exist_ok=True)
            self._lock()
            for folder in _FOLDERS:
                (path / folder).mkdir(exist_ok=True)
            for left in filter(_is_temporary, path.iterdir()):
                left.unlink(missing_ok=True)
        except OSError as error:
            raise ValueError(
                f"study: cannot write to --out {path}: {error.strerror}. Choose a directory that you may write to."
            ) from error

    def _read_run(self) -> dict[str, Any]:
        try:
            run = json.loads((self.path / "run.json").read_text())
        except ValueError:
            run = None
        if not isinstance(run, dict) or run.get("schema") != SCHEMA:
            raise ValueError(
                f"study: {self.path / 'run.json'} is not the record of a study that this version can continue "
                f"(schema {SCHEMA}); nothing was touched. Choose another --out."
            )
        return run

    def _compare(self) -> None:
        made_by = self.run.get("identity", {})
        if self.run and made_by != self.identity:
            keys = sorted(k for k in {*made_by, *self.identity} if made_by.get(k) != self.identity.get(k))
            differences = "; ".join(
                f"{_SAID.get(k, k)} was {made_by.get(k)} and is now {self.identity.get(k)}" for k in keys
            )
            raise ValueError(
                f"study: {self.path} was made by another configuration: {differences}. Nothing was touched. "
                "Repeat that configuration to resume it, or choose another --out."
            )

    def _lock(self) -> None:
        """Hold the directory for this process; the system lets go when the process ends, however it ends."""
        self._held = (self.path / ".lock").open("a")
        with suppress(ImportError):  # no fcntl on Windows: two studies at once are not noticed there
            import fcntl

            try:
                fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.close()
                raise ValueError(
                    f"study: another study is writing to {self.path} right now. Wait for it, or choose another --out."
                ) from None

    def close(self) -> None:
        """Let go of the directory."""
        self._held.close()

    def abandon(self) -> None:
        """Remove what was made for a study that could not begin."""
        for name in _FOLDERS:
            shutil.rmtree(self.path / name, ignore_errors=True)
        for name in ("text", "lengths.toml", "index.sqlite", "run.json", ".lock"):
            (self.path / name).unlink(missing_ok=True)
        if self._made:
            with suppress(OSError):
                self.path.rmdir()

    def write_run(self, run: dict[str, Any]) -> None:
        """Write run.json, and keep what it says."""
        self.run = run | {"schema": SCHEMA, "identity": self.identity}
        self.write("run.json", json.dumps(self.run, indent=1))

    def write(self, name: str, data: str | bytes) -> None:
        """Write a file so that it is there whole or not at all, after a loss of power too."""
        with room(self.path):
            write(self.path / name, data if isinstance(data, bytes) else data.encode(), sync=True)

    def results(self, cells: Iterable[Cell]) -> list[dict[str, Any]]:
        """Return the results of those cells that are finished, in order."""
        found = ((cell, read_json(self.path / "cells" / cell.name / "result.json")) for cell in cells)
        return [r for cell, r in found if r and tuple(r.get(part) for part in Cell._fields) == cell]


@contextmanager
def room(path: Path) -> Iterator[None]:
    """Say in a sentence that a directory has no room.

    Raises:
        ValueError: It has none.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise ValueError(
            f"study: cannot write to {path}: {error.strerror}. What is finished stays; make room, and give the same "
            "command again."
        ) from error


def _is_temporary(entry: Path) -> bool:
    return re.fullmatch(r"\.(run\.json|report\.html|text)\.\d+\.tmp", entry.name) is not None


def _is_ours_and_empty(entry: Path) -> bool:
    """Whether a study that ended before its first record may have left this."""
    if entry.name in _FOLDERS:
        return entry.is_dir() and not any(entry.iterdir())
    # a study that ended before run.json was there may have left these: with our lock, they are ours
    if entry.name in ("text", "lengths.toml") or _is_temporary(entry):
        lock = entry.parent / ".lock"
        return lock.exists() and lock.stat().st_size == 0
    return entry.name == ".lock" and entry.stat().st_size == 0
