"""Export of a study's measures as one table."""

import csv
import io
import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from posenc.study.index import KEY, find_study, open_index
from posenc.study.queue import write

_FIXED = ("name", *KEY, "measure", "length", "value")


def export(path: str | Path, to: str) -> Path:
    """Write results.csv or results.parquet into a study's directory, atomically, and return its path.

    A row is a cell, a measure and a length, with every fact of the cell; values that are not finite are empty.

    Args:
        path: The directory.
        to: "csv" or "parquet".

    Raises:
        ValueError: The path is no study's directory or cannot be written, the format is unknown, or `to` is "parquet"
            and pyarrow is not installed.
    """
    if to not in ("csv", "parquet"):
        raise ValueError(f"study: --to must be csv or parquet; got {to!r}.")
    target = find_study(path) / f"results.{to}"
    data = (_csv if to == "csv" else _parquet)(*_table(path))
    try:
        write(target, data, sync=True)
    except OSError as error:
        raise ValueError(f"study: cannot write {target}: {error.strerror}. Make the directory writable.") from error
    return target


def _table(path: str | Path) -> tuple[list[str], list[list[Any]]]:
    with closing(open_index(path)) as index:
        facts = {
            name: {fact: v for fact, v in json.loads(result).items() if not isinstance(v, dict | list)}
            for name, result in index.execute("SELECT name, result FROM cells")
        }
        order = f"ORDER BY {', '.join(KEY)}, measure, length"
        found = index.execute(f"SELECT {', '.join(_FIXED)} FROM cells JOIN measures USING (name) {order}").fetchall()
    more = [fact for fact in dict.fromkeys(fact for cell in facts.values() for fact in cell) if fact not in _FIXED]
    return [*_FIXED, *more], [[*row, *(facts[row[0]].get(fact) for fact in more)] for row in found]


def _csv(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> bytes:
    table = io.StringIO()
    csv.writer(table).writerows([header, *rows])
    return table.getvalue().encode()


def _parquet(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> bytes:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ValueError(f"study: Parquet needs pyarrow: {error}. Run pip install 'posenc[parquet]'.") from error

    def column(values: Sequence[Any]) -> Any:
        try:
            found = pa.array(values)
        except (pa.ArrowException, OverflowError):  # facts of several kinds, or too large: as text
            found = pa.array([None if value is None else str(value) for value in values])
        return found.cast(pa.float64()) if found.type == pa.null() else found

    columns = zip(*rows, strict=True) if rows else [()] * len(header)
    data = io.BytesIO()
    parquet.write_table(pa.table(dict(zip(header, map(column, columns), strict=True))), data)
    return data.getvalue()
