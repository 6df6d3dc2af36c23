"""The explorer's server: its files, queries, cached answers and errors."""

import asyncio
import json
import threading

import numpy as np
import pytest

from explorer_client import CONFIG, make, post
from posenc.explorer import server as serving
from posenc.explorer import shelf, views
from posenc.explorer.frames import Frame
from posenc.explorer.targets import Target


@pytest.fixture(scope="module")
def loaded():
    return make()


@pytest.fixture
def fresh(loaded):
    """The loaded server with an empty cache, and with a lock that belongs to no other event loop."""
    loaded[0]._answers.clear()
    loaded[0]._one_at_a_time = asyncio.Lock()
    return loaded


@pytest.mark.parametrize(
    ("path", "media_type", "beginning"),
    [
        ("/", "text/html; charset=utf-8", "<!doctype html>"),
        ("/static/main.js", "text/javascript; charset=utf-8", "//"),
        ("/static/icon.svg", "image/svg+xml", "<svg "),
        ("/plotly.js", "text/javascript; charset=utf-8", "/**\n* plotly.js v"),
    ],
)
def test_the_files_of_the_page(loaded, path, media_type, beginning):
    answer = loaded[1].get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == media_type
    assert answer.text.startswith(beginning)


def test_the_page_has_nothing_inline_that_its_policy_refuses(loaded):
    page = loaded[1].get("/").text
    assert [text for text in ("<style", " style=", " onload=", "<script>", "https://") if text in page] == []


def test_without_plotly_the_answer_names_the_extra(loaded, monkeypatch):
    monkeypatch.setattr(serving, "find_spec", lambda name: None)
    answer = loaded[1].get("/plotly.js")
    assert answer.status_code == 503
    assert "pip install 'posenc[web]'" in answer.json()["error"]


@pytest.mark.parametrize(
    "path",
    [
        "/static/",
        "/static/../server.py",
        "/static/%2e%2e/server.py",
        "/static/..%2fserver.py",
        "/static/..%5cserver.py",
        "/static/%2e%2e%2f%2e%2e%2f__init__.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/index.html/../../server.py",
        "/static/index.html%00.js",
        "/static/INDEX.HTML",
        "/static/nothing.js",
        "/server.py",
        "/api",
        "/api/start/more",
        "/api/file/heat",
    ],
)
def test_nothing_else_is_served(loaded, path):
    answer = loaded[1].get(path)
    assert answer.status_code == 404
    assert answer.json() == {"error": "Nothing is here."}


def test_only_files_of_known_types_are_served(tmp_path, monkeypatch):
    (tmp_path / "static" / "deep").mkdir(parents=True)
    for name in ("page.html", "deep/part.js", "notes.txt", ".hidden", "code.py"):
        (tmp_path / "static" / name).write_text("x")
    monkeypatch.setattr(serving, "files", lambda package: tmp_path)
    assert sorted(serving.static_files()) == ["deep/part.js", "page.html"]


def test_the_start_answer_before_torch_is_loaded():
    server, client = make(loaded=False)
    start = client.get("/api/start").json()
    assert start["ready"] is False
    assert start["failure"] is None
    assert start["token"] == server.token
    assert start["target"] == {"kind": "encoding", "name": "rope", "id": "rope", "error": None}
    assert "llama-3.1-8b" in [model["name"] for model in start["models"]]
    assert (start["encodings"], start["views"]) == ([], [])
    assert client.get("/").status_code == 200
    asked = client.get("/api/view/heat?a=rope")
    assert asked.status_code == 503
    assert "still loading" in asked.json()["error"]


def test_a_failure_to_load_is_reported(capsys):
    server, client = make(loaded=False)
    server.loading._work = lambda: 1 // 0
    server.loading.start()
    server.loading.wait()
    start = client.get("/api/start").json()
    assert start["ready"] is False
    assert start["failure"] == "The explorer could not load: ZeroDivisionError: integer division or modulo by zero"
    assert client.get("/api/view/heat?a=rope").json()["error"] == start["failure"]
    assert post((server, client), b"{}").json()["error"] == start["failure"]
    assert "Traceback" in capsys.readouterr().err


def test_every_encoding_has_options_colours_and_views(loaded):
    start = loaded[1].get("/api/start").json()
    assert start["ready"] is True
    by_name = {encoding["name"]: encoding for encoding in start["encodings"]}
    ids = [view["id"] for view in start["views"]]
    assert set(by_name) >= {"rope", "alibi", "t5", "sinusoidal", "nope"}
    rope = by_name["rope"]
    assert (rope["cls"], rope["family"], rope["arxiv"]) == ("RoPE", "rotary", "2104.09864")
    assert rope["colour"] != rope["colour_dark"]
    assert [o["name"] for o in rope["options"]][:2] == ["head_dim", "base"]
    assert {"heat", "wavelengths"} <= set(rope["views"]) <= set(ids)
    assert "bias" in by_name["alibi"]["views"]
    assert "bias" not in rope["views"]
    json.dumps(start, allow_nan=False)


def test_a_view_is_answered_by_a_frame(fresh):
    answer = fresh[1].get("/api/view/heat?a=rope&a.head_dim=8&length=4")
    assert answer.headers["content-type"] == "application/octet-stream"
    length = int.from_bytes(answer.content[:4], "little")
    header = json.loads(answer.content[4 : 4 + length])
    values = np.frombuffer(answer.content, "<f4", offset=4 + length)
    assert sum(np.prod(array["shape"]) for array in header["arrays"]) == values.size
    index = header["matrix"]["array"]
    assert header["arrays"][index]["shape"] == [4, 8]
    first = sum(int(np.prod(array["shape"])) for array in header["arrays"][:index])
    heat = values[first : first + 32].reshape(4, 8)
    np.testing.assert_allclose(heat[:, 0], np.cos(np.arange(4)), rtol=1e-6)  # the fastest pair rotates by 1 radian


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ("view/heat", 400, "must name an encoding"),
        ("view/heat?a=nosuch", 400, "unknown encoding 'nosuch'"),
        ("view/heat?a=rope&a.head_dim=7", 400, "head_dim"),
        ("view/heat?a=rope&a.colour=red", 400, "unknown option 'colour'"),
        ("view/heat?a=rope&length=x", 400, "length must be a whole number"),
        ("view/heat?a=rope&a=alibi", 400, "each option only once"),
        ("view/heat?a=os:system", 400, "command line"),
        ("view/nosuch?a=rope", 404, "There is no view 'nosuch'"),
        ("csv/nosuch?a=rope", 404, "There is no view 'nosuch'"),
        ("view/heat?a=rope&a.inv_freq=" + "1," * 20000, 400, "characters"),
    ],
)
def test_an_invalid_query_gets_an_error_message(fresh, query, status, message):
    answer = fresh[1].get(f"/api/{query}")
    assert answer.status_code == status
    assert message in answer.json()["error"]


def test_a_table_has_all_numbers_in_full_precision(fresh, monkeypatch):
    third = np.array([1 / 3])
    header = {"x": {"label": "distance", "unit": "tokens"}, "y": {"label": "score"}}
    frame = Frame({**header, "series": [{"label": "A", "x": 0, "array": 1}]}, [np.array([7.0]), third])
    asked = counting(monkeypatch, lambda query: frame)
    answer = fresh[1].get("/api/csv/heat?a=rope&rows=3&columns=5")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"] == 'attachment; filename="posenc-heat-rope.csv"'
    assert answer.text == "series,distance (tokens),score\nA,7,0.3333333333333333\n"
    assert asked[0]["a"] == "rope"
    assert int(asked[0]["rows"]) == int(asked[0]["columns"]) >= 4096  # not the pixels of a canvas


def counting(monkeypatch, answer=lambda query: {"value": query.get("n", "")}):
    asked = []

    def record(view, query):
        asked.append(dict(query))
        return answer(query)

    monkeypatch.setattr(views, "answer", record)
    return asked


def test_equal_queries_are_computed_once(fresh, monkeypatch):
    asked = counting(monkeypatch)
    for query in ("a=rope&n=1", "a=rope&n=1", "n=1&a=rope"):
        assert fresh[1].get(f"/api/view/heat?{query}").json() == {"value": "1"}
    assert len(asked) == 1
    fresh[1].get("/api/view/points?a=rope&n=1")
    assert len(asked) == 2


def test_the_64_latest_answers_are_cached(fresh, monkeypatch):
    asked = counting(monkeypatch)
    latest_first = list(range(63, -1, -1))
    for numbers, computed in (
        (range(64), 64),
        (latest_first, 64),  # the oldest is 63 now
        ([64], 65),  # removes 63
        (range(63), 65),
        ([63], 66),
    ):
        for n in numbers:
            fresh[1].get(f"/api/view/heat?a=rope&n={n}")
        assert len(asked) == computed


def failing(monkeypatch, error):
    def answer(query):
        raise error

    return counting(monkeypatch, answer)


def test_a_refusal_is_not_cached(fresh, monkeypatch):
    asked = failing(monkeypatch, ValueError("heat: no."))
    for _ in range(2):
        assert fresh[1].get("/api/view/heat?a=rope").status_code == 400
    assert len(asked) == 2


@pytest.mark.parametrize(("numbers", "times"), [((1, 2, 3), 3), ((1, 1, 1), 1)])
def test_answers_are_computed_one_at_a_time_and_once(fresh, monkeypatch, numbers, times):
    inside, most, statuses = [], [], []
    both = threading.Barrier(3)

    def answer(query):
        inside.append(query["n"])
        most.append(len(inside))
        threading.Event().wait(0.02)  # time for another to come in, if it could
        inside.pop()
        return {}

    def ask(n):
        both.wait()
        statuses.append(fresh[1].get(f"/api/view/heat?a=rope&n={n}").status_code)

    counting(monkeypatch, answer)
    with fresh[1]:  # one event loop for all
        threads = [threading.Thread(target=ask, args=(n,)) for n in numbers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert statuses == [200] * 3
    assert most == [1] * times


BUG = "The explorer has failed because of a bug; the terminal where it runs shows the traceback"


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (ValueError("RoPE: no."), 400, "RoPE: no."),
        (NotImplementedError("T5: not yet."), 400, "T5: not yet."),
        (ImportError("distances needs SciPy"), 400, "distances needs SciPy"),
        (MemoryError(), 400, "This does not fit into the memory. Choose a shorter length."),
        (KeyError("secret"), 500, BUG),
    ],
)
def test_errors_become_messages(fresh, monkeypatch, error, status, message):
    failing(monkeypatch, error)
    got = fresh[1].get("/api/view/heat?a=rope")
    assert got.status_code == status
    assert got.json()["error"].startswith(message)
    assert "Traceback" not in got.text
    assert "secret" not in got.text


def test_start_with_a_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    _, client = make(Target("file", "mine", path))
    target = client.get("/api/start").json()["target"]
    assert (target["kind"], target["name"], target["error"]) == ("file", "mine", None)
    assert shelf.find(target["id"])["title"] == "mine"
    assert str(tmp_path) not in client.get("/api/start").text  # the path stays private

    path.write_text(json.dumps({**CONFIG, "rope_theta": -1.0}))
    _, client = make(Target("file", "mine", path))
    start = client.get("/api/start").json()
    assert start["ready"] is True  # the rest of the page works
    assert "rope_theta" in start["target"]["error"]


def test_start_with_a_study_or_with_a_class(tmp_path):
    make(Target("study", "mine", tmp_path))
    assert shelf.study() == tmp_path
    _, client = make(Target("own", "posenc.encodings.rope:RoPE"))
    start = client.get("/api/start").json()
    assert start["target"]["kind"] == "encoding"
    own = start["encodings"][-1]
    assert own["name"] == "posenc.encodings.rope:RoPE"
    assert "heat" in own["views"]
    assert client.get("/api/view/heat?a=posenc.encodings.rope:RoPE").status_code == 200
