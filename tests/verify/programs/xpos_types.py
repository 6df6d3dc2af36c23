"""xPos computed in float32 for bfloat16 activations."""

import torch


def xpos(q, k):
    n, d = q.shape[-2:]
    h = d // 2
    lane = torch.arange(h, dtype=torch.float32)
    place = torch.arange(n, dtype=torch.float32)[:, None]
    angle = place * 10000.0 ** (-lane / h)
    decay = ((lane + 0.4 * h) / (1.4 * h)) ** ((place - n // 2) / 256)
    cos, sin = angle.cos(), angle.sin()

    def rotated(x):
        a, b = x.float().split(h, -1)
        return a * cos - b * sin, a * sin + b * cos

    (q1, q2), (k1, k2) = rotated(q), rotated(k)
    new_q = torch.cat((q1 * decay, q2 * decay), -1).to(q.dtype)
    new_k = torch.cat((k1 / decay, k2 / decay), -1).to(k.dtype)
    return new_q, new_k


def build():
    return xpos


STYLE = "xpos_fn"
SPEC = {
    "encoding": "xpos",
    "head_dim": 48,
    "base": 10000.0,
    "layout": "half",
    "scale_base": 256,
    "gamma": 0.4,
    "activation_dtype": "bfloat16",
}
EXPECT = "pass"
