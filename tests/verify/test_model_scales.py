"""What a model multiplies its scores by, against its configuration: right in small models, found where it is spoilt."""

import math

import pytest

pytest.importorskip("transformers")

import transformers

from posenc.verify import codes, models
from small_models import build, finite, small

CODE = "model.scores.scale"
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 64}
TWO = {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}}
FACTOR = (0.07 * math.log(8) + 1) ** 2


@pytest.fixture(autouse=True)
def _quiet():
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)


def judged(name, spoil=None, said=None, **options):
    theirs = small(name, **options)
    model = build(theirs)
    model.set_attn_implementation("eager")
    if spoil is not None:
        spoil(model)
    return models.check_model(model, finite(theirs.to_dict()) | (said or {}))


def scales(report):
    return {round(one["scale"], 6) for one in report.measured["layers"] if one["scale"] is not None}


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("name", "options", "scale"),
    [
        ("llama", {}, 16**-0.5),
        ("llama", TWO, 16**-0.5),  # only attention of DeepSeek's kind has the factor
        ("gemma2", {"query_pre_attn_scalar": 144}, 1 / 12),
        ("gemma3_text", {"query_pre_attn_scalar": 100}, 0.1),
        ("gemma3n_text", {}, 1.0),
        ("granite", {"attention_multiplier": 0.0078125}, 0.007812),
        ("deepseek_v2", TWO, 16**-0.5 * FACTOR),
        ("deepseek_v3", TWO, 16**-0.5 * FACTOR),
        ("deepseek_v3", {}, 16**-0.5),
        ("gptj", {"rotary_dim": 8}, 16**-0.5),
        ("openai_privacy_filter", {}, 16**-0.5),  # the root of the root in queries and in keys
        ("esm", {"position_embedding_type": "rotary"}, 1.0),  # in queries, before they are turned
    ],
)
def test_scales_of_models_are_seen_and_right(name, options, scale):
    report = judged(name, **options)
    assert (report.status, report.causes) == ("pass", ()), report
    assert scales(report) == {round(scale, 6)}
    assert report.measured["scale_error"] < 1e-6


def scaled(layer, by):
    def spoil(model):
        attention = model.layers[layer].self_attn
        attention.scaling = by(attention.scaling)

    return spoil


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("name", "options", "spoil", "words"),
    [
        ("llama", {}, scaled(2, lambda s: 1.0), "1 (not divided at all), where the root of head_dim 16 says 0.25"),
        ("llama", {}, scaled(3, lambda s: s * s), "(divided by head_dim, and not by its root)"),
        ("qwen3", {}, scaled(6, lambda s: 64**-0.5), "(divided by the root of the whole width 64)"),
        ("mistral", {}, scaled(0, lambda s: 1 / s), "(multiplied by what should divide)"),
        ("llama", {}, scaled(5, lambda s: 3 * s), "(3 times as much as it should)"),
        ("gemma2", {}, scaled(1, lambda s: 16**-0.5), "(divided by the root of head_dim), where query_pre_attn_scalar"),
        ("gemma3_text", {}, scaled(5, lambda s: 1 / 256), "(query_pre_attn_scalar divides, and not its root)"),
        (
            "granite",
            {"attention_multiplier": 0.015625},
            scaled(4, lambda s: 0.25),
            "attention_multiplier 0.015625 says",
        ),
        ("deepseek_v3", TWO, scaled(3, lambda s: 0.25), "(mscale_all_dim is not read)"),
        ("deepseek_v2", TWO, scaled(1, lambda s: 0.25 * FACTOR**0.5), "applied once and not squared"),
        (
            "deepseek_v3",
            TWO,
            scaled(1, lambda s: 0.25 * (0.1 * math.log(8) + 1) ** 2),
            "(mscale stands in the place of mscale_all_dim)",
        ),
        ("deepseek_v3", {}, scaled(2, lambda s: 24**-0.5), "(divided by the root of the compressed keys, 24)"),
        ("gemma3n_text", {}, scaled(2, lambda s: 0.25), "where the type gemma3n_text says"),
    ],
)
def test_a_spoilt_scale_is_named_by_layer(name, options, spoil, words):
    report = judged(name, spoil, **options)
    (cause,) = report.causes
    layer = cause.smallest_case["layer"]
    assert (report.status, cause.code, report.measured["first_wrong_layer"]) == ("fail", CODE, layer)
    assert [one["layer"] for one in report.measured["layers"] if one["status"] == "wrong"] == [layer]
    assert f"layer {layer} " in cause.message
    assert words in cause.message
    assert report.measured["scale_error"] == pytest.approx(cause.evidence)
    assert codes.rule(CODE).reports


def test_another_configuration_is_another_truth():
    report = judged("gemma2", said={"query_pre_attn_scalar": 144})
    assert [cause.code for cause in report.causes] == [CODE]
    assert "layers 0, 1, 2, 3, 4, 5, 6" in report.causes[0].message
    assert "multiplies scores by 0.0625" in report.causes[0].message


def test_a_spoilt_divisor_of_a_method_is_seen():
    def spoil(model):
        model.h[3].attn.scale_attn = 1.0

    report = judged("gptj", spoil, rotary_dim=8)
    assert [(cause.code, cause.smallest_case["layer"]) for cause in report.causes] == [(CODE, 3)]


def gain(layer, by, scale):
    """Multiply cos and sin of one layer, and its scores."""

    def spoil(model):
        def hook(_module, args, kwargs):
            cos, sin = kwargs["position_embeddings"]
            return args, {**kwargs, "position_embeddings": (cos * by, sin * by)}

        attention = model.layers[layer].self_attn
        attention.register_forward_pre_hook(hook, with_kwargs=True)
        attention.scaling *= scale

    return spoil


def test_a_gain_that_a_scale_makes_up_for_is_equivalent():
    report = judged("llama", gain(2, 2.0, 0.25))
    assert (report.status, report.causes) == ("equivalent", ())
    assert "whose product is the same" in report.because
    report = judged("llama", gain(2, 2.0, 0.5))
    assert [cause.code for cause in report.causes] == ["model.rotation.gain", CODE]
    # half of the lanes turn: no scale makes up for what multiplies them alone
    report = judged("gpt_neox", rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1})
    assert report.status == "pass"
