"""The Llama-3 bands with the model's own factor, 32.

The correct twin of rope_llama3_factor_of_another_model.py.
"""

import math

import torch

CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_attention_heads": 4,
    "head_dim": 64,
    "rope_theta": 500000.0,
    "max_position_embeddings": 131072,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
STYLE = "meta_complex"
SPEC = {"encoding": "rope", "head_dim": 64, "layout": "interleaved", "scaling": "llama3", "config": CONFIG}
EXPECT = "pass"


def frequencies():
    dim, scaling = CONFIG["head_dim"], CONFIG["rope_scaling"]
    freqs = CONFIG["rope_theta"] ** (-torch.arange(0, dim, 2).double() / dim)
    turns = scaling["original_max_position_embeddings"] * freqs / (2 * math.pi)
    factor = scaling["factor"]
    smooth = (turns - scaling["low_freq_factor"]) / (scaling["high_freq_factor"] - scaling["low_freq_factor"])
    return torch.lerp(freqs / factor, freqs, smooth.clamp(0.0, 1.0))


def table_of(end):
    angles = torch.outer(torch.arange(end).double(), frequencies())
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)


def apply(q, k, table):
    table = table[: q.shape[1], None, :]

    def turn(x):
        z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(z * table).flatten(3).type_as(x)

    return turn(q), turn(k)


def build():
    return table_of, apply
