"""What a model's attention scores while it runs: the input of each softmax, and the product that it came from.

Calls of torch are seen as `torch.overrides` passes them on. A model whose attention makes none (another library, a
script that torch compiled) is run all the same, and no scores are seen.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from posenc.verify.families.cache_runs import run

PRODUCTS = ("matmul", "__matmul__", "bmm", "mm", "einsum", "baddbmm", "sum")
SOFTMAX = ("softmax", "special_softmax")
HIDDEN = -1e4  # a mask may be any large negative number
FLAT = 1e-3  # scores that vary by less show no positions


@dataclass(frozen=True)
class Look:
    """One softmax over keys.

    Args:
        scores: (heads, queries, keys), NaN where a mask hides the key.
        product: The same before any mask and scale; None if it was not seen.
        whole: False where a constant per row was taken out before.
    """

    scores: Tensor
    product: Tensor | None
    whole: bool = True

    def last(self, n: int) -> "Look":
        """Return the rows of the new tokens, where a model runs the older ones again."""
        return Look(self.scores[:, -n:], None if self.product is None else self.product[:, -n:], self.whole)

    def extra(self) -> int:
        """Return how many columns of one pass are no keys, but seen: the sink that gpt-oss puts behind the keys."""
        return int(self.scores[..., self.scores.shape[-2] :].isfinite().any(0).any(0).sum())

    def without(self, extra: int) -> Tensor:
        """Return the scores of keys only."""
        return self.scores[..., : self.scores.shape[-1] - extra]


class _Watch(TorchFunctionMode):
    """Keep products, and note every softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.products: list[Tensor] = []
        self.looks: list[Look] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        given = args[0] if args else kwargs.get("input")
        rows = isinstance(given, Tensor) and given.ndim >= 2
        if name == "scaled_dot_product_attention":
            self.looks.append(_fused(*args, **kwargs))
        elif name == "multi_head_attention_forward":
            self._whole_module(func, args, kwargs)
        out = func(*args, **kwargs)
        if name in PRODUCTS and isinstance(out, Tensor):
            self.products.append(out.detach().clone())
        elif name in SOFTMAX and rows:
            at = kwargs.get("dim", args[1] if len(args) > 1 else -1)
            self._note(given.movedim(-1 if at is None else at, -1), whole=True)
        elif name == "exp" and rows and self._of_size(given) is not None:
            self._note(given, whole=False)  # a softmax by hand, for which the largest score was taken out
        return out

    def _of_size(self, t: Tensor) -> Tensor | None:
        """Return the product of that many numbers that was made last, if few others came in between."""
        return next((p for p in reversed(self.products[-3:]) if p.numel() == t.numel()), None)

    def _note(self, t: Tensor, *, whole: bool) -> None:
        n, m = t.shape[-2:]
        product = self._of_size(t)
        if product is not None:
            transposed = product.ndim > 1 and product.shape[-1] != m
            product = (product.mT if transposed else product).double().reshape(-1, n, m)
        self.looks.append(Look(_shown(t.detach().double().reshape(-1, n, m)), product, whole))

    def _whole_module(self, func: Any, args: Any, kwargs: Any) -> None:
        """Ask torch's own module for its weights, whose logarithms are scores up to a constant per row."""
        asked = {**kwargs, "need_weights": True, "average_attn_weights": False}
        weights = func(*args, **asked)[1].detach().double()
        self.looks.append(Look(_shown(weights.log().reshape(-1, *weights.shape[-2:])), None, whole=False))


def _fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Look:
    """Form the scores of scaled_dot_product_attention."""
    q, k = query.detach().double(), key.detach().double()
    if enable_gqa and q.shape[-3] != k.shape[-3]:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
    product = q @ k.mT
    scores = product * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    n, m = scores.shape[-2:]
    if is_causal:
        scores = scores.masked_fill(torch.ones(n, m, dtype=torch.bool).triu(1), -math.inf)
    if attn_mask is not None:
        hide = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -math.inf) if hide else scores + attn_mask.double()
    return Look(_shown(scores.reshape(-1, n, m)), product.reshape(-1, n, m))


def _shown(scores: Tensor) -> Tensor:
    return torch.where(scores > HIDDEN, scores, math.nan)


def watch(subject: Any, x: Tensor, chunks: Sequence[int]) -> list[list[Look]]:
    """Run tokens in parts; return what each call's softmaxes saw, those over the part's own tokens only.

    Raises:
        SubjectError: As `run`.
    """
    seen: list[list[Look]] = []

    def call(t: Tensor, cache: Any) -> Any:
        inner = _Watch()
        with inner:
            found = subject(t, cache)
        seen.append([look.last(t.shape[1]) for look in inner.looks if look.scores.shape[1] >= t.shape[1]])
        return found

    run(call, x, chunks)
    return seen
