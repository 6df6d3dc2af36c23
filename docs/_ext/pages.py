"""Write the pages that come from the code before Sphinx reads: encodings, the command line, the gallery's scripts.

They lie in `docs/_made/`, which is not kept in the repository. Measured numbers are read from `encodings.md`.
"""

import inspect
import re
from pathlib import Path

import click
from formulas import to_mathml
from sphinx.application import Sphinx
from uses import title_of

import posenc
from posenc import definitions, figures
from posenc.cli import app

HERE = Path(__file__).parent.parent
FACTS = ("family", "paper", "learned", "cost", "used by", "peer code")  # columns that declare; the others are measured
MADE = HERE / "_made"
GALLERY = """Gallery
=======

Plain scripts, run when this page was made. Each prints what it found, and fails if a claim of its text does not hold.
They carry cell marks, so that editors open them as notebooks.
"""
# The gallery's picture of a script that draws none: the encoding that it is about, and a kind of figure.
PICTURES = {
    "alibi_everywhere": ("alibi", "bias"),
    "decode_with_cache": ("rope", "profile"),
    "packed_documents": ("alibi", "bias-matrix"),
    "position_encoding": ("sinusoidal", "points"),
    "relative_encoder": ("t5", "bias"),
    "swap_encoding": ("sinusoidal", "lanes"),
    "taylor_view": ("sinusoidal", "similarity"),
    "translate": ("sinusoidal", "dot"),
    "vision_transformer": ("axial_rope", "similarity"),
}
Rows = dict[str, list[tuple[str, str]]]


def setup(sphinx: Sphinx) -> dict[str, bool]:
    """Write the pages when a build starts, and point the table of encodings to them."""
    sphinx.connect("builder-inited", lambda _: _write_all())
    sphinx.connect("source-read", _end_with_pages)
    sphinx.connect("autodoc-process-docstring", _write_as_rst, priority=900)  # after napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _write_all() -> None:
    (MADE / "encodings").mkdir(parents=True, exist_ok=True)
    measured = read_tables((HERE / "encodings.md").read_text())
    for name in posenc.names():
        _put(MADE / f"encodings/{name}.md", encoding_page(posenc.card(name), measured.get(name, [])))
    _put(MADE / "commands.md", commands_page())
    (MADE / "benchmarks").mkdir(exist_ok=True)
    for page in sorted((HERE.parent / "benchmarks").glob("*.md")):
        _put(MADE / f"benchmarks/{page.name}", page.read_text())
    (MADE / "examples").mkdir(exist_ok=True)
    _put(MADE / "examples/GALLERY_HEADER.rst", GALLERY)
    for script in sorted((HERE.parent / "examples").glob("*.py")):
        _put(MADE / f"examples/{script.name}", example(script.read_text()) + _picture(script.stem))


def _put(path: Path, text: str) -> None:
    """Write a page if it changed, so that Sphinx reads only what is new."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def read_tables(page: str) -> Rows:
    """Return the rows of a page that belong to each encoding: pairs of a column's title and a cell."""
    found: Rows = {}
    titles: list[str] = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("| ") else []
        name = re.fullmatch(r"\[`(\w+)`\]\(#\w+\)", cells[0]) if cells else None
        if name:
            found.setdefault(name[1], []).extend(zip(titles[1:], cells[1:], strict=True))
        elif cells and cells[0] != "---":
            titles = cells
    return found


def encoding_page(card: posenc.Card, measured: list[tuple[str, str]]) -> str:
    """Return the page of one encoding: formula, source, figure, how to construct it, properties, reference."""
    source = f"{card.paper} ({card.year})"
    if card.arxiv:
        source += f". [arXiv:{card.arxiv}](https://arxiv.org/abs/{card.arxiv})"
    rows = [f"| {title} | {cell} |" for title, cell in measured if title not in FACTS]
    peers = dict(measured).get("peer code", "-")
    parts = [
        f"# {card.cls.__name__}",
        f"`{card.name}`" + "".join(f", also `{alias}`" for alias in card.aliases),
        "```{raw} html\n" + to_mathml(card.formula) + "\n```",
        f"**Source.** {source}.",
        f"**Cost.** {card.cost}. **Learned.** {card.parameters}.",
        f"**Used by.** {', '.join(card.used_by)}." if card.used_by else "",
        f"**Compared with the code of.** {peers}." if peers != "-" else "",
        f"```python\nimport posenc\n\nencoding = {card.call}\n```",
        _figure(card),
        _plans(card),
    ]
    if rows:
        parts += ["## Measured properties", "| property | measured |\n|---|---|\n" + "\n".join(rows)]
        parts += ["[What the properties mean](../../encodings.md#character), and the same of every encoding."]
    parts += [
        "## Definition",
        _definition(card),
        "## Reference",
        f"```{{eval-rst}}\n.. autoclass:: posenc.{card.cls.__name__}\n```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _figure(card: posenc.Card) -> str:
    """Draw the usual figure of an encoding's example; empty where no kind fits."""
    encoding = card.examples()[0]
    kinds = figures.kinds_of(encoding)
    if not kinds:
        return ""
    path = MADE / f"encodings/{card.name}.svg"
    if not path.exists() or path.stat().st_mtime < Path(inspect.getfile(card.cls)).stat().st_mtime:
        figures.draw(encoding, kinds[0]).savefig(path)
    return f"![{card.cls.__name__}: {figures.KINDS[kinds[0]].said}]({card.name}.svg)"


def _plans(card: posenc.Card) -> str:
    """Return the names under which papers have this class with other options."""
    lines = []
    for name, options in card.plans.items():
        given = [repr(name), *(f"{option}={value!r}" for option, value in options.items())]
        lines.append(f"- `{name}`: `posenc.create({', '.join(given)})`")
    return "\n".join(["**Plans of other papers.**", "", *lines]) if lines else ""


def _definition(card: posenc.Card) -> str:
    """Return the source of an encoding's definition."""
    found = definitions.find(card.name)
    if found is None:
        return "It has none of its own."
    home = found.__module__.rpartition(".")[2]
    return f"`posenc.definitions.{home}`, float64 NumPy:\n\n```python\n{inspect.getsource(found)}```"


def commands_page() -> str:
    """Return the page of the command line: what `--help` prints of each command."""
    parts = ["# Command line", "`posenc` and `python -m posenc` are the same."]
    context = click.Context(app, info_name="posenc")
    for name in app.list_commands(context):
        command = app.get_command(context, name)
        with click.Context(command, info_name=name, parent=context, max_content_width=100) as asked:
            parts.append(f"## {name}\n\n```text\n{command.get_help(asked)}\n```")
    return "\n\n".join(parts) + "\n"


def _end_with_pages(_: Sphinx, page: str, source: list[str]) -> None:
    """End the table of encodings before what has pages of its own here, and lead its links to them."""
    if page == "encodings":
        table = source[0].partition("\n## nope\n")[0]
        links = re.sub(r"\]\(#(\w+)\)", r"](_made/encodings/\1.md)", table)
        names = "\n".join(f"_made/encodings/{name}" for name in posenc.names())
        source[0] = f"{links}\n\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"


def example(script: str) -> str:
    """Return a script of examples/ with the first sentence of its docstring as a title, as the gallery wants it."""
    before, docstring, code = script.split('"""', 2)
    first, _, rest = docstring.partition("\n")
    title, more = title_of(script), first.partition(": ")[2]
    return f'{before}"""\n{title}\n{"=" * len(title)}\n\n{more.capitalize()}{rest}"""{code}'


def _picture(stem: str) -> str:
    """Draw the gallery's picture of a script that draws none; return the comment that the gallery finds it by."""
    if stem not in PICTURES:
        return ""
    name, kind = PICTURES[stem]
    path = MADE / f"examples/{stem}.png"
    if not path.exists():
        figures.draw(posenc.card(name).examples()[0], kind).savefig(path, dpi=60)
    return f"\n# sphinx_gallery_thumbnail_path = '_made/examples/{stem}.png'\n"


def _write_as_rst(_app: Sphinx, _what: str, _name: str, _of: object, _options: object, lines: list[str]) -> None:
    """Turn `code` of our docstrings, which are Markdown's, into that of reStructuredText; |x| is an absolute value."""
    code = [line.startswith((">>>", "...", "    ")) for line in lines]
    for at, plain in enumerate(code):
        if not plain:
            doubled = re.sub(r"(?<![`:\w])`([^`]+)`(?!`)", r"``\1``", lines[at])
            parts = re.split(r"(``.*?``)", doubled)
            lines[at] = "".join(part if part.startswith("``") else re.sub(r"([|*])", r"\\\1", part) for part in parts)
