"""The generated pages are what the generator writes today."""

import importlib.util
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
_spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
generate = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(generate)
NUMBER = re.compile(r"\d[\d,.]*(?:e-?\d+)?")


def differences(page: str, fresh: str) -> list[str]:
    """Lines that differ; of measured numbers, the ones that two processors' roundings do not explain."""
    lines, measured, found = (page.split("\n"), fresh.split("\n")), False, []
    for old, new in zip(*lines, strict=False):
        if new.startswith("## "):
            measured = new == "## Character"
        if old != new and not (measured and alike(old, new)):
            found.append(new)
    return found + ["another number of lines"] * (len(lines[0]) != len(lines[1]))


def alike(old: str, new: str) -> bool:
    if NUMBER.split(old) != NUMBER.split(new):
        return False
    numbers = ([float(n.rstrip(".,").replace(",", "")) for n in NUMBER.findall(line)] for line in (old, new))
    return all(a == pytest.approx(b, rel=0.02, abs=0.015) for a, b in zip(*numbers, strict=True))


@pytest.mark.parametrize("name", sorted(generate.PAGES))
def test_generated_pages_are_in_step(name):
    assert differences((DOCS / name).read_text(), generate.PAGES[name]()) == [], "run: python docs/generate.py"


def test_a_rounding_is_no_difference_and_anything_else_is():
    page = "# Page 10\n## Character\n| rope | 1,000 | yes 0.15 |\n## rope\n2021"
    for old, new, line in (
        ("1,000", "1,010", None),
        ("0.15", "0.16", None),
        ("1,000", "1,100", "| rope | 1,100 | yes 0.15 |"),
        ("yes", "no", "| rope | 1,000 | no 0.15 |"),
        ("2021", "2022", "2022"),
        ("Page 10", "Page 11", "# Page 11"),
        ("\n2021", "", "another number of lines"),
    ):
        assert differences(page, page.replace(old, new)) == ([line] if line else [])
