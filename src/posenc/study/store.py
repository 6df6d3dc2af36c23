"""A study's directory: every file appears whole, finished cells survive anything, foreign ones are refused."""

import csv
import hashlib
import io
import json
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from posenc.study.cell import Outcome

SCHEMA = 1
_SAID = {  # what a user calls the parts of an identity
    "encodings": "--encodings", "train_len": "--train-len", "test_lens": "--test-len", "seeds": "--seeds",
    "budget_s": "--budget in seconds", "fixed_steps": "--steps", "text": "the hash of --text", "code": "the code",
}  # fmt: skip
_ASIDE = re.compile(r"\..+-s\d+-\d+")  # the name of a cell while its files are made


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
            self._compare()
            path.mkdir(parents=True, exist_ok=True)
            self._lock()
            (path / "cells").mkdir(exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"study: cannot write to --out {path}: {error.strerror}. Choose a directory that you may write to."
            ) from error
        for entry in (path / "cells").iterdir():
            if _ASIDE.fullmatch(entry.name):
                shutil.rmtree(entry, ignore_errors=True)

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
        with suppress(OSError):
            (self.path / "cells").rmdir()
            (self.path / ".lock").unlink()
            if self._made:
                self.path.rmdir()

    def write_run(self, run: dict[str, Any]) -> None:
        """Write run.json, and keep what it says."""
        self.run = run | {"schema": SCHEMA, "identity": self.identity}
        self.write("run.json", json.dumps(self.run, indent=1))

    def write(self, name: str, text: str) -> None:
        """Write a file so that it is there whole or not at all."""
        temporary = self.path / f"{name}.tmp"
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path / name)

    def cell_path(self, encoding: str, seed: int) -> Path:
        """Return the directory of a finished cell."""
        return self.path / "cells" / cell_name(encoding, seed)

    def results(self, cells: list[tuple[str, int]]) -> list[dict[str, Any]]:
        """Return the results of those cells that are finished, in order."""
        found = []
        for encoding, seed in cells:
            with suppress(OSError, ValueError, KeyError, TypeError):
                result = json.loads((self.cell_path(encoding, seed) / "result.json").read_text())
                if (result["encoding"], result["seed"]) == (encoding, seed):
                    found.append(result)
        return found

    def write_table(self, results: list[dict[str, Any]]) -> None:
        """Write results.csv: one row for each encoding, seed and length."""
        table = io.StringIO()
        writer = csv.writer(table)
        facts = ("steps", "step_ms", "peak_mib", "parameters", "position_parameters", "undertrained")
        writer.writerow(("encoding", "seed", "context", "bits_per_byte", "standard_error", *facts))
        for result in results:
            for context, bits in result["bits_by_length"].items():
                error = result["bits_by_length_stderr"][context]
                writer.writerow(
                    (
                        result["encoding"],
                        result["seed"],
                        context,
                        bits,
                        error,
                        *(result[fact] for fact in facts),
                    )
                )
        self.write("results.csv", table.getvalue())


def _is_ours_and_empty(entry: Path) -> bool:
    """Whether a study that ended before its first cell may have left this."""
    if entry.name == "cells" and entry.is_dir():
        return all(_ASIDE.fullmatch(cell.name) for cell in entry.iterdir())
    if entry.name == "run.json.tmp":  # killed while the first run.json was written: beside our lock, it is ours
        return (entry.parent / ".lock").exists()
    return entry.name == ".lock" and entry.stat().st_size == 0


def cell_name(encoding: str, seed: int) -> str:
    """Return a file name for a cell; a user's package.module:Class becomes package.module_Class-1a2b3c4d."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", encoding).lstrip(".")
    if plain != encoding:  # so that two names never share a directory
        plain += "-" + hashlib.sha256(encoding.encode()).hexdigest()[:8]
    return f"{plain}-s{seed}"


def write_cell(directory: Path, outcome: Outcome) -> None:
    """Write a finished cell: its files are made aside, and the directory appears by one rename."""
    aside = directory.parent / f".{directory.name}-{os.getpid()}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    lines = (json.dumps(line) for line in outcome.metrics)
    (aside / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (aside / "result.json").write_text(json.dumps(outcome.result, indent=1))
    save_file({name: t.contiguous() for name, t in outcome.model.state_dict().items()}, aside / "model.safetensors")
    shutil.rmtree(directory, ignore_errors=True)  # an unfinished one from elsewhere would stop the rename
    aside.rename(directory)
