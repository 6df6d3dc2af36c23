"""A fused rotation that gives no gradient back, without an error.

Report: https://github.com/huggingface/candle/issues/3568
"""

import torch

STYLE = "rope_fn"
SPEC = {"encoding": "rope", "head_dim": 16, "base": 10000.0, "layout": "half"}
EXPECT = "rope.grad.severed"


def kernel(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class FusedRope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        return kernel(x, cos, sin)

    @staticmethod
    def backward(ctx, grad):
        return None, None, None


def rope(x, positions):
    half = x.shape[-1] // 2
    freq = torch.exp2(-torch.log2(torch.tensor(10000.0)) * torch.arange(half) / half)
    angle = positions.to(torch.float32).unsqueeze(-1) * freq
    return FusedRope.apply(x, angle.cos().to(x.dtype), angle.sin().to(x.dtype))


def build():
    return rope
