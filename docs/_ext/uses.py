"""Lead from each class and function of the reference to the examples that use it."""

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from posenc import registry

SCRIPTS = {path.stem: path.read_text() for path in sorted((Path(__file__).parents[2] / "examples").glob("*.py"))}


def setup(app: Sphinx) -> dict[str, bool]:
    """Append the links to docstrings, after they are reStructuredText."""
    app.connect("autodoc-process-docstring", _append, priority=950)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _append(_app: Sphinx, what: str, name: str, of: Any, _options: object, lines: list[str]) -> None:
    found = uses(name, of) if what in ("class", "function") else []
    if found:
        links = (f":doc:`{title_of(SCRIPTS[stem])} </_made/gallery/{stem}>`" for stem in found)
        lines += ["", f"Examples: {', '.join(links)}.", ""]


def uses(name: str, of: Any) -> list[str]:
    """Return the examples that have an object as `module.object`, import it, or create it by the name of its card."""
    parent, own = name.split(".")[-2:]
    known = rf"\b{parent}\.{own}\b|^from posenc\b.* import .*\b{own}\b"
    card = registry.card_of(of) if isinstance(of, type) else None
    if card:
        known += rf'|"{card.name}[",]|,{card.name}[",]'
    return [stem for stem, script in SCRIPTS.items() if re.search(known, script, re.MULTILINE)]


def title_of(script: str) -> str:
    """Return the title of an example: the first sentence of its docstring, up to a colon."""
    return script.split('"""', 2)[1].partition("\n")[0].partition(": ")[0].rstrip(".")
