"""Let a key or value of NaN or infinity affect only the queries that see it.

Every kernel multiplies masked values by a weight of zero, and 0 times NaN is NaN: one token of one document would
spoil the other documents, and a later token the earlier ones.
"""

from dataclasses import replace

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn import functional as F

from posenc.attention.call import Call
from posenc.attention.spans import ROWS, Spans, all_seen, blocks_by_index, spans
from posenc.families import of_each_head
from posenc.positions.checks import may_look

KERNELS = ("sdpa", "flex")
TAME = 1e30  # far below the largest float32, as gains and scales multiply products


def without_nonfinite(call: Call, backend: str) -> tuple[Call, Bool[Tensor, "batch heads q_len"] | None]:
    """Zero the slots with NaN or infinity; return the call, and which queries see one (their results are NaN) or None.

    For fused kernels on a GPU, return the call as it is: reading k and v would take about as long as the kernel.
    """
    causal = call.causal and call.shape[2] > 1
    if not (causal or call.mask is not None or call.window is not None or call.document_ids is not None):
        return call, None  # every query sees every key
    if backend in KERNELS and call.k.device.type != "cpu":
        return call, None
    readable = all(map(may_look, (call.q, call.k, call.v)))
    if readable and _tame(call):
        return replace(call, tame=True), None
    k, v = (t.detach().to(call.out_dtype) for t in (call.k, call.v))
    finite = k.isfinite().all(-1) & v.isfinite().all(-1)
    if readable and bool(finite.all()):
        return call, None
    bad = ~finite
    if call.encoding.rescores:  # a score map may mix heads
        bad = bad.any(1, keepdim=True).expand_as(bad)
    hidden = bad[..., None]
    clean = replace(call, k=call.k.masked_fill(hidden, 0.0), v=call.v.masked_fill(hidden, 0.0))
    bad = of_each_head(bad, call.shape[1])
    if not readable:
        return clean, _see_by_index(call, bad)
    spoiled = _see(call, bad)
    return clean, spoiled if bool(spoiled.any()) else None


def _tame(call: Call) -> bool:
    """Whether no product of a query and a key, nor any sum of values, can leave the range of the result's dtype."""
    of_q, of_k, of_v = [float(torch.linalg.vector_norm(t.detach())) for t in (call.q, call.k, call.v)]
    most = min(TAME, torch.finfo(call.out_dtype).max / 16)
    return of_q < most and of_k < most and of_v < most and of_q * of_k < most  # False for NaN


def _see(call: Call, bad: Bool[Tensor, "batch heads k_len"]) -> Bool[Tensor, "batch heads q_len"]:
    """Return which queries see one of the bad keys."""
    found = bad.new_zeros(call.shape[:3])
    for part in spans(call):
        for block in part.blocks(ROWS):
            keys = bad[block.batch, :, None, block.keys]
            if not bool(keys.any()):
                continue
            seen = part.allowed(block)
            found[block.batch, :, block.rows] = (keys if seen is None else keys & seen).any(-1)
    return found


def _see_by_index(call: Call, bad: Bool[Tensor, "batch heads k_len"]) -> Bool[Tensor, "batch heads q_len"]:
    """Return which queries see one of the bad keys, under a compiler or within a transform."""
    q_len, k_len = call.shape[2:]
    if call.mask is None and call.window is None and call.document_ids is None:
        seen = torch.arange(k_len - q_len, k_len, device=bad.device) + 1  # keys that each query sees by causality
        return F.pad(bad.cumsum(-1), (1, 0))[..., seen.clamp(min=0)] > 0
    part = Spans(call)
    return torch.cat([(bad[:, :, None, b.keys] & all_seen(part, b)).any(-1) for b in blocks_by_index(call)], -1)
