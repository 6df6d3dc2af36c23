"""The README's Python is executed, block after block, as a reader would paste it."""

import re
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.mark.compiles  # its last block runs all laws
def test_every_block_of_the_readme_runs(monkeypatch):
    assert len(BLOCKS) >= 4
    reader = types.ModuleType("reader")  # a real module, since one law pickles the reader's class
    monkeypatch.setitem(sys.modules, "reader", reader)
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), vars(reader))
    assert reader.out.shape == (2, 8, 16, 64)
    assert reader.x.shape == (2, 16, 512)


def test_the_readme_names_files_that_are_there():
    text = (ROOT / "README.md").read_text()
    for name in [*re.findall(r"\]\(([^)#]+)\)", text), "constraints.txt", "CITATION.cff", "benchmarks/ATTEND.md"]:
        assert (ROOT / name).exists(), f"README.md names {name}"
