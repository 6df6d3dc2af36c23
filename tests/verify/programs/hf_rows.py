"""Rotary module for batches whose rows carry their own position numbers."""

import torch


class BatchedRope(torch.nn.Module):
    dim = 40
    theta = 1e6

    def __init__(self):
        super().__init__()
        self.inv = torch.tensor([self.theta ** (-2 * i / self.dim) for i in range(self.dim // 2)])

    def forward(self, x, position_ids):
        phase = torch.stack([torch.outer(row.float(), self.inv) for row in position_ids])
        phase = phase.repeat_interleave(2, dim=-1)
        return phase.cos().to(x), phase.sin().to(x)


def quarter_turn(x):
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


def apply(q, k, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + quarter_turn(q) * sin, k * cos + quarter_turn(k) * sin


def build():
    return BatchedRope(), apply


STYLE = "hf_rope"
SPEC = {"encoding": "rope", "head_dim": 40, "base": 1000000.0, "layout": "interleaved"}
EXPECT = "pass"
