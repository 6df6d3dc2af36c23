"""xPos without the shift to the middle: scores do not see it."""

import torch


def xpos(q, k):
    d = q.size(-1)
    i = torch.arange(d // 2, dtype=torch.float64)
    zeta = (2 * i + 0.4 * d) / (d + 0.4 * d)
    t = torch.arange(q.size(-2), dtype=torch.float64).unsqueeze(-1)
    log_w = torch.complex(t / 512 * zeta.log(), t * 10000.0 ** (-2 * i / d))
    up, down = torch.exp(log_w), torch.exp(torch.complex(-log_w.real, log_w.imag))

    def one(x, w):
        z = torch.complex(*x.double().chunk(2, -1)) * w
        return torch.cat((z.real, z.imag), -1).to(x.dtype)

    return one(q, up), one(k, down)


def build():
    return xpos


STYLE = "xpos_fn"
SPEC = {"encoding": "xpos", "head_dim": 64, "base": 10000.0, "layout": "half", "scale_base": 512, "gamma": 0.4}
EXPECT = "equivalent"
