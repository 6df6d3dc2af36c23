"""Angles are kept for the longest input so far and sliced by the offset.

Seen in: https://github.com/facebookresearch/xformers/issues/728
"""

import torch
from torch import nn

STYLE = "lucidrains"
SPEC = {"encoding": "rope", "head_dim": 16, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"


class Rotary(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.freqs = nn.Parameter(10000.0 ** (-torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("kept", None, persistent=False)

    def rotate_queries_or_keys(self, t, offset=0, seq_dim=None):
        end = offset + t.shape[-2]
        if self.kept is None or len(self.kept) < end:
            self.kept = torch.outer(torch.arange(end, dtype=torch.float32), self.freqs.detach()).repeat_interleave(
                2, -1
            )
        freqs = self.kept[offset:end]
        a, b = t[..., ::2], t[..., 1::2]
        turned = torch.stack((-b, a), dim=-1).reshape_as(t)
        return (t * freqs.cos() + turned * freqs.sin()).to(t.dtype)


def build():
    return Rotary(16)
