"""Complex rotation, queries and keys separately written out."""

import math

import torch


def precompute(end):
    rate = torch.exp(torch.arange(12, dtype=torch.float64) * (-2 * math.log(123456.0) / 24))
    return torch.exp(1j * torch.arange(end, dtype=torch.float64)[:, None] * rate).to(torch.complex64)


def pairs(x):
    x = x.float().contiguous()
    return torch.view_as_complex(x.view(*x.shape[:-1], x.shape[-1] // 2, 2))


def apply(xq, xk, freqs_cis):
    w = freqs_cis.view(1, freqs_cis.shape[0], 1, freqs_cis.shape[1])
    out_q = torch.view_as_real(pairs(xq) * w)
    out_k = torch.view_as_real(pairs(xk) * w)
    return out_q.reshape(xq.shape).to(xq.dtype), out_k.reshape(xk.shape).to(xk.dtype)


def build():
    return precompute, apply


STYLE = "meta_complex"
SPEC = {"encoding": "rope", "head_dim": 24, "base": 123456.0, "layout": "interleaved"}
EXPECT = "pass"
