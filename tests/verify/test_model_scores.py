"""What models multiply scores by and add to them: right in small models of transformers, found where spoilt."""

import json
import math

import pytest
import torch

pytest.importorskip("transformers")

from transformers.models.falcon import modeling_falcon
from transformers.models.t5 import modeling_t5

from posenc.verify import models, rules
from small_models import build, finite, small

ALIBI = {"alibi": True}
SCALE, BIAS = "model.scores.scale", "model.bias.scale"


def run_by(model, how):
    """Choose how attention runs, which `set_attn_implementation` refuses to do for Falcon."""
    for each in {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}.values():
        each._attn_implementation_internal = how


def judged(name, spoil=None, how=None, said=None, **options):
    theirs = small(name, **options)
    model = build(theirs)
    run_by(model, how)
    if spoil is not None:
        spoil(model)
    return models.check_model(model, finite(theirs.to_dict()) | (said or {}))


TWELVE = {"n_head": 12, "hidden_size": 96}
RIGHT = [
    *((name, how, {}) for name in ("t5", "mt5", "umt5") for how in ("eager", "sdpa")),
    ("t5", None, {"relative_attention_num_buckets": 20, "relative_attention_max_distance": 50}),
    ("falcon", "sdpa", ALIBI),
    ("falcon", "sdpa", ALIBI | {"num_attention_heads": 12, "hidden_size": 96}),
    ("falcon", "sdpa", ALIBI | {"multi_query": False, "bias": True}),
    ("falcon", "sdpa", ALIBI | {"new_decoder_architecture": True, "num_kv_heads": 2}),
    ("bloom", None, {}),
    ("bloom", None, TWELVE),
    ("mpt", None, {}),
    ("mpt", None, {"n_heads": 12, "d_model": 96}),
    ("mpt", None, {"attn_config": {"alibi": True, "softmax_scale": 0.1}}),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("name", "how", "options"), RIGHT)
def test_models_of_transformers_are_right(name, how, options):
    report = judged(name, how=how, **options)
    assert (report.status, report.causes) == ("pass", ()), report
    assert report.measured["scale_error"] < 1e-4
    assert report.measured["bias_error"] < 1e-4
    assert {one["status"] for one in report.measured["layers"]} == {"pass"}
    json.dumps(report.to_dict(), allow_nan=False)


def test_all_attentions_of_both_stacks_are_seen():
    layers = judged("t5").measured["layers"]
    assert [one["layer"] for one in layers if one["kind"] == "encoder"] == list(range(7))
    assert [one["layer"] for one in layers if one["kind"] == "decoder"] == list(range(6))
    assert [one["layer"] for one in layers if one["kind"] == "cross attention"] == list(range(6))
    assert {round(one["scale"], 4) for one in judged("bloom").measured["layers"]} == {0.25}


# ---- spoilt models


def attentions(model):
    return [m for m in model.modules() if type(m).__name__ == "T5Attention"]


def by_root(model):
    for one in attentions(model):
        one.scaling = one.key_value_proj_dim**-0.5


def by_root_in_queries(model):
    for one in attentions(model):
        one.q.register_forward_hook(lambda _module, _args, out: out / 4)


def by_root_in_one(model):
    model.encoder.block[3].layer[0].SelfAttention.scaling = 0.25


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (by_root, "layers 0, 1, 2, 3, 4, 5, 6 (encoder); layers 0, 1, 2, 3, 4, 5 (decoder); "),
        (by_root_in_queries, "layers 0, 1, 2, 3, 4, 5 (cross attention) multiplies scores by 0.25"),
        (by_root_in_one, "layer 3 (encoder) multiplies scores by 0.25, 0.25 times as much as it should"),
    ],
)
@pytest.mark.parametrize("how", ["eager", "sdpa"])
def test_t5_with_the_root_of_others(spoil, words, how):
    report = judged("t5", spoil, how)
    assert (report.status, [cause.code for cause in report.causes]) == ("fail", [SCALE])
    assert words in report.causes[0].message
    assert report.measured["scale_error"] == pytest.approx(0.75)


def test_t5_that_divides_its_bias_too(monkeypatch):
    def eager(module, q, k, v, mask, scaling=None, dropout=0.0, position_bias=None, **_):
        scores = (q @ k.mT + (0 if position_bias is None else position_bias)) / math.sqrt(q.shape[-1])
        weights = (scores if mask is None else scores + mask).softmax(-1)
        return (weights @ v).transpose(1, 2).contiguous(), weights

    monkeypatch.setattr(modeling_t5, "eager_attention_forward", eager)
    assert [cause.code for cause in judged("t5", how="eager").causes] == [SCALE]


BUILT = modeling_falcon.build_alibi_tensor


def times(factor):
    return lambda *args, **named: BUILT(*args, **named) * factor


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("built", "code", "words"),
    [
        (times(4), BIAS, "adds 4 times the distance bias"),
        (times(0.25), BIAS, "adds 0.25 times the distance bias"),
        (times(-1), "model.bias.sign", "adds -1 times the distance bias"),
        (times(0), "model.bias.missing", "adds no distance bias"),
    ],
)
def test_falcon_with_another_bias(monkeypatch, built, code, words):
    monkeypatch.setattr(modeling_falcon, "build_alibi_tensor", built)
    # widths of a head whose root is 4, and a number of heads whose slopes bfloat16 does not hold
    report = judged("falcon", how="sdpa", num_attention_heads=12, hidden_size=192, **ALIBI)
    assert (report.status, [cause.code for cause in report.causes]) == ("fail", [code])
    assert words in report.causes[0].message
    assert report.measured["first_wrong_layer"] == 0
    assert report.causes[0].fix == rules.find(code).fix


@pytest.mark.parametrize(
    ("name", "how", "options", "code"),
    [
        # transformers 5.23 hands Falcon's eager attention the bias and a mask that holds it already
        ("falcon", "eager", ALIBI, BIAS),
        # it forms MPT's slopes by 8 whatever alibi_bias_max says, and MosaicML's own code reads it
        ("mpt", None, {"attn_config": {"alibi": True, "alibi_bias_max": 4}}, "model.bias.mismatch"),
    ],
)
def test_what_transformers_does_otherwise_is_found(name, how, options, code):
    assert [cause.code for cause in judged(name, how=how, **options).causes] in ([], [code])


def with_bias(attention, bias):
    def hook(_module, args, kwargs):
        return args, {**kwargs, "position_bias": bias}

    attention.register_forward_pre_hook(hook, with_kwargs=True)


def without_bias(model):
    with_bias(model.decoder.block[5].layer[0].SelfAttention, torch.zeros(1, 4, 200, 200))


def both_ways(model):
    for block in model.decoder.block:
        block.layer[0].SelfAttention.is_decoder = False


def across(model):
    with_bias(model.decoder.block[2].layer[1].EncDecAttention, torch.arange(256.0).expand(1, 4, 200, 256) / 100)


def softer(model):
    model.blocks[2].attn.softmax_scale = 1 / 16


def divided(model):
    model.h[2].self_attention.beta = 0.25


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "spoil", "code", "words"),
    [
        ("t5", without_bias, "model.bias.missing", "layer 5 (decoder) adds no distance bias"),
        ("t5", both_ways, "model.bias.mismatch", "(decoder) adds another distance bias"),
        ("t5", across, "model.bias.mismatch", "(cross attention) adds another distance bias"),
        ("mpt", softer, SCALE, "layer 2 (alibi) multiplies scores by 0.0625, 0.25 times as much"),
        ("bloom", divided, BIAS, "layer 2 (alibi) adds 0.25 times the distance bias"),
    ],
)
def test_other_faults_are_named_by_layer(name, spoil, code, words):
    report = judged(name, spoil)
    assert (report.status, report.causes[0].code) == ("fail", code)
    assert words in report.causes[0].message


def test_what_no_product_explains_cannot_be_told(monkeypatch):
    def eager(module, q, k, v, mask, scaling=None, dropout=0.0, position_bias=None, **_):
        weights = (5 * torch.tanh(q @ k.mT) + (0 if mask is None else mask)).softmax(-1)
        return (weights @ v).transpose(1, 2).contiguous(), weights

    monkeypatch.setattr(modeling_t5, "eager_attention_forward", eager)
    report = judged("t5", how="eager")
    assert (report.status, report.causes) == ("cannot_tell", ())
    assert "not a multiple of the products" in report.because


# ---- models that rotate

LATENT = {"num_key_value_heads": 4}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 64}
TWO = {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}, **LATENT}
FACTOR = (0.07 * math.log(8) + 1) ** 2


def scales(report):
    return {float(f"{one['scale']:.5g}") for one in report.measured["layers"] if one["scale"] is not None}


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("name", "options", "scale"),
    [
        ("llama", {}, 16**-0.5),
        ("llama", TWO, 16**-0.5),  # only attention of DeepSeek's kind has the factor
        ("gemma2", {"query_pre_attn_scalar": 144}, 1 / 12),
        ("gemma3_text", {"query_pre_attn_scalar": 100}, 0.1),
        ("gemma3n_text", {}, 1.0),
        ("granite", {"attention_multiplier": 0.0078125}, 0.0078125),
        ("deepseek_v2", TWO, 16**-0.5 * FACTOR),
        ("deepseek_v3", TWO, 16**-0.5 * FACTOR),
        ("deepseek_v3", LATENT, 16**-0.5),
        ("gptj", {"rotary_dim": 8}, 16**-0.5),
        ("openai_privacy_filter", {}, 16**-0.5),  # the root of the root in queries and in keys
        ("esm", {"position_embedding_type": "rotary"}, 16**-0.5),  # in queries, before they rotate
    ],
)
def test_scales_of_models_are_seen_and_right(name, options, scale):
    report = judged(name, **options)
    assert (report.status, report.causes) == ("pass", ()), report
    assert scales(report) == {float(f"{scale:.5g}")}
    assert report.measured["scale_error"] < 1e-6


def scaled(layer, by):
    def spoil(model):
        attention = model.layers[layer].self_attn
        attention.scaling = by(attention.scaling)

    return spoil


def without_scale(model):
    attention = model.h[3].attn
    attention.scaling = attention.scale_attn = 1.0  # the second is the divisor in transformers before 5.24


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("name", "options", "spoil", "words"),
    [
        (
            "llama",
            {},
            scaled(2, lambda s: 1.0),
            "by 1, 4 times as much as it should: the scale is 0.25, from the root of head_dim 16",
        ),
        ("gptj", {"rotary_dim": 8}, without_scale, "the scale is 0.25, from the root of head_dim 16"),
        ("gemma2", {}, scaled(1, lambda s: 16**-0.5), "from query_pre_attn_scalar 256"),
        ("granite", {"attention_multiplier": 0.015625}, scaled(4, lambda s: 0.25), "attention_multiplier 0.0156"),
        ("deepseek_v3", TWO, scaled(3, lambda s: 0.25), "head_dim 16 and mscale_all_dim"),
        ("deepseek_v2", TWO, scaled(1, lambda s: 0.25 * FACTOR**0.5), "and mscale_all_dim"),
        ("gemma3n_text", {}, scaled(2, lambda s: 0.25), "from the type gemma3n_text"),
    ],
)
def test_a_spoilt_scale_is_named_by_layer(name, options, spoil, words):
    report = judged(name, spoil, **options)
    (cause,) = report.causes
    layer = cause.smallest_case["layer"]
    assert (report.status, cause.code, report.measured["first_wrong_layer"]) == ("fail", SCALE, layer)
    assert [one["layer"] for one in report.measured["layers"] if one["status"] == "wrong"] == [layer]
    assert f"layer {layer} " in cause.message
    assert words in cause.message
    assert report.measured["scale_error"] == pytest.approx(cause.evidence)


@pytest.mark.parametrize(("scale", "codes"), [(0.25, []), (0.5, ["model.rotation.gain", SCALE])])
def test_a_gain_that_a_scale_makes_up_for_is_equivalent(scale, codes):
    def hook(_module, args, kwargs):
        return args, {**kwargs, "position_embeddings": [2 * table for table in kwargs["position_embeddings"]]}

    def spoil(model):
        attention = model.layers[2].self_attn
        attention.register_forward_pre_hook(hook, with_kwargs=True)
        attention.scaling *= scale

    report = judged("llama", spoil)
    assert [cause.code for cause in report.causes] == codes
    assert codes or (report.status == "equivalent" and "whose product is the same" in report.because)
