"""Reports to other projects stay true: each block prints what its page shows, or the report can be closed."""

import contextlib
import importlib.metadata
import io
import re
import warnings
from pathlib import Path

import pytest
from packaging.version import Version

from posenc import verify

FOLDER = Path(__file__).parents[1] / "docs" / "upstream"
PAGES = sorted(path.name for path in FOLDER.glob("*.md") if path.name != "index.md")
PROJECT = re.compile(r"^\| project \| (\S+) (\S+) \|$", re.MULTILINE)
EVIDENCE = re.compile(r"^\| evidence \| (run|read in source, not run) \|$", re.MULTILINE)
BLOCKS = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)


def read(page):
    """Return the project, its version, how the fault was seen, the block and its output."""
    text = (FOLDER / page).read_text(encoding="utf-8")
    ((project, version),) = PROJECT.findall(text)
    (evidence,) = EVIDENCE.findall(text)
    ((block, output),) = BLOCKS.findall(text)
    return project, version, evidence, block, output


def run(block, page):
    """Return the names and the output of a block; an error, which may be the fix, is part of the output."""
    names, printed = {"__name__": page}, io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the projects' own use of torch
        try:
            exec(compile(block, page, "exec"), names)
        except Exception as error:
            print(repr(error))
    return names, printed.getvalue()


@pytest.mark.parametrize("page", PAGES)
def test_a_fault_is_still_there(page):
    project, version, evidence, block, output = read(page)
    installed = version
    if evidence == "run":
        try:
            installed = importlib.metadata.version(project).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"{project} is not installed")
        if Version(installed) < Version(version):
            pytest.skip(f"{project} {installed} is older than the page's {version}")
    names, printed = run(block, page)
    advice = (
        f"{page}: {project} {installed} prints other numbers than the page has for {version}. If they are right now, "
        "close the report: remove the page and its row in docs/upstream/index.md; if not, correct the page."
    )
    assert printed == output, advice
    if "build" in names:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report = verify.check(names["build"](), convention=names["STYLE"], spec=names["SPEC"])
        assert report.status == "fail", advice


def test_the_index_lists_each_page():
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\S+) (\S+) \| \[.+\]\((\S+)\) \| .+ \| (.+) \|$", index, re.MULTILINE)
    assert sorted(rows, key=lambda row: row[2]) == [(*read(page)[:2], page, read(page)[2]) for page in PAGES]
    _, _, listed = index.partition(":hidden:\n\n")
    assert sorted(listed.removesuffix("```\n").split()) == [page.removesuffix(".md") for page in PAGES]
