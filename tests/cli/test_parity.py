"""`posenc parity`: what it writes, its JSON, its exit codes."""

import json
import subprocess
import sys

import pytest

from command_line import posenc

PUBLIC = {"stack", "version", "status", "gain", "score_factor", "max_len", "mean_cos", "logits", "keys"}
YARN = '{"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}'


def test_the_json_that_programs_rely_on():
    done = posenc("parity", "kimi-k2", "--stack", "hf5,llamacpp", "--at", "100,1000", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert found.keys() == {"target", "meaning", "stacks"}
    assert found["target"] == "kimi-k2"
    assert [(one["stack"], one["version"], one["status"]) for one in found["stacks"]] == [
        ("hf", "5.23.0", "same"), ("llamacpp", "2026-10", "differs")]  # fmt: skip
    assert all(one.keys() == PUBLIC for one in found["stacks"])
    assert all(key.keys() == {"key", "use", "source"} for one in found["stacks"] for key in one["keys"])
    assert found["stacks"][1]["mean_cos"] == {
        "100": pytest.approx(0.9716, abs=5e-5), "1000": pytest.approx(0.6172, abs=5e-5)}  # fmt: skip
    meaning = found["meaning"]
    assert (meaning["rope_type"], meaning["factor"], len(meaning["inv_freq"])) == ("yarn", 32.0, 32)


def test_a_person_reads_a_row_for_each_stack_and_what_is_not_read():
    done = posenc("parity", "qwen3-8b", "--stack", "vllm,hf5", "--override", YARN, "--length", "40000")
    assert done.returncode == 1
    assert "vllm 0.33.0  differs  0.4631" in done.stdout
    assert "    rope_theta: ignored, 10000 is used\n        vLLM 0.33.0: " in done.stdout
    assert "40,000" in done.stdout


def test_a_file_and_its_directory(tmp_path):
    fields = {"model_type": "llama", "head_dim": 64, "num_hidden_layers": 2, "max_position_embeddings": 4096}
    (tmp_path / "config.json").write_text(json.dumps(fields | {"rope_theta": 5e5}))
    for target in (tmp_path, tmp_path / "config.json"):
        assert posenc("parity", str(target)).returncode == 0


def test_the_exit_codes():
    assert posenc("parity", "llama-3.1-8b").returncode == 0
    assert posenc("parity", "deepseek-v3", "--stack", "tensorrt-llm,hf5").returncode == 3
    assert posenc("parity", "deepseek-v3", "--stack", "hf5", "--length", "1000000").returncode == 0
    assert posenc("parity", "deepseek-v3", "--stack", "vllm", "--length", "1000000").returncode == 1


def test_the_list():
    done = posenc("parity", "--list")
    assert done.returncode == 0
    assert "hf@5.23.0" in done.stdout
    assert "vllm@0.33.0" in done.stdout
    rows = json.loads(posenc("parity", "--list", "--json").stdout)
    assert {"stack": "mlx-lm", "version": "0.32.2", "project": "mlx-lm"} in rows


WRONG = {
    "no target": ([], "TARGET is missing"),
    "no file": (["nothing.json"], "'nothing.json' is neither a configuration nor"),
    "a stack": (["qwen3-8b", "--stack", "foo"], "Known: hf@5.23.0"),
    "a version": (["qwen3-8b", "--stack", "vllm@9"], "Known: hf@5.23.0"),
    "distances": (["qwen3-8b", "--at", "1,x"], "--at must be distances"),
    "no distance": (["qwen3-8b", "--at", ","], "--at must be distances"),
    "a length": (["qwen3-8b", "--length", "0"], "--length must be from 1"),
    "no JSON": (["qwen3-8b", "--override", "{"], "--override is not JSON"),
    "no object": (["qwen3-8b", "--override", "[1]"], "--override must be a JSON object"),
    "no meaning": (["qwen3-8b", "--override", '{"rope_theta": -1}'], "rope_theta must be above 1"),
    "no number": (["qwen3-8b", "--override", '{"rope_scaling": {"rope_type": "linear", "factor": "x"}}'], "a number"),
    "a list too short": (
        ["qwen3-8b", "--override", '{"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": '
         '[1.0], "original_max_position_embeddings": 1024}}'], "must have 64 entries"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use_is_one_line_and_code_2(case):
    arguments, message = WRONG[case]
    done = posenc("parity", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_it_needs_no_torch():
    code = "import sys; from posenc.cli import run; run(['parity', 'kimi-k2']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False\n")
