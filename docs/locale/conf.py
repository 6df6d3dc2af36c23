"""Extract the texts of the pages that are translated: start, guide and how-to. `make translations` uses it.

Nothing runs and nothing is loaded but the pages, so that a test can extract them as well.
"""

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.directives.code import CodeBlock

sys.path.insert(0, str(Path(__file__).parents[1] / "_ext"))

project = "posenc"
extensions = ["links", "myst_parser"]
gettext_compact = False  # a catalogue for each page
gettext_location = False
myst_enable_extensions = ["dollarmath", "deflist", "attrs_inline"]
myst_heading_anchors = 3
exclude_patterns = ["_*", "locale", "reference", "upstream", "README.md"]
exclude_patterns += [
    f"{page}.md" for page in ("encodings", "glossary", "laws", "speed", "stacks", "stacks_head", "versions")
]
suppress_warnings = [
    "myst.xref_missing",
    "toc.duplicate_entry",
    "toc.excluded",
    "toc.not_readable",
    "image.not_readable",
]


def setup(app: Sphinx) -> None:
    """Read the cells of notebooks as blocks of code."""
    app.add_directive("code-cell", CodeBlock)
    app.connect("source-read", _keep_titles)


def _keep_titles(_: Sphinx, page: str, source: list[str]) -> None:
    """Extract the titles that the index gives to pages that stay English: a title needs a page that is read."""
    if page == "index":
        source[0] = re.sub(r"^(\w+) <.*>$", r"\1 <start>", source[0], flags=re.MULTILINE)
