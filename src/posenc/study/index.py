"""An SQLite index of a study's cells, `index.sqlite`, a cache that can always be rebuilt from the directory.

An existing index is never modified: a new one is made in memory and replaces the file atomically. So readers never
wait for a lock, and a locked, corrupt or outdated file cannot stop them.
"""

import json
import os
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from posenc.study.measures import number
from posenc.study.queue import write

LARGEST = 16 * 2**20  # bytes of the largest JSON file that is read
VERSION = 1
Key = tuple[Any, ...]
KEY = ("encoding", "task", "size", "seed")  # identifies a cell
_EARLIER = {"task": "text", "size": "64x2x4"}  # defaults for cells from before these fields existed
_DECODER = json.JSONDecoder(  # integers of 20 digits and more become floats, since later arithmetic could not hold them
    parse_constant=lambda _: None, parse_int=lambda digits: int(digits) if len(digits) < 20 else float(digits)
)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
_TABLES = (
    "CREATE TABLE files (name TEXT PRIMARY KEY, mtime_ns INTEGER, bytes INTEGER, problem TEXT) WITHOUT ROWID",
    "CREATE TABLE cells (name TEXT PRIMARY KEY, encoding TEXT, task TEXT, size TEXT, seed INTEGER, result TEXT)",
    "CREATE TABLE measures (name TEXT, measure TEXT, length INTEGER, value REAL, "
    "PRIMARY KEY (name, measure, length)) WITHOUT ROWID",
)


def results(path: str | Path) -> list[dict[str, Any]]:
    """Return the results of a study's finished cells; numbers that are not finite are None.

    Raises:
        ValueError: The path is no study's directory.
    """
    with closing(open_index(path)) as index:
        return [json.loads(text) for (text,) in index.execute(f"SELECT result FROM cells ORDER BY {', '.join(KEY)}")]


def open_index(path: str | Path) -> sqlite3.Connection:
    """Update a study's index and return it; the caller closes it.

    Its tables: `files` (every result.json, with the problem of those without a result), `cells` (name, encoding,
    task, size, seed, and the result as JSON) and `measures` (name, measure, length, value).

    Raises:
        ValueError: The path is no study's directory.
    """
    directory = find_study(path)
    target, found = directory / "index.sqlite", _scan(directory / "cells")
    index = _open(target)
    known = {name: (mtime, size) for name, mtime, size in index.execute("SELECT name, mtime_ns, bytes FROM files")}
    if known == found:
        return index
    renewed = _empty()
    with closing(index):
        index.backup(renewed)
    stale = [name for name, state in known.items() if found.get(name) != state]
    for table in ("files", "cells", "measures"):
        renewed.executemany(f"DELETE FROM {table} WHERE name = ?", [(name,) for name in stale])
    _add(renewed, directory, {name: state for name, state in found.items() if known.get(name) != state})
    with suppress(OSError, sqlite3.Error, AttributeError):  # some builds of SQLite before 3.36 cannot serialise
        write(target, renewed.serialize(), sync=True)
    return renewed


def find_study(path: str | Path) -> Path:
    """Return the path of a study's directory.

    Raises:
        ValueError: The path is no study's directory, or cannot be read.
    """
    directory = Path(path)
    try:
        if (directory / "cells").is_dir() or (directory / "run.json").is_file():
            return directory
        lack = "has neither run.json nor cells/" if directory.is_dir() else "is not a directory"
    except OSError as error:
        raise _unreadable(directory, error) from error
    raise ValueError(f"study: {directory} {lack}, so it is not a study. Give the --out of a study.")


def key_of(found: dict[str, Any]) -> Key:
    """Return the encoding, task, size and seed of a result, or of another object that identifies a cell.

    Raises:
        ValueError: One of them is missing.
    """
    *names, seed = key = tuple((_EARLIER | found).get(part) for part in KEY)
    if not all(isinstance(part, str) for part in names) or type(seed) is not int or not 0 <= seed < 2**63:
        raise ValueError("it lacks the encoding, task, size or seed of a cell")
    return key


def read_object(path: str | Path) -> dict[str, Any]:
    """Return the JSON object of a file; numbers that are not finite are None.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is no JSON object, or is larger than 16 MiB.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > LARGEST:
            raise ValueError("it is larger than 16 MiB")
        raw = file.read(size)
    try:
        found = _DECODER.decode(raw.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return found


def read_or_empty(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file, or an empty one if it cannot be read."""
    with suppress(OSError, ValueError):
        if path.is_file():
            return read_object(path)
    return {}


def object_of(found: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the object at a key, or an empty one if there is none."""
    inner = found.get(key)
    return inner if isinstance(inner, dict) else {}


def _scan(cells: Path) -> dict[str, tuple[int, int]]:
    """Return the time and the size of every result.json by the name of its cell."""
    found: dict[str, tuple[int, int]] = {}
    try:
        names = [
            name for name in os.listdir(cells) if name.isprintable() and name[0] != "."
        ]  # "." marks unfinished ones
    except (FileNotFoundError, NotADirectoryError):
        return found
    except OSError as error:
        raise _unreadable(cells, error) from error
    for name in names:
        with suppress(OSError):
            state = os.stat(f"{cells}/{name}/result.json")
            if stat.S_ISREG(state.st_mode):
                found[name] = (state.st_mtime_ns, state.st_size)
    return found


def _unreadable(path: Path, error: OSError) -> ValueError:
    return ValueError(f"study: cannot read {path}: {error.strerror}. Give the --out of a readable study.")


def _open(target: Path) -> sqlite3.Connection:
    """Return the index from the disk, or an empty one in memory if that is unusable."""
    with suppress(sqlite3.Error, OSError):
        if target.is_file():
            # immutable=1: no lock is needed, since this file is replaced and never changed
            index = sqlite3.connect(f"{target.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
            with suppress(sqlite3.Error):
                tables = tuple(sql for (sql,) in index.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL"))
                (version,), (sound,) = index.execute("PRAGMA user_version"), index.execute("PRAGMA quick_check(1)")
                if (tables, version, sound) == (_TABLES, (VERSION,), ("ok",)):
                    return index
            index.close()
    return _empty()


def _empty() -> sqlite3.Connection:
    index = sqlite3.connect(":memory:")
    index.executescript(f"{'; '.join(_TABLES)}; PRAGMA user_version = {VERSION}")
    return index


def _add(index: sqlite3.Connection, directory: Path, found: dict[str, tuple[int, int]]) -> None:
    """Add results to the index, and record why a file holds none."""
    files, cells = [], []
    measures: list[tuple[Any, ...]] = []
    for name, (mtime_ns, size) in found.items():
        problem = None
        try:
            result = _EARLIER | read_object(f"{directory}/cells/{name}/result.json")
            text = _ENCODER.encode(result)
            text.encode()  # raises if a string is not valid Unicode
            row, rows = (name, *key_of(result), text), [(name, *row) for row in _measures(result)]
            if not rows:
                raise ValueError("it holds no measure by length")
            cells.append(row)
            measures += rows
        except OSError as error:
            problem, size = f"it cannot be read: {error.strerror}", -1  # a wrong size, so that it is read again
        except (ValueError, TypeError, AttributeError) as error:
            problem = str(error)
        files.append((name, mtime_ns, size, problem))
    with index:
        index.executemany("INSERT INTO files VALUES (?, ?, ?, ?)", files)
        index.executemany("INSERT INTO cells VALUES (?, ?, ?, ?, ?, ?)", cells)
        index.executemany("INSERT OR REPLACE INTO measures VALUES (?, ?, ?, ?)", measures)


def _measures(result: dict[str, Any]) -> Iterator[tuple[str, int, float | None]]:
    """Yield (measure, length, value): `bits`, `bits_stderr`, `exact`, `right`, and `PROBE/exact` of a probe."""
    probes = result.get("probes") or {}
    for prefix, tables in (("", result), *((f"{probe}/", tables) for probe, tables in probes.items())):
        for key, table in tables.items():
            if "_by_length" in key:
                for length, value in table.items():
                    if not 0 <= int(length) < 2**63:
                        raise ValueError(f"{key} has a length out of range")
                    yield prefix + key.replace("_by_length", ""), int(length), number(value)
