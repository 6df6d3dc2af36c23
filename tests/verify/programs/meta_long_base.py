"""Complex table in the style of the Llama reference code, for a long-context checkpoint."""

import torch

ARGS = {"dim": 96, "rope_theta": 5000000.0}


def table(end, theta=10000.0, dim=96):
    step = torch.arange(0, dim, 2, dtype=torch.float32)[: dim // 2] / dim
    angles = torch.outer(torch.arange(end, dtype=torch.float32), theta**-step)
    return torch.polar(torch.ones_like(angles), angles)


def rotate(q, k, freqs):
    freqs = freqs[None, :, None, :]
    qc = torch.view_as_complex(q.float().unflatten(-1, (-1, 2)))
    kc = torch.view_as_complex(k.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(qc * freqs).flatten(3).type_as(q), torch.view_as_real(kc * freqs).flatten(3).type_as(k)


def build():
    return (lambda end: table(end, ARGS["rope_theta"], dim=ARGS["dim"])), rotate


STYLE = "meta_complex"
SPEC = {"encoding": "rope", "head_dim": 96, "base": 5000000.0, "layout": "interleaved"}
EXPECT = "pass"
