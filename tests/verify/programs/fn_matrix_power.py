"""The rotation as one block-diagonal matrix per position.

Seen in: https://github.com/tenstorrent/tt-metal/issues/26844
"""

import torch

STYLE = "rope_fn"
SPEC = {"encoding": "rope", "head_dim": 16, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"


def generator(dim):
    A = torch.zeros(dim, dim, dtype=torch.float64)
    for i in range(0, dim, 2):
        rate = 10000.0 ** (-i / dim)
        A[i + 1, i], A[i, i + 1] = rate, -rate
    return A


def power(A, p):
    """exp(p A) without squaring errors: A is skew, so its square is minus a diagonal of squared rates."""
    rate = torch.sqrt(-torch.diagonal(A @ A))
    return torch.diag(torch.cos(p * rate)) + A / rate * torch.sin(p * rate)


def rope(x, positions):
    A = generator(x.shape[-1])
    R = torch.stack([power(A, float(p)) for p in positions])
    return torch.einsum("sij,...sj->...si", R, x.double()).to(x.dtype)


def build():
    return rope
