import base64
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import parse_qsl, urlsplit

import pytest

from explorer_client import make
from posenc.explorer import export, server
from posenc.explorer.targets import Target

CONFIG = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 4}
CONFIG |= {"max_position_embeddings": 4096, "rope_theta": 10000.0}


class Page(HTMLParser):
    """What a file holds: its tags, and the text of its scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self._inside = [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._inside = tag if tag in ("script", "style") else None

    def handle_data(self, data):
        if self._inside:
            self.texts.append((self._inside, self.tags[-1][1].get("type"), data))
            self._inside = None


@pytest.fixture(scope="module")
def shell():
    return export.shell()


@pytest.fixture(scope="module")
def held():
    return export.collect(Target("encoding", "alibi"))


@pytest.fixture(scope="module")
def modules(shell):
    """The modules in the import map, by name, decoded."""
    texts = Page(shell).texts
    mapped = json.loads(next(text for _, kind, text in texts if kind == "importmap"))["imports"]
    head = "data:text/javascript;base64,"
    assert all(address.startswith(head) for address in mapped.values())
    return {name: base64.b64decode(address.removeprefix(head)).decode() for name, address in mapped.items()}


def test_nothing_in_the_file_points_out_of_it(shell):
    page = Page(shell)
    for tag, attributes in page.tags:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            assert attributes.get(name, "").startswith(("data:", "#")) or name not in attributes, (tag, attributes)
    styles = [text for tag, _, text in page.texts if tag == "style"]
    assert len(styles) == 2
    assert not any(re.search(r"@import|url\((?!['\"]?data:)", text) for text in styles)


def test_the_file_forbids_itself_every_request(shell):
    policy = next(a["content"] for tag, a in Page(shell).tags if a.get("http-equiv") == "Content-Security-Policy")
    parts = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert parts["default-src"] == "'none'"  # and so connect-src, frame-src, font-src ...
    for sources in parts.values():
        assert set(sources.split()) <= {"'none'", "'unsafe-inline'", "data:", "blob:"}
    assert shell.index("Content-Security-Policy") < shell.index("<script")


def test_modules_find_each_other_by_name(modules):
    assert set(modules) == {f"posenc/{name}" for name in server.static_files() if name.endswith(".js")}
    for name, text in modules.items():
        imported = re.findall(r'\b(?:from|import)\s*\(?\s*"([^"]+)"', text)
        assert set(imported) <= set(modules), name
        assert '"./' not in text
    assert any('from "posenc/api.js"' in text for text in modules.values())


def test_apart_from_names_modules_are_what_the_server_sends(modules):
    for name, entry in server.static_files().items():
        if name.endswith(".js"):
            assert modules[f"posenc/{name}"].replace('"posenc/', '"./') == entry.read_text("utf-8")


def test_things_stand_in_the_order_in_which_a_browser_needs_them(shell):
    kinds = [(kind or "script", text) for tag, kind, text in Page(shell).texts if tag == "script"]
    assert [kind for kind, _ in kinds] == ["script", "script", "importmap", "module"]
    assert kinds[0][1].startswith("window.POSENC_FRAMES = ")
    assert kinds[1][1].lstrip().startswith("/**\n* plotly.js")
    assert kinds[3][1] == 'import "posenc/main.js";'
    assert (shell.count(export.FRAMES), shell.count(export.STATE)) == (1, 1)


def test_plotly_is_whole(shell):
    scripts = [text for tag, kind, text in Page(shell).texts if tag == "script" and kind is None]
    assert scripts[1] == server.plotly_file().read_text("utf-8")


@pytest.mark.parametrize(
    ("code", "written"),
    [
        ("a='</script>'", "a='\\x3c/script>'"),
        ("a='</SCRIPT'", "a='\\x3c/SCRIPT'"),
        ("a='<!--'", "a='\\x3c!--'"),
        ("a<b", "a<b"),
        ("'<script>'", "'<script>'"),
    ],
)
def test_code_that_would_end_its_own_script(code, written):
    assert export._in_script(code) == written


def test_data_cannot_end_a_script():
    evil = {"</script><script>alert(1)</script>": "<!-- ω"}
    page = export.fill(f"<script>x = {export.FRAMES}; y = {export.STATE};</script>", evil, "</script>")
    assert [tag for tag, _ in Page(page).tags] == ["script"]
    assert json.loads(page[len("<script>x = ") : page.index("; y = ")]) == evil


def test_a_page_that_refers_to_more_than_can_be_inlined_is_noticed(monkeypatch, tmp_path):
    files = dict(server.static_files())
    for name, entry in files.items():
        (tmp_path / name).write_text(entry.read_text("utf-8"))
    monkeypatch.setattr(server, "static_files", lambda: {path.name: path for path in tmp_path.iterdir()})
    page = (tmp_path / "index.html").read_text()
    (tmp_path / "index.html").write_text(page.replace("</head>", '<script src="/static/extra.js"></script></head>'))
    with pytest.raises(RuntimeError, match=r"extra\.js.*not inlined"):
        export.shell()
    (tmp_path / "index.html").write_text(page)
    (tmp_path / "main.js").write_text('import { x } from "./lost.js";')
    with pytest.raises(RuntimeError, match=r"main\.js imports lost\.js"):
        export.shell()


def test_it_holds_what_the_server_would_answer(held):
    _, client = make(Target("encoding", "alibi"))
    start = client.get("/api/start").json()
    assert held["/api/start"] == {**start, "token": ""}
    fitting = next(e["views"] for e in start["encodings"] if e["name"] == "alibi")
    assert {"profile", "bias"} <= set(fitting)
    addresses = [address for address in held if address != "/api/start"]
    assert {f"/api/view/{view}?a=alibi" for view in fitting} - set(addresses) <= {"/api/view/cell?a=alibi"}
    for address in addresses:
        answer = client.get(address)
        assert answer.status_code == 200
        if isinstance(held[address], str):
            assert base64.b64decode(held[address]) == answer.content
        else:
            assert held[address] == answer.json()


def test_the_token_stays_at_home(held):
    assert held["/api/start"]["token"] == ""


@pytest.mark.parametrize(
    ("query", "address"),
    [
        ({}, "/api/view/heat"),
        ({"a": "rope"}, "/api/view/heat?a=rope"),
        ({"length": "64", "a": "t5", "rows": "9", "columns": "8"}, "/api/view/heat?a=t5&length=64"),
        ({"a": "my.pe:Mine", "text": "a b&c=ü(*)'!~"}, "/api/view/heat?a=my.pe%3AMine&text=a%20b%26c%3D%C3%BC(*)'!~"),
    ],
)  # fmt: skip
def test_addresses_are_those_that_the_page_makes(query, address):
    assert export.address("heat", query) == address
    kept = {key: value for key, value in query.items() if key not in ("rows", "columns")}
    assert dict(parse_qsl(urlsplit(address).query)) == kept


def model_views(held):
    """Return the names of models that a file holds, in the page's words."""
    asked = [urlsplit(address) for address in held if address.startswith("/api/view/model")]
    return [next(iter(dict(parse_qsl(address.query)).values()), "") for address in asked]


def test_the_whole_shelf_is_in_every_file(held):
    names = [model["name"] for model in held["/api/start"]["models"]]
    default = next(c["default"] for c in view_of(held, "model")["controls"] if c["name"] == "model")
    assert model_views(held) == ["" if name == default else name for name in names]
    assert len(names) >= 20


def view_of(held, name):
    return next(view for view in held["/api/start"]["views"] if view["id"] == name)


def test_of_the_model_that_it_is_about_layers_and_methods_are_in_the_file():
    held = export.collect(Target("model", "gemma-3-27b"))
    asked = [dict(parse_qsl(urlsplit(address).query)) for address in held if address.startswith("/api/view/model")]
    own = [query for query in asked if query.get("model") == "gemma-3-27b"]
    assert {query["layer"] for query in own if "layer" in query} == {str(i) for i in range(1, 62)}
    methods = next(c["choices"] for c in view_of(held, "model")["controls"] if c["name"] == "method")
    assert {query["method"] for query in own if "method" in query} == set(methods) - {"own"}
    assert [query for query in asked if query.get("model") == "llama-2-7b"] == [{"model": "llama-2-7b"}]


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    held = export.collect(Target("file", "mine", path))
    assert held["/api/start"]["target"]["id"] in model_views(held)
    assert "/api/view/heat?a=rope" in held  # so that the page's other parts are not bare
    path.write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        export.collect(Target("file", "mine", path))


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(export, "collect", lambda target: {"/api/start": {}})
    monkeypatch.setattr(export, "shell", lambda: f"<!doctype html>ω {export.FRAMES} {export.STATE}")


def test_the_file_appears_whole_or_not_at_all(tmp_path, quick, monkeypatch):
    path = tmp_path / "page.html"
    path.write_text("before")
    export.write(Target("encoding", "rope"), path)
    assert path.read_text("utf-8") == '<!doctype html>ω {"/api/start": {}} ""'
    assert list(tmp_path.iterdir()) == [path]

    def seen(aside, path, replace=os.replace):
        assert path.read_text("utf-8").endswith('""')  # what stood there, until the new one is whole
        assert "alibi" in aside.read_text("utf-8")
        replace(aside, path)
        replaced.append(path)

    replaced = []
    monkeypatch.setattr(os, "replace", seen)
    monkeypatch.setattr(export, "collect", lambda target: {"/api/view/bias?a=alibi": ""})
    export.write(Target("encoding", "alibi"), path)
    assert replaced == [path]

    def full(number):
        assert path.read_text("utf-8").startswith("<!doctype html>")  # what stood there still does
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ValueError, match="cannot write .*No space left"):
        export.write(Target("encoding", "rope"), path)
    assert list(tmp_path.iterdir()) == [path]


def test_where_it_cannot_be_written(tmp_path, quick):
    with pytest.raises(ValueError, match="there is no directory"):
        export.write(Target("encoding", "rope"), tmp_path / "no" / "page.html")
    with pytest.raises(ValueError, match="must name a file"):
        export.write(Target("encoding", "rope"), tmp_path)


def test_the_shell_is_served_for_the_pages_own_use():
    _, client = make(loaded=False)
    answer = client.get("/api/shell")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.text == export.shell()


@pytest.mark.slow
def test_from_the_command_line(tmp_path):
    path = tmp_path / "page.html"
    command = [sys.executable, "-m", "posenc", "explore", "alibi", "--export", str(path)]
    assert subprocess.check_output(command, text=True) == f"Wrote {path}.\n"
    page = path.read_text("utf-8")
    frames = next(text for tag, _, text in Page(page).texts if tag == "script")
    found = json.loads(frames.removeprefix("window.POSENC_FRAMES = ").split(";\nwindow.POSENC_STATE")[0])
    assert "/api/view/bias?a=alibi" in found
    assert "/*POSENC" not in page
