"""`posenc verify-model`: formats and exit codes."""

import json

import pytest

pytest.importorskip("transformers")

import torch
from transformers.models.llama import modeling_llama

from posenc.cli import run

FIELDS = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
FIELDS |= {"num_hidden_layers": 4, "intermediate_size": 64, "vocab_size": 64, "max_position_embeddings": 4096}
FIELDS |= {"rope_theta": 10000.0, "head_dim": 16}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(FIELDS))
    return tmp_path


@pytest.fixture
def spoilt(monkeypatch, folder):
    """The third layer's keys stay as they are."""
    theirs, calls = modeling_llama.apply_rotary_pos_emb, []

    def function(q, k, cos, sin, unsqueeze_dim=1):
        calls.append(q)
        turned = theirs(q, k, cos, sin, unsqueeze_dim)
        return (turned[0], k) if len(calls) % 4 == 3 else turned

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", function)
    return folder


def test_a_right_model(folder, capsys):
    assert run(["verify-model", str(folder)]) == 0
    streams = capsys.readouterr()
    assert streams.out.startswith(f"pass: {folder} as model\n")
    for words in ("first wrong layer    none", "largest angle error", "layers 0 to 3  full_attention: pass, gain 1"):
        assert words in streams.out
    assert "weights random, because there are no weights" in streams.out
    assert "runs transformers' code for" in streams.err


def test_a_wrong_layer(spoilt, capsys):
    assert run(["verify-model", str(spoilt)]) == 1
    said = capsys.readouterr().out
    assert said.startswith(f"fail: {spoilt} as model\n\n  model.rotation.missing\n    layer 2 ")
    assert "first wrong layer    2" in said


@pytest.mark.parametrize("words", [["--json"], ["--output-format", "json"]])
def test_json(spoilt, capsys, words):
    assert run(["verify-model", str(spoilt), *words]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["status"], found["convention"]) == (1, "fail", "model")
    measured = found["measured"]
    assert (measured["first_wrong_layer"], len(measured["layers"])) == (2, 4)
    assert measured["largest_angle_error"] > 1
    assert measured["mean_cos_by_position"][0] == [0, pytest.approx(1.0)]
    assert found["causes"][0]["smallest_case"]["layer"] == 2


def test_github(spoilt, capsys):
    assert run(["verify-model", str(spoilt), "--output-format", "github"]) == 1
    said = capsys.readouterr().out
    assert said.startswith(f"::error file={spoilt}/config.json,title=model.rotation.missing::")


def test_sarif_and_junit(spoilt, capsys):
    assert run(["verify-model", str(spoilt), "--output-format", "sarif"]) == 1
    (one,) = json.loads(capsys.readouterr().out)["runs"][0]["results"]
    assert one["ruleId"] == "model.rotation.missing"
    assert one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"].endswith("/config.json")
    assert run(["verify-model", str(spoilt), "--output-format", "junit"]) == 1
    assert "first wrong layer    2" in capsys.readouterr().out


def test_what_cannot_be_told(folder, capsys):
    (folder / "config.json").write_text(json.dumps(FIELDS | {"model_type": "brandnew"}))
    assert run(["verify-model", str(folder)]) == 3
    assert "brandnew" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--output-format", "xml"], "--output-format must be text, json, github, sarif or junit; got xml."),
        (["--json", "--output-format", "github"], "exclude each other"),
        (["auto_map"], "config.json has auto_map"),
        (["pickle"], "pytorch_model.bin', which may be pickled code"),
        (["nowhere"], "is not a directory"),
    ],
)
def test_wrong_use(folder, capsys, words, said):
    target = folder
    if words == ["auto_map"]:
        (folder / "config.json").write_text(json.dumps(FIELDS | {"auto_map": {"AutoModel": "evil.Model"}}))
    elif words == ["pickle"]:
        torch.save({}, folder / "pytorch_model.bin")
    elif words == ["nowhere"]:
        target = folder / "nowhere"
    options = words if words[0].startswith("--") else []
    assert run(["verify-model", str(target), *options]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert said in streams.err
