"""The generated pages are what the generator writes today."""

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
_spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
generate = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(generate)


@pytest.mark.parametrize("name", sorted(generate.PAGES))
def test_generated_pages_are_in_step(name):
    assert (DOCS / name).read_text() == generate.PAGES[name](), "run: python docs/generate.py"
