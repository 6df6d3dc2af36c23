"""The blocks of the guide run: examples with prompts give what stands there, and cells run without an error."""

import doctest
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"^```(pycon|\{code-cell\} python3)\n(.*?)^```", re.DOTALL | re.MULTILINE)
PAGES = {
    str(path.relative_to(DOCS)): blocks
    for path in sorted(DOCS.rglob("*.md"))
    if not path.relative_to(DOCS).parts[0].startswith("_") and (blocks := BLOCK.findall(path.read_text()))
}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_computes_what_it_claims(page):
    names, failures = {"__name__": page}, []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for kind, block in PAGES[page]:
        if kind == "pycon":
            test = doctest.DocTestParser().get_doctest(block, names, page, page, 0)
            runner.run(test, out=failures.append, clear_globs=False)
            names = test.globs
        else:
            exec(compile(block, page, "exec"), names)
    assert not failures, "".join(failures)


def test_the_chapters_that_compute_are_found():
    assert {"start.md", "guide/why.md", "guide/theory.md"} <= set(PAGES)
