"""Export the page as one file that opens from disk, with its styles, modules, charts and answers inside.

Modules become data: addresses in an import map, because a page opened from disk cannot import files. The file's own
policy forbids every request.
"""

import base64
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from posenc.explorer import server, start
from posenc.explorer.targets import FIRST, Target
from posenc.replacing import replaced

FRAMES, STATE = "/*POSENC_FRAMES*/{}", '/*POSENC_STATE*/""'  # placeholders; each occurs once in the shell
_PLAIN = "-_.!~*'()"  # characters that JavaScript's encodeURIComponent keeps, besides letters and digits
_MOST_LAYERS = 64  # of the target model
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
_STYLE = re.compile(r'<link rel="stylesheet"(?P<id> id="[\w.-]+")? href="/static/(?P<name>[\w./-]+)">')
_ICON = re.compile(r'<link rel="icon" href="/static/(?P<name>[\w./-]+)"')
_MODULE = re.compile(r'<script type="module" src="/static/(?P<name>[\w./-]+)"></script>')
_IMPORT = re.compile(r'(?P<before>\bfrom\s*|\bimport\s*\(?\s*)"\./(?P<name>[\w./-]+)"')
_OUTSIDE = re.compile(r'(?:src|href)="(?!data:|#|https?:)[^"]*"')


def write(target: Target, path: Path, language: str | None = None) -> None:
    """Write the page about a target as one HTML file, atomically; it opens in a language, or in the browser's.

    Raises:
        ValueError: The file cannot be written, or the target is an invalid file.
    """
    if not path.absolute().parent.is_dir():
        raise ValueError(f"explore: --export: there is no directory {str(path.parent)!r}. Make it first.")
    if path.is_dir():
        raise ValueError(f"explore: --export must name a file; got the directory {str(path)!r}.")
    held = collect(target)
    page = fill(shell(), held, f"lang={language}" if language else "")
    try:
        with replaced(path) as aside, aside.open("x", encoding="utf-8") as file:
            file.write(page)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ValueError(f"explore: --export cannot write {str(path)!r}: {error.strerror or error}.") from error


def collect(target: Target) -> dict[str, Any]:
    """Return the answers that the page needs for a target, by address: the start answer and each view that applies.

    Frames are encoded in base64; JSON is kept. Loads torch.

    Raises:
        ValueError: The target is an invalid file.
    """
    begin = {**start.early(target), **start.late(target), "ready": True, "failure": None, "token": ""}
    if begin["target"]["error"]:
        raise ValueError(begin["target"]["error"])
    held: dict[str, Any] = {"/api/start": begin, "/api/language/zh": server.translations()}
    for view, query in questions(begin):
        try:
            data, media_type = server.compute("view", view, query)
        except server.RefusedError:  # the view does not apply; the page disables it
            continue
        binary = media_type != "application/json"
        held[address(view, query)] = base64.b64encode(data).decode() if binary else json.loads(data)
    return held


def questions(begin: Mapping[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """Return the queries of the page with every control at its default, for one encoding and for all models.

    If the target is a model or a study, its layers, methods and pictures are included. Like the page, the queries omit
    default values.
    """
    target = begin["target"]
    encoding = target["id"] if target["kind"] == "encoding" else FIRST
    fitting = next(known["views"] for known in begin["encodings"] if known["name"] == encoding)
    shelf = [model["name"] for model in begin["models"]] + ([target["id"]] if target["kind"] == "file" else [])
    found: list[tuple[str, dict[str, str]]] = []
    for view in begin["views"]:
        if view["id"] == "model":
            control = next(c for c in view["controls"] if c["name"] == "model")
            asked = {name: {} if name == control["default"] else {"model": name} for name in shelf}
            found += [("model", query) for query in asked.values()]
            if target["kind"] in ("model", "file"):
                found += [("model", {**asked[target["id"]], **more}) for more in _of_model(target["id"], view)]
        elif view["id"] == "attention" and target["kind"] == "study":
            found += [("attention", query) for query in _of_study(view)]
        elif not view["of_encoding"]:
            found.append((view["id"], {}))
        elif view["id"] in fitting:
            found.append((view["id"], {"a": encoding}))
    return found


def _of_model(name: str, view: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return more queries about one model: its other layers, and other methods on its first layer."""
    from posenc.explorer import models

    try:
        n_layers = min(len(models.open_shown(name).layers), _MOST_LAYERS)
    except ValueError:  # a checkpoint without a configuration cannot be drawn
        return []
    methods = next(c["choices"] for c in view["controls"] if c["name"] == "method")
    return [{"layer": str(i)} for i in range(1, n_layers)] + [{"method": method} for method in methods[1:]]


def _of_study(view: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the queries about a study: every picture of each model, and all maps of the first."""
    from posenc.explorer import studies
    from posenc.study.config import read_size

    study = studies.open_study()
    draws = next(c["choices"] for c in view["controls"] if c["name"] == "draw")
    cells = [{}, *({"cell": cell} for cell in list(study.cells)[1:])]
    pictures = [{**cell, **({"draw": draw} if i else {})} for cell in cells for i, draw in enumerate(draws)]
    size = read_size(next(iter(study.cells.values())).size)
    maps = [(layer, head) for layer in range(size.n_layers) for head in range(size.n_heads)]
    named = ("layer", "head")
    return pictures + [{k: str(v) for k, v in zip(named, at, strict=True) if v} for at in maps[1:_MOST_LAYERS]]


def address(view: str, query: Mapping[str, str]) -> str:
    """Return the key of an answer in the file: its address with sorted options, without the picture's size.

    >>> address("heat", {"length": "64", "a": "rope", "rows": "200"})
    '/api/view/heat?a=rope&length=64'
    """
    kept = sorted((key, value) for key, value in query.items() if key not in {"rows", "columns"})
    text = "&".join(f"{quote(key, safe=_PLAIN)}={quote(value, safe=_PLAIN)}" for key, value in kept)
    return f"/api/view/{view}?{text}" if text else f"/api/view/{view}"


def fill(page: str, held: Mapping[str, Any], state: str = "") -> str:
    """Insert answers and the initial query string into the shell."""
    return page.replace(FRAMES, _script_json(held), 1).replace(STATE, _script_json(state), 1)


def shell() -> str:
    """Return the whole page as one HTML text, without answers.

    Raises:
        RuntimeError: The page refers to a file that is not inlined.
    """
    files = _Files({name: entry.read_text("utf-8") for name, entry in server.static_files().items()})
    modules = {name: text for name, text in files.items() if name.endswith(".js")}
    mapped = {f"posenc/{name}": _data(_bare(name, text, modules), "text/javascript") for name, text in modules.items()}
    plotly = server.plotly_file().read_text("utf-8")
    scripts = "\n".join(
        (
            f"<script>window.POSENC_FRAMES = {FRAMES};\nwindow.POSENC_STATE = {STATE};</script>",
            f"<script>{_in_script(plotly)}</script>",
            f'<script type="importmap">{_script_json({"imports": mapped})}</script>',
        )
    )
    page = files["index.html"]
    page = _STYLE.sub(lambda m: f"<style{m['id'] or ''}>{files[m['name']]}</style>", page)
    page = _ICON.sub(lambda m: f'<link rel="icon" href="{_data(files[m["name"]], "image/svg+xml")}"', page)
    if left := _OUTSIDE.findall(_MODULE.sub("", page)):
        raise RuntimeError(f"the page refers to {left[0]}, which is not inlined; extend posenc.explorer.export")
    page = _MODULE.sub(
        lambda m: f'{scripts}\n<script type="module">import "posenc/{m["name"]}";</script>', page, count=1
    )
    policy = f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    return page.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{policy}', 1)


class _Files(dict[str, str]):
    """The page's files by name; raises a RuntimeError for a missing one."""

    def __missing__(self, name: str) -> str:
        raise RuntimeError(f"the page refers to {name}, which is not among its files")


def _bare(name: str, text: str, modules: Mapping[str, str]) -> str:
    """Return a module that imports by names of the import map: relative imports fail from a data: address."""

    def rename(found: re.Match[str]) -> str:
        if found["name"] not in modules:
            raise RuntimeError(f"{name} imports {found['name']}, which is not among the page's files")
        return f'{found["before"]}"posenc/{found["name"]}"'

    return _IMPORT.sub(rename, text)


def _data(text: str, media_type: str) -> str:
    return f"data:{media_type};base64,{base64.b64encode(text.encode()).decode()}"


def _script_json(value: Any) -> str:
    """Return JSON that is safe inside a script element: it contains no closing tag."""
    return json.dumps(value, ensure_ascii=True).replace("<", "\\u003c")


def _in_script(code: str) -> str:
    """Return JavaScript that is safe inside a script element: the tags in its strings are escaped."""
    return re.sub(r"<(?=/script|!--)", r"\\x3c", code, flags=re.IGNORECASE)
