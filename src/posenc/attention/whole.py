"""Attention over all scores at once: torch's scaled_dot_product_attention, and the literal reference."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.attention.call import Call, grouped, mixed, softmax, widened, zero_empty_rows
from posenc.attention.leaves import is_by_distance, learning
from posenc.families import no_autocast

SMALL = 2**20  # scores; calls of at most so many get one whole mask
TRAINED = 2**24  # the same where blocks would compute a bias of contents again for its gradients, pair by pair
LEAST = 2.0**-149  # the smallest positive number of float32
LIMIT = 2 * 2**30  # bytes that the scores may take unless the caller names the backend


class SDPA:
    """Torch's own attention, with a mask of q_len x k_len only where the mask is small."""

    name = "sdpa"

    def rejects(self, call: Call) -> str | None:
        """Refuse calls that SDPA cannot run without a large mask."""
        if (reason := mixed(call)) is not None:
            return reason
        if call.encoding.rescores:
            return f"{call.encoding.name} maps whole rows of scores to new ones, and SDPA does not expose its scores."
        if not torch.compiler.is_compiling() and call.shape[3] == 0:
            return "there are no keys, and torch's kernel divides by their number."
        if call.dropout_p and call.q.device.type == "cpu":
            return (
                "on a CPU torch's dropout forms all attention weights; the backend 'blocked' forms one block at a time."
            )
        reason = _wants_mask(call)
        return None if reason is not None and _is_small(call) else reason

    def memory(self, call: Call) -> int:
        """Estimate the mask, and the padding of values or keys to one width."""
        batch, n_heads, q_len, k_len = call.shape
        narrow = abs(call.v.shape[-1] - call.q.shape[-1]) * call.out_dtype.itemsize
        mask = 3 * min(_most(call), math.prod(call.shape)) * call.wide.itemsize if _wants_mask(call) is not None else 0
        return batch * narrow * (call.k.shape[1] * k_len + n_heads * q_len) + mask

    def run(self, call: Call) -> Tensor:
        """Run SDPA. Cast here under autocast, and pad narrow rows with zeros, since the kernels require one width."""
        with no_autocast(call.q.device):
            if _wants_mask(call) is not None:
                return self._masked(call)
            return self._attend(call, None, is_causal=call.causal and not _single(call))

    def _masked(self, call: Call) -> Tensor:
        call, allowed = (replace(call, causal=False) if _single(call) else call).blanked()
        terms = [t.to(call.wide) for t in call.terms()]
        mask, blind = sum(terms[1:], start=terms[0]) if terms else None, None
        if allowed is not None:
            hidden = ~allowed
            if bool((none := hidden.all(-1, keepdim=True)).any()):  # only minus infinity in a row would give NaN
                hidden, blind = hidden & ~none, none
            mask = _hiding(mask, hidden, call.wide)
        if mask is not None:
            mask = mask.expand(*mask.shape[:-2], *call.shape[2:])
        out = self._attend(call, mask, is_causal=False)
        return out if blind is None else out.masked_fill(blind, 0.0)

    def _attend(self, call: Call, mask: Tensor | None, *, is_causal: bool) -> Tensor:
        q, k, v = call.operands()
        width, widest = v.shape[-1], max(q.shape[-1], v.shape[-1])
        q, k, v = (widened(t, widest) for t in (q, k, v))
        options: dict[str, Any] = {"dropout_p": call.dropout_p, "scale": call.scale, "enable_gqa": grouped(q, k)}
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal, **options)
        return out[..., :width]


def _hiding(mask: Tensor | None, hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask with minus infinity where pairs are hidden; adding takes a fraction of the time of filling."""
    away = torch.zeros((), dtype=dtype, device=hidden.device).masked_fill(hidden, -torch.inf)
    if mask is None:
        return away
    if math.isfinite(float(torch.linalg.vector_norm(mask.detach()))):
        return mask + away
    return mask.masked_fill(hidden, -torch.inf)  # what is hidden may be NaN


def _wants_mask(call: Call) -> str | None:
    """Return why SDPA needs a mask of q_len x k_len, or None."""
    if call.leaves:
        return f"{call.encoding.name} adds a bias to the scores, which SDPA supports only as a mask of q_len x k_len."
    if call.causal and not call.scale >= LEAST:
        return "torch's causal kernel multiplies minus infinity by the scale, so the scale must be positive in float32."
    if call.mask is not None or call.window is not None or call.document_ids is not None:
        return "SDPA needs a whole mask of q_len x k_len for a mask, window or document_ids; 'blocked' masks by block."
    if call.causal and not _single(call) and call.q.shape[2] != call.k.shape[2]:
        # lengths in this text would become constants in a compiled graph
        return "torch's is_causal aligns q and k at the first token, which is wrong where q_len differs from k_len."
    return None


def _is_small(call: Call) -> bool:
    """Whether a mask of all scores costs less than blocks do: a decode step, a short text."""
    # other devices require a mask in the dtype of q, where half precision rounds it; they are not tested
    return call.is_plain and call.q.device.type == "cpu" and math.prod(call.shape) <= _most(call)


def _most(call: Call) -> int:
    """Return the most scores that get one whole mask."""
    contents = [leaf for leaf in call.leaves if leaf.encoding.reads_qk]
    if not contents or not torch.is_grad_enabled() or any(map(is_by_distance, call.leaves)):
        return SMALL
    given = call.q, call.k, call.v, call.mask, call.placed, call.k_placed
    return TRAINED if learning(given) or learning([*call.encoding.parameters()]) else SMALL


def _single(call: Call) -> bool:
    """Whether the only query is the last token: it sees every key, while torch's is_causal would show it one."""
    if not torch.compiler.is_compiling() and call.q.shape[2] == 1:  # noqa: SIM103 - as above
        return True
    return False


class Reference:
    """The definition of attention, literally: in float32, or in float64 for float64 inputs and if `exact`."""

    def __init__(self, *, exact: bool = False) -> None:
        self.exact = exact
        self.name = "reference-float64" if exact else "reference"

    def rejects(self, call: Call) -> str | None:
        """Refuse calls of more than 2 GiB unless the caller names this backend."""
        if call.backend != self.name and self.memory(call) > LIMIT:
            return (
                f"it forms all scores, which need {self.memory(call) / 2**30:.1f} GiB, more than the limit of "
                f"{LIMIT / 2**30:.0f} GiB. Pass backend={self.name!r} to run it anyway."
            )
        return None

    def memory(self, call: Call) -> int:
        """Estimate the scores, bias and weights, which exist together."""
        batch, n_heads, q_len, k_len = call.shape
        return 3 * batch * n_heads * q_len * k_len * self._dtype(call).itemsize

    def widened(self, call: Call) -> Call:
        """Return the call with its tensors and result in the precision of this backend."""
        dtype = self._dtype(call)
        q, k, v = (t.to(dtype) for t in (call.q, call.k, call.v))
        return replace(call, q=q, k=k, v=v, out_dtype=dtype)

    def run(self, call: Call) -> Tensor:
        """Compute a call that is `widened` already."""
        with no_autocast(call.q.device):
            call, allowed = call.blanked()
            q, k, v = *call.rotated_qk(), call.v
            group = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
            scores = call.scale * (q @ k.transpose(-1, -2))
            for term in call.terms():
                scores = scores + term.to(call.out_dtype)
            if call.encoding.rescores:
                scores = call.encoding.rescore(scores, *call.unrotated_qk(), call.placed, call.k_placed, allowed)
            if allowed is not None:
                scores = scores.masked_fill(~allowed, -torch.inf)
            weights = F.dropout(softmax(scores), call.dropout_p)
            return zero_empty_rows(weights @ v, allowed)

    def _dtype(self, call: Call) -> torch.dtype:
        return torch.float64 if self.exact or call.q.dtype == torch.float64 else torch.float32
