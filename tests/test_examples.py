"""Every script in examples/ runs in a process of its own, without a warning, and prints what it claims."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))
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
    assert all(len(cells) == 4 for cells in rows(text, "cache of turned keys", "no cache").values())


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


CHECKS = {name.removeprefix("check_"): check for name, check in globals().items() if name.startswith("check_")}


@pytest.mark.parametrize("script", SCRIPTS[::-1])  # the longest come last in the alphabet
def test_an_example_runs_and_shows_what_it_claims(script):
    done = run(f"examples/{script}.py")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    CHECKS[script](done.stdout)


def test_no_example_is_left_out():
    listed = re.findall(r"\]\((\w+)\.py\)", (ROOT / "examples" / "README.md").read_text())
    assert SCRIPTS, "there are no examples"
    assert sorted(CHECKS) == SCRIPTS, "each script in examples/ needs a check here"
    assert sorted(listed) == SCRIPTS, "each script in examples/ needs a row in examples/README.md"


@pytest.mark.parametrize(
    ("script", "package"), [("vision_transformer", "sklearn"), ("translate", "django"), ("translate", "polib")]
)
def test_a_missing_package_is_named_in_one_line(script, package):
    code = f"import sys, runpy; sys.modules[{package!r}] = None; runpy.run_path('examples/{script}.py')"
    done = run("-c", code)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"{script}: ")
    assert "pip install" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_example_fails_if_its_claim_does_not_hold():
    done = run("examples/relative_encoder.py", "--steps", "1")
    assert done.returncode == 1
    assert done.stderr.startswith("relative_encoder: hardly better than no position at all: ")
