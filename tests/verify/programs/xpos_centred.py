"""xPos: rotation and a decay around the middle of the sequence."""

import torch


def duplicate(t):
    return t.repeat_interleave(2, dim=-1)


def xpos(q, k):
    n, d = q.shape[-2], q.shape[-1]
    t = torch.arange(n, dtype=torch.float32)
    angle = duplicate(t[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d))
    zeta = (torch.arange(0, d, 2) + 0.4 * d) / (1.4 * d)
    power = (t - n // 2) / 512
    scale = duplicate(zeta ** power[:, None])

    def turn(x, s):
        other = torch.stack((-x[..., 1::2], x[..., ::2]), -1).reshape(x.shape)
        return (x * angle.cos() + other * angle.sin()) * s

    return turn(q, scale).to(q.dtype), turn(k, 1 / scale).to(k.dtype)


def build():
    return xpos


STYLE = "xpos_fn"
SPEC = {"encoding": "xpos", "head_dim": 32, "base": 10000.0, "layout": "interleaved", "scale_base": 512, "gamma": 0.4}
EXPECT = "pass"
