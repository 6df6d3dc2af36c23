"""The README's Python is executed, block after block, as a reader would paste it."""

import re
import sys
import types
from pathlib import Path

import pytest

import posenc

ROOT = Path(__file__).parents[1]
LANGUAGES = ("README.md", "README.zh-CN.md")


def blocks_of(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)


def bare(block):
    """Leave out comments and docstrings, which are translated."""
    return re.sub(r'\s*(#.*|""".*""")$', "", block, flags=re.MULTILINE)


@pytest.mark.compiles  # its last block runs all laws
def test_every_block_of_the_readme_runs(monkeypatch):
    blocks = blocks_of("README.md")
    assert len(blocks) >= 4
    reader = types.ModuleType("reader")  # a real module, since one law pickles the reader's class
    monkeypatch.setitem(sys.modules, "reader", reader)
    for block in blocks:
        exec(compile(block, "README.md", "exec"), vars(reader))
    assert reader.out.shape == (2, 8, 16, 64)
    assert reader.x.shape == (2, 16, 512)


def test_the_chinese_readme_has_the_same_code_commands_and_numbers():
    first, second = (blocks_of(name) for name in LANGUAGES)
    assert [bare(block) for block in first] == [bare(block) for block in second]
    command = r"^    (posenc \S+(?: [^#\s]\S*)*)"
    english, chinese = ((ROOT / name).read_text(encoding="utf-8") for name in LANGUAGES)
    assert re.findall(command, english, re.MULTILINE) == re.findall(command, chinese, re.MULTILINE)
    fast = (re.search(r"AMD EPYC.*?ATTEND_GPU", text, re.DOTALL)[0] for text in (english, chinese))
    assert len({tuple(re.findall(r"\d+\.\d+|\d+,\d+", part)) for part in fast}) == 1


@pytest.mark.parametrize("name", LANGUAGES)
def test_the_table_names_every_encoding_once(name):
    rows = re.findall(r"^\| [^`|]+ \| (.*`.*) \|$", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(posenc.names())


@pytest.mark.parametrize("name", LANGUAGES)
def test_the_readme_is_short_and_names_files_that_are_there(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    for path in [*re.findall(r"\]\(([^)#]+)\)", text), "constraints.txt", "CITATION.cff", "benchmarks/ATTEND.md"]:
        assert (ROOT / path).exists(), f"{name} names {path}"
