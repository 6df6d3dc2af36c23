"""`posenc golden` and `posenc golden check`: what they write, print and refuse."""

import json
import shutil

import numpy as np
import pytest

from posenc import names
from posenc.cli import run

CONFIG = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 4}
CONFIG |= {"max_position_embeddings": 4096, "rope_theta": 10000.0}


def test_it_writes_and_says_so(tmp_path, capsys):
    out = tmp_path / "vectors"
    assert run(["golden", "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith(f"{out}: {len(names())} encodings, ")
    assert run(["golden", "--out", str(out), "--json"]) == 0
    printed, kept = json.loads(capsys.readouterr().out), json.loads((out / "manifest.json").read_text("utf-8"))
    assert printed == {"out": str(out), **kept}


def test_it_refuses_what_it_did_not_make(tmp_path, capsys):
    (tmp_path / "mine").write_text("")
    for more in ([], ["--config", "llama-2-7b"]):
        assert run(["golden", "--out", str(tmp_path), *more]) == 2
        assert "which contains other files" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert run(["golden"]) == 2


def test_a_file_a_directory_and_a_name(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    written = []
    for source in (tmp_path / "config.json", tmp_path):
        out = tmp_path / "out"
        assert run(["golden", "--config", str(source), "--out", str(out)]) == 0
        assert capsys.readouterr().out.startswith(f"{out}: full_attention (9 arrays)")
        written.append((out / "full_attention.safetensors").read_bytes())
        shutil.rmtree(out)
    assert written[0] == written[1]
    options = ["--positions", "0,1,70000", "--seq-len", "70001", "--format", "npy", "--json"]
    assert run(["golden", "--config", "llama-3.1-8b", "--out", str(tmp_path / "named"), *options]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["layers"][0]["count"] == 32
    assert np.load(tmp_path / "named" / "full_attention.positions.npy").tolist() == [0, 1, 70000]


# a configuration, and the key that it does not read
UNREAD = [
    (CONFIG | {"rope_ratio": 50}, "rope_ratio"),
    ({"model_type": "bloom", "n_layer": 2, "n_head": 4, "rope_theta": 5e5}, "rope_theta"),
    ({"dim": 64, "n_layers": 2, "n_heads": 2, "rope_theta": 5e5, "rope_factor": 40}, "rope_factor"),
]


@pytest.mark.parametrize(("config", "key"), UNREAD, ids=[key for _, key in UNREAD])
def test_what_is_not_read_is_said_and_written(config, key, tmp_path, capsys):
    out, source = tmp_path / "out", tmp_path / "config.json"
    pairing = [] if "model_type" in config else ["--pairing", "interleaved"]
    for fields in (config, {name: value for name, value in config.items() if name != key}):
        source.write_text(json.dumps(fields))
        assert run(["golden", "--config", str(source), "--out", str(out), *pairing]) == 0
        said = capsys.readouterr().err
        warned = json.loads((out / "manifest.json").read_text("utf-8")).get("warnings")
        if fields is config:
            (line,) = warned
            assert f"golden: warning: {line}" in said
            assert line.startswith(f"unread: {key}")
        else:
            assert (warned, said) == (None, "")


WRONG = [
    (["--config", "nowhere"], "no known model has this name"),
    (["--config", "llama-2-7b", "--positions", "1,x"], "--positions must be whole numbers"),
    (["--config", "llama-2-7b", "--positions", "-1"], "--positions must be whole numbers"),
    (["--config", "llama-2-7b", "--seq-len", "0"], "seq_len must be from 1"),
    (["--config", "llama-2-7b", "--format", "gguf"], "--format must be one of safetensors"),
    (["--config", "llama-2-7b", "--pairing", "both"], "--pairing must be half or interleaved"),
    (["--positions", "1"], "--positions needs --config"),
]


@pytest.mark.parametrize(("options", "said"), WRONG, ids=[said for _, said in WRONG])
def test_wrong_use_is_one_line_and_writes_nothing(options, said, tmp_path, capsys):
    assert run(["golden", "--out", str(tmp_path / "out"), *options]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.fixture
def both(tmp_path, capsys):
    """Golden vectors, and what a perfect port would write."""
    for name in ("golden", "port"):
        assert run(["golden", "--config", "llama-2-7b", "--out", str(tmp_path / name), "--format", "npy"]) == 0
    capsys.readouterr()
    return str(tmp_path / "golden"), tmp_path / "port"


def test_check_has_the_exit_codes_and_formats_of_verify(both, tmp_path, capsys):
    directory, port = both
    ask = ["golden", "check", directory, "--against"]
    assert run([*ask, str(port)]) == 0
    assert capsys.readouterr().out == f"pass: {port} as golden\n  compared with: rope\n"
    shutil.copy(port / "full_attention.q.npy", port / "full_attention.q_rotated.npy")
    assert run([*ask, str(port)]) == 1
    assert "rope.side.not_turned" in capsys.readouterr().out
    assert run([*ask, str(port), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["status"], report["causes"][0]["smallest_case"]["side"]) == ("fail", "queries")
    for form, begins in (("github", "::error title=rope.side.not_turned"), ("junit", "<?xml"), ("sarif", "{")):
        assert run([*ask, str(port), "--output-format", form]) == 1
        printed = capsys.readouterr().out
        assert printed.startswith(begins)
        assert "rope.side.not_turned" in printed
    (tmp_path / "empty").mkdir()
    assert run([*ask, str(tmp_path / "empty")]) == 3
    assert capsys.readouterr().out.startswith("cannot tell: ")
    for wrong in (["golden", "check", str(tmp_path), "--against", directory], [*ask, str(tmp_path / "none")]):
        assert run(wrong) == 2
        assert capsys.readouterr().err.startswith("posenc: golden check: ")
