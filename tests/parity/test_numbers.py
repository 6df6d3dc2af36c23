"""What known differences cost: numbers that were computed before there was posenc.parity, by hand from the formulas."""

import pytest

from posenc.cli.output import is_refusal
from posenc.config.known import known_models
from posenc.parity.compare import compare
from posenc.parity.evaluate import mean_cos
from posenc.parity.loading import choose, known

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
QWEN = {"model_type": "qwen3", "head_dim": 128, "num_hidden_layers": 36, "max_position_embeddings": 40960,
        "rope_theta": 1e6, "rope_scaling": None}  # fmt: skip
SHORT = QWEN | {"max_position_embeddings": 32768, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
LLAMA = {"model_type": "llama", "head_dim": 128, "num_hidden_layers": 32, "max_position_embeddings": 131072}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}  # fmt: skip
DYNAMIC = LLAMA | {"max_position_embeddings": 32768, "rope_theta": 1e6,
                   "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}  # fmt: skip
TOP = QWEN | {"original_max_position_embeddings": 40960, "rope_scaling": YARN}
NEW = {key: value for key, value in QWEN.items() if key not in ("rope_theta", "rope_scaling")}


def one(source, stack, **options):
    """Return what one stack makes of a configuration, or of a known model."""
    fields = known_models()[source]["config"] if isinstance(source, str) else source
    (found,) = compare(fields, choose(stack), **options).stacks
    return found


CASES = {  # what is read, by whom, under which override, at which length: mean cosines by distance
    "beta_fast 1 read as 32": ("kimi-k2", "llamacpp", {}, None,
        {100: 0.9716, 1000: 0.6172, 4096: 0.6185, 32768: 0.6669}),
    "truncate false read as true": ("gpt-oss-20b", "mlx-lm", {}, None, {1000: 0.9963, 4096: 0.9411, 32768: 0.7295}),
    "the original next to it, read": (TOP, "vllm", {}, None, {1000: 1.0}),
    "the original next to it, not read": (TOP, "hf4", {}, None,
        {1000: 0.9986, 8192: 0.9253, 32768: 0.8038, 131072: 0.7175}),
    "the original read as 4096": (SHORT, "mlx-lm", {}, None, {100: 0.9887, 1000: 0.6437, 8192: 0.6225}),
    "the original read as 1024": (SHORT, "tensorrt-llm", {}, None, {100: 0.8453, 1000: 0.6101, 8192: 0.5280}),
    "the base lost by an override": (QWEN, "vllm", {"max_position_embeddings": 131072, "rope_parameters": YARN}, None,
        {100: 0.4631, 1000: 0.2669}),
    "yarn ignored": (NEW | {"rope_theta": 1e6, "rope_parameters": YARN | {"rope_theta": 1e6}}, "hf4", {}, None,
        {1000: 0.9820, 8192: 0.5878, 131072: 0.5188}),
    "llama3 ignored": (LLAMA | {"rope_theta": 5e5, "rope_parameters": LLAMA3 | {"rope_theta": 5e5}}, "mlx-lm", {}, None,
        {1000: 0.9631, 8192: 0.7689, 20000: 0.6268, 60000: 0.5395}),
    "dynamic, short prompt": (DYNAMIC, "sglang", {}, 32768, {100: 0.6742, 1000: 0.4876, 8192: 0.4752}),
    "dynamic, stretched alike": (DYNAMIC, "sglang", {}, 65536, {100: 1.0, 8192: 1.0}),
    "dynamic without max_trained_positions": (DYNAMIC, "vllm", {}, 65536, {1000: 0.4876, 32768: 0.3794, 65535: 0.1787}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_cost_of_a_difference(case):
    source, stack, override, length, expected = CASES[case]
    found = one(source, stack, override=override, length=length, distances=tuple(expected) or (100,))
    for distance, value in expected.items():
        assert found.mean_cos[distance] == pytest.approx(value, abs=5e-5), distance
    assert found.status == ("same" if set(expected.values()) <= {1.0} else "differs")


def yarn(**more):
    """Return a configuration whose YaRN has factor s, with other parameters."""
    return QWEN | {"max_position_embeddings": 131072, "rope_scaling": {**YARN, **more}}


GAINS = {  # parameters, stack, gain there, factor on the logits
    "attention_factor 1 ignored, s 64": (yarn(factor=64.0, attention_factor=1.0), "mlx-lm", 1.4159, 2.005),
    "attn_factor read": (yarn(attn_factor=0.8782), "sglang", 1.0, 1 / 1.2965),
    "mscale 1 and 1 dropped, s 16": (yarn(factor=16.0, mscale=1.0, mscale_all_dim=1.0), "llamacpp", 1.2773, 1.631),
    "mscale 0.707 by itself, s 40": (yarn(factor=40.0, mscale=0.707), "mlx-lm", 1.2608, (1.2608 / 1.3689) ** 2),
    "mscale 0 and 0, s 40": (yarn(factor=40.0, mscale=0.0, mscale_all_dim=0.0), "sglang", 1.0, 1.3689**-2),
    "no gain on cos and sin": (yarn(), "torchtitan", 1.0, 0.7713),
}


@pytest.mark.parametrize("case", GAINS)
def test_the_gain_and_the_logits(case):
    source, stack, gain, logits = GAINS[case]
    found = one(source, stack)
    assert (found.gain, found.logits) == (pytest.approx(gain, abs=6e-5), pytest.approx(logits, rel=3e-4))
    assert found.status == "differs"


def test_the_gain_of_longrope_and_deepseeks_softmax():
    lists = {"short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    phi = {"model_type": "phi3", "head_dim": 96, "num_hidden_layers": 32, "max_position_embeddings": 131072,
           "rope_theta": 1e4, "original_max_position_embeddings": 4096,
           "rope_scaling": {"type": "longrope", **lists}}  # fmt: skip
    assert one(phi, "hf5").gain == pytest.approx(1.1902, abs=5e-5)
    assert one("deepseek-v3", "vllm").score_factor == pytest.approx(1.8739, abs=5e-5)


def test_what_llama31_by_two_costs():
    found = one(LLAMA | {"rope_theta": 5e5, "rope_scaling": LLAMA3}, "hf5", distances=(10,))
    assert found.status == "same"
    other = LLAMA | {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    mine, theirs = (
        compare(fields, choose("hf5")).meanings[0].at(1).inv_freq
        for fields in (LLAMA | {"rope_theta": 5e5, "rope_scaling": LLAMA3}, other)
    )
    assert [mean_cos(mine, theirs, n) for n in (10, 100, 1000)] == pytest.approx([0.8146, 0.6329, 0.4691], abs=5e-5)


KEYS = {  # configuration, stack, override, key: use
    "beta_fast": ("kimi-k2", "llamacpp", {}, {"rope_scaling.beta_fast": "ignored", "rope_scaling.factor": "read"}),
    "truncate": ("gpt-oss-20b", "vllm", {}, {"rope_scaling.truncate": "read"}),
    "missing": (SHORT, "mlx-lm", {}, {"original_max_position_embeddings": "differs"}),
    "lost base": (QWEN, "vllm", {"rope_parameters": YARN}, {"rope_theta": "ignored"}),
    "lost original": (QWEN, "vllm", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}},
        {"original_max_position_embeddings": "error"}),
    "merged": (QWEN, "sglang", {"rope_scaling": YARN}, {"rope_theta": "read", "override.rope_scaling.factor": "read"}),
    "a whole factor": (LLAMA | {"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8}}, "vllm", {},
        {"rope_scaling.factor": "error"}),
    "two words": (yarn(type="linear"), "vllm", {}, {"rope_scaling.rope_type": "error"}),
    "one word before the other": (yarn(type="linear"), "mlx-lm", {}, {"rope_scaling.type": "differs"}),
    "the other spelling": (LLAMA | {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}}, "mlx-lm", {},
        {"rope_parameters.factor": "ignored", "rope_theta": "differs"}),
    "unread": (yarn(attention_factor=1.0), "sglang", {}, {"rope_scaling.attention_factor": "ignored"}),
    "from memory": ("deepseek-v3", "tensorrt-llm", {}, {"rope_scaling.mscale_all_dim": "unknown"}),
}  # fmt: skip


@pytest.mark.parametrize("case", KEYS)
def test_how_a_key_is_used(case):
    source, stack, override, expected = KEYS[case]
    found = {key.key: key for key in one(source, stack, override=override).keys}
    assert {key: found[key].use for key in expected} == expected
    project = choose(stack)[0].project
    assert all(key.source.startswith((project, "transformers")) for key in found.values())


def test_what_is_unknown_stays_unknown():
    found = one("deepseek-v3", "tensorrt-llm")
    assert (found.status, found.score_factor, found.logits) == ("unknown", None, None)
    other = one(NEW | {"model_type": "qwen9", "rope_theta": 1e6}, "mlx-lm")
    assert (other.status, other.gain, set(other.mean_cos.values())) == ("unknown", None, {None})
    assert one("gemma-3-27b", "llamacpp").status == "unknown"


def test_the_length_that_is_admitted():
    stretched = {"rope_parameters": YARN | {"rope_theta": 1e6}}
    assert one(QWEN, "vllm", override=stretched, length=131072).status == "error"  # the factor no longer counts
    gate = stretched | {"max_position_embeddings": 131072}
    assert one(QWEN, "vllm", override=gate, length=131072).status == "same"
    opened = one(QWEN, "sglang", override={"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, length=131072)
    assert (opened.max_len, opened.status) == (163840, "same")
    linear = LLAMA | {"max_position_embeddings": 4096, "rope_theta": 1e4}
    linear |= {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    assert [one(linear, stack).max_len for stack in ("hf5", "vllm", "sglang", "mlx-lm")] == [4096, 32768, 32768, None]


@pytest.mark.parametrize("name", sorted(known_models()))
def test_every_known_model_is_read_by_transformers_as_it_is_meant(name):
    found = one(name, "hf5")
    assert found.status == "same", [key for key in found.keys if key.use != "read"]


def test_every_stack_reads_every_known_model_without_failing():
    for name, model in known_models().items():
        for found in compare(model["config"], list(known().values()), length=4096).stacks:
            assert found.status in ("same", "differs", "error", "unknown"), name


ODD = (None, True, -1, 0, 1e300, "x", [], {}, [1.0], 3)
READ_BY_SOME = (
    *("type", "attn_factor", "extrapolation_factor", "max_trained_positions", "short_mscale", "long_mscale", "alpha"),
    *("apply_yarn_scaling", "low_freq_factor", "beta_fast", "mscale", "truncate", "rope_theta", "short_factor"),
)


def outcomes(fields):
    """Return what all stacks make of a configuration, none where it is refused on purpose."""
    try:
        return compare(fields, list(known().values()), length=4096).stacks
    except (ValueError, TypeError) as error:
        if not is_refusal(error):
            raise
        return ()


@pytest.mark.parametrize("key", READ_BY_SOME)
@pytest.mark.parametrize("scaling", ["yarn", "linear", "dynamic", "default"])
def test_odd_values_are_refused_or_reported_and_never_a_crash(key, scaling):
    for value in ODD:
        inside = yarn(rope_type=scaling, **{key: value})
        for fields in (inside, yarn(rope_type=scaling, rope_theta=1e6) | {key: value}):
            for found in outcomes(fields):
                assert found.gain is not None or found.status in ("error", "unknown")
                assert all(angle is None or -1 <= angle <= 1 for angle in found.mean_cos.values())
