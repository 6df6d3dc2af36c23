"""One call of `attend`, and the steps that backends share."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int64
from torch import Tensor
from torch.nn import functional as F

from posenc.attention.leaves import Leaf
from posenc.encoding import Encoding, Placed
from posenc.families import autocast_dtype
from posenc.placed import tensors
from posenc.positions.checks import all_plain


@dataclass(frozen=True)
class Call:
    """The checked arguments of one `attend`: positions are placed, nothing is rotated yet."""

    q: Tensor
    k: Tensor
    v: Tensor
    encoding: Encoding
    placed: Placed
    k_placed: Placed
    rotated: bool
    causal: bool
    mask: Tensor | None
    window: int | None
    document_ids: Tensor | None
    scale: float
    dropout_p: float
    backend: str
    out_dtype: torch.dtype  # that of q, or autocast's
    leaves: list[Leaf]  # the encodings that add to the scores
    seed: int | None = None  # of dropout; None to draw one
    tame: bool = False  # whether even slots that no query sees hold numbers with finite products

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, n_heads, q_len, k_len): the shape of the scores."""
        return self.q.shape[0], self.q.shape[1], self.q.shape[2], self.k.shape[2]

    @property
    def wide(self) -> torch.dtype:
        """The dtype of sums, and of the terms of the scores."""
        return torch.float64 if self.out_dtype == torch.float64 else torch.float32

    @property
    def is_plain(self) -> bool:
        """Whether all tensors are plain memory, on any device, that can be written in pieces."""
        own = (p for leaf in self.leaves for p in leaf.encoding.parameters())
        given = self.q, self.k, self.v, self.mask, self.document_ids, self.placed, self.k_placed
        return all_plain((*own, *tensors(given)))

    def rotated_qk(self) -> tuple[Tensor, Tensor]:
        """Return q and k after the encoding's rotation."""
        if self.rotated:
            return self.q, self.k
        return self.encoding.rotate(self.q, self.k, self.placed, self.k_placed)

    def with_rotated_v(self) -> "Call":
        """Return the call with rotated values; the same call if the encoding does not rotate them or they came so."""
        v = self.v if self.rotated else self.encoding.rotate_v(self.v, self.k_placed)
        return self if v is self.v else replace(self, v=v)

    def operands(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return q and k after the rotation, and v, in the dtype of the result."""
        q, k = self.rotated_qk()
        return q.to(self.out_dtype), k.to(self.out_dtype), self.v.to(self.out_dtype)

    def bias(self) -> Tensor | None:
        """Return the encoding's bias, which reads q and k before the rotation."""
        q, k = self.unrotated_qk() if self.encoding.reads_qk else (self.q, self.k)
        return self.encoding.bias(q, k, self.placed, self.k_placed)

    def unrotated_qk(self) -> tuple[Tensor, Tensor]:
        """Return q and k before the encoding's rotation."""
        if not self.rotated:
            return self.q, self.k
        return self.encoding.rotate(self.q, self.k, self.placed, self.k_placed, inverse=True)

    def allowed(self) -> Bool[Tensor, "*scores"] | None:
        """Return which query may see which key, broadcastable to the scores; None if all see all."""
        terms, (q_len, k_len) = [], self.shape[2:]
        if self.causal or self.window is not None:
            rows = torch.arange(k_len - q_len, k_len, device=self.q.device)[:, None]
            terms = self.by_index(rows, torch.arange(k_len, device=self.q.device))
        if self.document_ids is not None:
            ids = self.document_ids
            terms.append((ids[..., k_len - q_len :, None] == ids[..., None, :]).unsqueeze(-3))
        if self.mask is not None:
            terms.append(visible(self.mask))
        return all_of(terms)

    def by_index(
        self, here: Int64[Tensor, "q_len 1"], there: Int64[Tensor, " k_len"]
    ) -> list[Bool[Tensor, "q_len k_len"]]:
        """Return the masks of causality and of a window, for queries and keys that are both numbered as keys."""
        terms = []
        if self.causal:
            terms.append(there <= here)
        if self.window is not None:
            terms.append(there > here - self.window)
            if not self.causal:
                terms.append(there < here + self.window)
        return terms

    def blanked(self) -> "tuple[Call, Tensor | None]":
        """Zero each query that sees nothing and each slot that no query sees; return the call and its `allowed`.

        Such slots may hold NaN, and 0 times NaN is NaN: in the sum over keys, and in all gradients.
        """
        allowed = self.allowed()
        only_causal = self.mask is None and self.window is None and self.document_ids is None
        longer = not torch.compiler.is_compiling() and self.shape[2] > self.shape[3]
        if allowed is None or self.tame or (only_causal and not longer):
            return self, allowed  # with only a causal mask each key is seen, and each query sees a key
        seen = allowed.expand(self.shape)
        blind, unseen = ~self.see(seen.any(-1))[..., None], ~seen.any(-2).any(1, keepdim=True)[..., None]
        k, v = self.k.masked_fill(unseen, 0.0), self.v.masked_fill(unseen, 0.0)
        return replace(self, q=self.q.masked_fill(blind, 0.0), k=k, v=v), allowed

    def see(self, rows: Bool[Tensor, "batch heads q_len"]) -> Bool[Tensor, "batch heads_or_one q_len"]:
        """Return which queries matter, given those that see a key: a score map may read the queries of all heads."""
        return rows.any(1, keepdim=True) if self.encoding.rescores else rows

    def terms(self) -> list[Tensor]:
        """Return the terms of the scores: the encoding's bias, and a floating mask."""
        terms = [self.bias() if self.leaves else None, None if self.mask is None else added(self.mask)]
        return [t for t in terms if t is not None]


@runtime_checkable
class Backend(Protocol):
    """One way to compute a call. The values are rotated before it runs."""

    name: str

    def rejects(self, call: Call) -> str | None:
        """Return why this backend refuses the call, as a sentence, or None."""

    def memory(self, call: Call) -> int:
        """Return an estimate of the bytes allocated beyond inputs and output."""

    def run(self, call: Call) -> Tensor:
        """Compute the call."""


def all_of(terms: Sequence[Bool[Tensor, "..."]]) -> Bool[Tensor, "..."] | None:
    """Return the conjunction of boolean masks; None if there are none."""
    if not terms:
        return None
    seen = terms[0]
    for term in terms[1:]:
        seen = seen & term
    return seen


def visible(mask: Tensor) -> Tensor:
    """Return where a mask allows attention: where it is true, or above its dtype's minimum, with which others mask."""
    return mask if mask.dtype == torch.bool else ~(mask <= torch.finfo(mask.dtype).min)


def widened(t: Tensor, width: int) -> Tensor:
    """Pad rows with zeros to a width; leave rows that are wide enough."""
    return F.pad(t, (0, width - t.shape[-1])) if t.shape[-1] < width else t


def added(mask: Tensor) -> Tensor | None:
    """Return the finite part of a floating mask, which adds to the scores; `visible` gives the rest."""
    return None if mask.dtype == torch.bool else mask.masked_fill(~visible(mask), 0.0)


def grouped(q: Tensor, k: Tensor) -> bool:
    """Whether several heads of q share one of k."""
    if q.shape[1] != k.shape[1]:  # noqa: SIM103 - a branch makes a bool of a compiler's symbolic one
        return True
    return False


def zero_empty_rows(out: Tensor, allowed: Tensor | None) -> Tensor:
    """Zero the rows that may see no key, since no weights there sum to one."""
    return out if allowed is None else out.masked_fill(~allowed.any(dim=-1, keepdim=True), 0.0)


def softmax(scores: Tensor) -> Tensor:
    """Return the softmax of rows of scores; rows of minus infinity become zeros without gradients."""
    blind = (scores == -torch.inf).all(-1, keepdim=True)
    return scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)


def light(call: Call) -> Call:
    """Return the call with q, k and v of width 0, which take no memory."""
    q, k, v = (t.new_empty((*t.shape[:3], 0)) for t in (call.q, call.k, call.v))
    return replace(call, q=q, k=k, v=v)


def mixed(call: Call) -> str | None:
    """Refuse tensors of several dtypes, unless autocast brings them to one."""
    if len({call.q.dtype, call.k.dtype, call.v.dtype}) > 1 and autocast_dtype(call.q.device) is None:
        return (
            f"q, k and v must have one dtype; got {call.q.dtype}, {call.k.dtype}, {call.v.dtype}. "
            "Cast them, or run under autocast."
        )
    return None
