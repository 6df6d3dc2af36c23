"""`posenc convert`: what it writes, says and refuses."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from posenc.cli import run

CONFIG = {
    "model_type": "smollm3", "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1,
    "num_hidden_layers": 2, "no_rope_layers": [1, 0], "rope_theta": 1e4, "max_position_embeddings": 64,
}  # fmt: skip
Q, K = (f"model.layers.0.self_attn.{part}_proj.weight" for part in "qk")


@pytest.fixture
def model(tmp_path):
    """Write two layers, of which the second does not turn."""
    source = tmp_path / "model"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(CONFIG))
    rows = torch.arange(8.0)[:, None].repeat(1, 8)
    tensors = {Q: rows, K: rows[:4].clone(), "lm_head.weight": rows.clone()}
    tensors |= {name.replace("0", "1", 1): tensor.clone() for name, tensor in tensors.items() if "proj" in name}
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    (source / "old.bin").write_bytes(b"\x80")
    return source


def convert(*arguments):
    return run(["convert", *map(str, arguments)])


def test_it_converts_and_says_what_was_done(model, tmp_path, capsys):
    assert convert(model, "--pairing", "interleaved", "--out", tmp_path / "out") == 0
    reported = capsys.readouterr().out
    assert reported == (
        f"{tmp_path / 'out'}: 2 tensors of smollm3 permuted from half to interleaved; 3 unchanged\n"
        "  2 of these hold queries or keys in a layer that does not rotate\n"
        "  not copied: old.bin\n"
        "  config.json has no key for the pairing of smollm3: transformers uses half, and these weights need code "
        "whose pairing is interleaved\n"
    )
    found = load_file(tmp_path / "out/model.safetensors")
    assert found[Q][:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert found[K][:, 0].tolist() == [0, 2, 1, 3]
    with safe_open(tmp_path / "out/model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt", "posenc_pairing": "interleaved"}


def test_there_and_back(model, tmp_path, capsys):
    assert convert(model, "--pairing", "interleaved", "--out", tmp_path / "out") == 0
    assert convert(tmp_path / "out", "--pairing", "interleaved", "--out", tmp_path / "twice") == 2
    assert "these weights are interleaved already" in capsys.readouterr().err
    assert convert(tmp_path / "out", "--pairing", "half", "--out", tmp_path / "back") == 0
    assert "transformers uses half, as these weights do" in capsys.readouterr().out
    before, after = (load_file(path / "model.safetensors") for path in (model, tmp_path / "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_json_is_complete(model, tmp_path, capsys):
    assert convert(model, "--pairing", "interleaved", "--out", tmp_path / "out", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "out": str(tmp_path / "out"),
        "model_type": "smollm3",
        "from": "half",
        "to": "interleaved",
        "tensors": 5,
        "permuted": [K, Q],
        "left": {name.replace("0", "1"): "in a layer that does not rotate" for name in (K, Q)},
        "copied": ["config.json"],
        "not_copied": ["old.bin"],
        "rope_interleave": None,
    }


def test_the_present_pairing_can_be_said(model, tmp_path):
    assert convert(model, "--pairing", "half", "--of", "interleaved", "--out", tmp_path / "out") == 0
    assert load_file(tmp_path / "out/model.safetensors")[K][:, 0].tolist() == [0, 2, 1, 3]


def test_a_configuration_can_be_named(model, tmp_path, capsys):
    (model / "config.json").rename(tmp_path / "elsewhere.json")
    given = (model, "--pairing", "interleaved", "--out", tmp_path / "out")
    assert convert(*given, "--config", tmp_path / "elsewhere.json") == 0
    assert not (tmp_path / "out/config.json").exists()
    assert convert(*given, "--config", "nowhere.json") == 2
    assert "exists and is not an empty directory" in capsys.readouterr().err  # of several faults, one is reported
    assert convert(*given[:-1], tmp_path / "new", "--config", "nowhere.json") == 2
    assert "there is no configuration at 'nowhere.json'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--pairing", "third"), "--pairing must be half or interleaved; got third"),
        (("--pairing", "half", "--of", "neox"), "--of must be half or interleaved; got neox"),
        (("--pairing", "half"), "these weights are half already"),
        ((), "Missing option '--pairing'"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(model, tmp_path, capsys, options, said):
    assert convert(model, *options, "--out", tmp_path / "out") == 2
    streams = capsys.readouterr()
    assert (streams.out, streams.err.count("\n")) == ("", 1)
    assert said in streams.err
    assert not (tmp_path / "out").exists()


def test_a_directory_that_is_none_is_refused(tmp_path, capsys):
    assert convert(tmp_path / "none", "--pairing", "half", "--out", tmp_path / "out") == 2
    assert "is not a directory" in capsys.readouterr().err


def test_its_help_needs_no_torch():
    code = "import sys; sys.modules['torch'] = None; from posenc.cli import run; sys.exit(run(['convert', '--help']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert done.returncode == 0
    assert b"--pairing" in done.stdout
