"""Let a key or value of NaN or infinity affect only the queries that see it.

Every kernel multiplies masked values by a weight of zero, and 0 times NaN is NaN: one token of one document would
spoil the other documents, and a later token the earlier ones.
"""

import math
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
    k, v, causal = call.k, call.v, call.causal and call.shape[2] > 1
    if not (causal or call.mask is not None or call.window is not None or call.document_ids is not None):
        return call, None  # every query sees every key
    readable = may_look(k) and may_look(v) and may_look(call.q)
    if readable and _tame(call.q, k, v):
        return replace(call, tame=True), None
    k, v = k.detach(), v.detach()
    if (readable and _finite(k, v)) or (backend in KERNELS and k.device.type != "cpu"):
        return call, None
    bad = ~(k.isfinite().all(-1) & v.isfinite().all(-1))
    if call.encoding.rescores:  # a score map may mix heads
        bad = bad.any(1, keepdim=True).expand_as(bad)
    hidden = bad[..., None]
    clean = replace(call, k=call.k.masked_fill(hidden, 0.0), v=call.v.masked_fill(hidden, 0.0))
    bad = of_each_head(bad, call.shape[1])
    if not readable:
        return clean, _see_by_index(call, bad)
    spoiled = _see(call, bad)
    return clean, spoiled if bool(spoiled.any()) else None


def _tame(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether no product of a query and a key, nor any sum of values, can leave the range of float32."""
    of_q, of_k, of_v = [float(torch.linalg.vector_norm(t.detach())) for t in (q, k, v)]
    return of_q * of_k < TAME and of_v < TAME


def _finite(k: Tensor, v: Tensor) -> bool:
    """Whether all values are finite: first by their sum, which one NaN or infinity would spoil."""
    # bfloat16 has the range of float32, and a sum in another dtype would copy the tensor
    wide = torch.float32 if k.dtype == torch.float16 else k.dtype
    if math.isfinite(float(k.sum(dtype=wide)) + float(v.sum(dtype=wide))):
        return True
    return bool(k.isfinite().all()) and bool(v.isfinite().all())  # large numbers can have an infinite sum, too


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
