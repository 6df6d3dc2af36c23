"""A call as a whole: by torch's scaled_dot_product_attention, or literally, every score formed."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.attention.call import Call, mixed, softmax, widened, zero_empty_rows
from posenc.families import no_autocast

SMALL = 2**20  # scores, up to which a mask of all is formed at once
LEAST = 2.0**-149  # of the numbers above zero in float32
LIMIT = 2 * 2**30  # bytes that all scores may take without being asked for by name


class SDPA:
    """Torch's own attention, with a mask of q_len x k_len only where that is small."""

    name = "sdpa"

    def rejects(self, call: Call) -> str | None:
        """Refuse what SDPA cannot take without a large matrix."""
        if (reason := mixed(call)) is not None:
            return reason
        if call.encoding.rescores:
            return f"{call.encoding.name} makes new scores of whole rows, which SDPA keeps to itself."
        if not torch.compiler.is_compiling() and call.shape[3] == 0:
            return "torch's kernel divides by the number of keys, and there are none."
        if call.dropout_p and call.q.device.type == "cpu":
            return "on a CPU torch forms all weights for dropout; blocks of queries form few at a time."
        reason = _wants_mask(call)
        return None if reason is not None and _is_small(call) else reason

    def memory(self, call: Call) -> int:
        """Estimate the mask, and what is added where values are not as wide as keys."""
        batch, n_heads, q_len, k_len = call.shape
        narrow = abs(call.v.shape[-1] - call.q.shape[-1]) * call.out_dtype.itemsize
        mask = 3 * min(SMALL, math.prod(call.shape)) * call.wide.itemsize if _wants_mask(call) is not None else 0
        return batch * narrow * (call.k.shape[1] * k_len + n_heads * q_len) + mask

    def run(self, call: Call) -> Tensor:
        """Run SDPA; under autocast the cast is ours. Kernels want one width: zeros stand beyond narrow rows."""
        with no_autocast(call.q.device):
            if _wants_mask(call) is not None:
                return self._masked(call)
            return self._attend(call, None, is_causal=call.causal and not _single(call))

    def _masked(self, call: Call) -> Tensor:
        call, allowed = (replace(call, causal=False) if _single(call) else call).blanked()
        terms = [t.to(call.wide) for t in call.terms()]
        mask = sum(terms[1:], start=terms[0]) if terms else torch.zeros((), dtype=call.wide, device=call.q.device)
        if allowed is not None:  # rows that see nothing are cleared afterwards: of minus infinity alone there is no sum
            mask = mask.masked_fill(~allowed & allowed.any(-1, keepdim=True), -torch.inf)
        mask = mask.expand(*mask.shape[:-2], *call.shape[2:]) if mask.ndim > 1 else mask.expand(call.shape)
        return zero_empty_rows(self._attend(call, mask, is_causal=False), allowed)

    def _attend(self, call: Call, mask: Tensor | None, *, is_causal: bool) -> Tensor:
        q, k, v = call.given()
        width, widest = v.shape[-1], max(q.shape[-1], v.shape[-1])
        q, k, v = (widened(t, widest) for t in (q, k, v))
        options: dict[str, Any] = {"dropout_p": call.dropout_p, "scale": call.scale, "enable_gqa": grouped(call)}
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal, **options)
        return out[..., :width]


def _wants_mask(call: Call) -> str | None:
    """Say why SDPA needs a mask of q_len x k_len, or None."""
    if call.leaves:
        return f"{call.encoding.name} joins the scores, which SDPA takes as a mask of q_len x k_len alone."
    if call.causal and not call.scale >= LEAST:
        return "torch's causal kernel multiplies minus infinity by the scale, which must be above zero in float32."
    if call.mask is not None or call.window is not None or call.document_ids is not None:
        return "a mask, window or documents would be a mask of q_len x k_len; blocks of queries see slices instead."
    if call.causal and not _single(call) and call.q.shape[2] != call.k.shape[2]:
        # no lengths in these words: a compiler would take them for constants
        return "torch's is_causal aligns at the start, which is wrong for the last few queries of a longer text."
    return None


def _is_small(call: Call) -> bool:
    """Whether a mask of all scores is worth less than blocks: a decode step, a short text."""
    # other devices want a mask in the dtype of q, which half precision would round, and were not tried
    return call.is_plain and call.q.device.type == "cpu" and math.prod(call.shape) <= SMALL


def grouped(call: Call) -> bool:
    """Whether several heads of q share one of k."""
    if call.q.shape[1] != call.k.shape[1]:  # noqa: SIM103 - a branch, since a compiler's symbolic bool is no bool
        return True
    return False


def _single(call: Call) -> bool:
    """Whether there is one query, the last token: it sees every key, where torch's is_causal shows it one."""
    if not torch.compiler.is_compiling() and call.q.shape[2] == 1:  # noqa: SIM103 - as above
        return True
    return False


class Reference:
    """The law written down literally, in float32, or in float64 where the inputs are or `exact` says so."""

    def __init__(self, *, exact: bool = False) -> None:
        self.exact = exact
        self.name = "reference-float64" if exact else "reference"

    def rejects(self, call: Call) -> str | None:
        """Refuse more than 2 GiB unless asked by name."""
        if call.backend != self.name and self.memory(call) > LIMIT:
            return (
                f"it would form all scores, which takes {self.memory(call) / 2**30:.1f} GiB and is more than "
                f"{LIMIT / 2**30:.0f} GiB; ask for backend={self.name!r} to have it all the same."
            )
        return None

    def memory(self, call: Call) -> int:
        """Scores, bias and weights at once."""
        batch, n_heads, q_len, k_len = call.shape
        return 3 * batch * n_heads * q_len * k_len * self._dtype(call).itemsize

    def widened(self, call: Call) -> Call:
        """Return a call whose tensors and result have the precision of this backend."""
        dtype = self._dtype(call)
        q, k, v = (t.to(dtype) for t in (call.q, call.k, call.v))
        return replace(call, q=q, k=k, v=v, out_dtype=dtype)

    def run(self, call: Call) -> Tensor:
        """Compute the law for a call that is `widened`."""
        with no_autocast(call.q.device):
            call, allowed = call.blanked()
            q, k, v = *call.turned(), call.v
            group = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
            scores = call.scale * (q @ k.transpose(-1, -2))
            for term in call.terms():
                scores = scores + term.to(call.out_dtype)
            if call.encoding.rescores:
                scores = call.encoding.rescore(scores, *call.before(), call.placed, call.k_placed, allowed)
            if allowed is not None:
                scores = scores.masked_fill(~allowed, -torch.inf)
            weights = F.dropout(softmax(scores), call.dropout_p)
            return zero_empty_rows(weights @ v, allowed)

    def _dtype(self, call: Call) -> torch.dtype:
        return torch.float64 if self.exact or call.q.dtype == torch.float64 else torch.float32
