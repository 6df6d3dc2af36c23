"""The house's old words stay rare: what a user reads has the words of the field."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OLD = r"\b(told|nobody|somebody|beside|mend)\b"
# pattern: how many lines may have it, each where the word is the right one or a public name
READ = {
    OLD: 6,  # keys of JSON output, and their variables
    r"\bheld against\b|\bsays? of\b|\btells?\b(?<!cannot tell)": 1,  # a line that starts with the second word of it
    r"\b(queries|keys|vectors|pairs|lanes|dimensions) (that )?turn(s|ed)?\b|\bturned (q|k|queries|keys)\b": 0,
    r"^(#|\"\"\"|    \"\"\")? ?What (is|was|were) ": 4,
}


def tracked(*places):
    listed = subprocess.run(["git", "ls-files", *places], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    names = listed.split() or [str(path.relative_to(ROOT)) for place in places for path in ROOT.glob(f"{place}/**/*")]
    kept = (".py", ".md", ".json", ".toml", ".html", ".js", ".j2")
    return [ROOT / name for name in names if name.endswith(kept) and (ROOT / name).is_file()]


def lines_with(pattern, *places):
    found = re.compile(pattern, re.IGNORECASE)
    return [
        f"{path.relative_to(ROOT)}: {line.strip()[:120]}"
        for path in tracked(*places)
        for line in path.read_text(encoding="utf-8").splitlines()
        if found.search(line)
    ]


@pytest.mark.parametrize("pattern", READ)
def test_texts_for_readers_have_the_fields_words(pattern):
    found = lines_with(pattern, "src", "docs", "examples", "README.md", "API.md", "CONTRIBUTING.md", "SECURITY.md")
    assert len(found) <= READ[pattern], "\n".join(found)


def test_the_whole_repository_has_few_of_them():
    found = lines_with(
        OLD, "src", "docs", "examples", "README.md", "API.md", "CONTRIBUTING.md", "SECURITY.md", "tests", "benchmarks"
    )
    assert len(found) <= 80, "\n".join(found)
