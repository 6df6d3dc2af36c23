"""Rotary object; positions are made in the call."""

import torch


class Rotary:
    def __init__(self, dim):
        self.inv = 1 / 10000 ** (torch.arange(dim // 2) / (dim // 2))

    def positions(self, like, offset):
        return torch.arange(offset, offset + like.shape[-2], dtype=torch.float32)

    def rotate_queries_or_keys(self, x, offset=0):
        phi = self.positions(x, offset).float()[:, None] * self.inv
        z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2).contiguous())
        z = z * torch.complex(phi.cos(), phi.sin())
        return torch.view_as_real(z).reshape(x.shape).to(x.dtype)


def build():
    return Rotary(48)


STYLE = "lucidrains"
SPEC = {"encoding": "rope", "head_dim": 48, "base": 10000.0, "layout": "interleaved", "activation_dtype": "bfloat16"}
EXPECT = "pass"
