"""`posenc inspect`: files, directories, names; text and JSON; exit codes."""

import json

import pytest
from click.testing import CliRunner

from posenc.cli import app, run

CONFIG = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 4}
CONFIG |= {"max_position_embeddings": 4096, "rope_theta": 10000.0}


def write(folder, config):
    path = folder / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


def test_a_file_a_directory_and_a_name(tmp_path, capsys):
    path = write(tmp_path, CONFIG)
    assert run(["inspect", str(path)]) == 0
    of_file = capsys.readouterr().out
    assert run(["inspect", str(tmp_path)]) == 0
    assert capsys.readouterr().out == of_file
    assert of_file.startswith("full_attention, 4 layers: rope\n  rotated          32 of 32 dimensions, half\n")
    assert run(["inspect", "llama-2-7b"]) == 0
    assert "92 dimensions complete a period in training (Liu 2023)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "sections", "said"),
    [
        ("qwen2_vl", [4, 6, 6], "3, with 4, 6, 6 pairs, one block after the other"),
        ("qwen3_vl", [6, 5, 5], "3, with 6, 5, 5 pairs, interleaved"),
        ("ernie4_5_vl_moe", [5, 5, 6], "3, with 6, 5, 5 pairs, the others interleaved, then time"),
        ("hunyuan_vl", [4, 4, 4, 4], "4, with 4, 4, 4, 4 pairs, sections of a doubled table"),
    ],
)
def test_axes_are_told_where_there_are_several(tmp_path, capsys, name, sections, said):
    path = write(tmp_path, CONFIG | {"model_type": name, "head_dim": 32, "rope_scaling": {"mrope_section": sections}})
    assert run(["inspect", str(path)]) == 0
    assert f"\n  axes             {said}" in capsys.readouterr().out
    assert run(["inspect", str(write(tmp_path, CONFIG))]) == 0
    assert "axes" not in capsys.readouterr().out


def test_json_is_complete_and_a_warning_is_a_finding(tmp_path, capsys):
    del (silent := dict(CONFIG))["rope_theta"]
    assert run(["inspect", str(write(tmp_path, silent)), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["layers"][0]["pairs"]["kept"] == 16
    assert found["warnings"][0]["key"] == "rope_theta"
    assert run(["inspect", str(tmp_path)]) == 1
    assert "\nwarning: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (
            "nowhere",
            "'nowhere' is neither a configuration nor the name of a known model. Give a config.json, a directory "
            "with one, or one of: gpt-j-6b, ",
        ),
        (CONFIG | {"model_type": "brandnew"}, "model_type"),
        (CONFIG | {"rope_theta": 0.5}, "rope_theta"),
        (CONFIG | {"num_hidden_layers": 65, "layer_types": [f"kind_{i}" for i in range(65)]}, "at most 64 kinds"),
        ("{not json", "is not JSON in UTF-8"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, capsys, target, said):
    named = target == "nowhere"
    assert run(["inspect", target if named else str(write(tmp_path, target))]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert said in streams.err
    assert streams.err.count("\n") == 1


@pytest.mark.parametrize("command", ["inspect", "verify-config"])
def test_a_directory_without_a_configuration_is_not_answered_with_names_of_models(tmp_path, capsys, command):
    assert run([command, str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith(
        f"the directory '{tmp_path}' contains no config.json. Give a model's directory.\n"
    )


def test_an_unknown_type_is_read_with_a_pairing_of_ones_own(tmp_path, capsys):
    path = str(write(tmp_path, CONFIG | {"model_type": "brandnew"}))
    assert run(["inspect", path, "--pairing", "interleaved"]) in (0, 1)
    assert "32 of 32 dimensions, interleaved" in capsys.readouterr().out
    assert run(["inspect", path, "--pairing", "third"]) == 2
    assert "--pairing must be half or interleaved; got third" in capsys.readouterr().err


def test_help_names_it():
    assert "inspect" in CliRunner().invoke(app, ["--help"]).output
