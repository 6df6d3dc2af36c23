"""`posenc golden`: what it writes and refuses."""

import json

from posenc import names
from posenc.cli import run


def test_it_writes_and_says_so(tmp_path, capsys):
    out = tmp_path / "vectors"
    assert run(["golden", "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith(f"{out}: {len(names())} encodings, ")
    assert run(["golden", "--out", str(out), "--json"]) == 0
    told, kept = json.loads(capsys.readouterr().out), json.loads((out / "manifest.json").read_text("utf-8"))
    assert told == {"out": str(out), **kept}


def test_it_refuses_what_it_did_not_make(tmp_path, capsys):
    (tmp_path / "mine").write_text("")
    assert run(["golden", "--out", str(tmp_path)]) == 2
    assert "which holds something else" in capsys.readouterr().err
    assert run(["golden"]) == 2
