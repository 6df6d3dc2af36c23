"""Keys and values that are no numbers reach the queries that see them, and no others.

Every kernel multiplies what is masked by a weight of zero, and 0 times NaN is NaN: one token of one document would
spoil its neighbours, and a later token those before it.
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


def without(call: Call, backend: str) -> tuple[Call, Bool[Tensor, "batch heads q_len"] | None]:
    """Zero the slots of NaN or infinity; return that, and whose results are NaN for seeing one. None if all is well.

    Not on a GPU where a kernel reads them for itself: to look at them first would take about as long.
    """
    k, v, causal = call.k.detach(), call.v.detach(), call.causal and call.shape[2] > 1
    if not (causal or call.mask is not None or call.window is not None or call.document_ids is not None):
        return call, None  # all see all
    looks = may_look(k) and may_look(v) and may_look(call.q)
    if (looks and _finite(k, v)) or (backend in KERNELS and k.device.type != "cpu"):
        return call, None
    bad = ~(k.isfinite().all(-1) & v.isfinite().all(-1))
    if call.encoding.rescores:  # a map may mix heads
        bad = bad.any(1, keepdim=True).expand_as(bad)
    hidden = bad[..., None]
    clean = replace(call, k=call.k.masked_fill(hidden, 0.0), v=call.v.masked_fill(hidden, 0.0))
    bad = of_each_head(bad, call.shape[1])
    if not looks:
        return clean, _see_by_index(call, bad)
    spoiled = _see(call, bad)
    return clean, spoiled if bool(spoiled.any()) else None


def _finite(k: Tensor, v: Tensor) -> bool:
    """Whether all are numbers: by one sum, which others make NaN or infinite."""
    # bfloat16 reaches as far as float32, and its sum in another dtype would be that of a copy
    wide = torch.float32 if k.dtype == torch.float16 else k.dtype
    if math.isfinite(float(k.sum(dtype=wide)) + float(v.sum(dtype=wide))):
        return True
    return bool(k.isfinite().all()) and bool(v.isfinite().all())  # large numbers have infinite sums as well


def _see(call: Call, bad: Bool[Tensor, "batch heads k_len"]) -> Bool[Tensor, "batch heads q_len"]:
    """Return which queries see a key of those."""
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
    """Return which queries see a key of those, under a compiler or within a transform."""
    q_len, k_len = call.shape[2:]
    if call.mask is None and call.window is None and call.document_ids is None:
        seen = torch.arange(k_len - q_len, k_len, device=bad.device) + 1  # keys that causality shows to each query
        return F.pad(bad.cumsum(-1), (1, 0))[..., seen.clamp(min=0)] > 0
    part = Spans(call)
    return torch.cat([(bad[:, :, None, b.keys] & all_seen(part, b)).any(-1) for b in blocks_by_index(call)], -1)
