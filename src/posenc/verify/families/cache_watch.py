"""Observe a model's attention scores while it runs: the input of each softmax, and the product behind it.

Calls of torch are observed by `torch.overrides`. If a model's attention makes none (another library, a script that
torch compiled), the model still runs, but its scores are not visible.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from posenc.verify.engine.read import rowless
from posenc.verify.engine.records import Array
from posenc.verify.families.cache_runs import TOKENS, Bench, run
from posenc.verify.guard import SubjectError

Shown = NDArray[np.bool_]
# a code, the most cached keys that the last call's first token sees, and how many it sees in a single pass
Mask = tuple[str, int, int]
NO_FAULT: Mask = ("", 0, 0)
UNUSED = "{}.kv_cache.past_not_seen"  # with the name of an encoding
OWN, CUT, SHORT = "decode.mask.own_key", "decode.cache.cut", "decode.window.short"
SURPLUS, CALL = "decode.cache.surplus", "decode.mask.own_call"
MASKS = (SURPLUS, UNUSED, "decode.mask.top_left", "decode.mask.missing", OWN, CALL, CUT, SHORT, "decode.window.long")
PRODUCTS = ("matmul", "__matmul__", "bmm", "mm", "einsum", "baddbmm", "sum")
SOFTMAX = ("softmax", "special_softmax", "exp")
SINKS, LONGEST = 4, 80  # first tokens that may stay visible; tokens of a pass that shows a window
HIDDEN = -1e4  # a mask may be any large negative number
LEAST = -745.0  # the logarithm of the smallest weight in float64


@dataclass(frozen=True)
class Look:
    """One softmax over keys."""

    scores: Tensor  # (heads, queries, keys), NaN where a mask hides the key
    product: Tensor | None  # the same before any mask and scale; None if not visible

    def extra(self) -> int:
        """Return how many visible columns of a single pass are not keys: the sink that gpt-oss appends to the keys."""
        return int(self.scores[..., self.scores.shape[-2] :].isfinite().any(0).any(0).sum())

    def without(self, extra: int) -> Array:
        """Return only the scores of keys."""
        return self.scores[..., : self.scores.shape[-1] - extra].numpy()


class _Watch(TorchFunctionMode):
    """Keep products, and record every softmax over n tokens, also one written by hand that subtracts the maximum.

    A model may run older tokens again: the last n rows belong to the call.
    """

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n, self.products, self.looks = n, list[Tensor](), list[Look]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        given, out = args[0] if args else kwargs.get("input"), func(*args, **kwargs)
        if name == "scaled_dot_product_attention":
            self._note(*_fused(args, kwargs))
        elif name in PRODUCTS and isinstance(out, Tensor):
            self.products.append(out.detach().clone())
        elif name in SOFTMAX and isinstance(given, Tensor) and given.ndim > 1:
            at = kwargs.get("dim", args[1] if len(args) > 1 else -1)
            scores = given.movedim(-1 if at is None else at, -1)
            made = [p for p in self.products[-3:] if p.numel() == scores.numel() and p.ndim > 1]
            if made or name != "exp":
                self._note(scores, made[-1] if made else None)
        return out

    def _note(self, scores: Tensor, product: Tensor | None) -> None:
        if product is not None and product.shape[-1] != scores.shape[-1]:
            product = product.mT
        n, m = scores.shape[-2:]
        if n >= self.n:
            shown, *every = (
                t.detach().double().reshape(-1, n, m)[:, -self.n :] for t in (scores, product) if t is not None
            )
            self.looks.append(Look(shown.where(shown > HIDDEN, math.nan), every[0] if every else None))


def _fused(args: Sequence[Any], named: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the scores of scaled_dot_product_attention, as logarithms of weights, and those of all keys."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    given = {**dict(zip(names, args, strict=False)), **named, "dropout_p": 0.0}
    for name in ("query", "key", "attn_mask"):
        if given.get(name) is not None and given[name].is_floating_point():
            given[name] = given[name].detach().double()
    keys = given["key"].shape[-2]
    given["value"] = torch.eye(keys, dtype=torch.float64).expand(*given["key"].shape[:-2], keys, keys)
    every = {**given, "attn_mask": None, "is_causal": False}
    shown, all_shown = (scaled_dot_product_attention(**options).log() for options in (given, every))
    return shown, all_shown.clamp(min=LEAST)


def watch(subject: Any, x: Tensor, chunks: Sequence[int]) -> list[list[Look]]:
    """Run tokens in chunks as `run`; return each call's softmaxes, only those over the call's own tokens."""
    seen: list[list[Look]] = []

    def call(t: Tensor, cache: Any) -> Any:
        with _Watch(t.shape[1]) as inner:
            found = subject(t, cache)
        seen.append(inner.looks)
        return found

    run(call, x, chunks)
    return seen


def first_scores(b: Bench, chunks: Sequence[int]) -> str:
    """Return how the first layer's scores of different tokens are: "same" as in a single pass, or q.k "scaled"."""
    calls, (whole,) = watch(b.subject, b.x[:1], chunks), watch(b.subject, b.x[:1], (TOKENS,))
    if not whole or not all(calls):
        return ""
    pairs: list[tuple[Array, Array]] = []  # of each call: what its scores have more, and q.k, without row constants
    for (look, *_), end, new in zip(calls, np.cumsum(chunks), chunks, strict=True):
        full = whole[0].scores[:, end - new : end, :end]
        every = full if whole[0].product is None else whole[0].product[:, end - new : end, :end]
        shown = full.isfinite().numpy()
        if look.scores.shape != full.shape or (look.scores.isfinite().numpy() != shown).any():
            return ""
        pairs.append((rowless((look.scores - full).numpy(), shown), rowless(every.numpy(), shown)))
    more, product = (np.concatenate([t.ravel() for t in some]) for some in zip(*pairs[1:], strict=True))
    allowed = b.tolerance * max(1.0, float(np.abs(product).max()))
    if max(float(np.abs(t).max()) for t, _ in pairs) <= allowed:
        return "same"
    off = more - (more @ product) / max(product @ product, 1e-30) * product
    return "scaled" if float(np.abs(off).max()) <= allowed else ""


def windows(b: Bench, window: int) -> set[int]:
    """Return how many keys the layers of a single pass let a token see, not counting sinks; none if not visible."""
    n = window + 2 * SINKS
    try:
        (whole,) = watch(b.subject, b.text(n), (n,)) if n <= LONGEST else ([],)
    except SubjectError:
        return set()
    tables = [np.isfinite(look.scores.numpy()).any(0)[:, :n] for look in whole if look.scores.shape[1] == n]
    apart = np.subtract.outer(np.arange(n), np.arange(n))[:, SINKS:] + 1
    return {int((apart * table[:, SINKS:]).max()) for table in tables if table.shape[1] == n}


def mask(b: Bench, chunks: Sequence[int]) -> Mask:
    """Return what is wrong with the masks of chunks; for a text longer than the bench's, in the last call only."""
    n, begin = sum(chunks), sum(chunks[:-1])
    x = b.x[:1] if n == TOKENS else b.text(n)
    try:
        calls, (whole,) = watch(b.subject, x, chunks), watch(b.subject, x, (n,))
    except SubjectError:
        return NO_FAULT
    at = [i for i, look in enumerate(whole) if look.scores.shape[1] == n <= look.scores.shape[2]]
    if {len(looks) for looks in calls} != {len(whole)} or not at:
        return NO_FAULT
    full = np.stack([_table([whole[i].scores.numpy()], (n,)) for i in at])
    kept_scores = [[looks[i].without(whole[i].extra()) for looks in calls] for i in at]
    for layer in kept_scores:
        for scores, end in zip(layer, np.cumsum(chunks), strict=True):
            if (seen := int(np.isfinite(scores).any(0).sum(-1).max())) > end:
                return SURPLUS, seen, int(end)
    here = np.stack([_table(layer, chunks) for layer in kept_scores])
    if n > TOKENS:
        here[:, :begin] = full[:, :begin]
    kept, shown = (int(table[:, begin, :begin].sum(-1).max(initial=0)) for table in (here, full))
    return _wrong(here, full, chunks), kept, shown


def _table(calls: Sequence[Array], chunks: Sequence[int]) -> Shown:
    """Return which tokens see which in one layer, (tokens, tokens); the keys that are left are the last ones."""
    table, total = np.zeros((sum(chunks), sum(chunks)), dtype=bool), 0
    for scores, new in zip(calls, chunks, strict=True):
        total += new
        rows: Shown = np.asarray(np.isfinite(scores).any(0))[:, :total]
        table[total - new : total, total - rows.shape[1] : total] = rows
    return table


def _wrong(here: Shown, full: Shown, chunks: Sequence[int]) -> str:
    """Return the finding code of what is wrong with a mask, (layers, tokens, tokens)."""
    row, column = np.indices(full.shape[1:])
    begin = np.repeat(np.cumsum([0, *chunks[:-1]]), chunks)[:, None]
    if (here == full).all():
        return ""
    if not (here & (column < begin)).any():
        return UNUSED
    if (here == np.where(begin > 0, column <= row - begin, full)).all():
        return "decode.mask.top_left"
    if (more := here & ~full).any():
        return "decode.mask.missing" if (more & (column > row)).any() else "decode.window.long"
    missing = full & ~here
    if (missing == (full & (begin > 0) & (column == row))).all():
        return OWN
    return CALL if (missing == (full & (begin > 0) & (column >= begin) & (column < row))).all() else SHORT
