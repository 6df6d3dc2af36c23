"""`posenc verify-config`: formats and exit codes."""

import json
from pathlib import Path

import pytest

from posenc.cli import run

GOOD = {"model_type": "llama", "head_dim": 64, "num_hidden_layers": 2, "max_position_embeddings": 8192}
GOOD |= {"rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}


NOT_JUDGED = "not judged: the pairing of the weights: a configuration does not contain it.\n"


def write(folder, fields):
    (folder / "config.json").write_text(json.dumps(fields, indent=1), encoding="utf-8")
    return str(folder)


def test_nothing_found(tmp_path, capsys):
    for target in (write(tmp_path, GOOD), "llama-3.1-8b"):
        assert run(["verify-config", target]) == 0
        assert capsys.readouterr().out == f"{target}: nothing found (full_attention)\n{NOT_JUDGED}"
    assert run(["verify-config", write(tmp_path, GOOD), "--output-format", "github"]) == 0
    assert capsys.readouterr().out == ""


def test_text_tells_all_parts(tmp_path, capsys):
    swapped = GOOD | {"rope_scaling": YARN | {"beta_fast": 1, "beta_slow": 32}}
    assert run(["verify-config", write(tmp_path, swapped)]) == 1
    said = capsys.readouterr().out
    assert said.startswith(f"{tmp_path}: 1 finding\n\nwarning: betas_swapped: beta_fast = ")
    parts = ["allowed: beta_fast above beta_slow", "means:   beta_fast 1, beta_slow 32: slow pairs stay"]
    parts += ["beta_fast 32, beta_slow 1: pairs that rotate more than 32 times", "fix:     Write beta_fast 32"]
    for words in parts:
        assert words in said
    assert max(map(len, said.splitlines()[1:])) <= 100


@pytest.mark.parametrize("words", [["--json"], ["--output-format", "json"], ["--json", "--output-format", "json"]])
def test_json(tmp_path, capsys, words):
    assert run(["verify-config", write(tmp_path, GOOD | {"rope_theta": 0.5}), *words]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["status"], found["model_type"]) == (1, "fail", "llama")
    (finding,) = found["findings"]
    assert (finding["code"], finding["key"], finding["value"]) == ("out_of_range", "rope_theta", 0.5)
    assert finding["allowed"] == "above 1 and at most 1e+12"
    assert finding["fix"] == "Write rope_theta: above 1 and at most 1e+12."
    assert "mend" not in finding
    assert found["not_judged"][0] == "the pairing of the weights: a configuration does not contain it"


def test_github_names_file_and_line_and_cannot_be_broken_out_of(tmp_path, capsys):
    odd = GOOD | {"rope_scaling": {"rope_type": "a\n::error::b, c:%"}}
    assert run(["verify-config", write(tmp_path, odd), "--output-format", "github"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"::warning file={tmp_path}/config.json,line=8,title=unknown_type::")
    assert "%25" in line


@pytest.mark.parametrize("words", [["--output-format", "json"], ["--output-format", "sarif"]])
def test_several_are_one_document_and_the_worst_exit_code(tmp_path, capsys, words):
    paths = {"good": GOOD, "bad": GOOD | {"rope_theta": 0.5}, "new": GOOD | {"model_type": "brandnew"}}
    for name, fields in paths.items():
        (tmp_path / name).mkdir()
        write(tmp_path / name, fields)
    for names, code in (("good new", 3), ("new good bad", 1), ("good", 0)):
        assert run(["verify-config", *(str(tmp_path / name) for name in names.split()), *words]) == code
        found = json.loads(capsys.readouterr().out)
        if "sarif" in words:
            assert len(found["runs"][0]["results"]) == len(names.split()) - 1
        elif " " in names:
            assert [Path(one["target"]).name for one in found] == names.split()
    assert run(["verify-config", str(tmp_path / "good"), str(tmp_path / "nowhere"), *words]) == 2
    streams = capsys.readouterr()
    assert (streams.out, "nowhere" in streams.err) == ("", True)


def test_what_cannot_be_told(tmp_path, capsys):
    target = write(tmp_path, GOOD | {"model_type": "brandnew"})
    assert run(["verify-config", target]) == 3
    assert "model_type 'brandnew' is unknown" in capsys.readouterr().out
    assert run(["verify-config", target, "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["status"] == "cannot_tell"
    assert run(["verify-config", target, "--output-format", "github"]) == 3
    assert capsys.readouterr().out.startswith("::warning file=")
    assert run(["verify-config", target, "--pairing", "half"]) == 0


def test_weights_are_no_configuration_and_are_no_fault(tmp_path, capsys):
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(2 << 20))
    for target in (tmp_path / "model.gguf", tmp_path):
        assert run(["verify-config", str(target)]) == 3
        said = " ".join(capsys.readouterr().out.split())
        assert "GGUF is not supported" in said
        assert "Pass the config.json of the model that it was converted from" in said
        assert "orrect the file" not in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "'nowhere' is neither a configuration nor the name of a known model."),
        (["--output-format", "xml"], "--output-format must be text, json, github, sarif or junit; got xml."),
        (["--json", "--output-format", "github"], "exclude each other"),
        (["--pairing", "third"], "--pairing must be half or interleaved; got third."),
    ],
)
def test_wrong_use(tmp_path, capsys, words, said):
    target = [] if words == ["nowhere"] else [write(tmp_path, GOOD)]
    assert run(["verify-config", *target, *words]) == 2
    streams = capsys.readouterr()
    assert (streams.out, streams.err.count("\n")) == ("", 1)
    assert said in streams.err
