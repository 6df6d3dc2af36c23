"""What is written for each stack, compared with the definitions, with transformers itself, and with lines by hand."""

import ast
import json
import shlex

import numpy as np
import pytest
import yaml

from posenc.config.known import known_models
from posenc.definitions import frequencies as defined
from posenc.extend.stretch import METHODS, stretch
from posenc.extend.write import DESTINATIONS, RefusedError, can_run, find, write
from posenc.parity import flags
from posenc.parity.compare import compare

QWEN = known_models()["qwen3-8b"]["config"]
LONG = [1.0 + i / 16 for i in range(64)]
OPTIONS = {"base": {"rope_theta": 8e6}, "longrope": {"short_factor": [1.0] * 64, "long_factor": LONG}}
SAYABLE = [name for name, one in METHODS.items() if one.rope_type]


def longer(method="yarn", model="qwen3-8b", options=None, factor=4.0):
    found = known_models()[model]
    given = OPTIONS.get(method, {}) | (options or {})
    return stretch(found["config"], method, factor=factor, trained_len=found["original_max_len"], options=given)


# each line written by hand from the sources of a stack
YARN = '"rope_type":"yarn","rope_theta":1000000.0,"factor":4.0,"original_max_position_embeddings":32768'
LINES = {
    "hf5": '{"max_position_embeddings": 131072, "rope_parameters": {' + YARN + "}}",
    "hf4": '{"max_position_embeddings": 131072, "rope_theta": 1000000.0, "rope_scaling": '
    '{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32768}}',
    "vllm": """--hf-overrides '{"max_position_embeddings":131072,"rope_parameters":{""" + YARN + """}}' """
    "--max-model-len 131072",
    "sglang": """--json-model-override-args '{"max_position_embeddings":131072,"rope_scaling":{"rope_type":"yarn","""
    """"factor":4.0,"original_max_position_embeddings":32768}}' --context-length 131072""",
    "llamacpp": "-c 131072 --rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 32768",
    "gguf": "qwen3.context_length=131072\nqwen3.rope.scaling.type=yarn\nqwen3.rope.scaling.factor=4.0\n"
    "qwen3.rope.scaling.original_context_length=32768\nqwen3.rope.freq_base=1000000",
    "mlx-lm": '{"rope_scaling": {"type":"yarn","factor":4.0,"original_max_position_embeddings":32768}, '
    '"rope_theta": 1000000}',
    "torchtitan": 'CosSinRoPE.Config(dim=128, max_seq_len=131072, theta=1e6, scaling="yarn", rope_factor=4.0, '
    "original_seq_len=32768)",
    "axolotl": "overrides_of_model_config: {rope_parameters: {rope_type: yarn, rope_theta: 1000000.0, factor: 4.0, "
    "original_max_position_embeddings: 32768}, max_position_embeddings: 131072}",
}
LINES["tensorrt-llm"] = LINES["hf4"]


def calls(text):
    call = ast.parse(text, mode="eval").body
    return ast.unparse(call.func), {one.arg: ast.literal_eval(one.value) for one in call.keywords}


PARSERS = {"axolotl": yaml.safe_load, "torchtitan": calls, "vllm": str, "sglang": str, "llamacpp": str, "gguf": str}


@pytest.mark.parametrize("to", LINES)
def test_the_lines_for_qwen3(to):
    parse = PARSERS.get(to, json.loads)
    assert parse(write(longer(), to).text) == parse(LINES[to])


# which methods a stack cannot express, with words of the refusal; all others are written
CANNOT = {
    ("dynamic", "vllm"): "once and not for each text",
    ("dynamic", "sglang"): "once and not for each text",
    ("dynamic", "llamacpp"): "one base for texts of every length",
    ("dynamic", "gguf"): "one base for texts of every length",
    ("dynamic", "tensorrt-llm"): "dynamic needs alpha",
    ("dynamic", "torchtitan"): "no scaling for dynamic NTK",
    ("dynamic", "unsloth"): "frequencies",  # of max_position_embeddings, which no argument sets
    ("longrope", "unsloth"): "scores",
    ("linear", "torchtitan"): "no scaling for position interpolation",
    ("longrope", "torchtitan"): "no scaling for LongRoPE",
    **{(method, to): "a tensor in the GGUF file" for method in ("llama3", "longrope") for to in ("llamacpp", "gguf")},
    **{(method, "llamafactory"): "without rope_theta" for method in SAYABLE},
}


def wanted(method, text):
    """Return frequencies and gain by the definitions, for 4 times 32,768 positions and 128 dimensions at base 1e6."""
    plain = 1e6 ** (-2 * np.arange(64) / 128)
    lengths = {"factor": 4.0, "original_max_len": 32768}
    base = {
        "ntk": defined.ntk_base(1e6, width=128, factor=4.0),
        "dynamic": defined.dynamic_base(1e6, width=128, seq_len=text, **lengths),
        "base": 8e6,
    }
    match method:
        case "linear":
            return defined.linear(plain, factor=4.0), 1.0
        case "yarn":
            return defined.yarn(width=128, base=1e6, **lengths), defined.mscale(4.0)
        case "llama3":
            return defined.llama3(plain, low_freq_factor=1.0, high_freq_factor=4.0, **lengths), 1.0
        case "longrope":
            return plain / (LONG if text > 32768 else 1.0), defined.longrope_gain(4.0, 32768)
    return base[method] ** (-2 * np.arange(64) / 128), 1.0


def read_back(written, to):
    """Return what a stack makes of a text that is written, by the rules of parity and for 131,072 positions."""
    given, source = flags.Given(), QWEN
    if to in ("hf5", "hf4", "mlx-lm", "tensorrt-llm"):
        source = {key: value for key, value in QWEN.items() if key not in written.dropped} | json.loads(written.text)
    elif to == "axolotl":
        given = flags.Given(yaml.safe_load(written.text)["overrides_of_model_config"])
    elif to == "unsloth":
        _, arguments = calls(f"f({written.text})")
        given = flags.Given({"rope_parameters": arguments["rope_parameters"]}, length=arguments["max_seq_length"])
    else:
        given = flags.parse(written.text, written.rules.stack)
        assert given.length == 131072 or to in ("gguf", "torchtitan")
    options = {"override": given.fields, "flags": given.flags, "length": 131072, "distances": (100, 8000)}
    return compare(source, [written.rules], **options)


@pytest.mark.parametrize("to", DESTINATIONS)
@pytest.mark.parametrize("method", SAYABLE)
def test_every_stack_reads_back_what_every_method_means(method, to):
    if (said := CANNOT.get((method, to))) is not None:
        with pytest.raises(RefusedError, match=said) as refused:
            write(longer(method), to)
        assert "Nearest: " in str(refused.value)
        return
    written = write(longer(method), to)
    found = read_back(written, to)
    (meaning,), (stack,) = found.meanings, found.stacks
    for text in (40000, 131072):
        inv_freq, gain = wanted(method, text)
        np.testing.assert_allclose(meaning.at(text).inv_freq, inv_freq, rtol=1e-12)
    assert [*stack.mean_cos.values()] == pytest.approx([1.0] * len(stack.mean_cos), abs=1e-9)
    assert stack.gain**2 * stack.score_factor * written.score_scale == pytest.approx(gain**2, rel=1e-9)
    if to != "unsloth" and method != "dynamic":  # whose length is an argument, and the trained one
        assert stack.max_len is None or stack.max_len >= 131072
    assert stack.status == ("differs" if written.score_scale != 1 else "same")


@pytest.mark.parametrize("method", SAYABLE)
@pytest.mark.parametrize("to", ["hf5", "hf4", "mlx-lm", "tensorrt-llm", "axolotl"])
def test_transformers_reads_a_file_that_is_written(method, to):
    transformers = pytest.importorskip("transformers", minversion="5.23")
    torch = pytest.importorskip("torch")
    if (method, to) in CANNOT:
        return
    written = write(longer(method), to)
    if written.whole is not None:
        config = transformers.Qwen3Config.from_dict(dict(written.whole))
    else:
        config = transformers.Qwen3Config.from_dict(dict(QWEN))
        for key, value in yaml.safe_load(written.text)["overrides_of_model_config"].items():
            setattr(config, key, value)
    rope = transformers.models.qwen3.modeling_qwen3.Qwen3RotaryEmbedding(config)
    for text in (40000, 131072):
        rope(torch.zeros(1), torch.tensor([[text - 1]]))
        inv_freq, gain = wanted(method, text)
        np.testing.assert_allclose(rope.inv_freq.double().numpy(), inv_freq, rtol=1e-6)
        assert rope.attention_scaling == pytest.approx(gain)


def test_can_run_agrees_and_the_nearest_can_be_written():
    for method in SAYABLE:
        said = can_run(longer(method))
        assert {to for to, why in said.items() if why} == {to for one, to in CANNOT if one == method}
        for to, why in said.items():
            for nearest in ("ntk", "yarn"):
                if f"--method {nearest}" in why:
                    write(longer(nearest), to)


PARTS = {  # where a stack does not read a parameter of YaRN by its name: what stands in its place
    ("attention_factor", 1.0, "vllm"): '"attention_factor":1.0',
    ("attention_factor", 1.0, "sglang"): '"attn_factor":0.8782',  # the value that DeepSeek-R1-0528-Qwen3-8B has
    ("attention_factor", 1.0, "llamacpp"): "--override-kv qwen3.rope.scaling.attn_factor=float:0.8782",
    ("attention_factor", 1.0, "gguf"): "qwen3.rope.scaling.attn_factor=0.8782",
    ("attention_factor", 1.0, "mlx-lm"): '"mscale": 0.0',
    ("attention_factor", 1.0, "tensorrt-llm"): '"mscale_all_dim": 0.0',
    ("beta_fast", 16.0, "llamacpp"): "--yarn-beta-fast 16",
    ("beta_slow", 2.0, "mlx-lm"): '"beta_slow": 2.0',
    ("truncate", False, "vllm"): '"truncate":false',
    ("truncate", False, "torchtitan"): "truncate=False",
}


@pytest.mark.parametrize("case", PARTS)
def test_a_parameter_of_yarn_in_the_words_of_a_stack(case):
    key, value, to = case
    written = write(longer(options={key: value}), to)
    assert PARTS[case] in written.text
    (stack,) = read_back(written, to).stacks
    gain = value if key == "attention_factor" else defined.mscale(4.0)
    assert stack.gain * written.score_scale**0.5 == pytest.approx(gain)
    assert [*stack.mean_cos.values()] == pytest.approx([1.0] * len(stack.mean_cos), abs=1e-9)


UNREAD = {
    ("truncate", False, "llamacpp"): "does not read truncate.* Nearest: --option truncate=true",
    ("truncate", False, "mlx-lm"): "does not read truncate",
    ("truncate", False, "tensorrt-llm"): "does not read truncate",
    ("beta_fast", 16.0, "gguf"): "does not read beta_fast.* Nearest: --to llamacpp, which has a flag for it",
}


@pytest.mark.parametrize("case", UNREAD)
def test_a_parameter_that_a_stack_does_not_read_is_refused_by_name(case):
    key, value, to = case
    with pytest.raises(RefusedError, match=UNREAD[case]):
        write(longer(options={key: value}), to)


def test_the_gain_of_longrope_where_a_stack_has_one_for_each_list():
    given = {"attention_factor": 1.25}
    for to in ("vllm", "sglang"):
        assert '"short_mscale":1.25,"long_mscale":1.25' in write(longer("longrope", options=given), to).text
    with pytest.raises(RefusedError, match="does not read attention_factor"):
        write(longer("longrope", options=given), "mlx")


def test_a_list_that_serves_all_lengths_is_a_remark():
    for to, short in (("hf5", False), ("sglang", False), ("vllm", True), ("mlx", True), ("tensorrt-llm", True)):
        remarks = write(longer("longrope"), to).remarks
        assert any("positions rotate as longer ones do" in one for one in remarks) is short, to


def test_torchtitan_leaves_the_softmax_to_the_user():
    written = write(longer(), "torchtitan")
    assert written.score_scale == pytest.approx(1.2965, abs=5e-5)  # (0.1 ln 4 + 1) squared
    assert "multiply the scale of the softmax by 1.2965 yourself" in written.remarks[-1]


def test_what_is_unknown_is_a_remark():
    assert "its length limit is unknown" in write(longer(), "tensorrt-llm").remarks[-1]
    written = write(longer("yarn", "gemma-3-27b"), "llamacpp")
    assert any("unknown for sliding_attention" in one for one in written.remarks)
    titan = write(longer("yarn", "gemma-3-27b"), "torchtitan").remarks
    assert "unknown for sliding_attention: rope_scaling, how torchtitan rotates layers" in titan[0]
    deepseek = write(longer("yarn", "deepseek-v3", factor=50.0), "tensorrt-llm")
    assert any("unknown for full_attention: rope_scaling.mscale_all_dim" in one for one in deepseek.remarks)


def declared(stretched):
    """Return the longest text that vLLM is to read in its override."""
    return json.loads(shlex.split(write(stretched, "vllm").text)[1])["max_position_embeddings"]


def test_a_length_that_a_stack_multiplies_is_not_multiplied_twice():
    assert declared(longer()) == 131072
    assert declared(longer("linear")) == 32768  # which vLLM multiplies by the factor
    odd = declared(stretch(QWEN, "linear", target_len=10210, trained_len=10000))
    assert int(odd * (10210 / 10000)) >= 10210  # 10,000 times that is 10,209.99..., which vLLM rounds down


def test_a_model_that_holds_its_language_model():
    outer = {"model_type": "qwen3_vl", "text_config": QWEN | {"model_type": "qwen3_vl_text"}, "image_token_id": 5}
    whole = stretch(outer, "yarn", factor=4, trained_len=32768)
    own = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768}
    vllm = json.loads(shlex.split(write(whole, "vllm").text)[1])
    assert vllm == {"text_config": {"max_position_embeddings": 131072, "rope_parameters": own}}
    sglang = json.loads(shlex.split(write(whole, "sglang").text)[1])["text_config"]["rope_scaling"]
    assert sglang == own  # replaced there, so that the base is repeated
    file = write(whole, "hf5").whole
    assert (file["image_token_id"], file["text_config"]["rope_parameters"]) == (5, own)
    with pytest.raises(RefusedError, match="changes only the outer configuration"):
        write(whole, "axolotl")


def test_layers_with_a_window_stay_as_they_are():
    file = write(longer("yarn", "gemma-3-27b"), "hf4").whole
    assert (file["rope_local_base_freq"], file["rope_theta"], file["rope_scaling"]["rope_type"]) == (1e4, 1e6, "yarn")
    vllm = json.loads(shlex.split(write(longer("yarn", "gemma-3-27b"), "vllm").text)[1])["rope_parameters"]
    assert vllm["sliding_attention"] == {"rope_type": "default", "rope_theta": 10000.0}


def test_factors_that_stay_in_a_gguf_file():
    with pytest.raises(RefusedError, match="the factors of llama3 are a tensor in the GGUF file"):
        write(longer("yarn", "llama-3.1-8b"), "llamacpp")


@pytest.mark.parametrize("name", sorted(known_models()))
def test_every_known_model_is_written_or_refused_in_a_sentence(name):
    try:
        asked = longer("yarn", name)
    except ValueError:
        asked = longer("ntk", name)
    said = can_run(asked)
    assert (said["hf5"] == "") == (name != "gpt-j-6b")  # whose frequencies stand in transformers' code
    assert all(why == "" or why.startswith("write: ") for why in said.values())


@pytest.mark.parametrize(("to", "said"), [("vlm", "Known: hf5, hf4, vllm"), ("vllm@9", "Known: hf@5.23.0")])
def test_unknown_stacks_and_versions(to, said):
    with pytest.raises(ValueError, match=said):
        write(longer(), to)
    assert find("vllm@0.33.0")[1].version == "0.33.0"
