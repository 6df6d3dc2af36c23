"""`posenc plan`: what it writes, its JSON, its exit codes."""

import json
import shlex
from pathlib import Path

import pytest

from command_line import posenc
from posenc.config.known import known_models

PUBLIC = {
    *("method", "title", "parameters", "override", "refused", "unseen", "unseen_pairs", "neighbours", "fixed", "gain"),
    *("logits", "short_logits", "mean_cos", "stacks", "published"),
}
QWEN = ["qwen3-8b", "--target-len", "131072"]


def test_the_json_that_programs_rely_on():
    done = posenc("plan", *QWEN, "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert {key: found[key] for key in ("trained_len", "target_len", "factor", "train", "n_pairs", "recommended")} == {
        "trained_len": 32768, "target_len": 131072, "factor": 4.0, "train": False, "n_pairs": 64, "recommended": "yarn",
    }  # fmt: skip
    assert all(one.keys() == PUBLIC for one in found["candidates"])
    yarn = found["candidates"][0]
    assert yarn["override"]["rope_parameters"]["factor"] == 4
    assert yarn["mean_cos"]["1000"] == pytest.approx(0.9820, abs=5e-5)
    assert yarn["neighbours"].keys() == {"fastest", "median", "closer"}
    assert yarn["published"]["for"]["source"].startswith("Peng et al. 2023")


def test_a_person_reads_a_row_for_each_method_then_why_and_the_next_step():
    done = posenc("plan", *QWEN)
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert max(map(len, lines[: lines.index("Next:")])) <= 80
    rows = {line.split()[0]: line.split() for line in lines[4:16] if line}
    assert (rows["yarn"][1:4], rows["yarn"][5]) == (["0", "40", "1.2965"], "0.9820")
    assert rows["longrope"][1:] == ["-"] * 7
    assert "Recommended without training: yarn" in done.stdout
    assert lines[-1].startswith("  posenc evaluate")


def test_the_page_shows_what_it_writes():
    page = (Path(__file__).parents[2] / "docs" / "planning.md").read_text("utf-8")
    shown = page.split("Its first lines for Qwen3-8B:\n\n")[1].split("\n\n")[0].splitlines()
    assert len(shown) == 4
    assert {line.strip() for line in shown} <= set(posenc("plan", *QWEN).stdout.splitlines())


def test_training_is_said():
    assert "Recommended with training" in posenc("plan", *QWEN, "--train").stdout


def test_the_next_step_writes_the_first_with_its_options():
    done = posenc("plan", *QWEN, "--option", "beta_fast=16", "--option", "window=1024", "--json")
    assert json.loads(done.stdout)["next"][0] == (
        "posenc write qwen3-8b --method yarn --to vllm --target-len 131072 --trained-len 32768 --option beta_fast=16"
    )


@pytest.mark.parametrize(
    "model", ["qwen3-8b", "llama-3.1-8b", "gemma-3-27b", "deepseek-v3", "gpt-oss-20b", "pythia-1.4b"]
)
@pytest.mark.parametrize("train", ["--train", "--no-train"])
def test_the_next_step_runs(model, train):
    length = str(8 * known_models()[model]["config"]["max_position_embeddings"])
    found = json.loads(posenc("plan", model, "--target-len", length, train, "--json").stdout)
    first = next(one for one in found["candidates"] if one["override"])
    done = posenc(*shlex.split(found["next"][0])[1:], "--json")
    assert done.returncode == 0
    written = json.loads(done.stdout)
    assert (written["method"], written["factor"], written["target_len"]) == (
        first["method"], found["factor"], found["target_len"])  # fmt: skip


def test_lists_that_the_file_ships_stand_in_the_next_step(tmp_path):
    scaling = {"type": "longrope", "short_factor": [1.0] * 16, "long_factor": [16.0 + i for i in range(16)]}
    fields = {"model_type": "phi3", "hidden_size": 64, "num_attention_heads": 2, "rope_theta": 1e4}
    lengths = {"max_position_embeddings": 8192, "original_max_position_embeddings": 1024}
    (tmp_path / "config.json").write_text(json.dumps(fields | lengths | {"rope_scaling": scaling}))
    found = json.loads(posenc("plan", str(tmp_path), "--target-len", "16384", "--json").stdout)
    assert found["recommended"] == "longrope"
    done = posenc(*shlex.split(found["next"][0])[1:])
    assert done.returncode == 0
    assert "[16.0,17.0," in done.stdout.replace(" ", "").replace("\n", "")


def test_an_option_goes_to_the_methods_that_have_it():
    found = json.loads(posenc("plan", *QWEN, "--option", "rope_theta=2e7", "--json").stdout)["candidates"]
    bases = {one["method"]: one["parameters"].get("rope_theta") for one in found}
    assert (bases["base"], bases["yarn"]) == (2e7, 1e6)


def test_a_file_of_lists(tmp_path):
    (tmp_path / "long.json").write_text(json.dumps([4.0] * 64))
    done = posenc(
        "plan",
        *QWEN,
        "--option",
        "long_factor=@long.json",
        "--option",
        "short_factor=@long.json",
        "--json",
        cwd=tmp_path,
    )
    longrope = next(one for one in json.loads(done.stdout)["candidates"] if one["method"] == "longrope")
    assert (longrope["refused"], longrope["unseen"], longrope["neighbours"]["median"]) == (None, 0, 0.25)


def test_a_directory_and_a_trained_length(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(known_models()["qwen3-8b"]["config"]))
    arguments = (str(tmp_path), "--target-len", "131072", "--json")
    found = [json.loads(posenc("plan", *arguments, *more).stdout) for more in ((), ("--trained-len", "32768"))]
    assert [one["trained_len"] for one in found] == [40960, 32768]


def test_other_kinds_of_layers_are_named():
    done = posenc("plan", "gemma-3-27b", "--target-len", "262144")
    assert "Layers of sliding_attention are not changed." in done.stdout


def test_a_length_that_the_file_declares_needs_no_change():
    arguments = ("plan", "deepseek-v3", "--target-len", "163840")
    said = " ".join(posenc(*arguments).stdout.split())
    assert "Recommended: change nothing, because the model already handles 163,840 positions." in said
    found = json.loads(posenc(*arguments, "--json").stdout)
    assert (found["recommended"], found["next"]) == (None, ["posenc evaluate DIR --text FILE --lengths 163840"])


WRONG = {
    "no length": (["qwen3-8b"], "target-len"),
    "no file": (["nothing.json", "--target-len", "9"], "'nothing.json' is neither a configuration nor"),
    "too short": (["qwen3-8b", "--target-len", "100"], "at least the trained length 32768; got 100"),
    "no training": ([*QWEN, "--trained-len", "0"], "the trained length must be at least 2 positions; got 0"),
    "no option": ([*QWEN, "--option", "beta_fast"], "--option must be KEY=VALUE"),
    "no parameter": ([*QWEN, "--option", "beta=1"], "no method has a parameter beta"),
    "no number": ([*QWEN, "--option", "beta_fast={"], "beta_fast must be a number"),
    "no list": ([*QWEN, "--option", "long_factor=@none.json"], "--option cannot read 'none.json'"),
    "a wrong kind": ([*QWEN, "--option", "beta_fast=[1]"], "beta_fast"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use_is_one_line(case, tmp_path):
    arguments, said = WRONG[case]
    done = posenc("plan", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert said in done.stderr


def test_a_model_that_does_not_rotate(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bloom", "n_head": 8, "hidden_size": 64}))
    done = posenc("plan", str(tmp_path), "--target-len", "4096")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "does not rotate" in done.stderr
