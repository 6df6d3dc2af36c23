"""Which kinds of layers a model has, and how many of each."""

import pytest

from config_sources import LLAMA
from posenc import config

GEMMA = {"model_type": "gemma3_text", "num_hidden_layers": 12}
EXAONE = {"model_type": "exaone4", "num_hidden_layers": 8, "sliding_window": 64, "sliding_window_pattern": "LLLG"}
SCOUT = {"model_type": "llama4_text", "num_hidden_layers": 48}
BEAM = {"model_type": "beam", "num_hidden_layers": 6}
BY_KIND = {"sliding_attention": {"rope_theta": 1e4}, "full_attention": None}
LAYERS = [
    (LLAMA, {"full_attention": 4}),
    (
        {**LLAMA, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]},
        {"sliding_attention": 3, "full_attention": 1},
    ),
    (GEMMA, {"sliding_attention": 10, "full_attention": 2}),
    ({**GEMMA, "sliding_window_pattern": 4}, {"sliding_attention": 9, "full_attention": 3}),
    (EXAONE, {"sliding_attention": 6, "nope": 2}),
    ({**EXAONE, "sliding_window": None}, {"full_attention": 8}),
    (SCOUT, {"chunked_attention": 36, "nope": 12}),
    ({**SCOUT, "attention_chunk_size": None}, {"full_attention": 36, "nope": 12}),
    # 0 says that there is no rotation
    ({**SCOUT, "num_hidden_layers": 3, "no_rope_layers": [0, 1, 1]}, {"nope": 1, "chunked_attention": 2}),
    (
        {"model_type": "cohere2", "num_hidden_layers": 8, "sliding_window": 4096},
        {"sliding_attention": 6, "nope": 2},
    ),
    ({"model_type": "falcon", "num_hidden_layers": 2, "alibi": True}, {"nope": 2}),
    (
        {"model_type": "granite_swa", "num_hidden_layers": 4, "layer_rope_theta": [0, 1e4, 1e4, 1e4]},
        {"nope": 1, "sliding_attention": 3},
    ),
    ({**BEAM, "rope_parameters": BY_KIND}, {"sliding_attention": 5, "nope": 1}),
    ({**BEAM, "rope_parameters": None}, {"sliding_attention": 5, "nope": 1}),
    ({"model_type": "mistral", "num_hidden_layers": 2, "sliding_window": 4096}, {"sliding_attention": 2}),
    (
        {"model_type": "qwen3_next", "num_hidden_layers": 8, "full_attention_interval": 2},
        {"linear_attention": 4, "full_attention": 4},
    ),
    ({"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064}}, {"full_attention": 32}),
    ({"model_type": "llava", "text_config": {"model_type": "phi", "vocab_size": 51200}}, {"full_attention": 24}),
]


@pytest.mark.parametrize(("source", "wanted"), LAYERS)
def test_layer_types(source, wanted):
    assert config.layer_types(source) == wanted


def test_a_window_of_the_file():
    assert config.rotary({**LLAMA, "model_type": "mistral", "sliding_window": 4096}).window == 4096


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({"num_hidden_layers": 10_001}, "from 1 to 10000"),
        ({"num_hidden_layers": 10**30}, "from 1 to 10000"),
        ({"num_hidden_layers": 0}, "from 1 to 10000"),
        ({"layer_types": ["full_attention"] * 3}, "one entry for each of the 4 layers; got 3"),
        ({"layer_types": []}, "empty list"),
        ({"layer_types": ["x" * 100] * 4}, "names of kinds"),
        ({"num_hidden_layers": 70, "layer_types": [f"kind_{i}" for i in range(70)]}, "at most 64 kinds of layers; got"),
        (
            {"model_type": "cohere2_moe", "mlp_layer_types": ["dense"]},
            "mlp_layer_types must have one entry for each of the 4 layers",
        ),
        ({"model_type": "cohere2_moe", "first_k_dense_replace": 5}, "first_k_dense_replace must be from 0 to 4; got 5"),
        ({"model_type": "mllama_text_model", "cross_attention_layers": [-1]}, "entry must be from 0"),
        ({"model_type": "hrm_text", "num_hidden_layers": 2000}, "over all cycles must be from 1 to 10000; got 16000"),
        ({"model_type": "smollm3", "no_rope_layers": [1, 0]}, "one entry for each of the 4 layers; got 2"),
        ({"num_hidden_layers": None, "layer_types": ["full_attention"] * 10_001}, "at most 10000"),
    ],
)
def test_layers_that_do_not_agree(fields, words):
    with pytest.raises(ValueError, match=words):
        config.layer_types({**LLAMA, **fields})
