"""complex128 table grown by repeated squaring of nothing: one exponential, odd base, other names."""

import functools
import math

import torch


@functools.lru_cache(maxsize=4)
def unit(end, dim=80, theta=123456.0):
    steps = torch.tensor([-(2 * i / dim) * math.log(theta) for i in range(dim // 2)], dtype=torch.float64).exp()
    return torch.exp(
        torch.complex(torch.zeros(end, dim // 2, dtype=torch.float64), torch.outer(torch.arange(end).double(), steps))
    )


def make(end):
    return unit(end).clone()


def apply(xq, xk, freqs_cis):
    def one(x):
        z = torch.complex(x[..., 0::2].double(), x[..., 1::2].double())
        z = torch.einsum("bshd,sd->bshd", z, freqs_cis.to(torch.complex128))
        return torch.stack((z.real, z.imag), dim=4).reshape(x.shape).to(x.dtype)

    return one(xq), one(xk)


def build():
    return make, apply


STYLE = "meta_complex"
SPEC = {"encoding": "rope", "head_dim": 80, "base": 123456.0, "layout": "interleaved"}
EXPECT = "pass"
