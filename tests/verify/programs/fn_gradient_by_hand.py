"""An autograd function of its own, backwards with the sine negated; out of place."""

import torch

STYLE = "rope_fn"
SPEC = {"encoding": "rope", "head_dim": 16, "base": 10000.0, "layout": "half"}
EXPECT = "pass"


class Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, angle):
        ctx.save_for_backward(angle)
        return Turn.compute(x, angle.cos(), angle.sin())

    @staticmethod
    def backward(ctx, grad):
        (angle,) = ctx.saved_tensors
        return Turn.compute(grad, angle.cos(), -angle.sin()), None

    @staticmethod
    def compute(x, cos, sin):
        out = torch.empty_like(x)
        d = x.shape[-1] // 2
        torch.sub(x[..., :d] * cos, x[..., d:] * sin, out=out[..., :d])
        torch.add(x[..., d:] * cos, x[..., :d] * sin, out=out[..., d:])
        return out


def rope(x, *, positions):
    rate = 10000.0 ** (-torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    return Turn.apply(x, positions.float()[:, None] * rate)


def build():
    return lambda x, positions: rope(x, positions=positions)
