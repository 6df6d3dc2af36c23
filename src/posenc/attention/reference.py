"""The law written down literally: every score is formed."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.attention.call import Call, shown, softmax, zero_empty_rows
from posenc.families import no_autocast

LIMIT = 2 * 2**30  # bytes that it takes without being asked by name


class Reference:
    """Scores, mask, softmax and values in float32, or in float64 where the inputs are or `exact` says so."""

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

    def run(self, call: Call) -> Tensor:
        """Compute the law."""
        dtype, out_dtype = self._dtype(call), call.out_dtype
        with no_autocast(call.q.device):
            call, allowed = call.blanked()
            call = replace(call, q=call.q.to(dtype), k=call.k.to(dtype))  # before the turn, which would round
            q, k, v = *call.turned(), call.v.to(dtype)
            group = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
            scores = call.scale * (q @ k.transpose(-1, -2))
            added = call.added()
            for term in (call.bias(), None if added is None else added.masked_fill(~shown(added), 0.0)):
                if term is not None:
                    scores = scores + term.to(dtype)
            if call.encoding.rescores:
                scores = call.encoding.rescore(scores, *call.before(), call.placed, call.k_placed, allowed)
            if allowed is not None:
                scores = scores.masked_fill(~allowed, -torch.inf)
            weights = F.dropout(softmax(scores), call.dropout_p)
            return zero_empty_rows(weights @ v, allowed).to(out_dtype)

    def _dtype(self, call: Call) -> torch.dtype:
        return torch.float64 if self.exact or call.q.dtype == torch.float64 else torch.float32
