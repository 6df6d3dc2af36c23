import io
import json

import pytest
from rich.console import Console
from scipy import stats

from posenc.study.compare import compare, print_comparison
from study.directories import make, result

# exact match at 20 and 40 of copy in two studies, by seed; the differences at 40 are 0.1, 0.3 and 0.2
BEFORE, AFTER = [(1.0, 0.1), (0.9, 0.2), (1.0, 0.3)], [(1.0, 0.2), (1.0, 0.5), (1.0, 0.5)]
IDENTITY = {"train_len": 64, "steps": 300, "code": {"torch": "2.6", "posenc": "0.1"}}


@pytest.fixture
def two(tmp_path):
    left = [result(seed=seed, values=values) for seed, values in enumerate(BEFORE)]
    right = [result(seed=seed, values=values) for seed, values in enumerate(AFTER)]
    left += [result("alibi", "text", values=(2.0, 2.5)), result("alibi", seed=3), result("t5", size="32x1x2")]
    right += [result("alibi", "text", values=(1.5, 4.5)), result("t5", size="64x2x4")]
    changed = IDENTITY | {"steps": 400, "code": {"torch": "2.7", "posenc": "0.1"}, "streams": ["index"]}
    return make(tmp_path / "a", left, identity=IDENTITY), make(tmp_path / "b", right, identity=changed)


def test_the_differences_are_those_worked_out_by_hand(two):
    rows = {(r["encoding"], r["task"], r["at"]): r for r in compare(*two)["rows"]}
    assert len(rows) == 4
    far = rows["rope", "copy", "longest"]
    assert (far["measure"], far["length"], far["pairs"]) == ("exact", 40, 3)
    assert far["mean"] == pytest.approx(0.2)
    wanted = stats.t.interval(0.9, 2, loc=0.2, scale=0.1 / 3**0.5)
    assert (far["low"], far["high"]) == pytest.approx(wanted, rel=1e-5)
    assert rows["rope", "copy", "trained"]["mean"] == pytest.approx(0.1 / 3)
    near, far = rows["alibi", "text", "trained"], rows["alibi", "text", "longest"]
    assert (near["measure"], near["length"], near["mean"]) == ("bits", 64, -0.5)
    assert (far["length"], far["mean"], far["low"], far["high"]) == (1024, 2.0, None, None)


def test_what_the_studies_differ_in_is_named(two):
    found = compare(*two)
    assert found["differs"] == [
        {"name": "steps", "a": 300, "b": 400},
        {"name": "code.torch", "a": "2.6", "b": "2.7"},
        {"name": "streams", "a": None, "b": ["index"]},
    ]
    assert [(cell["encoding"], cell["size"], cell["seed"]) for cell in found["only_a"]] == [
        ("alibi", "64x2x4", 3),
        ("t5", "32x1x2", 0),
    ]
    assert [(cell["encoding"], cell["size"]) for cell in found["only_b"]] == [("t5", "64x2x4")]


def test_it_is_printed_and_is_json(two):
    found = compare(*two)
    assert json.loads(json.dumps(found)) == found
    console = Console(file=io.StringIO(), width=120)
    print_comparison(found, console)
    text = console.file.getvalue()
    assert "+0.031 to +0.369" in text
    assert "code.torch: 2.6 in a, 2.7 in b" in text
    assert "only in b: t5 copy 64x2x4 0" in text


LENGTHS = {
    "trained at 20": ({"lengths": {"copy": {"train": [1, 20]}}}, {20: 0.5, 40: 0.25}, [20, 40]),
    "trained at another length in each": ({"lengths": {"copy": {"train": [40]}}}, {20: 0.5, 40: 0.25}, [20, 40]),
    "trained at none of them": ({"lengths": {"copy": {"train": 10}}}, {20: 0.5, 40: 0.25}, [20, 40]),
    "not said": ({"lengths": []}, {20: 0.5, 40: 0.25}, [20, 40]),
    "one common length": ({}, {20: 0.5, 60: 0.25}, [20, 20]),
    "no common length": ({}, {25: 0.5, 60: 0.25}, []),
    "not measured": ({}, {20: 0.5, 40: None}, [20, 20]),
}


@pytest.mark.parametrize("case", LENGTHS)
def test_pairs_are_compared_where_both_were_tested(tmp_path, case):
    config, exact, lengths = LENGTHS[case]
    a = make(tmp_path / "a", [result()])
    b = make(tmp_path / "b", [result(exact_by_length={str(n): v for n, v in exact.items()})], config=config)
    assert [row["length"] for row in compare(a, b)["rows"]] == lengths
    assert [row["length"] for row in compare(b, a)["rows"]] == lengths


def test_a_path_that_is_no_study_is_named(two, tmp_path):
    with pytest.raises(ValueError, match="^study: .*nowhere is not a directory, so it is not a study"):
        compare(two[0], tmp_path / "nowhere")
