"""Generated pages, and how far a fresh one may differ from the committed one."""

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
