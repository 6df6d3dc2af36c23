"""A step of generation by a bias of distances: one query and all keys. Microseconds count, so it goes ahead of all."""

from typing import Any

import torch
from torch import Tensor

from posenc.attention import fused, kept, one_query
from posenc.attention.leaves import holds
from posenc.encoding import Encoding, Placed
from posenc.families import Bias, autocast_dtype
from posenc.positions.checks import all_plain

_BACKENDS = ("auto", "distance")


def step(
    q: Tensor, k: Tensor, v: Tensor, encoding: Encoding, placed: Any, k_placed: Any, scale: float | None, backend: str
) -> Tensor | None:
    """Return the attention of one query that sees all keys; None if this is another call, which is then checked.

    It is what the backend "distance" returns, with a bias that is kept between steps.
    """
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or backend not in _BACKENDS:
        return None
    if not (isinstance(encoding, Bias) and isinstance(placed, Placed) and isinstance(k_placed, Placed)):
        return None
    if not all_plain((q, k, v, placed.pos, k_placed.pos, *encoding.parameters())):
        return None
    if not _fits(q, k, v, placed, k_placed) or q.device.type != "cpu" or autocast_dtype(q.device) is not None:
        return None
    if not encoding.by_distance or not holds(encoding, "by_distance") or not isinstance(scale, (float, type(None))):
        return None
    encoding.check_heads(q)
    if (row := kept.row(encoding, placed, k_placed)) is None:
        return None
    scale = encoding.score_scale(q.shape[-1]) if scale is None else scale
    return one_query.attend(q, k, v, row[None, :, None], scale)


def _fits(q: Tensor, k: Tensor, v: Tensor, placed: Placed, k_placed: Placed) -> bool:
    """Whether tensors are of one query, their lanes side by side, beside whole positions that rows share."""
    if not q.ndim == k.ndim == v.ndim == 4 or not q.stride(3) == k.stride(3) == v.stride(3) == 1:
        return False
    batch, heads, n, lanes = k.shape
    if v.shape[:3] != k.shape[:3] or q.shape[0] != batch or q.shape[2:] != (1, lanes):
        return False
    if 0 in (batch, heads, n, lanes) or q.shape[1] % heads:
        return False
    if not q.dtype == k.dtype == v.dtype or q.dtype not in fused.DTYPES:
        return False
    pos, k_pos = placed.pos, k_placed.pos
    return pos.dtype == k_pos.dtype == torch.int64 and pos.shape == (1,) and k_pos.shape == (n,)
