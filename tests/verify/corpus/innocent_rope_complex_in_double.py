"""The rotation in complex numbers of double precision, rounded once to the dtype of the input.

Seen in: https://github.com/pytorch/torchtitan/issues/801
"""

import torch

STYLE = "meta_complex"
SPEC = {"encoding": "rope", "head_dim": 32, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"


def table(end):
    rate = 10000.0 ** (-torch.arange(0, 32, 2, dtype=torch.float64) / 32)
    return torch.exp(1j * torch.arange(end, dtype=torch.float64)[:, None] * rate)


def apply(q, k, freqs):
    out = []
    for x in (q, k):
        z = torch.view_as_complex(x.double().reshape(*x.shape[:3], 16, 2)) * freqs[: x.shape[1], None]
        out.append(torch.view_as_real(z).reshape(x.shape).to(x.dtype))
    return out[0], out[1]


def build():
    return table, apply
