"""The texts of the explorer that the table `posenc/zh/explorer.json` translates, read from the code."""

import ast
import re
from html.parser import HTMLParser
from pathlib import Path

from posenc import languages, measure, registry
from posenc.explorer import options, views

SOURCE = Path(languages.__file__).parent
STATIC = SOURCE / "explorer" / "static"
PYTHON = ("explorer", "measure", "definitions")  # rooms whose calls of `tr` the page shows
_CALL = re.compile(r"""(?<![\w.])tr\(\s*(?P<text>"(?:[^"\\]|\\.)*"|[^\s"])""")


def texts():
    return {*of_python(), *_modules(), *_page(), *_objects()}


def of_python():
    """Yield the literal first arguments of the calls of `tr`."""
    for path in sorted(file for room in PYTHON for file in (SOURCE / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "tr":
                assert isinstance(node.args[0], ast.Constant), f"{path}:{node.lineno}: the text is not a literal"
                yield node.args[0].value


def _modules():
    """Yield the literal first arguments of the calls of `tr` in the page's modules."""
    for path in sorted(STATIC.glob("*.js")):
        for found in _CALL.finditer(code_of(path)):
            if path.name == "language.js" and not found["text"].startswith('"'):
                continue  # where `tr` is defined, and the page's own markup
            assert found["text"].startswith('"'), f"{path.name}: {found[0]}: the text is not a literal"
            yield ast.literal_eval(found["text"])


def code_of(path):
    """Return a module without its comments."""
    return re.sub(r"/\*\*.*?\*/|(?<![:\"])//[^\n]*", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)


class _Marked(HTMLParser):
    """The texts of elements with data-text, and the labels of those with data-label."""

    def __init__(self):
        super().__init__()
        self.found, self._inside = [], False

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self._inside = "data-text" in given
        if "data-label" in given:
            self.found.append(given["aria-label"])

    def handle_data(self, data):
        if self._inside:
            self.found.append(data)
            self._inside = False


def _page():
    marked = _Marked()
    marked.feed((STATIC / "index.html").read_text(encoding="utf-8"))
    return marked.found


def _objects():
    """Yield what the server's start answer and the methods of extension say."""
    for view in views.VIEWS.values():
        yield from (view.title, view.help)
        yield from (control.help for control in view.controls)
    for card in map(registry.card, registry.names()):
        yield card.summary
        yield from (control["help"] for control in options.controls(card.cls, card.example) if control["help"])
    yield from measure.METHODS.values()
