import csv
import os
import re
import sys

import pytest

from posenc.study.export import export
from study.directories import make, result

PROBES = {"flip_flop:sparse": {"exact_by_length": {"20": 0.25}}}
CELLS = [
    result("rope", "text", values=(2.0, float("nan")), train_bits=1.5, peak_mib=51.5, value=7.5),
    result("rope", seed=1, step_ms=33, probes=PROBES, undertrained=True, note='a "quoted", word'),
    result("émile:X", seed=2**60),
]


@pytest.fixture
def study(tmp_path):
    return make(tmp_path / "s", CELLS)


def read_csv(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_parquet(path):
    parquet = pytest.importorskip("pyarrow.parquet")
    return parquet.read_table(path).to_pylist()


READ = {"csv": read_csv, "parquet": read_parquet}


@pytest.mark.parametrize("to", READ)
def test_a_row_is_a_cell_a_measure_and_a_length_with_all_facts(study, to):
    rows = READ[to](export(study, to))
    assert len(rows) == 4 + 5 + 4
    found = {(r["encoding"], int(r["seed"]), r["measure"], int(r["length"])): r for r in rows}
    assert len(found) == len(rows)
    empty = {"csv": "", "parquet": None}[to]
    text = found["rope", 0, "bits", 64]
    assert (float(text["value"]), float(text["train_bits"]), float(text["peak_mib"])) == (2.0, 1.5, 51.5)
    assert (text["name"], text["task"], text["size"], int(text["steps"])) == (
        "rope-text-64x2x4-s0",
        "text",
        "64x2x4",
        300,
    )
    assert found["rope", 0, "bits", 1024]["value"] == empty
    probe = found["rope", 1, "flip_flop:sparse/exact", 20]
    assert (float(probe["value"]), str(probe["undertrained"]), probe["note"]) == (0.25, "True", 'a "quoted", word')
    assert (probe["train_bits"], probe["peak_mib"]) == (empty, empty)
    assert ("émile:X", 2**60, "right", 40) in found


def test_parquet_has_types(study):
    parquet = pytest.importorskip("pyarrow.parquet")
    schema = parquet.read_schema(export(study, "parquet"))
    types = {
        name: str(schema.field(name).type) for name in ("seed", "length", "value", "step_ms", "undertrained", "task")
    }
    assert types == {"seed": "int64", "length": "int64", "value": "double", "step_ms": "double", "undertrained": "bool",
                     "task": "string"}  # fmt: skip


def test_facts_of_several_kinds_become_text(tmp_path):
    cells = [result(odd=odd, large=93 * 10**17, none=None, seed=seed)
             for seed, odd in enumerate((1, "two", True))]  # fmt: skip
    rows = read_parquet(export(make(tmp_path / "s", cells), "parquet"))
    assert {(row["odd"], row["none"]) for row in rows} == {("1", None), ("two", None), ("True", None)}
    assert {row["large"] for row in rows} == {str(93 * 10**17)}


@pytest.mark.parametrize("to", READ)
def test_a_study_without_cells_gives_an_empty_table(tmp_path, to):
    if to == "parquet":
        pytest.importorskip("pyarrow")
    path = export(make(tmp_path / "s"), to)
    assert path.name == f"results.{to}"
    assert READ[to](path) == []


def test_a_table_is_written_whole_or_not_at_all(study, monkeypatch):
    before = export(study, "csv").read_bytes()

    def stop(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(ValueError, match=r"^study: cannot write .*results\.csv: No space left on device\. Make"):
        export(study, "csv")
    assert (study / "results.csv").read_bytes() == before
    assert sorted(entry.name for entry in study.iterdir()) == ["cells", "index.sqlite", "results.csv", "run.json"]


def test_without_pyarrow_its_extra_is_named(study, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"^study: Parquet needs pyarrow: .* Run pip install 'posenc\[parquet\]'\.$"):
        export(study, "parquet")
    assert not (study / "results.parquet").exists()


def test_another_format_and_no_study_are_refused(study, tmp_path):
    with pytest.raises(ValueError, match=re.escape("study: --to must be csv or parquet; got 'xlsx'.")):
        export(study, "xlsx")
    with pytest.raises(ValueError, match="^study: .* is not a directory, so it is not a study"):
        export(tmp_path / "nowhere", "csv")
