"""Flags of stacks read into fields, parameters and a length, and what parity makes of them."""

import math

import pytest

from command_line import posenc
from posenc.config.known import known_models
from posenc.parity.compare import compare
from posenc.parity.flags import parse
from posenc.parity.loading import choose

YARN = '"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32768'
VLLM = f'--hf-overrides \'{{"max_position_embeddings":131072,"rope_parameters":{{"rope_theta":1e6,{YARN}}}}}\''
LLAMACPP = "-c 131072 --rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 32768"


def read(text, stack, model="qwen3-8b", **options):
    """Return what a stack makes of a known model with its flags."""
    given = parse(text, stack)
    options = {"length": given.length, "override": given.fields, "flags": given.flags} | options
    (found,) = compare(known_models()[model]["config"], choose(stack), **options).stacks
    return found


def test_each_stack_has_flags_of_its_own():
    assert parse(f"{VLLM} --max-model-len=131072", "vllm").length == 131072
    sglang = parse("--context-length 7 --json-model-override-args '{\"rope_theta\": 1}'", "sglang")
    assert (sglang.length, sglang.fields) == (7, {"rope_theta": 1})
    found = parse(
        "--ctx-size 9 --rope-scaling yarn --rope-freq-scale 0.25 --yarn-orig-ctx 100 --rope-freq-base 5e5 "
        "--yarn-beta-fast 16 --yarn-beta-slow 2 --override-kv qwen3.rope.scaling.attn_factor=float:0.5",
        "llamacpp",
    )
    assert (found.length, found.fields) == (9, {})
    assert found.flags == {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100, "rope_theta": 5e5,
        "beta_fast": 16.0, "beta_slow": 2.0, "attn_factor": 0.5, "max_position_embeddings": 400,
    }  # fmt: skip
    titan = parse(
        "ComplexRoPE.Config(dim=8, theta=5e5, scaling='llama', scaling_factor=8, truncate=False)", "torchtitan"
    )
    assert titan.flags == {"rope_theta": 5e5, "rope_type": "llama3", "factor": 8.0, "truncate": False}


def test_the_gate_of_vllm_is_a_switch_of_its_own():
    assert read(f"{VLLM} --max-model-len 131072", "vllm").status == "same"
    closed = VLLM.replace('"max_position_embeddings":131072,', "")
    assert read(f"{closed} --max-model-len 131072", "vllm").status == "error"
    lost = VLLM.replace('"rope_theta":1e6,', "")  # 10000 is taken
    assert read(f"{lost} --max-model-len 131072", "vllm", distances=(100,)).mean_cos[100] == pytest.approx(
        0.4631, abs=5e-5
    )


def test_sglang_joins_what_vllm_replaces():
    text = f'--json-model-override-args \'{{"max_position_embeddings":131072,"rope_scaling":{{{YARN}}}}}\''
    assert read(f"{text} --context-length 131072", "sglang").status == "same"


def test_the_flags_of_llamacpp_go_before_the_file():
    found = read(LLAMACPP, "llamacpp")
    assert (found.status, found.max_len) == ("same", 131072)
    assert found.gain == pytest.approx(0.1 * math.log(4) + 1)
    assert read(f"{LLAMACPP} --yarn-beta-fast 16", "llamacpp").status == "same"  # which a file's key does not do
    half = read(f"{LLAMACPP} --override-kv qwen3.rope.scaling.attn_factor=float:0.5", "llamacpp")
    assert (half.gain, half.status) == (pytest.approx(0.5 * found.gain), "differs")
    lost = read(f"{LLAMACPP} --yarn-attn-factor 0.5", "llamacpp")
    assert lost.gain == found.gain
    assert {key.key: key.use for key in lost.keys}["flags.yarn_attn_factor"] == "ignored"
    linear = read("-c 131072 --rope-scaling linear --rope-scale 4 --yarn-attn-factor 0.5", "llamacpp")
    assert (linear.gain, linear.max_len) == (0.5, 40960)  # to which a server keeps
    base = read("--rope-freq-base 1e4", "llamacpp", distances=(100,))
    assert base.status == "same"  # the override is what is meant
    assert read(f"{LLAMACPP} --yarn-ext-factor 0.5", "llamacpp").status == "unknown"


def test_flags_do_not_change_what_a_gguf_file_holds_as_a_tensor():
    found = read("-c 262144 --rope-scaling yarn --rope-scale 2 --yarn-orig-ctx 131072", "llamacpp", "llama-3.1-8b")
    assert found.status == "unknown"


def test_a_command_line_is_pasted():
    done = posenc("parity", "qwen3-8b", "--stack", "vllm", "--override", f"{VLLM} --max-model-len 131072", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    done = posenc("parity", "qwen3-8b", "--stack", "llamacpp", "--override", LLAMACPP)
    assert done.returncode == 0
    assert "yarn, base 1,000,000, factor 4, 32,768 trained, 131,072 declared" in done.stdout


WRONG = {
    "an unknown flag": (
        "vllm",
        "--tensor-parallel-size 2",
        "vllm has no flag '--tensor-parallel-size' about positions",
    ),
    "a word": ("vllm", "serve", "has no flag 'serve'"),
    "no value": ("vllm", "--max-model-len", "--max-model-len needs a value"),
    "no number": ("vllm", "--max-model-len 128k", "must be a whole number"),
    "no JSON": ("vllm", "--hf-overrides {", "is not JSON"),
    "no object": ("sglang", "--json-model-override-args [1]", "must be a JSON object"),
    "a quotation": ("vllm", "--hf-overrides '{", "Close the quotation"),
    "a type": ("llamacpp", "--rope-scaling ntk", "must be one of none, linear, yarn"),
    "a key": ("llamacpp", "--override-kv qwen3.rope.foo=float:1", "is not a key about positions"),
    "a scale without a type": ("llamacpp", "--rope-scale 4", "--rope-scale needs --rope-scaling"),
    "no original": ("llamacpp", "--rope-scaling yarn --rope-scale 4", "needs --yarn-orig-ctx"),
    "a scale": ("llamacpp", "--rope-scaling linear --rope-freq-scale 4", "above 0 and at most 1"),
    "not finite": ("llamacpp", "--rope-freq-base nan", "must be a number"),
    "no flags": ("mlx-lm", "--rope 4", "no flags of mlx-lm are known"),
    "code": ("torchtitan", "__import__('os').system('ls')", "torchtitan needs a line such as CosSinRoPE.Config"),
    "an argument": ("torchtitan", "CosSinRoPE.Config(dim=8, foo=1)", "torchtitan has no foo"),
    "several stacks": ("vllm,sglang", "--max-model-len 8", "flags of the one stack that --stack names"),
    "nothing": ("vllm", "", "--override is not JSON"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_flags_are_one_line_and_code_2(case):
    stack, text, said = WRONG[case]
    done = posenc("parity", "qwen3-8b", "--stack", stack, "--override", text)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
