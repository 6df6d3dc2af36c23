"""Lead links of pages that leave docs/ to their copies on the site."""

from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, bool]:
    """Change a page's links before it is parsed."""
    app.connect("source-read", _lead)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _lead(_: Sphinx, _page: str, source: list[str]) -> None:
    source[0] = (
        source[0]
        .replace("](../../benchmarks/", "](../_made/benchmarks/")
        .replace("](../benchmarks/", "](_made/benchmarks/")
        .replace("](../examples/README.md", "](_made/gallery/index.rst")
    )
