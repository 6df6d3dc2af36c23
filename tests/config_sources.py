"""Configurations that tests change, and how they expect a refusal."""

from posenc import frequencies
from strategies import refuses

LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 2048}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "original_max_position_embeddings": 1024}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 1024}
LONG |= {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
SLIDING = ["sliding_attention", "full_attention"] * 2


def llama(rope=None, **fields):
    return {**LLAMA, "rope_parameters": {"rope_theta": 1e4} if rope is None else rope, **fields}


def refused(source, *words, layer_type=None, pairing=None, kind=ValueError, **options):
    """Expect one line of an error from the reading of the rotation, or from its frequencies."""
    with refuses(kind, *words) as caught:
        frequencies.from_config(source, layer_type, pairing=pairing, **options)
    return caught


def with_rope(rope, **changes):
    return llama({**rope, **changes})
