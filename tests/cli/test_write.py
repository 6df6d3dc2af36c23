"""`posenc write`: what stands on which stream, files, exit codes; and the commands of the page about it."""

import json
import re
import shlex
from pathlib import Path

import pytest

from command_line import posenc

QWEN = ("qwen3-8b", "--method", "yarn", "--factor", "4", "--to")
FILE = {"model_type": "llama", "head_dim": 64, "num_hidden_layers": 2, "max_position_embeddings": 4096,
        "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}, "vocab_size": 7}  # fmt: skip
PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text("utf-8")


def test_stdout_has_only_what_is_written():
    done = posenc("write", *QWEN, "vllm")
    assert (done.returncode, done.stderr) == (0, "")
    assert shlex.split(done.stdout)[::2] == ["--hf-overrides", "--max-model-len"]
    assert done.stdout.count("\n") == 1
    titan = posenc("write", *QWEN, "torchtitan")
    assert titan.stdout.startswith("CosSinRoPE.Config(")
    assert titan.stderr == "posenc: write: torchtitan: multiply the scale of the softmax by 1.2965 yourself.\n"


def test_the_json():
    done = json.loads(posenc("write", *QWEN, "llamacpp", "--json").stdout)
    assert (done["trained_len"], done["target_len"], done["stack"]) == (32768, 131072, "llamacpp")
    assert done["text"] == "-c 131072 --rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 32768"


@pytest.fixture
def model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(FILE))
    return tmp_path


def test_a_whole_file_replaces_older_spellings_and_nothing_else(model):
    arguments = ("write", str(model), "--method", "yarn", "--target-len", "8192", "--to", "hf5")
    shown = posenc(*arguments)
    assert "remove rope_theta, rope_scaling from the file" in shown.stderr
    done = posenc(*arguments, "--out", str(model / "new.json"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    written = json.loads((model / "new.json").read_text())
    own = {"rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0, "original_max_position_embeddings": 2048}
    kept = {key: value for key, value in FILE.items() if key not in ("rope_scaling", "rope_theta")}
    assert written == kept | {"max_position_embeddings": 8192, "rope_parameters": own}
    assert json.loads(shown.stdout) == {key: written[key] for key in ("max_position_embeddings", "rope_parameters")}
    assert posenc("parity", str(model / "new.json"), "--stack", "hf5,vllm").returncode == 0


def test_nothing_is_overwritten_without_force(model):
    file = model / "config.json"
    arguments = ("write", str(model), "--method", "linear", "--factor", "4", "--to", "hf4", "--out", str(file))
    done = posenc(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "exists. Give another name" in done.stderr
    assert json.loads(file.read_text()) == FILE
    assert posenc(*arguments, "--force").returncode == 0
    assert json.loads(file.read_text())["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    assert [one.name for one in model.iterdir()] == ["config.json"]


def test_parameters_of_a_method(model):
    lists = {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
    for name, value in lists.items():
        (model / f"{name}.json").write_text(json.dumps(value))
    given = [f"--option={name}=@{name}.json" for name in lists]
    done = posenc("write", "config.json", "--method", "longrope", "--factor=4", *given, "--to=hf5", cwd=model)
    assert {key: json.loads(done.stdout)["rope_parameters"][key] for key in lists} == lists
    fast = posenc("write", *QWEN, "llamacpp", "--option", "beta_fast=16", "--option", "truncate=true")
    assert "--yarn-beta-fast 16" in fast.stdout
    base = posenc("write", "qwen3-8b", "--method=base", "--factor=4", "--option=rope_theta=8e6", "--to=llamacpp")
    assert "--rope-freq-base 8000000 " in base.stdout


WRONG = {
    "a stack": ([*QWEN, "vlm"], "Known: hf5, hf4, vllm, sglang"),
    "a version": ([*QWEN, "vllm@9"], "Known: hf@5.23.0"),
    "what it cannot express": (
        [*QWEN, "mlx", "--option", "truncate=false"],
        "cannot express YaRN exactly: it does not read truncate",
    ),
    "no such model": (
        ["qwen", "--method", "yarn", "--factor", "4", "--to", "hf5"],
        "is neither a configuration nor the name of a known model",
    ),
    "a method": (["qwen3-8b", "--method", "yarm", "--factor", "4", "--to", "hf5"], "unknown method 'yarm'"),
    "no method": (["qwen3-8b", "--factor", "4", "--to", "hf5"], "Missing option '--method'"),
    "no factor": (["qwen3-8b", "--method", "yarn", "--to", "hf5"], "neither a factor nor a target length is given"),
    "a small factor": (["qwen3-8b", "--method", "yarn", "--factor", "0.5", "--to", "hf5"], "must be from 1 to"),
    "a short text": (
        ["qwen3-8b", "--method", "yarn", "--target-len", "9", "--to", "hf5"],
        "at least the trained length",
    ),
    "no value": ([*QWEN, "hf5", "--option", "beta_fast"], "--option must be KEY=VALUE"),
    "a key twice": ([*QWEN, "hf5", "--option", "beta_fast=1", "--option", "beta_fast=2"], "each key once"),
    "out of range": ([*QWEN, "hf5", "--option", "beta_fast=-1"], "beta_fast"),
    "no number": ([*QWEN, "hf5", "--option", "beta_fast=x"], "beta_fast"),
    "not finite": ([*QWEN, "hf5", "--option", "beta_fast=NaN"], "nan"),
    "no file": ([*QWEN, "hf5", "--option", "beta_fast=@nothing.json"], "cannot read 'nothing.json'"),
    "a directory": ([*QWEN, "hf5", "--out", "."], "--out must name a file"),
    "no directory": ([*QWEN, "hf5", "--out", "no/where.json"], "cannot write 'no/where.json'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use_is_one_line_and_code_2_and_writes_nothing(case, tmp_path):
    arguments, said = WRONG[case]
    done = posenc("write", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_commands_of_the_page_write_what_stands_there(tmp_path):
    (tmp_path / "Qwen3-8B").mkdir()
    qwen = {"model_type": "qwen3", "head_dim": 128, "num_hidden_layers": 36, "rope_theta": 1e6, "rope_scaling": None}
    (tmp_path / "Qwen3-8B" / "config.json").write_text(json.dumps(qwen | {"max_position_embeddings": 40960}))
    blocks = re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 8
    for block in blocks:
        for command in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, said = command.replace("\\\n", " ").partition("\n")
            program, *arguments = shlex.split(line)
            assert program == "posenc"
            done = posenc(*arguments, cwd=tmp_path)
            assert done.returncode == (2 if "cannot express" in said else 0), (line, done.stderr)
            for row in filter(None, said.splitlines()):
                assert row.rstrip() in done.stdout + done.stderr, (line, done.stdout, done.stderr)
    named = set(re.findall(r"--to (\S+)", PAGE))
    assert named >= {
        *("hf5", "hf4", "vllm", "sglang", "llamacpp", "gguf", "mlx-lm", "tensorrt-llm"),
        "torchtitan",
        "axolotl",
    }
