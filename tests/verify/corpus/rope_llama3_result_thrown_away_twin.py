"""The Llama-3 bands are computed and the table is made of them.

The correct twin of rope_llama3_result_thrown_away.py.
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
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
STYLE = "meta_complex"
SPEC = {"encoding": "rope", "head_dim": 64, "layout": "interleaved", "scaling": "llama3", "config": CONFIG}
EXPECT = "pass"


def apply_scaling(freqs, scaling):
    low = scaling["original_max_position_embeddings"] / scaling["low_freq_factor"]
    high = scaling["original_max_position_embeddings"] / scaling["high_freq_factor"]
    new = []
    for f in freqs.tolist():
        wavelength = 2 * math.pi / f
        if wavelength < high:
            new.append(f)
        elif wavelength > low:
            new.append(f / scaling["factor"])
        else:
            smooth = (scaling["original_max_position_embeddings"] / wavelength - scaling["low_freq_factor"]) / (
                scaling["high_freq_factor"] - scaling["low_freq_factor"]
            )
            new.append((1 - smooth) * f / scaling["factor"] + smooth * f)
    return torch.as_tensor(new, dtype=freqs.dtype)


def table_of(end):
    dim = CONFIG["head_dim"]
    freqs = CONFIG["rope_theta"] ** (-torch.arange(0, dim, 2).double() / dim)
    angles = torch.arange(end).double()[:, None] * apply_scaling(freqs, CONFIG["rope_scaling"])
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)


def apply(q, k, table):
    table = table[: q.shape[1], None, :]

    def turn(x):
        z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(z * table).flatten(3).type_as(x)

    return turn(q), turn(k)


def build():
    return table_of, apply
