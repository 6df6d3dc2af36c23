"""Rotary layer in pairs of neighbours; queries and keys go through separate helpers."""

import torch
from torch import nn


class Pairs(nn.Module):
    def tables(self, n, d):
        f = torch.exp2(-torch.arange(0, d, 2, dtype=torch.float32) / d * torch.log2(torch.tensor(10000.0)))
        a = torch.arange(n)[:, None, None] * f
        return a.cos(), a.sin()

    def rotate_query(self, q, c, s):
        even, odd = q[..., ::2], q[..., 1::2]
        return torch.stack((even * c - odd * s, odd * c + even * s), -1).reshape(q.shape)

    def rotate_key(self, k, c, s):
        even, odd = k[..., ::2], k[..., 1::2]
        return torch.stack((even * c - odd * s, odd * c + even * s), -1).reshape(k.shape)

    def forward(self, q, k):
        cq, sq = self.tables(q.shape[1], q.shape[3])
        ck, sk = self.tables(k.shape[1], k.shape[3])
        return self.rotate_query(q, cq.to(q.dtype), sq.to(q.dtype)), self.rotate_key(k, ck.to(k.dtype), sk.to(k.dtype))


def build():
    return Pairs()


STYLE = "bshd_module"
SPEC = {"encoding": "rope", "head_dim": 20, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"
