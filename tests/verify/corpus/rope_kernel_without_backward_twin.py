"""A fused rotation whose backward pass turns the gradient back.

The correct twin of rope_kernel_without_backward.py.
"""

import torch

STYLE = "rope_fn"
SPEC = {"encoding": "rope", "head_dim": 16, "base": 10000.0, "layout": "half"}
EXPECT = "pass"


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
        return kernel(grad, ctx.saved_tensors[0], -ctx.saved_tensors[1]), None, None


def rope(x, positions):
    half = x.shape[-1] // 2
    freq = torch.exp2(-torch.log2(torch.tensor(10000.0)) * torch.arange(half) / half)
    angle = positions.to(torch.float32).unsqueeze(-1) * freq
    return FusedRope.apply(x, angle.cos().to(x.dtype), angle.sin().to(x.dtype))


def build():
    return rope
