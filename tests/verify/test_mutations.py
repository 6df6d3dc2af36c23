"""Every one-token change of posenc's own arithmetic is given to `check`, which must find nine in ten of them."""

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "mutations"
SHARE = 0.9  # of all mutants, also those that are proven equivalent, which `check` must find
FEWEST = 3000  # mutants: fewer are a run that looked at less than it says
HOURS = 4  # that a whole run may take, on whatever machine


def loaded(name):
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))  # its files know one another by name
    spec = importlib.util.spec_from_file_location(f"mutations_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


SOURCE = '''
"""Text - with 1 sign."""
SIZE = 2**9
_CHUNK = 2**15
LEAST = 11


@register("x", year=2017)
class Turn:
    axes: tuple[int, int] = (1, 2)

    def __init__(self, base: float = 10000.0):
        self._count(base=base + 1)
        reach, self.reach = base * 3, base * 5
        least = base * 7
        if base < 1 or least < LEAST:
            raise ValueError(f"{base - 1} is too small")
        if base > 13:
            self._check(base)

    def at(self, q, k, pairing="half"):
        cos, sin = q.cos(), k.sin()
        if q.requires_grad or not is_plain(k):
            return cos.to(k.device)
        if pairing == "half":
            return -(q * cos - k[..., 1::2]).sum(dim=-1)
        return q.clamp(min=0) if self.both else sin
'''


def changes(function, kind=None):
    found = loaded("mutants").mutants("x.py", SOURCE)
    return [m.change for m in found if m.function == function and not m.excluded and kind in (None, m.kind)]


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("arithmetic", {"q * cos -> q / cos", "q * cos - k[..., 1::2] -> q * cos + k[..., 1::2]"}),
        ("comparison", {"pairing == 'half' -> pairing != 'half'"}),
        ("word", {"pairing == 'half' -> pairing == 'interleaved'", "'half' -> 'interleaved'"}),
        ("slice", {"k[..., 1::2] -> k[..., ::2]", "k[..., 1::2] -> k[..., 1:]"}),
    ],
)
def test_changes_of_each_kind_are_made(kind, wanted):
    assert set(changes("Turn.at", kind)) == wanted


def test_signs_constants_names_and_conditions_are_changed():
    found = " ; ".join(changes("Turn.at"))
    for part in (".sum(dim=1)", ".sum(dim=-2)", ".sum(dim=-0)", "k[..., 2::2]", "k[..., 1::1]", "q * sin", "k * cos"):
        assert part in found
    for part in ("q.sin()", "k.cos()", "q.clamp(max=0)", "q.clamp(min=1)", "if not self.both", "else cos"):
        assert part in found
    assert changes("") == [f"2 ** 9 -> {to}" for to in ("2 * 9", "3 ** 9", "1 ** 9", "2 ** 10", "2 ** 8")]


def test_what_is_no_arithmetic_is_left_out_and_counted():
    found = loaded("mutants").mutants("x.py", SOURCE)
    left_out = Counter(m.excluded for m in found if m.excluded)
    assert set(left_out) == {
        *("decorator", "message or validation", "default of a constructor", "dispatch", "size of work", "whose device"),
    }
    kept = [m.change for m in found if not m.excluded and m.function == "Turn.__init__"]
    assert {"base * 3 -> base / 3", "base * 5 -> base / 5"} < set(kept)  # only validation reads the third
    assert not any("7" in change or "13" in change for change in kept)
    assert not changes("", "constant") or all("11" not in change for change in changes(""))  # no more does LEAST
    assert left_out["dispatch"] == 4  # its `or`, its `not`, and whom it asks
    assert left_out["whose device"] == 1
    assert not any(m.change.startswith("Text") for m in found)


def test_a_change_is_the_only_one_in_its_tree():
    module = loaded("mutants")
    import ast

    plain = ast.unparse(ast.parse(SOURCE)).splitlines()
    for mutant in module.mutants("x.py", SOURCE):
        lines = ast.unparse(module.mutated(SOURCE, mutant)).splitlines()
        assert sum(a != b for a, b in zip(plain, lines, strict=True)) == 1, mutant


CHANGES = {
    "n_buckets - exact -> n_buckets + exact": "wrong",
    "distance.clamp(min=0) -> distance.clamp(max=0)": "wrong",
    "q - k -> q + k": "survives",  # buckets alone do not run it
}
SMOKE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import run
known = {name: (("pass", ""), 1.0, {"encodings/t5.py": set(range(1, 999))}) for name in sys.argv[2].split(";")}
run.import_module("posenc.verify.biases.check")
everything = {name: subject for name, subject in run.subjects().items() if name in known}
source = (run.patching.ROOT / "encodings/t5.py").read_text()
made = [m for m in run.mutants("encodings/t5.py", source) if m.change in sys.argv[4:]]
rows = [run.results.row(*found) for found in run.judge(made, known, everything, 1)]
json.dump(rows, open(sys.argv[3], "w"))
"""


def test_a_few_mutants_run_from_end_to_end(tmp_path):
    told = tmp_path / "rows.json"
    command = [sys.executable, "-c", SMOKE, str(FOLDER), "bucket_fn: False, 32;bucket_fn: False, 24", str(told)]
    run = subprocess.run([*command, *CHANGES], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-4000:]
    assert {row["change"]: row["fate"] for row in json.loads(told.read_text())} == CHANGES


def test_only_what_is_proven_or_cannot_be_called_is_left_out_of_the_score():
    results, reasons = loaded("results"), loaded("reasons")
    row = {"file": "x.py", "function": "f", "fate": "wrong", "reason": ""}
    survivor, unreached = row | {"fate": "survives", "reason": "not visible"}, row | {"fate": "unreached"}
    equal = survivor | {"reason": reasons.EQUIVALENT + "a sum"}
    assert results.score([row, survivor]) == results.score([row, unreached]) == 0.5
    assert (results.share([row, equal]), results.score([row, equal])) == (0.5, 1.0)
    (file, function), why = next((key.split(), why) for key, why in reasons.UNCALLED.items())
    uncalled = unreached | {"file": file, "function": function, "reason": why}
    assert results.share([row, uncalled]) == 1.0


def test_what_is_judged_is_kept_until_something_changes_and_remembered_by_the_file_alone(tmp_path):
    root = tmp_path / "posenc"
    (root / "encodings").mkdir(parents=True)
    file = root / "encodings" / "x.py"
    file.write_text(SOURCE)
    keeping = loaded("keeping")
    keeping.Kept(tmp_path / "kept", root).keep("encodings/x.py", (3, 0), ("wrong", "a subject", "a.code"))
    assert keeping.Kept(tmp_path / "kept", root).judged("encodings/x.py") == {(3, 0): ["wrong", "a subject", "a.code"]}
    (root / "laws").mkdir()
    (root / "laws" / "new.py").write_text("a law more")
    strict, remembered = (getattr(keeping.Kept(tmp_path / "kept", root), how) for how in ("judged", "before"))
    assert strict("encodings/x.py") == {}
    assert remembered("encodings/x.py") == {(3, 0): ["wrong", "a subject", "a.code"]}
    file.write_text(SOURCE + "# changed\n")
    for how in ("judged", "before"):
        assert getattr(keeping.Kept(tmp_path / "kept", root), how)("encodings/x.py") == {}
    assert keeping.Kept(None, root).judged("encodings/x.py") == {}


def test_what_is_known_of_correct_subjects_is_kept_until_the_package_changes(tmp_path):
    root, keeping = tmp_path / "posenc", loaded("keeping")
    root.mkdir()
    (root / "x.py").write_text(SOURCE)
    assert keeping.Kept(tmp_path / "kept", root).known() is None
    keeping.Kept(tmp_path / "kept", root).keep_known({"a": [("pass", ""), 1.5, {"x.py": {3, 1}}]})
    assert keeping.Kept(tmp_path / "kept", root).known() == {"a": [["pass", ""], 1.5, {"x.py": {1, 3}}]}
    (root / "x.py").write_text(SOURCE + "# changed\n")
    assert keeping.Kept(tmp_path / "kept", root).known() is None


def test_since_a_commit_only_what_its_page_found_counts_as_found(tmp_path, monkeypatch):
    since, file = loaded("since"), "encodings/x.py"
    source, path = SOURCE.replace("q * cos", "q * cos + 0"), tmp_path / "src" / "posenc" / file
    path.parent.mkdir(parents=True)
    path.write_text(SOURCE)
    page = tmp_path / since.PAGE
    page.parent.mkdir(parents=True)
    page.write_text("### encodings/x.py\n\n- 14, `Turn.__init__`: `base * 3 -> base / 3`. not visible\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "a page"]):
        subprocess.run([*git, *command], check=True)
    made = loaded("mutants").mutants(file, source)
    found = since.Since("HEAD", tmp_path).found(file, source, made)
    assert "base * 5 -> base / 5" in {m.change for m in found}
    assert "base * 3 -> base / 3" not in {m.change for m in found}  # survived
    assert "Turn.at" not in {m.function for m in found}  # changed since
    monkeypatch.setitem(since.UNCALLED, f"{file} Turn.__init__", "nobody can call it")
    assert "Turn.__init__" not in {m.function for m in since.Since("HEAD", tmp_path).found(file, source, made)}


def test_reasons_are_found_by_the_change_by_its_manner_and_by_what_is_common():
    results, mutant = loaded("results"), loaded("mutants").Mutant
    of = [
        ("encodings/deberta.py", "DeBERTa._near", "self._edges[-2] -> self._edges[-1]"),
        ("encodings/t5.py", "_edges", "int(exact * 1.5) - 2 -> int(exact * 1.5) - 3"),
        ("encodings/new.py", "f", "x.sort(dim=-1, stable=True) -> x.sort(dim=-1, stable=False)"),
    ]
    for file, function, change in of:
        row = results.row(mutant(file, function, "", (1, 1), 1, change, (0, 0)), "survives", "2", "")
        assert row["reason"] not in ("", results.NO_REASON)
    row = results.row(mutant("encodings/new.py", "f", "", (1, 1), 1, "q + k -> q - k", (0, 0)), "survives", "2", "")
    assert row["reason"] == results.NO_REASON


def test_the_subject_that_found_a_mutant_before_goes_first():
    first = loaded("run")._first
    assert first(["a", "b", "c"], ("fail", "b", "a.code")) == ["b", "a", "c"]
    assert first(["a", "b", "c"], ("survives", "3", "")) == ["a", "b", "c"]
    assert first(["a", "b", "c"], None) == ["a", "b", "c"]


@pytest.mark.slow
def test_nine_in_ten_mutants_are_found_and_each_survivor_has_its_reason(tmp_path):
    """POSENC_MUTATIONS names a folder that keeps what is judged, so that a run that was stopped goes on."""
    told = tmp_path / "rows.json"
    kept = os.environ.get("POSENC_MUTATIONS") or str(tmp_path / "kept")
    command = [sys.executable, str(FOLDER / "run.py"), "--json", str(told), "--keep", kept]
    run = subprocess.run(command, capture_output=True, text=True, timeout=HOURS * 3600)
    assert run.returncode == 0, run.stderr[-4000:]
    results, rows = loaded("results"), json.loads(told.read_text())
    counted = [row for row in rows if results.counts(row)]
    assert len(counted) >= FEWEST
    assert results.share(rows) >= SHARE, results.summary(rows)
    bare = [row for row in counted if row["reason"] == results.NO_REASON]
    assert not bare, "\n".join(f"{r['file']}:{r['line']} {r['function']}: {r['change']} ({r['fate']})" for r in bare)
