"""One query that sees all keys, a step of generation: two products of vectors and matrices.

torch's kernel is made for blocks of queries. With one it is slow where heads share keys, with numbers of two bytes
where no library has products of such for the processor, and with large caches where that has no tiles.
"""

import time
from collections.abc import Callable
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.attention import fused
from posenc.attention.call import Call, softmax
from posenc.attention.leaves import Leaf, over, sees_distance, tensors
from posenc.attention.scratch import Scratch
from posenc.families import no_autocast
from posenc.positions.checks import all_plain

AT_ONCE = 2**20  # keys' numbers that are made wider at a time, which caches hold
LEAST_KEYS = 256  # and keys of each head at least, for short products cost their calls
# numbers multiplied with q from which on this is faster than torch's kernel, by two threads
LEAST_HALF = 2**18  # of numbers of two bytes
LEAST_SHARED = 2**21  # of others, where heads of q share a key
LEAST = 2**23  # else, where the processor has no tiles: k and v lie in no cache
TRIED = 4096  # keys of the cache that tells which is faster
CLEARLY = 1.2  # times as fast: what is near stays with torch's kernel, in every process


def fits(call: Call) -> bool:
    """Whether one query sees all keys on a CPU and nothing learns."""
    masked = call.mask is not None or call.window is not None or call.document_ids is not None
    batch, n_heads, q_len, k_len = call.shape
    if masked or call.dropout_p or call.encoding.rescores or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    if q_len != 1 or 0 in (batch, n_heads, k_len, call.q.shape[-1]):
        return False
    placed = *tensors(call.placed), *tensors(call.k_placed)
    return fused.can(call) and all_plain((call.q, call.k, call.v, *placed, *call.encoding.parameters()))


def memory(call: Call) -> int:
    """Return the bytes of a bias, of scores and weights of one query, and of some keys in the dtype of sums."""
    batch, n_heads, _, k_len = call.shape
    row = batch * n_heads * k_len
    numbers = row if call.leaves else 0
    if _may_pay(call.q.to(call.out_dtype), call.k, call.v):
        widest = call.k.shape[1] * max(call.k.shape[-1], call.v.shape[-1])
        numbers += 3 * row + 2 * min(batch * k_len * widest, max(AT_ONCE, LEAST_KEYS * widest))
    return max(4, call.out_dtype.itemsize) * numbers


def run(call: Call) -> Tensor:
    """Compute a call that fits: its bias of one row is no matrix. For use outside autocast."""
    bias: Tensor | None = None
    if call.leaves and all(map(_is_shared, call.leaves)):
        terms = [
            over(leaf.encoding, leaf.placed, (leaf.placed.pos - leaf.k_placed.pos).reshape(-1)) for leaf in call.leaves
        ]
        bias = sum(terms[1:], start=terms[0])[None, :, None]
    elif call.leaves:
        bias = call.bias()
        bias = None if bias is None else bias[(None,) * (4 - bias.ndim)]
    q, k, v = (fused.dense(t.to(call.out_dtype)) for t in (*call.turned(), call.v))
    return attend(q, k, v, bias, call.scale)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Return the attention of one query for each head.

    Args:
        q: (batch, n_heads, 1, width).
        k: (batch, n_kv_heads, n, width), of one dtype with q, on a CPU, its rows dense.
        v: (batch, n_kv_heads, n, any width), the same.
        bias: (batch or 1, n_heads or 1, 1, n), or None.
        scale: Of the products of q and k.
    """
    if bias is not None:
        bias = bias.to(torch.float64 if q.dtype == torch.float64 else torch.float32)
    if not _pays(q, k, v):
        out: Tensor = fused.step(q, k, v, bias, scale)
        return out
    if q.dtype.itemsize >= 4 and _in_steps(k) and _in_steps(v):
        return _whole(q, k, v, bias, scale)
    size = max(1, AT_ONCE // max(k[0].numel(), v[0].numel()))
    items = [slice(first, first + size) for first in range(0, k.shape[0], size)]
    own = [bias if bias is None or bias.shape[0] == 1 else bias[at] for at in items]
    return torch.cat([_by_keys(q[at], k[at], v[at], b, scale) for at, b in zip(items, own, strict=True)])


def _pays(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether two products are taken, by what is faster."""
    tried = q.dtype.itemsize < 4 and v.shape == k.shape
    return _may_pay(q, k, v) and (not tried or _wins(q.dtype, q.shape[1] > k.shape[1], torch.get_num_threads()))


def _may_pay(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether two products may be faster than torch's kernel, which wants keys and values of one width."""
    if v.shape != k.shape:
        return True
    products, shared = q.numel() * k.shape[2], q.shape[1] > k.shape[1]
    if q.dtype.itemsize < 4:
        return products >= LEAST_HALF
    large = products >= LEAST_SHARED if shared else products >= LEAST and not fused.tiles()
    return large and _in_steps(k) and _in_steps(v)


@cache
def _wins(dtype: torch.dtype, shared: bool, threads: int) -> bool:
    """Whether two products of numbers of two bytes are clearly faster here: tried once, for some milliseconds.

    Of bfloat16 they took half of the kernel's time on an AMD EPYC, and five times as long on an Intel Xeon.
    """
    with no_autocast(torch.device("cpu")), torch.no_grad():
        shapes = (1, 32 if shared else 8, 1, 64), (1, 8, TRIED, 64)
        q, keys = (torch.ones(shape, dtype=dtype, device="cpu") for shape in shapes)
        products = _took(lambda: _by_keys(q, keys, keys, None, 1.0))
        return CLEARLY * products < _took(lambda: fused.step(q, keys, keys, None, 1.0))


def _took(run: Callable[[], Tensor]) -> float:
    """Return the seconds of the fastest of some runs, the first of which does not count."""
    times = [time.perf_counter()]
    for _ in range(4):
        run()
        times.append(time.perf_counter())
    return min(end - begin for begin, end in pairwise(times[1:]))


def _in_steps(t: Tensor) -> bool:
    """Whether heads of all items lie in equal steps, so that a product takes them as they are."""
    return t.shape[0] == 1 or t.stride(0) == t.shape[1] * t.stride(1)


def _whole(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Return softmax(scale * q @ k.T + bias) @ v."""
    k, v = k.flatten(0, 1), v.flatten(0, 1)
    scores = torch.bmm(k, _columns(q * scale, k))
    return torch.bmm(_weights(scores, bias, q), v).view(*q.shape[:3], v.shape[2])


def _by_keys(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Return the same, some keys after the others: in the dtype of sums and in one piece of memory."""
    batch, n_kv, n, width = k.shape
    size = max(LEAST_KEYS, AT_ONCE // (batch * n_kv * max(width, v.shape[3])))
    parts = [slice(first, first + size) for first in range(0, n, size)]
    scratch, wide = Scratch(), torch.float64 if q.dtype == torch.float64 else torch.float32
    columns = _columns(q.to(wide) * scale, k.flatten(0, 1))
    scores = [torch.bmm(scratch.rounded("k", k[:, :, at], wide).flatten(0, 1), columns) for at in parts]
    weights = _weights(torch.cat(scores, 1), bias, q)
    out = q.new_zeros((*weights.shape[:2], v.shape[3]), dtype=wide)
    for at in parts:
        out.baddbmm_(weights[..., at], scratch.rounded("k", v[:, :, at], wide).flatten(0, 1))
    return out.view(*q.shape[:3], v.shape[3]).to(q.dtype)


def _columns(q: Tensor, k: Tensor) -> Tensor:
    """Return the queries of each head of k (heads, width, queries): those that share it are of one product."""
    return q.reshape(k.shape[0], -1, k.shape[2]).mT


def _weights(scores: Tensor, bias: Tensor | None, q: Tensor) -> Tensor:
    """Return the weights (heads of k, queries, n) of scores (heads of k, n, queries)."""
    scores = scores.mT
    if bias is not None:
        scores = (scores.reshape(*q.shape[:3], -1) + bias).view(scores.shape)
    scores = scores.contiguous()
    weights = torch.softmax(scores, -1)
    if bool(weights[..., 0].isnan().any()):  # a bias, or products, may be minus infinity for all keys
        weights = softmax(scores)
    # some processors multiply numbers that are not normal many times as slowly
    return F.threshold(weights, torch.finfo(weights.dtype).tiny, 0.0, inplace=True)


def _is_shared(leaf: Leaf) -> bool:
    """Whether a bias sees distances, which are the same for the whole batch."""
    return sees_distance(leaf) and not leaf.placed.seq_dim and not leaf.k_placed.seq_dim
