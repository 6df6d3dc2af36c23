"""Without a shift: sinusoids of each distance, for keys on both sides; only the terms of the position."""

import torch

STYLE = "scores_fn"
SPEC = {"encoding": "transformer_xl", "heads": 4, "head_dim": 4, "d_model": 12, "base": 1000.0, "causal": False}
EXPECT = "pass"


def term(q, k, r_w_bias, r_r_bias, weight):
    m, n = q.shape[2], k.shape[2]
    distance = (torch.arange(n - m, n)[:, None] - torch.arange(n)).double()
    omega = 1000.0 ** (-torch.arange(6).double() / 6)
    r = torch.cat([torch.sin(distance[..., None] * omega), torch.cos(distance[..., None] * omega)], -1)
    projected = torch.einsum("ijc,hdc->hijd", r.float(), weight.reshape(4, 4, 12))
    return torch.einsum("bhid,hijd->bhij", q + r_r_bias[None, :, None], projected) / 2


def build():
    return term
