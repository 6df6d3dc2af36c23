"""What a model's attention scores while it runs: the input of each softmax, and the product that it came from."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from posenc.verify.decoding.runs import run

_WHOLE = ("aten.matmul", "aten.einsum", "aten.softmax")
HIDDEN = -1e4  # a mask may be any large negative number


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


class _Products(TorchDispatchMode):
    """Keep products, and note every softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.quiet = False
        self.products: list[Tensor] = []
        self.looks: list[Look] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func.overloadpacket)
        if name in _WHOLE:  # in inference mode they come undivided
            with self:
                return func.decompose(*args, **(kwargs or {}))
        out = func(*args, **(kwargs or {}))
        if self.quiet or not name.startswith("aten."):
            return out
        if name in ("aten.bmm", "aten.mm", "aten.baddbmm", "aten.sum"):
            self.products.append(out.detach().clone())
        elif name in ("aten._softmax", "aten._safe_softmax") and args[0].ndim >= 2:
            self._note(args[0].movedim(args[1], -1), whole=True)
        elif name == "aten.exp" and args[0].ndim >= 2 and self._of_size(args[0]) is not None:
            self._note(args[0], whole=False)  # a softmax by hand, for which the largest score was taken out
        return out

    def _of_size(self, t: Tensor) -> Tensor | None:
        """Return the product of that many numbers that was made last, if nothing larger came in between."""
        return next((p for p in reversed(self.products[-3:]) if p.numel() == t.numel()), None)

    def _note(self, t: Tensor, *, whole: bool) -> None:
        n, m = t.shape[-2:]
        scores = t.detach().double().reshape(-1, n, m)
        product = self._of_size(t)
        if product is not None:
            turned = product.ndim > 1 and product.shape[-1] != m
            product = (product.mT if turned else product).double().reshape(-1, n, m)
        self.looks.append(Look(_shown(scores), product, whole))


class _Fused(TorchFunctionMode):
    """Note the arguments of fused attention, whose scores nobody sees."""

    def __init__(self, products: _Products) -> None:
        super().__init__()
        self.products = products

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") != functional.scaled_dot_product_attention.__name__:
            return func(*args, **kwargs)
        before, self.products.quiet = self.products.quiet, True
        try:
            self.products.looks.append(_fused(*args, **kwargs))
            return func(*args, **kwargs)
        finally:
            self.products.quiet = before


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
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    n, m = scores.shape[-2:]
    if is_causal:
        scores = scores.masked_fill(torch.ones(n, m, dtype=torch.bool).triu(1), -math.inf)
    if attn_mask is not None:
        hide = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -math.inf) if hide else scores + attn_mask.double()
    return Look(_shown(scores.reshape(-1, n, m)), (q @ k.mT).reshape(-1, n, m))


def _shown(scores: Tensor) -> Tensor:
    return torch.where(scores > HIDDEN, scores, math.nan)


def _last(s: Look, n: int) -> Look:
    """Keep the rows of the new tokens, where a model runs the older ones again."""
    return Look(s.scores[:, -n:], None if s.product is None else s.product[:, -n:], s.whole)


def watch(subject: Any, x: Tensor, chunks: Sequence[int]) -> list[list[Look]]:
    """Run tokens in parts; return what each call's softmaxes saw, those over the part's own tokens alone."""
    seen: list[list[Look]] = []

    def call(t: Tensor, cache: Any) -> Any:
        inner = _Products()
        with _Fused(inner), inner:
            found = subject(t, cache)
        seen.append([_last(s, t.shape[1]) for s in inner.looks if s.scores.shape[1] >= t.shape[1]])
        return found

    run(call, x, chunks)
    return seen
