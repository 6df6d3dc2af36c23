"""Scores of a model as they reach its softmax, with the products of queries and keys that they are made of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


@dataclass(frozen=True)
class Scored:
    """Scores of one attention of two texts at the same positions, (2, n_heads, q_len, k_len), before their softmax.

    Args:
        name: The module that ran it.
        layer: Its number, -1 outside of layers.
        head_dim: The width of a head.
        scores: What reached the softmax.
        products: Those of queries and keys.
        factor: What projections were multiplied by to be these queries and keys.
    """

    name: str
    layer: int
    head_dim: int
    scores: Tensor
    products: Tensor
    factor: float


class Scores(TorchFunctionMode):
    """Keeps projections and products of the attention that runs, until its softmax comes.

    Args:
        places: The modules that run, from `followed`.
        use: Called with each attention as it runs.
    """

    def __init__(self, places: list[tuple[str, int]], use: Callable[[Scored], None]) -> None:
        super().__init__()
        self._places, self._use = places, use
        self._projected: list[Tensor] = []
        self._products: list[tuple[Tensor, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch and look at it."""
        name, kwargs = getattr(func, "__name__", "").strip("_"), kwargs or {}
        if name == "softmax":
            self._scored(args[0])
        elif name == "scaled_dot_product_attention":
            self._products.append((args[0].clone(), args[1].mT.clone()))
            self._scored(_scores(*args, **kwargs))
        elif name in ("matmul", "bmm", "baddbmm"):
            a, b = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)][-2:]
            if b.dim() > 2:
                self._products.append((a.clone(), b.clone()))  # later code may write into them
        out = func(*args, **kwargs)
        if name == "linear" or (name == "matmul" and out.dim() == args[0].dim() and args[1].dim() == 2):
            self._projected = [*self._projected[-7:], out.flatten(0, -2).clone()]
        return out

    def _scored(self, scores: Tensor) -> None:
        if scores.dim() != 4 or len(scores) != 2:
            return
        batch, heads, q_len, k_len = scores.shape
        for a, b in reversed(self._products):
            if (a.shape[-2], b.shape[-1], a.shape[:-1].numel()) == (q_len, k_len, batch * heads * q_len):
                q = a.reshape(batch, heads, q_len, -1).double()
                k = b.mT.reshape(batch, -1, k_len, b.shape[-2]).expand(-1, heads, -1, -1).double()
                factor = _factor(q, self._projected) * _factor(k, self._projected)
                self._use(Scored(*self._places[-1], q.shape[-1], scores.double(), q @ k.mT, factor))
                break
        self._products = []


def _scores(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Return the scores of a call of scaled_dot_product_attention."""
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones_like(scores, dtype=torch.bool).tril()
    if attn_mask is None:
        return scores
    return scores.where(attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask


def _factor(x: Tensor, projected: list[Tensor]) -> float:
    """Return what a projection was multiplied by to be these queries or keys (batch, heads, len, head_dim).

    A column of them is a column of some projection times a number, whatever lies where; 1 where that is not so.
    """
    columns = _centred(x.transpose(1, 2).reshape(x.shape[0] * x.shape[2], -1))
    columns = columns[:, :: max(1, columns.shape[1] // 8)]  # a few of them will do
    for others in (_centred(out.double()) for out in reversed(projected) if len(out) == len(columns)):
        sizes = others.norm(dim=0).clamp_min(1e-300)
        alike = (columns.mT @ others) / sizes / columns.norm(dim=0).clamp_min(1e-300)[:, None]
        most, which = alike.abs().max(1)
        if bool((most > 1 - 1e-4).all()):
            factors = (columns * others[:, which]).sum(0) / sizes[which].square()
            mean = float(factors.mean())
            return mean if bool((factors - mean).abs().max() <= 1e-3 * abs(mean)) else 1.0
    return 1.0


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(0)
