import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from posenc.explorer import shelf, targets, uploads
from posenc.explorer.targets import Target

CONFIG = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 4}
CONFIG |= {"max_position_embeddings": 4096, "rope_theta": 10000.0}


@pytest.fixture
def checkpoint(tmp_path):
    """A directory with a small model's files."""
    home = tmp_path / "tiny"
    home.mkdir()
    (home / "config.json").write_text(json.dumps(CONFIG))
    save_file({"wpe.weight": torch.zeros(8, 4), "other": torch.zeros(2)}, home / "model.safetensors")
    return home


@pytest.mark.parametrize(
    ("given", "kind", "name"),
    [
        (None, "encoding", "rope"),
        ("alibi", "encoding", "alibi"),
        ("rotary", "encoding", "rope"),  # an alias
        ("ALiBi", "encoding", "alibi"),  # a class's name
        ("llama-3.1-8b", "model", "llama-3.1-8b"),
        ("posenc.encodings.rope:RoPE", "own", "posenc.encodings.rope:RoPE"),
    ],
)
def test_names(given, kind, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert targets.find(given) == Target(kind, name)


@pytest.mark.parametrize(
    ("given", "kind", "name", "state"),
    [
        ("alibi?view=bias&v.draw=matrix", "encoding", "alibi", "view=bias&v.draw=matrix"),
        ("?view=extension&v.target=65536", "encoding", "rope", "view=extension&v.target=65536"),
        ("llama-3.1-8b?theme=dark", "model", "llama-3.1-8b", "theme=dark"),
    ],
)
def test_a_state_may_follow_a_name(given, kind, name, state, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert targets.find(given) == Target(kind, name, state=state)


@pytest.mark.parametrize("state", ["view=heat\n", "<script>", "a b", '"', "?", "\x1b[31m", "é"])
def test_a_state_has_characters_of_addresses_alone(state):
    with pytest.raises(ValueError, match="must be the page's state"):
        targets.find(f"rope?{state}")


def test_a_directory_whose_name_has_a_question_mark_is_a_directory(checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoint.rename("what?now")
    assert targets.find("what?now").state == ""
    assert targets.find("what?now").kind == "file"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nosuch", "there is nothing called 'nosuch'. Give an encoding"),
        ("ropee", "did you mean 'rope'?"),
        ("llama-3.1-8", "did you mean 'llama-3.1-8b'?"),
        ("missing.json", "there is no file 'missing.json'"),
        ("some/where/model.safetensors", "there is no file"),
        ("", "there is nothing called ''"),
        ("__init__", "there is nothing called"),
        ("x" * 5000, "there is nothing called"),
        ("\0", "there is nothing called"),
        ("posenc.nothing:Here", "cannot load"),
    ],
)
def test_what_nothing_is_called(given, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=".") as refused:
        targets.find(given)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 600


def test_a_class_that_is_no_encoding():
    with pytest.raises(TypeError, match="not a class derived from"):
        targets.find("collections:OrderedDict")


def test_files(checkpoint, monkeypatch):
    config, weights = checkpoint / "config.json", checkpoint / "model.safetensors"
    assert targets.find(str(config)) == Target("file", "tiny", config)  # config.json is what all of them are called
    assert targets.find(str(weights)) == Target("file", "model.safetensors", weights)
    assert targets.find(str(checkpoint)) == Target("file", "tiny", checkpoint)
    monkeypatch.chdir(checkpoint)
    assert targets.find(".").name == "tiny"
    assert targets.find("config.json").name == "tiny"


def test_what_exists_wins_over_a_name(tmp_path, monkeypatch):
    (tmp_path / "rope").mkdir()
    (tmp_path / "rope" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert targets.find("rope").kind == "file"


def test_a_study_is_known_by_its_record(tmp_path):
    study = tmp_path / "study"
    (study / "cells").mkdir(parents=True)
    with pytest.raises(ValueError, match="holds neither config.json"):
        targets.find(str(study))
    for wrong in ("[]", "{", "\0", "{}"):
        (study / "run.json").write_text(wrong)
        with pytest.raises(ValueError, match="holds neither config.json"):
            targets.find(str(study))
    (study / "run.json").write_text('{"schema": 1}')
    assert targets.find(str(study)) == Target("study", "study", study)


def test_other_files_are_refused(tmp_path):
    for name in ("model.bin", "notes.txt", "model.pt"):
        (tmp_path / name).write_bytes(b"\x80\x02")
        with pytest.raises(ValueError, match="must be a config.json"):
            targets.find(str(tmp_path / name))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_is_never_opened(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ValueError, match="not a regular file"):
        targets.find(str(tmp_path / "config.json"))


@pytest.mark.parametrize("given", ["alibi", "llama-3.1-8b", "missing.json"])
def test_most_targets_are_known_before_torch(given):
    code = f"""
import sys
from posenc.explorer import targets
try:
    targets.find({given!r})
except ValueError:
    pass
print("torch" in sys.modules)
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


def test_a_checkpoint_is_read_with_its_configuration(checkpoint):
    for path in (checkpoint, checkpoint / "model.safetensors"):
        found = uploads.read_path(path, "tiny")
        assert found["layers"][0]["count"] == 4
        assert found["tensors"]["tables"] == [{"name": "wpe.weight", "kind": "wpe", "shape": [8, 4], "dtype": "F32"}]
        assert found["tensors"]["parameters"] == 34
        assert shelf.find(found["id"])["config"]["num_hidden_layers"] == 4


def test_without_a_configuration_that_is_said(checkpoint):
    (checkpoint / "config.json").unlink()
    for path in (checkpoint, checkpoint / "model.safetensors"):
        found = uploads.read_path(path, "tiny")
        assert found["layers"] == []
        assert [warning["code"] for warning in found["warnings"]] == ["no_config"]
        assert found["tensors"]["count"] == 2


def test_weights_that_cannot_be_read_are_no_reason_to_leave_the_configuration(checkpoint):
    (checkpoint / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{")
    found = uploads.read_path(checkpoint, "tiny")
    assert found["layers"][0]["count"] == 4
    assert "tensors" not in found
    assert found["warnings"][-1]["code"] == "weights_unread"
    assert "damaged" in found["warnings"][-1]["message"]
    (checkpoint / "config.json").unlink()
    with pytest.raises(ValueError, match="^explore: .*damaged"):
        uploads.read_path(checkpoint, "tiny")


def test_a_configuration_alone(tmp_path):
    path = tmp_path / "other.json"
    path.write_text(json.dumps(CONFIG))
    assert uploads.read_path(path, "other")["layers"][0]["count"] == 4
    path.write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        uploads.read_path(path, "other")


@pytest.mark.parametrize(
    "name",
    [
        "transformer.wpe.weight",
        "bert.embeddings.position_embeddings.weight",
        "model.decoder.embed_positions.weight",
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        "layers.0.blocks.0.attn.relative_position_bias_table",
        "deberta.encoder.rel_embeddings.weight",
        "pos_embed",
        "blocks.2.attn.rel_pos_h",
        "model.layers.0.self_attn.rotary_emb.inv_freq",
    ],
)
def test_tensors_of_positions_are_found_by_the_names_that_models_give_them(name):
    found = uploads.describe({name: {"dtype": "F32", "shape": [4, 2]}, "wte.weight": {"dtype": "F32", "shape": [1]}})
    assert [table["name"] for table in found["tables"]] == [name]


@pytest.mark.parametrize("name", ["wte.weight", "q_proj.weight", "swpe.weight", "wpe.bias", "inv_freqs"])
def test_other_tensors_are_none(name):
    assert uploads.describe({name: {"dtype": "F32", "shape": [4, 2]}})["n_tables"] == 0
