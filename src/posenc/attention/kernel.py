"""torch's attention for the CPU, which keeps scores to itself and gives the logarithm of each row's sum as well.

These two operators are what `scaled_dot_product_attention` runs on a CPU. Their names are private: the public function
returns no logarithms, without which a backward pass would have to attend once more. Where a release of torch has no
such names, `can` says so and scores are formed (`scores.py`).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from posenc.attention.call import Call
from posenc.families import autocast_dtype
from posenc.positions.checks import is_plain
from posenc.versions import READS_STRIDES, SHARES_KEYS

LEAST = 2.0**-149  # of the numbers above zero in float32
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_NAME = "_scaled_dot_product_flash_attention_for_cpu"
_forward: Callable[..., Any] | None = getattr(torch.ops.aten, _NAME, None)
_backward: Callable[..., Any] | None = getattr(torch.ops.aten, f"{_NAME}_backward", None)


def can(call: Call) -> bool:
    """Whether the kernel runs on these tensors."""
    known = _forward is not None and _backward is not None
    return known and call.q.device.type == "cpu" and is_plain(call.q) and call.out_dtype in DTYPES


def forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Return the attention of queries (batch, n_heads, q_len, width), and the logarithms of the sums of its rows.

    q, k and v have one dtype and width; a mask, of any strides, has the dtype of sums.
    """
    assert _forward is not None  # as `can` has looked
    k, v = _shared(q, k, v)
    out, lse = _forward(q, k, v, attn_mask=_readable(mask), scale=scale)
    return out, lse


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v."""
    assert _backward is not None  # as `can` has looked
    n_kv = k.shape[1]
    k, v = _shared(q, k, v)
    of_q, *others = _backward(grad, q, k, v, out, lse, 0.0, False, attn_mask=_readable(mask), scale=scale)
    of_k, of_v = (t if t.shape[1] == n_kv else t.unflatten(1, (n_kv, -1)).sum(2) for t in others)
    return of_q, of_k, of_v


def hides(scale: float) -> bool:
    """Whether torch's causal kernel hides keys: it multiplies minus infinity by the scale, in float32."""
    return scale >= LEAST


def mixed(call: Call) -> str | None:
    """Refuse tensors of several dtypes, unless autocast brings them to one."""
    if len({call.q.dtype, call.k.dtype, call.v.dtype}) > 1 and autocast_dtype(call.q.device) is None:
        return (
            f"q, k and v must have one dtype; got {call.q.dtype}, {call.k.dtype}, {call.v.dtype}. "
            "Cast them, or run under autocast."
        )
    return None


def _shared(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values, repeated for each head of queries where an older kernel wants that."""
    n = q.shape[1] // k.shape[1]
    return (k, v) if SHARES_KEYS or n == 1 else (k.repeat_interleave(n, 1), v.repeat_interleave(n, 1))


def _readable(mask: Tensor | None) -> Tensor | None:
    return mask if mask is None or READS_STRIDES or mask.stride(-1) <= 1 else mask.contiguous()
