"""torch's FlexAttention: biases by their `score_mod`, masks as blocks of 128 x 128 tokens that are left out."""

import importlib.util
import os
import shutil
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Int32
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from posenc.attention.call import Call, mixed
from posenc.attention.distances import REACH
from posenc.attention.leaves import Leaf, is_by_distance, over
from posenc.attention.spans import Spans, blank
from posenc.attention.whole import grouped
from posenc.encoding import Encoding
from posenc.families import Bias, no_autocast
from posenc.placed import tensors
from posenc.positions.checks import is_plain

SMALL = {"BLOCK_M": 64, "BLOCK_N": 64, "num_stages": 2}  # of the sizes that were tried the fastest for a lookup
NARROW = 16  # numbers of a row that its kernels for GPUs want at least
SIZE = 128  # tokens of a block, as torch has them
FEW = 3  # scores of a trial
READS = frozenset(("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__"))

Mod = Callable[..., Tensor]

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


class Flex:
    """Compiled FlexAttention, for GPUs; on a CPU by name, forwards."""

    name = "flex"

    def rejects(self, call: Call) -> str | None:
        """Refuse devices, dtypes and biases that it cannot run, and gradients that are not tested."""
        named = call.backend == self.name
        if (reason := mixed(call) or _refuses_place(call, named)) is not None:
            return reason
        if call.dropout_p:
            return "FlexAttention has no dropout."
        if call.out_dtype not in (torch.float32, torch.bfloat16, torch.float16):
            return f"FlexAttention has its scores in float32, which is less than {call.out_dtype}."
        if 0 in (*call.q.shape, *call.k.shape, *call.v.shape):
            return "there is nothing to compile for tensors without elements."
        if call.encoding.rescores:
            return f"{call.encoding.name} makes new scores of whole rows; a score_mod sees one score."
        leaves = call.leaves
        if (reason := next((r for leaf in leaves if (r := _refuses_bias(leaf)) is not None), None)) is not None:
            return reason
        return _refuses_gradients(call, leaves, named)

    def memory(self, call: Call) -> int:
        """Estimate which blocks are left, as four tables, and copies in which unseen slots are zero."""
        batch, n_heads, q_len, k_len = call.shape
        rows, columns = -(-q_len // SIZE), -(-k_len // SIZE)
        blocks = 16 * rows * columns if hides(call) else 0
        if (call.mask is not None and call.mask.shape[0] > 1) or (
            call.document_ids is not None and call.document_ids.ndim > 1
        ):
            blocks *= batch
        copied = call.mask is not None or call.window is not None or call.document_ids is not None
        width = n_heads * q_len * call.q.shape[-1] + call.k.shape[1] * k_len * (call.k.shape[-1] + call.v.shape[-1])
        return blocks + (batch * width * call.out_dtype.itemsize if copied else 0)

    def run(self, call: Call) -> Tensor:
        """Compute the call."""
        # what its kernel for CPUs makes has no gradient, and tensors that could want one are refused at its door
        on_cpu = call.q.device.type == "cpu"
        with no_autocast(call.q.device), torch.set_grad_enabled(torch.is_grad_enabled() and not on_cpu):
            call = _blanked(call)
            q, k, v = (t.to(call.out_dtype) for t in (*call.turned(), call.v))
            if on_cpu:
                q, k, v = q.detach(), k.detach(), v.detach()
            width = v.shape[-1]
            q, k, v = (F.pad(t, (0, max(0, NARROW - t.shape[-1]))) for t in (q, k, v))
            options: dict[str, Any] = {
                "kernel_options": None if on_cpu or not any(map(is_looked_up, call.leaves)) else SMALL,
                "score_mod": score_mod(call),
                "block_mask": block_mask(call),
                "scale": call.scale,
                "enable_gqa": grouped(call),
            }
            out: Tensor = _compiled(_kind(call), on_cpu)(q, k, v, **options)
            return out[..., :width]


def _refuses_place(call: Call, named: bool) -> str | None:
    """Say why FlexAttention does not run where the tensors are, or None."""
    device = call.q.device.type
    if not is_plain(call.q):
        return "FlexAttention is compiled here, on its own; within a compiler or a transform blocks run."
    if device == "cpu" and not named:
        return (
            "on a CPU FlexAttention has no backward pass and takes seconds to compile; blocks of queries are faster. "
            "Ask for backend='flex' to have it all the same."
        )
    if device not in ("cpu", "cuda"):
        return f"FlexAttention was not tried on {device}."
    if device == "cpu" and not _compiler():
        return "without a C++ compiler FlexAttention forms all scores on a CPU. Install g++, or take another backend."
    if device == "cuda" and importlib.util.find_spec("triton") is None:
        return "without Triton FlexAttention forms all scores on a GPU. Install triton, or take another backend."
    return None


def _refuses_bias(leaf: Leaf) -> str | None:
    """Say why a bias is no score_mod, or None."""
    encoding = leaf.encoding
    if not isinstance(encoding, Bias):
        return f"{encoding.name} reads whole queries and keys, and a score_mod sees one score."
    if not _says_all(encoding):
        return f"{encoding.name} defines its bias anew, and not the score_mod."
    if encoding not in _TRIED:
        _TRIED[encoding] = _tried(leaf)
    return _TRIED[encoding]


def _refuses_gradients(call: Call, leaves: list[Leaf], named: bool) -> str | None:
    """Say why a backward pass is not to be had, or None if it is, or nothing wants one."""
    if not torch.is_grad_enabled():
        return None
    placed = [(leaf.placed, leaf.k_placed) for leaf in leaves]
    learned = [*(p for leaf in leaves for p in leaf.encoding.parameters()), *tensors(placed)]
    learns = any(t.requires_grad for t in (*learned, *([] if call.mask is None else [call.mask])))
    trains = learns or any(t.requires_grad for t in (call.q, call.k, call.v))
    if call.q.device.type == "cpu":
        return "FlexAttention has no backward pass on a CPU. Call it under torch.no_grad()." if trains else None
    if named or not trains:
        return None
    if learns:
        return (
            f"{call.encoding.name} learns its bias, whose gradients by FlexAttention are not tested here: torch has "
            "open issues about learned tensors in a score_mod. Ask for backend='flex' to have it all the same."
        )
    if call.shape[2] % SIZE or call.shape[3] % SIZE:
        return (
            f"torch has an open issue about NaN in FlexAttention's backward pass where lengths are no multiples of "
            f"{SIZE}; got {call.shape[2]} and {call.shape[3]}. Ask for backend='flex' to have it all the same."
        )
    return None


def _says_all(encoding: Bias) -> bool:
    """Whether the class that defines the score_mod knows of how the bias is formed: nothing below it is anew."""

    def owner(name: str) -> type:
        return next(cls for cls in type(encoding).__mro__ if name in vars(cls))

    return all(issubclass(owner("score_mod"), owner(door)) for door in ("bias", "_broadcast"))


_TRIED: WeakKeyDictionary[Encoding, str | None] = WeakKeyDictionary()


def _tried(leaf: Leaf) -> str | None:
    """Run a score_mod on a few scores, and say why a kernel could not run it on one; or None.

    A kernel runs it score by score, so that all it makes of a score's indices must be one number for each score: it
    can look tables up, and can neither form vectors and sum them nor read a number.
    """
    name, device = leaf.encoding.name, leaf.placed.pos.device
    given = [torch.zeros(FEW, device=device), *(torch.zeros(FEW, dtype=torch.int64, device=device) for _ in range(4))]
    with torch.no_grad():
        mod = leaf_mod(leaf)
        try:
            with _Watch(given) as watch:
                mod(*given)
        except Exception as error:  # of any kind: what stops a trial stops torch's compiler
            return f"{name} has a score_mod that cannot be traced: {type(error).__name__}: {str(error)[:200]}"
    if watch.wide:
        return f"{name} forms vectors for each score ({watch.wide}), and compiled FlexAttention runs on numbers alone."
    return None


class _Watch(TorchFunctionMode):
    """Follow what is made of some tensors, and keep the name of the first operation whose result has another shape."""

    def __init__(self, given: list[Tensor]) -> None:
        super().__init__()
        self.made, self.wide = {id(t): t for t in given}, ""  # tensors are kept, so that no number is given twice

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if any(id(t) in self.made for t in tensors((args, kwargs))):
            if getattr(func, "__name__", "") in READS:
                raise TypeError(f"{func.__name__} reads a number.")
            for t in tensors(out):
                self.made[id(t)] = t
                if t.shape != (FEW,) and not self.wide:
                    self.wide = str(getattr(func, "__name__", func))
        return out


def _compiler() -> str | None:
    """Return the C++ compiler that torch would call, or None."""
    names = [os.environ.get("CXX", ""), "g++", "clang++"]
    return next((name for name in names if name and shutil.which(name)), None)


def _kind(call: Call) -> str:
    """Return what makes another program of a call; on a GPU apart from shapes, of which a few programs serve all."""
    mask = None if call.mask is None else (call.mask.dtype, [n > 1 for n in call.mask.shape])
    masks = call.causal, call.window is None, call.document_ids is None, mask
    shapes = (call.q.shape, call.k.shape) if call.q.device.type == "cpu" else None
    leaves = [(str(leaf.encoding), is_looked_up(leaf)) for leaf in call.leaves]
    return f"{leaves}, {masks}, {call.q.dtype}, {shapes}"


@lru_cache(maxsize=64)
def _compiled(kind: str, on_cpu: bool) -> Callable[..., Tensor]:
    """Return FlexAttention to be compiled, once for each kind of call.

    Each kind has code of its own, by which torch counts programs: it gives up on code that it has compiled too often,
    and a whole graph makes that an error instead of a kernel that forms all scores. On a GPU lengths are left open once
    a second one comes; what torch 2.13 writes for CPUs then confuses the names of lengths where there are many.
    """
    from torch.nn.attention.flex_attention import flex_attention

    def attention(*args: Any, **options: Any) -> Any:
        return flex_attention(*args, **options)

    attention.__code__ = attention.__code__.replace()  # a copy
    compiled: Callable[..., Tensor] = torch.compile(attention, fullgraph=True, dynamic=False if on_cpu else None)
    return compiled


def _blanked(call: Call) -> Call:
    """Zero slots that no query sees, where there may be some: 0 times NaN is NaN.

    Where keys are as many as queries, a causal mask, windows and documents show each key to its own query.
    """
    if call.mask is None and call.shape[2] == call.shape[3]:
        return call
    return blank(call, [Spans(call)])


def score_mod(call: Call) -> Mod | None:
    """Return f(score, b, h, q_idx, kv_idx): all biases, and a mask that is more than a row of keys."""
    mods = [leaf_mod(leaf) for leaf in call.leaves]
    mask = None if _keys(call) is not None else call.mask
    if not mods and mask is None:
        return None

    def mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        found = score.float()  # a kernel has it so, and in half precision what is added would be rounded
        for one in mods:
            found = one(found, b, h, i, j)
        if mask is not None:
            # not the number 0: torch 2.9 reads an index of numbers and tensors at once, which no kernel can
            entry = mask[tuple([at if n > 1 else 0 * at for at, n in zip((b, h, i, j), mask.shape, strict=True)])]
            if mask.dtype == torch.bool:
                found = torch.where(entry, found, -torch.inf)
            else:  # a key that holds NaN must not reach a row that does not see it
                found = torch.where(entry == -torch.inf, -torch.inf, found + entry)
        return found.float()  # float64 of real positions

    return mod


def leaf_mod(leaf: Leaf) -> Mod:
    """Return what one encoding adds to a score: looked up in a vector over distances, or formed by its own `score_mod`.

    On a GPU T5's bias takes 3.6 times plain attention from a vector, and 9 where each score forms its bucket; learned
    slopes take 550 times, since all scores of a head add their gradients to one number (benchmarks/ATTEND_GPU.md).
    """
    assert isinstance(leaf.encoding, Bias)  # others are refused
    if not is_looked_up(leaf):
        return leaf.encoding.score_mod(leaf.placed, leaf.k_placed)
    low, high = leaf.extremes
    vector = over(leaf.encoding, leaf.placed, torch.arange(low, high + 1, device=leaf.placed.pos.device))
    pos, k_pos = (p.pos if p.seq_dim else p.pos[None] for p in (leaf.placed, leaf.k_placed))
    start = k_pos[:1, :1]  # far positions, which a kernel's 32 bits may not hold
    pos, k_pos = (pos - start).int(), (k_pos - start + low).int()  # no number that a compiler would hold fast

    def mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        row, k_row = (b if t.shape[0] > 1 else 0 * b for t in (pos, k_pos))
        return score + vector[h, pos[row, i] - k_pos[k_row, j]]

    return mod


def is_looked_up(leaf: Leaf) -> bool:
    """Whether a bias is looked up in a vector: it sees whole distances, which are not much more than tokens."""
    if not is_by_distance(leaf) or not is_plain(leaf.placed.pos):
        return False
    low, high = leaf.extremes
    return high - low <= REACH * (leaf.placed.pos.shape[-1] + leaf.k_placed.pos.shape[-1]) + 64


def _keys(call: Call) -> Bool[Tensor, "rows k_len"] | None:
    """Return which keys are shown to all, if the mask says no more than that."""
    mask = call.mask
    if mask is None or mask.dtype != torch.bool or mask.shape[1] > 1 or mask.shape[2] != 1:
        return None
    return mask[:, 0, 0].expand(-1, call.shape[3])


def _ids(call: Call) -> Tensor | None:
    ids = call.document_ids
    return ids if ids is None or ids.ndim == 2 else ids[None]


def hides(call: Call) -> bool:
    """Whether anything hides keys but a mask that joins the scores."""
    return call.causal or call.window is not None or call.document_ids is not None or _keys(call) is not None


def block_mask(call: Call) -> "BlockMask | None":
    """Return the blocks that are seen in part and in whole, from the ends of each, so that no pair is looked at.

    A block that is called seen in part may turn out to be seen by no query: then it is formed for nothing.
    """
    from torch.nn.attention.flex_attention import BlockMask

    if not hides(call):
        return None
    some, full = seen_blocks(call)
    part, whole = _ordered((some & ~full)[:, None]), _ordered(full[:, None])
    return BlockMask.from_kv_blocks(*part, *whole, BLOCK_SIZE=SIZE, mask_mod=mask_mod(call), seq_lengths=call.shape[2:])


def seen_blocks(call: Call) -> tuple[Bool[Tensor, "batch q_blocks k_blocks"], Bool[Tensor, "batch q_blocks k_blocks"]]:
    """Return which blocks may hold a pair that is seen, and in which all are."""
    q_len, k_len, device = *call.shape[2:], call.q.device
    offset = k_len - q_len
    top, left = (torch.arange(0, n, SIZE, device=device) for n in (q_len, k_len))
    bottom, right = ((t + SIZE - 1).clamp(max=n - 1) for t, n in ((top, q_len), (left, k_len)))
    whole = (top + SIZE <= q_len)[:, None] & (left + SIZE <= k_len)
    top, bottom = top[:, None] + offset, bottom[:, None] + offset
    some, full = torch.ones_like(whole)[None], whole[None]
    if call.causal:
        some, full = some & (left <= bottom), full & (right <= top)
    if call.window is not None:
        some, full = some & (right > top - call.window), full & (left > bottom - call.window)
        if not call.causal:
            some, full = some & (left < bottom + call.window), full & (right < top + call.window)
    if (ids := _ids(call)) is not None:
        (low, high), (first, last) = _ends(ids[:, offset:]), _ends(ids)
        low, high, first, last = low[..., None], high[..., None], first[:, None], last[:, None]
        some, full = some & (low <= last) & (first <= high), full & (low == last) & (first == high)
    if (keys := _keys(call)) is not None:
        none, all_ = _ends(keys.to(torch.int8))
        some, full = some & (all_ > 0)[:, None], full & (none > 0)[:, None]
    return some, full


def _ends(t: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and the largest of each block of a row."""
    short = -t.shape[-1] % SIZE
    blocks = torch.cat((t, t[:, -1:].expand(-1, short)), -1).unflatten(-1, (-1, SIZE))
    return blocks.amin(-1), blocks.amax(-1)


def _ordered(seen: Bool[Tensor, "*any columns"]) -> tuple[Int32[Tensor, "*any"], Int32[Tensor, "*any columns"]]:
    """Return how many blocks each row of blocks has, and which ones, in order; what follows them means nothing."""
    which = seen.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return seen.sum(-1, dtype=torch.int32), which.to(torch.int32).contiguous()


def mask_mod(call: Call) -> Mod:
    """Return f(b, h, q_idx, kv_idx): whether a pair is seen.

    Numbers that change from call to call are tensors, since a compiler makes one program for each number.
    """
    causal, ids, keys = call.causal, _ids(call), _keys(call)
    number = torch.full((2,), call.shape[3] - call.shape[2], device=call.q.device)
    if call.window is not None:
        number[1] = call.window
    windowed = call.window is not None

    def mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        here = i + number[0]
        seen = j <= here if causal else j >= 0
        if windowed:
            seen = seen & (j > here - number[1])
            if not causal:
                seen = seen & (j < here + number[1])
        if ids is not None:
            row = b if ids.shape[0] > 1 else 0 * b
            seen = seen & (ids[row, here] == ids[row, j])
        if keys is not None:
            seen = seen & keys[b if keys.shape[0] > 1 else 0 * b, j]
        return seen

    return mod
