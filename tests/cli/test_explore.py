"""`posenc explore`: what its arguments mean. The server itself is tried in tests/explorer."""

import importlib.util
import socket
import sys
import tomllib
import types
from pathlib import Path

import pytest

from posenc.cli import explore as command
from posenc.cli import run
from posenc.cli.requirements import read_requirements


@pytest.fixture
def calls(monkeypatch):
    """Stand in for the explorer: what it was called with."""
    import posenc.explorer

    seen = []

    def explore(target, **options):
        options.pop("say")("The explorer is at http://127.0.0.1:1/.")
        seen.append((target, options))

    fake = types.SimpleNamespace(explore=explore, export=lambda *given: seen.append(given))
    monkeypatch.setitem(sys.modules, "posenc.explorer.launch", fake)
    monkeypatch.setattr(posenc.explorer, "launch", fake, raising=False)
    return seen


def test_without_arguments(calls, capsys):
    assert run(["explore"]) == 0
    assert calls == [(None, {"port": None, "host": None, "browser": True, "language": None})]
    assert capsys.readouterr().out == "The explorer is at http://127.0.0.1:1/.\n"


def test_every_option_arrives(calls):
    assert run(["explore", "alibi", "--port", "0", "--host", "0.0.0.0", "--no-browser", "--lang", "zh"]) == 0
    assert calls == [("alibi", {"port": 0, "host": "0.0.0.0", "browser": False, "language": "zh"})]


def test_an_export_starts_nothing(calls, capsys):
    assert run(["explore", "alibi", "--export", "there/page.html", "--lang", "zh"]) == 0
    assert calls == [("alibi", Path("there/page.html"), "zh")]
    assert capsys.readouterr().out == f"Wrote {Path('there/page.html')}.\n"


@pytest.mark.parametrize("line", ["--export x.html --port 80", "--export x.html --host ::1"])
def test_an_export_listens_nowhere(calls, capsys, line):
    assert run(["explore", *line.split()]) == 2
    assert "Leave out --port and --host" in capsys.readouterr().err
    assert calls == []


@pytest.mark.parametrize("port", ["-1", "65536", "x", "1.5"])
def test_ports_are_numbers(calls, capsys, port):
    assert run(["explore", "--port", port]) == 2
    assert "--port" in capsys.readouterr().err
    assert calls == []


@pytest.mark.parametrize("absent", [["starlette"], ["plotly", "uvicorn"]])
def test_without_the_extra_one_sentence_says_so(calls, capsys, monkeypatch, absent):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in absent else real(name))
    assert run(["explore"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "pip install 'posenc[web]'" in said
    assert all(name in said for name in absent)
    assert calls == []


def test_what_it_looks_for_is_what_the_extra_brings():
    project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text("utf-8"))
    extra = read_requirements(project["project"]["optional-dependencies"]["web"])
    assert {requirement.package for requirement in extra} - {"posenc"} == set(command.NEEDED)


def test_an_unknown_target_is_one_sentence_and_no_server(capsys):
    assert run(["explore", "nosuch", "--no-browser"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "there is nothing called 'nosuch'" in said.err


def test_a_port_that_is_taken_is_one_sentence(capsys):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        assert run(["explore", "rope", "--no-browser", "--port", port]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "another program listens there" in said


def test_a_file_that_is_missing(capsys, tmp_path):
    assert run(["explore", str(tmp_path / "config.json"), "--no-browser"]) == 2
    assert "there is no file" in capsys.readouterr().err
