"""Annotated for a script compiler: no closures, typed loops, float32 inside for bfloat16 inputs."""

import torch
from torch import Tensor, nn


class ScriptLike(nn.Module):
    inv_freq: Tensor

    def __init__(self, dim: int = 96, base: float = 123456.0) -> None:
        super().__init__()
        self.register_buffer("inv_freq", torch.reciprocal(base ** (torch.arange(0, dim, 2).to(torch.float64) / dim)))

    def _rotate(self, x: Tensor) -> Tensor:
        shape = x.size()
        t = torch.arange(shape[1], device=x.device, dtype=torch.float64)
        a = torch.einsum("i,j->ij", t, self.inv_freq.double()).float()
        c = a.cos()[None, :, None, :, None]
        s = a.sin()[None, :, None, :, None]
        p = x.float().reshape(shape[0], shape[1], shape[2], shape[3] // 2, 2)
        e, o = p.narrow(-1, 0, 1), p.narrow(-1, 1, 1)
        return torch.cat((e * c - o * s, o * c + e * s), dim=-1).reshape(shape).to(x.dtype)

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self._rotate(q), self._rotate(k)


def build():
    return ScriptLike()


STYLE = "bshd_module"
SPEC = {"encoding": "rope", "head_dim": 96, "base": 123456.0, "layout": "interleaved"}
EXPECT = "pass"
