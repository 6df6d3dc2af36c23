"""The comparison of two studies by the cells that they share."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from posenc.study.index import KEY, Key, find_study, object_of, open_index, read_or_empty
from posenc.study.intervals import interval
from posenc.study.measures import number
from posenc.verify.sentences import printable

Lengths = dict[int, float]  # values by test length


def compare(a: str | Path, b: str | Path) -> dict[str, Any]:
    """Return the differences b - a of the cells that two studies share, as plain JSON values.

    Cells with the same encoding, task, size and seed are pairs. `rows` has, by encoding, task and size, the mean of
    the paired differences of `measure` (text: bits; tasks: exact) at the trained and at the longest length at which
    all pairs were tested, with the ends of a 90 % t interval (None for fewer than two pairs). `differs` lists the
    differences of the configurations; `only_a` and `only_b` list the cells of only one study.

    Raises:
        ValueError: A path is no study's directory.
    """
    runs = [read_or_empty(find_study(path) / "run.json") for path in (a, b)]
    (left, measures), (right, _) = _read(a), _read(b)
    pairs: dict[Key, list[tuple[Lengths, Lengths]]] = {}
    for cell in left:
        if cell in right:
            pairs.setdefault(cell[:3], []).append((left[cell], right[cell]))
    return {
        "a": str(a),
        "b": str(b),
        "rows": [
            dict(zip(KEY, group, strict=False)) | {"measure": measures.get(group[1])} | row
            for group, found in pairs.items()
            for row in _rows(found, [n for run in runs for n in _trained(run, group[1])])
        ],
        "differs": _differs(*(object_of(run, "identity") for run in runs)),
        "only_a": [dict(zip(KEY, cell, strict=True)) for cell in left if cell not in right],
        "only_b": [dict(zip(KEY, cell, strict=True)) for cell in right if cell not in left],
    }


def print_comparison(found: Mapping[str, Any], console: Console) -> None:
    """Print the result of `compare`."""
    table = Table("encoding", "task", "size", "measure", "length", "pairs", "b - a", "90 %", box=None, pad_edge=False)
    for row in found["rows"]:
        words = [str(row[name]) for name in ("encoding", "task", "size", "measure")]
        ends = "" if row["low"] is None else f"{row['low']:+.3f} to {row['high']:+.3f}"
        numbers = [f"{row['length']} ({row['at']})", str(row["pairs"]), f"{row['mean']:+.3f}", ends]
        table.add_row(*(Text(printable(word)) for word in words + numbers))
    lines = [f"a: {found['a']}", f"b: {found['b']}"]
    lines += [f"{row['name']}: {row['a']} in a, {row['b']} in b" for row in found["differs"]]
    for side in ("a", "b"):
        lines += [f"only in {side}: {' '.join(map(str, cell.values()))}" for cell in found[f"only_{side}"]]
    console.print(table, *(Text(printable(line)) for line in lines), sep="\n", soft_wrap=True)


def _read(path: str | Path) -> tuple[dict[Key, Lengths], dict[str, str]]:
    """Return the values of a study's cells, and the measure of each task."""
    cells: dict[Key, Lengths] = {}
    measures = {}
    with closing(open_index(path)) as index:
        for *key, measure, length, value in index.execute(
            f"SELECT {', '.join(KEY)}, measure, length, value FROM cells LEFT JOIN measures "
            f"ON cells.name = measures.name AND measure IN ('bits', 'exact') ORDER BY {', '.join(KEY)}, length"
        ):
            lengths = cells.setdefault(tuple(key), {})
            if value is not None:
                lengths[length], measures[key[1]] = value, measure
    return cells, measures


def _trained(run: Mapping[str, Any], task: str) -> list[float]:
    """Return the longest trained length of a task in a study's configuration, in a list; empty if it has none."""
    config = object_of(run, "config")
    trained = object_of(object_of(config, "lengths"), task).get("train", config.get("train_len"))
    lengths = trained if isinstance(trained, list) else [trained]
    return sorted(length for item in lengths if (length := number(item)) is not None)[-1:]


def _rows(pairs: list[tuple[Lengths, Lengths]], trained: list[float]) -> Iterator[dict[str, Any]]:
    """Yield the mean difference and its interval at the trained and at the longest length."""
    common = set.intersection(*(a.keys() & b.keys() for a, b in pairs))
    if not common:
        return
    near = max((n for n in common if trained and n <= min(trained)), default=min(common))
    for at, length in {"trained": near, "longest": max(common)}.items():
        differences = [b[length] - a[length] for a, b in pairs]
        low, high = interval(differences) or (None, None)
        numbers = {"pairs": len(pairs), "mean": fmean(differences), "low": low, "high": high}
        yield {"at": at, "length": length, **numbers}


def _differs(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the differences of two identities; an object's parts are listed one by one, such as code.torch."""
    flat: list[dict[str, Any]] = []
    for identity in (a, b):
        parts = {f"{k}.{part}": v for k in identity for part, v in object_of(identity, k).items()}
        flat.append({k: v for k, v in identity.items() if not isinstance(v, dict)} | parts)
    left, right = flat
    names = [name for name in left | right if left.get(name) != right.get(name)]
    return [{"name": name, "a": left.get(name), "b": right.get(name)} for name in names]
