"""Every script in examples/ runs in a process of its own, without a warning, and prints what it claims."""

import ast
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))
QUICK = ("alibi_everywhere", "packed_documents")  # the others train for half a minute
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        capture_output=True,
        encoding="utf-8",
        env=ENVIRONMENT,
        cwd=ROOT,
        timeout=240,
    )


def rows(text, *names):
    """Return for each name the numbers (and the words 'same' and 'refused') of the first line that starts with it."""
    lines = {name: next(line for line in text.splitlines() if line.startswith(name)) for name in names}
    cell = r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]\d+)?%?(?!\w)|same|refused"
    found = {name: re.findall(cell, line[len(name) :]) for name, line in lines.items()}
    return {name: [c if c.isalpha() else float(c.rstrip("%")) for c in cells] for name, cells in found.items()}


def check_swap_encoding(text):
    found = rows(text, "nope", "sinusoidal", "rope", "alibi", "shaw", "mine")
    assert found["nope"][:2] == [0.0, 0.0]
    assert found["alibi"][1] == found["mine"][1] == 0.0
    for name in found.keys() - {"nope"}:
        assert found[name][0] > 0.0
        assert found[name][2] < found["nope"][2]


def check_decode_with_cache(text):
    assert text.startswith("The statement ")
    assert text.endswith("the same 300 tokens: True\n")
    assert all(len(cells) == 4 for cells in rows(text, "cache of rotated keys", "no cache").values())


def check_packed_documents(text):
    found = rows(text, "nope", "learned", "sinusoidal", "rope", "alibi", "t5")
    for name, (both, no_pos, no_ids, neither) in found.items():
        assert both == "same"
        assert (no_pos == "same") == (name not in ("learned", "sinusoidal"))
        assert min(no_ids, neither) > 0.1


def check_vision_transformer(text):
    found = rows(text, "nope", "learned_2d", "sinusoidal_nd", "axial_rope")
    assert found.pop("nope")[0] < 40
    for trained, counted, interpolated in found.values():
        assert min(trained, interpolated) > 50
        assert counted == "refused" or counted < interpolated - 20


def check_relative_encoder(text):
    found = rows(text, "nope", "shaw", "relative_bias", "t5")
    forwards, backwards = found.pop("nope")
    assert forwards == pytest.approx(backwards, abs=0.3)
    for restored, read_backwards in found.values():
        assert restored > forwards + 10
        assert read_backwards < restored - 10
    assert len({len(line) for line in text.splitlines() if line.endswith("|")}) == 1


def check_alibi_everywhere(text):
    ways = rows(text, "F.scaled_dot_product_attention", "the same, 4 new queries and a cache", "nn.MultiheadAttention")
    assert all(cells[-1] < 1e-5 for cells in ways.values())
    assert rows(text, "trap: is_causal's mask with a cache").popitem()[1][-1] > 0.1


def check_translate(text):
    for trained, held_out, loss, error, right, of, of_another in rows(text, "sinusoidal", "alibi", "rope").values():
        assert trained > held_out > 30
        assert loss + 2 * error < of_another
        assert 0 < right < of
    assert text.count("\nheld out: ") == 6


def check_gallery_vectors(text):
    assert f"from {2 * math.pi:.2f} to {2 * math.pi * 10_000 ** (510 / 512):,.0f} positions" in text
    assert f"Sinusoidal: each step is as long as the next, {2 * math.sin(0.5):.3f}" in text


def check_gallery_distance(text):
    assert "base 10,000: above zero up to 6,166.0 tokens" in text
    assert f"seen as {255 // 8 + 32 - 32 // 8}\n" in text  # groups, and the move that lets them meet at the window


def check_gallery_sentence(text):
    found = rows(text, "none", "sinusoidal", "learned, untrained")
    assert found["none"][:4] == [1.0] * 4
    assert found["sinusoidal"][:4] == sorted(found["sinusoidal"][:4], reverse=True)
    assert found["sinusoidal"][4] > found["none"][4] + 0.2
    assert f"{math.cos(2) + math.cos(0.02):.4f} = cos(2) + cos(0.02)" in text


def check_taylor_view(text):
    found = rows(text, "identity", "diagonal", "general", "1 ", "0.015625")
    assert found["identity"] == [100.0, 0.0, 0.0]
    assert found["diagonal"][2] == 0.0 < found["diagonal"][1] < found["diagonal"][0]
    assert found["general"][2] > 80
    for change, *terms in (found["1 "], found["0.015625"]):
        assert sum(terms) == pytest.approx(change, abs=1e-4)
    assert abs(found["1 "][3]) > abs(found["1 "][1])  # as p is, its interaction outweighs its slope
    assert abs(found["0.015625"][3]) < abs(found["0.015625"][1]) / 2


CHECKS = {name.removeprefix("check_"): check for name, check in globals().items() if name.startswith("check_")}


@pytest.mark.slow
@pytest.mark.parametrize("script", [s if s in QUICK else pytest.param(s, marks=pytest.mark.slow) for s in SCRIPTS])
def test_an_example_runs_and_shows_what_it_claims(script, tmp_path):
    draws = script.startswith("gallery_")
    done = run(f"examples/{script}.py", *(["--out", str(tmp_path)] if draws else []))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    CHECKS[script](done.stdout)
    if draws:
        kept = re.findall(r'^keep\("(\w+)"', (ROOT / "examples" / f"{script}.py").read_text(), re.MULTILINE)
        assert kept
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"{name}.svg" for name in kept)
        assert all(path.read_text().rstrip().endswith("</svg>") for path in tmp_path.iterdir())


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_example_opens_as_a_notebook(script):
    """Each cell is Python of its own, and the first one is the text that says what the notebook is about."""
    before, *cells = re.split(r"^# %%.*\n", (ROOT / "examples" / f"{script}.py").read_text(), flags=re.MULTILINE)
    assert before == ""
    assert len(cells) >= 3
    assert [type(node) for node in ast.parse(cells[0]).body] == [ast.Expr]
    trees = [ast.parse(cell) for cell in cells]
    if script.startswith("gallery_"):  # a notebook shows what the last line of a cell is
        shown = [ast.unparse(tree.body[-1]) for tree in trees if "keep(" in ast.unparse(tree).replace("def keep(", "")]
        assert shown
        assert all(line.startswith("keep(") for line in shown)
        assert sum(ast.unparse(tree).count("keep(") for tree in trees) == len(shown) + 1  # one figure a cell, and def


def test_no_example_is_left_out():
    listed = re.findall(r"\]\((\w+)\.py\)", (ROOT / "examples" / "README.md").read_text())
    assert SCRIPTS, "there are no examples"
    assert sorted(CHECKS) == SCRIPTS, "each script in examples/ needs a check here"
    assert sorted(listed) == SCRIPTS, "each script in examples/ needs a row in examples/README.md"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "package"),
    [
        ("vision_transformer", "sklearn"),
        ("translate", "django"),
        ("translate", "polib"),
        ("gallery_vectors", "matplotlib"),
    ],
)
def test_a_missing_package_is_named_in_one_line(script, package):
    code = f"import sys, runpy; sys.modules[{package!r}] = None; runpy.run_path('examples/{script}.py')"
    done = run("-c", code)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"{script}: ")
    assert "pip install" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_an_example_fails_if_its_claim_does_not_hold():
    done = run("examples/relative_encoder.py", "--steps", "1")
    assert done.returncode == 1
    assert done.stderr.startswith("relative_encoder: hardly better than no position at all: ")
