import asyncio
import json
import struct
import threading

import numpy as np
import pytest

from explorer_client import SAME, make
from posenc.explorer import server as serving
from posenc.explorer import shelf, views
from posenc.explorer.frames import Frame
from posenc.explorer.targets import Target

CONFIG = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 4}
CONFIG |= {"max_position_embeddings": 4096, "rope_theta": 10000.0}


@pytest.fixture(scope="module")
def loaded():
    return make()


@pytest.fixture
def fresh(loaded):
    """The loaded server without kept answers, and with a lock that no event loop of another test has."""
    loaded[0]._answers.clear()
    loaded[0]._one_at_a_time = asyncio.Lock()
    return loaded


def post(pair, body, name="config.json"):
    server, client = pair
    return client.post(f"/inspect?name={name}", content=body, headers={**SAME, "x-posenc-token": server.token})


def checkpoint(tensors, extra=b""):
    """Return the first bytes of a file in safetensors, up to its weights."""
    header = json.dumps(tensors).encode()
    return struct.pack("<Q", len(header)) + header + extra


def test_the_page_and_its_files(loaded):
    _, client = loaded
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.text.startswith("<!doctype html>")
    script = client.get("/static/main.js")
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    assert client.get("/static/icon.svg").headers["content-type"] == "image/svg+xml"


def test_the_page_has_nothing_inline_that_the_policy_would_refuse(loaded):
    page = loaded[1].get("/").text
    assert "<style" not in page
    assert " style=" not in page
    assert " onload=" not in page
    assert "<script>" not in page
    assert "https://" not in page


def test_charts_come_from_plotlys_own_wheel(loaded):
    answer = loaded[1].get("/plotly.js")
    assert answer.headers["content-type"].startswith("text/javascript")
    assert b"plotly.js v" in answer.content[:200]
    assert len(answer.content) > 1_000_000


def test_without_plotly_the_page_is_told(loaded, monkeypatch):
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


def test_files_of_other_kinds_and_links_out_are_no_part_of_the_page(tmp_path, monkeypatch):
    (tmp_path / "static" / "deep").mkdir(parents=True)
    for name in ("page.html", "deep/part.js", "notes.txt", ".hidden", "code.py"):
        (tmp_path / "static" / name).write_text("x")
    monkeypatch.setattr(serving, "files", lambda package: tmp_path)
    assert sorted(serving.static_files()) == ["deep/part.js", "page.html"]


def test_what_needs_no_torch_is_told_at_once():
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


def test_a_failure_to_load_is_told(capsys):
    server, client = make(loaded=False)
    server.loading._work = lambda: 1 // 0
    server.loading.start()
    server.loading.wait()
    start = client.get("/api/start").json()
    assert start["ready"] is False
    assert start["failure"] == "The explorer could not load: ZeroDivisionError: integer division or modulo by zero"
    assert client.get("/api/view/heat?a=rope").json()["error"] == start["failure"]
    assert post((server, client), b"{}").json()["error"] == start["failure"]
    assert "Traceback" in capsys.readouterr().err  # for whoever looks at the terminal


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


def test_a_view_is_answered_as_a_frame(fresh):
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
    np.testing.assert_allclose(heat[:, 0], np.cos(np.arange(4)), rtol=1e-6)  # the fastest pair turns by 1 radian


@pytest.mark.parametrize(
    ("question", "status", "said"),
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
def test_a_wrong_question_gets_a_sentence(fresh, question, status, said):
    answer = fresh[1].get(f"/api/{question}")
    assert answer.status_code == status
    assert said in answer.json()["error"]


def test_a_table_has_all_numbers_in_full_precision(fresh, monkeypatch):
    asked = []
    third = np.array([1 / 3])
    header = {"x": {"label": "distance", "unit": "tokens"}, "y": {"label": "score"}}
    frame = Frame({**header, "series": [{"label": "A", "x": 0, "array": 1}]}, [np.array([7.0]), third])
    monkeypatch.setattr(views, "answer", lambda view, query: asked.append(dict(query)) or frame)
    answer = fresh[1].get("/api/csv/heat?a=rope&rows=3&columns=5")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"] == 'attachment; filename="posenc-heat-rope.csv"'
    assert answer.text == "series,distance (tokens),score\nA,7,0.3333333333333333\n"
    assert asked[0]["a"] == "rope"
    assert int(asked[0]["rows"]) == int(asked[0]["columns"]) >= 4096  # and not what a canvas has


def counting(monkeypatch, answer=lambda query: {"value": query.get("n", "")}):
    asked = []

    def record(view, query):
        asked.append(dict(query))
        return answer(query)

    monkeypatch.setattr(views, "answer", record)
    return asked


def test_the_last_answers_are_kept(fresh, monkeypatch):
    _, client = fresh
    asked = counting(monkeypatch)
    for _ in range(2):
        assert client.get("/api/view/heat?a=rope&n=1").json() == {"value": "1"}
    assert client.get("/api/view/heat?n=1&a=rope").json() == {"value": "1"}  # the same question
    assert len(asked) == 1
    client.get("/api/view/points?a=rope&n=1")
    assert len(asked) == 2
    for n in range(2, 2 + 64):
        client.get(f"/api/view/heat?a=rope&n={n}")
        client.get("/api/view/heat?a=rope&n=1")  # used again and again, so it stays
    assert len(asked) == 2 + 64
    client.get("/api/view/points?a=rope&n=1")  # forgotten
    assert len(asked) == 2 + 64 + 1


def test_sixty_four_answers_are_kept(fresh, monkeypatch):
    asked = counting(monkeypatch)
    for _ in range(2):
        for n in range(64):
            fresh[1].get(f"/api/view/heat?a=rope&n={n}")
    assert len(asked) == 64


def test_a_refused_question_is_not_kept(fresh, monkeypatch):
    def answer(query):
        raise ValueError("heat: no.")

    asked = counting(monkeypatch, answer)
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


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (ValueError("RoPE: no."), 400, "RoPE: no."),
        (NotImplementedError("T5: not yet."), 400, "T5: not yet."),
        (
            ImportError("distances needs SciPy; install posenc[plot]"),
            400,
            "distances needs SciPy; install posenc[plot]",
        ),
        (MemoryError(), 400, "This does not fit into the memory. Choose a shorter length."),
        (
            KeyError("secret"),
            500,
            "The explorer has failed because of a bug; the terminal where it runs shows the traceback",
        ),
    ],
)
def test_errors_become_sentences(fresh, monkeypatch, error, status, said):
    def answer(query):
        raise error

    counting(monkeypatch, answer)
    got = fresh[1].get("/api/view/heat?a=rope")
    assert got.status_code == status
    assert got.json()["error"].startswith(said)
    assert "Traceback" not in got.text
    assert "secret" not in got.text


def test_a_configuration_is_inspected_and_kept(loaded):
    answer = post(loaded, json.dumps(CONFIG).encode(), "my%20model.json")
    assert answer.status_code == 200
    found = answer.json()
    assert found["title"] == "my model.json"
    assert found["layers"][0]["count"] == 4
    assert len(found["layers"][0]["inv_freq"]) == 16
    kept = shelf.find(found["id"])
    assert kept["inspection"]["layers"] == found["layers"]
    assert kept["config"]["hidden_size"] == 64


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "the file is empty"),
        (b"{", "is not JSON"),
        (b"[1]", "must be a JSON object; got"),
        (b"\x80\x02}q\x00.", "neither JSON nor the beginning of a .safetensors file"),
        (b'{"rope_theta": 1, "rope_theta": 2}', "has the key 'rope_theta' twice"),
        (b'{"rope_theta": NaN}', "not JSON"),
        (b'{"a":' * 40 + b"1" + b"}" * 40, "deeper than 32"),
        (b"[" * 100_000, "deeper than 32"),
        (json.dumps({**CONFIG, "hidden_size": "wide"}).encode(), "hidden_size"),
        (json.dumps({**CONFIG, "rope_theta": 0.0}).encode(), "rope_theta"),
        (checkpoint({"a": {"dtype": "F32"}}), "has no valid shape and dtype"),
        (checkpoint({"a": {"dtype": "F32", "shape": [-1]}}), "has no valid shape and dtype"),
        (checkpoint({"a": 3}), "has no valid shape and dtype"),
        (checkpoint({})[:-1], "Send all of it"),
        (struct.pack("<Q", 12) + b'{"a":1,"a":2', "Restore it"),
        (struct.pack("<Q", 20) + b"{" * 20, "Restore it"),
        (checkpoint({}, b"[]"), "must be a JSON object; got"),
    ],
)
def test_a_wrong_file_gets_a_sentence(loaded, body, said):
    answer = post(loaded, body)
    assert answer.status_code == 400
    assert said in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


def test_a_checkpoints_header_names_its_positions(loaded):
    tensors = {
        "__metadata__": {"format": "pt"},
        "transformer.wpe.weight": {"dtype": "F32", "shape": [1024, 768], "data_offsets": [0, 3145728]},
        "transformer.wte.weight": {"dtype": "BF16", "shape": [10, 768], "data_offsets": [3145728, 3161088]},
    }
    found = post(loaded, checkpoint(tensors), "model.safetensors").json()
    assert found["tensors"]["count"] == 2
    assert found["tensors"]["parameters"] == 1034 * 768
    table = {"name": "transformer.wpe.weight", "kind": "wpe", "shape": [1024, 768], "dtype": "F32"}
    assert found["tensors"]["tables"] == [table]
    assert found["layers"] == []
    assert found["warnings"][0]["code"] == "no_config"
    assert shelf.find(found["id"])["tensors"] == found["tensors"]


def test_a_configuration_may_stand_behind_the_header(loaded):
    found = post(loaded, checkpoint({}, json.dumps(CONFIG).encode())).json()
    assert found["layers"][0]["count"] == 4
    assert found["tensors"]["count"] == 0


def test_a_header_as_long_as_a_brace_is_no_json(loaded):
    entry = {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}
    for name in ("a" * n for n in range(200)):
        body = checkpoint({name: entry})
        if body[:1] == b"{":  # its length begins with the same byte
            assert post(loaded, body).json()["tensors"]["count"] == 1
            return
    pytest.fail("no header is that long")


def test_files_that_the_explorer_was_started_on(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    _, client = make(Target("file", "mine", tmp_path / "config.json"))
    target = client.get("/api/start").json()["target"]
    assert (target["kind"], target["name"], target["error"]) == ("file", "mine", None)
    assert shelf.find(target["id"])["title"] == "mine"
    assert str(tmp_path) not in client.get("/api/start").text  # where it lies is nobody's business

    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "rope_theta": -1.0}))
    _, client = make(Target("file", "mine", tmp_path / "config.json"))
    start = client.get("/api/start").json()
    assert start["ready"] is True  # everything else can be looked at
    assert "rope_theta" in start["target"]["error"]


def test_a_study_and_a_class_of_ones_own(tmp_path):
    make(Target("study", "mine", tmp_path))
    assert shelf.study() == tmp_path
    _, client = make(Target("own", "posenc.encodings.rope:RoPE"))
    start = client.get("/api/start").json()
    assert start["target"]["kind"] == "encoding"
    own = start["encodings"][-1]
    assert own["name"] == "posenc.encodings.rope:RoPE"
    assert "heat" in own["views"]
    assert client.get("/api/view/heat?a=posenc.encodings.rope:RoPE").status_code == 200


def test_the_shelf_forgets_the_oldest():
    first = shelf.keep({"title": "first"})
    assert shelf.find(first) == {"title": "first"}
    keys = {shelf.keep({"title": str(n)}) for n in range(shelf.MAX_KEPT)}
    assert len(keys) == shelf.MAX_KEPT
    with pytest.raises(ValueError, match="no longer in memory"):
        shelf.find(first)
