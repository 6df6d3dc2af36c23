"""A study's directory: files are written atomically, finished cells are kept, foreign directories are refused."""

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
_NAMES = {  # the user's names for the parts of an identity
    "encodings": "--encodings", "train_len": "--train-len", "test_lens": "--test-len", "seeds": "--seeds",
    "budget_s": "--budget in seconds", "fixed_steps": "--steps", "text": "the hash of --text", "code": "the code",
    "tasks": "--task", "sizes": "--size", "lengths": "the lengths of tasks",
}  # fmt: skip
_FOLDERS = ("cells", "timings", *FOLDERS)


class Store:
    """The directory of one study.

    Args:
        path: Created if it does not exist.
        identity: What two equal studies share: the configuration, the text's hash and the code.

    Raises:
        ValueError: The directory cannot be written, holds other files, belongs to another configuration, or is in
            use by another process.
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
                    f"study: {path} holds {', '.join(sorted(found)[:3])} but no run.json, so it is not a study's "
                    "directory. Nothing in it was changed. Choose another --out."
                )
            if self.run.get("status") == "timing":  # ended during timing, so it holds no cell
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
                f"study: cannot write to --out {path}: {error.strerror}. Choose a writable directory."
            ) from error

    def _read_run(self) -> dict[str, Any]:
        try:
            run = json.loads((self.path / "run.json").read_text())
        except ValueError:
            run = None
        if not isinstance(run, dict) or run.get("schema") != SCHEMA:
            raise ValueError(
                f"study: {self.path / 'run.json'} is not the record of a study that this version can resume "
                f"(schema {SCHEMA}). Nothing was changed. Choose another --out."
            )
        return run

    def _compare(self) -> None:
        made_by = self.run.get("identity", {})
        if self.run and made_by != self.identity:
            keys = sorted(k for k in {*made_by, *self.identity} if made_by.get(k) != self.identity.get(k))
            differences = "; ".join(
                f"{_NAMES.get(k, k)} was {made_by.get(k)} and is now {self.identity.get(k)}" for k in keys
            )
            raise ValueError(
                f"study: {self.path} was made by another configuration: {differences}. Nothing was changed. "
                "Repeat that configuration to resume it, or choose another --out."
            )

    def _lock(self) -> None:
        """Lock the directory for this process; the system releases the lock when the process ends."""
        self._held = (self.path / ".lock").open("a")
        with suppress(ImportError):  # Windows has no fcntl, so two studies at once are not detected there
            import fcntl

            try:
                fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.close()
                raise ValueError(
                    f"study: another study is writing to {self.path}. Wait for it, or choose another --out."
                ) from None

    def close(self) -> None:
        """Release the directory."""
        self._held.close()

    def abandon(self) -> None:
        """Remove the files of a study that could not start."""
        for name in _FOLDERS:
            shutil.rmtree(self.path / name, ignore_errors=True)
        for name in ("text", "lengths.toml", "index.sqlite", "run.json", ".lock"):
            (self.path / name).unlink(missing_ok=True)
        if self._made:
            with suppress(OSError):
                self.path.rmdir()

    def write_run(self, run: dict[str, Any]) -> None:
        """Write run.json, and keep its contents."""
        self.run = run | {"schema": SCHEMA, "identity": self.identity}
        self.write("run.json", json.dumps(self.run, indent=1))

    def write(self, name: str, data: str | bytes) -> None:
        """Write a file atomically, also against a loss of power."""
        with room(self.path):
            write(self.path / name, data if isinstance(data, bytes) else data.encode(), sync=True)

    def results(self, cells: Iterable[Cell]) -> list[dict[str, Any]]:
        """Return the results of the finished ones of these cells, in order."""
        found = ((cell, read_json(self.path / "cells" / cell.name / "result.json")) for cell in cells)
        return [r for cell, r in found if r and tuple(r.get(part) for part in Cell._fields) == cell]


@contextmanager
def room(path: Path) -> Iterator[None]:
    """Turn errors about missing disk space into one sentence.

    Raises:
        ValueError: The disk has no space left.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise ValueError(
            f"study: cannot write to {path}: {error.strerror}. Finished cells are kept. Free some space, and repeat "
            "the command."
        ) from error


def _is_temporary(entry: Path) -> bool:
    return re.fullmatch(r"\.(run\.json|report\.html|text)\.\d+\.tmp", entry.name) is not None


def _is_ours_and_empty(entry: Path) -> bool:
    """Return whether a study that ended before its first record may have left this entry."""
    if entry.name in _FOLDERS:
        return entry.is_dir() and not any(entry.iterdir())
    # a study that ended before it wrote run.json may have left these; our lock shows that they are ours
    if entry.name in ("text", "lengths.toml") or _is_temporary(entry):
        lock = entry.parent / ".lock"
        return lock.exists() and lock.stat().st_size == 0
    return entry.name == ".lock" and entry.stat().st_size == 0
