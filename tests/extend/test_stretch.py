"""A longer context as a configuration, compared with the numbers that transformers makes of it."""

import numpy as np
import pytest

from posenc.config.known import known_models
from posenc.extend.stretch import METHODS, stretch

transformers = pytest.importorskip("transformers")
_GIVEN = {
    "base": {"rope_theta": 8e6},
    "longrope": {"short_factor": [1.0] * 64, "long_factor": [1.0 + i / 16 for i in range(64)]},
}


@pytest.mark.parametrize("method", [name for name, one in METHODS.items() if one.rope_type])
def test_transformers_reads_the_same(method):
    qwen = known_models()["qwen3-8b"]["config"]
    longer = stretch(qwen, method, factor=4, trained_len=32768, options=_GIVEN.get(method))
    config = transformers.Qwen3Config(**{key: value for key, value in longer.fields.items() if key != "model_type"})
    rope = transformers.models.qwen3.modeling_qwen3.Qwen3RotaryEmbedding(config)
    found = longer.after[0].at(100)
    np.testing.assert_allclose(rope.inv_freq.double().numpy(), found.inv_freq, rtol=1e-6)
    assert rope.attention_scaling == pytest.approx(found.gain)


def test_layers_with_a_window_stay():
    gemma = known_models()["gemma-3-27b"]["config"]
    longer = stretch(gemma, "yarn", factor=4, trained_len=32768).override["rope_parameters"]
    assert longer["sliding_attention"] == {"rope_type": "default", "rope_theta": 10000.0}
    assert longer["full_attention"]["factor"] == 4


def test_a_model_keeps_the_ramp_and_mscale_of_its_training():
    longer = stretch(known_models()["kimi-k2"]["config"], "yarn", target_len=262144)
    assert (longer.factor, longer.trained_len) == (64, 4096)
    assert {key: longer.parameters[key] for key in ("beta_fast", "mscale_all_dim")} == {
        "beta_fast": 1.0,
        "mscale_all_dim": 1.0,
    }


def test_the_flag_of_the_ramp_stands_next_to_the_kinds():
    gemma = known_models()["gemma-3-27b"]["config"]
    longer = stretch(gemma, "yarn", factor=4, trained_len=32768, options={"truncate": False})
    assert longer.override["rope_parameters"]["truncate"] is False
    assert longer.after[0].rotary.parameters["truncate"] is False


def test_a_proportional_rotation_keeps_its_type():
    kinds = {"full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}}
    kinds["sliding_attention"] = {"rope_type": "default", "rope_theta": 1e4}
    gemma = {"model_type": "gemma4_text", "head_dim": 256, "num_hidden_layers": 6, "max_position_embeddings": 32768}
    with pytest.raises(ValueError, match="no position interpolation for a proportional rotation"):
        stretch(gemma | {"rope_parameters": kinds, "sliding_window": 512}, "linear", factor=4)


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        ("yarm", {"factor": 4}, "unknown method 'yarm'. Known: linear"),
        ("self-extend", {"factor": 4}, "no configuration can express Self-Extend"),
        ("yarn", {}, "neither a factor nor a target length is given"),
        ("yarn", {"factor": 0.5}, "the factor must be from 1 to 10000; got 0.5"),
        ("yarn", {"target_len": 1000}, "at least the trained length 32768; got 1000"),
        ("yarn", {"factor": float("nan")}, "the factor must be"),
        ("base", {"factor": 4}, "base needs rope_theta; got none"),
        ("linear", {"factor": 4, "options": {"beta_fast": 2}}, "linear has no parameter beta_fast. Known: none"),
        ("yarn", {"factor": 4, "trained_len": 1}, "at least 2 positions; got 1"),
        ("yarn", {"factor": 4, "options": {"beta_fast": -2}}, "beta_fast"),
    ],
)
def test_refusals(method, options, said):
    with pytest.raises(ValueError, match="(?s).*" + said.replace(".", r"\.")):
        stretch(known_models()["qwen3-8b"]["config"], method, **{"trained_len": 32768, **options})


def test_a_name_that_a_model_type_reads_otherwise_is_refused():
    with pytest.raises(ValueError, match="transformers reads yarn of phi3 as longrope"):
        stretch(known_models()["phi-4"]["config"], "yarn", factor=4)
