"""A block by torch's kernel for the CPU, which keeps the scores to itself and reads a mask's strides as they are."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posenc.attention.call import Call
from posenc.attention.heads import ALL, Heads
from posenc.attention.spans import Block
from posenc.families import autocast_dtype
from posenc.positions.checks import is_plain
from posenc.versions import READS_STRIDES, SHARES_KEYS

if TYPE_CHECKING:
    from posenc.attention.plan import Saved, Work

LEAST = 2.0**-149  # of the numbers above zero in float32
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
AT_ONCE = 8192  # queries of all heads that are turned round together, and their results
AT_ONCE_BY_TILES = 2048  # the same where a kernel is through with so many sooner
SHARE = 4  # of the queries there are that is turned round at once, for one part
# what scaled_dot_product_attention runs on a CPU; named, since it returns the logarithm of each row's sum as well
_forward: Callable[..., Any] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward: Callable[..., Any] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def _old_forward(q: Tensor, k: Tensor, v: Tensor, *args: Any, attn_mask: Tensor | None = None, **options: Any) -> Any:
    """Run an older kernel on keys and values that are repeated for each head of queries."""
    n = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(n, 1) for t in (k, v))
    return _forward(q, k, v, *args, attn_mask=_old_mask(attn_mask), **options)


def _old_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *args: Any, attn_mask: Tensor | None = None, **options: Any
) -> Any:
    """Return the gradients of q, k and v, which are sums over the heads of queries that share them."""
    n = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(n, 1) for t in (k, v))
    of_q, *others = _backward(grad, q, k, v, *args, attn_mask=_old_mask(attn_mask), **options)
    return of_q, *(t.unflatten(1, (-1, n)).sum(2) for t in others)


def _old_mask(mask: Tensor | None) -> Tensor | None:
    return mask if mask is None or READS_STRIDES or mask.stride(-1) <= 1 else mask.contiguous()


forward, backward = (_forward, _backward) if SHARES_KEYS else (_old_forward, _old_backward)


def can(call: Call) -> bool:
    """Whether the kernel runs on these tensors."""
    return call.q.device.type == "cpu" and is_plain(call.q) and call.out_dtype in DTYPES


@cache
def tiles() -> bool:
    """Whether the processor multiplies tiles (AMX): torch's kernel then copies keys and values of two bytes."""
    return bool(torch.cpu._is_amx_tile_supported())


def copies(dtype: torch.dtype) -> bool:
    """Whether torch's kernel copies keys and values of a dtype."""
    return dtype.itemsize == 2 and tiles()


def forms(call: Call) -> bool:
    """Whether scores are formed, since no kernel does what is asked for."""
    return call.dropout_p > 0 or call.encoding.rescores or not can(call)


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


def dense(t: Tensor) -> Tensor:
    """Return a tensor whose lanes are side by side in memory, which the kernel takes for granted."""
    return t if t.stride(-1) == 1 else t.contiguous()


def attend(work: "Work", block: Block, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None) -> None:
    """Write the result of a block, and the logarithms of its rows' sums if wanted, of some heads after the others."""
    for heads, own in work.near.parts(block, q, k):
        live = work.terms.tensors
        mask, reverse = masked(
            work, own, None if heads == ALL else work.terms.of_heads(work.terms.of_block(own, live), heads)
        )
        own_q, own_k, own_v = parts(own, q, k, v, heads)
        most = min(AT_ONCE_BY_TILES if tiles() else AT_ONCE, q.shape[:3].numel() // SHARE)
        into = [t[own.batch, heads.of_q, own.rows] for t in (out, lse) if t is not None]
        for of_q, of_k in heads_at_once(own_q, own_k, most) if reverse else [ALL]:
            own_mask = mask if mask is None or mask.shape[1] == 1 else mask[:, of_q]
            some = own_q[:, of_q], own_k[:, of_k], own_v[:, of_k]
            _write(*some, own_mask, work.scale, [t[:, of_q] for t in into], reverse=reverse)


def _write(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, into: Sequence[Tensor], *, reverse: bool
) -> None:
    found = forward(q.flip(2) if reverse else q, k, v, attn_mask=mask, scale=scale)
    for rows, t in zip(found, into, strict=False):
        t.copy_(rows.flip(2) if reverse else rows)


def heads_at_once(q: Tensor, k: Tensor, most: int) -> list[Heads]:
    """Return heads, so many at a time that all threads are at work, and calls are few, of `most` queries.

    What is made of some takes memory that the next take again. Where the kernel copies keys and values there are no
    more of their heads than threads.
    """
    n_kv, of_one = k.shape[1], max(1, q.shape[0] * q.shape[1] // k.shape[1])
    n = max(-(-torch.get_num_threads() // of_one), 0 if copies(q.dtype) else most // (of_one * q.shape[2]))
    group = q.shape[1] // n_kv
    return [Heads(slice(i * group, (i + n) * group), slice(i, i + n)) for i in range(0, n_kv, n)]


def step(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Return the attention of queries that see all keys, of one dtype and width; a bias has the dtype of sums."""
    out: Tensor = forward(q, k, v, attn_mask=bias, scale=scale)[0]
    return out


def gradients(work: "Work", block: Block, saved: "Saved", tensors: Sequence[Tensor], sums: Sequence[Tensor]) -> None:
    """Add a block's gradients of q, k and v to `sums`."""
    for heads, own in work.near.counting(block):
        mask, reverse = masked(work, own, work.terms.of_heads(work.terms.of_block(own, tensors), heads))
        q, k, v = parts(own, saved.q, saved.k, saved.v, heads)
        at, keys = (own.batch, heads.of_q, own.rows), (own.batch, heads.of_k, own.keys)
        rows = [q, *(t[at] for t in (saved.grad, saved.out, saved.lse))]
        q, grad, out, lse = (t.flip(2) if reverse else t for t in rows)
        found = backward(grad, q, k, v, out, lse, 0.0, False, attn_mask=mask, scale=work.scale)
        sums[0][at] = found[0].flip(2) if reverse else found[0]
        sums[1][keys] += found[1]
        sums[2][keys] += found[2]


def masked(work: "Work", block: Block, tensors: Sequence[Tensor] | None) -> tuple[Tensor | None, bool]:
    """Return what joins the block's scores, and whether its queries are in reverse there."""
    if not work.terms.needed(block):
        return None, False
    view = work.terms.view(block, work.terms.tensors if tensors is None else tensors)
    if view is not None:
        return view, True
    mask = work.terms.dense(block, tensors)
    return mask if mask is None else mask[(None,) * (4 - mask.ndim)], False


def parts(block: Block, q: Tensor, k: Tensor, v: Tensor, heads: Heads = ALL) -> tuple[Tensor, Tensor, Tensor]:
    """Return the block's queries, keys and values."""
    of_q, of_k = heads
    return q[block.batch, of_q, block.rows], k[block.batch, of_k, block.keys], v[block.batch, of_k, block.keys]
