"""The bands of Llama 3.2 in a complex table, blended by the rotations within the trained length."""

import math

import torch

CONFIG = {
    "model_type": "llama",
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


def apply_scaling(freqs, scaling):
    turns = scaling["original_max_position_embeddings"] * freqs / (2 * math.pi)
    smooth = (turns - scaling["low_freq_factor"]) / (scaling["high_freq_factor"] - scaling["low_freq_factor"])
    return torch.lerp(freqs / scaling["factor"], freqs, smooth.clamp(0.0, 1.0))


def table_of(end):
    dim = CONFIG["head_dim"]
    freqs = CONFIG["rope_theta"] ** (-torch.arange(0, dim, 2).double() / dim)
    angles = torch.outer(torch.arange(end).double(), apply_scaling(freqs, CONFIG["rope_scaling"]))
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)


def apply(q, k, table):
    table = table[: q.shape[1], None, :]

    def turn(x):
        z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(z * table).flatten(3).type_as(x)

    return turn(q), turn(k)


def build():
    return table_of, apply
