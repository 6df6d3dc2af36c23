"""xPos with powers counted from position 0, as in the paper; other code centres them and has the same scores."""

import torch

STYLE = "xpos_fn"
SPEC = {"encoding": "xpos", "head_dim": 16, "base": 10000.0, "scale_base": 512, "gamma": 0.4, "layout": "interleaved"}
EXPECT = "pass"


def xpos(q, k):
    n, d = q.shape[-2:]
    m = torch.arange(n, dtype=torch.float32)[:, None]
    i = torch.arange(0, d, 2) / d
    log_zeta = torch.log((i + 0.4) / 1.4)
    grow = torch.exp(m / 512 * log_zeta)
    phase = torch.polar(torch.ones(n, d // 2), m * 10000.0**-i)

    def times(x, factor):
        z = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(z * factor).flatten(-2).to(x.dtype)

    return times(q, phase * grow), times(k, phase / grow)


def build():
    return xpos
