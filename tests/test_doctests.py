"""Every example in a docstring prints what it says."""

import doctest
import importlib
from pathlib import Path

import pytest

import posenc

ROOT = Path(str(posenc.__file__)).parent
FILES = sorted(path.relative_to(ROOT.parent) for path in ROOT.rglob("*.py") if ">>>" in path.read_text())
PROCESSES = {Path("posenc/bench/measure.py"), Path("posenc/bench/pages.py")}  # what their examples start


@pytest.mark.parametrize(
    "file", [pytest.param(file, marks=[pytest.mark.slow] if file in PROCESSES else []) for file in FILES], ids=str
)
def test_examples_in_docstrings(file):
    module = importlib.import_module(".".join(file.with_suffix("").parts).removesuffix(".__init__"))
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0
