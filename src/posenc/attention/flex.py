"""torch's FlexAttention: biases by their `score_mod`, or looked up in a vector over distances."""

import importlib.util
import os
import shutil
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from posenc.attention import flex_masks
from posenc.attention.call import Call, mixed, shown, widened
from posenc.attention.distances import over
from posenc.attention.leaves import Leaf, is_by_distance, knows
from posenc.attention.spans import Spans, blank
from posenc.attention.whole import grouped
from posenc.encoding import Encoding
from posenc.families import Bias, no_autocast
from posenc.placed import tensors
from posenc.positions.checks import is_plain
from posenc.private import is_wrapped

SMALL = {"BLOCK_M": 64, "BLOCK_N": 64, "num_stages": 2}  # of the sizes that were tried the fastest for a lookup
NARROW = 16  # numbers of a row that its kernels for GPUs want at least
FEW = 3  # scores of a trial

Mod = Callable[..., Tensor]


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
        blocks, what = 0, flex_masks.hidden(call)
        if what is not None:
            rows = max(1 if t is None else len(t) for t in (what.ids, what.keys))
            blocks = 16 * rows * -(-q_len // what.size) * -(-k_len // what.size)
        copied = call.mask is not None or call.window is not None or call.document_ids is not None
        width = n_heads * q_len * call.q.shape[-1] + call.k.shape[1] * k_len * (call.k.shape[-1] + call.v.shape[-1])
        return blocks + (batch * width * call.out_dtype.itemsize if copied else 0)

    def run(self, call: Call) -> Tensor:
        """Compute the call."""
        # what its kernel for CPUs makes has no gradient, and tensors that could want one are refused at its door
        on_cpu = call.q.device.type == "cpu"
        with no_autocast(call.q.device), torch.set_grad_enabled(torch.is_grad_enabled() and not on_cpu):
            call = _blanked(call)
            q, k, v = (widened(t.detach() if on_cpu else t, NARROW) for t in call.given())
            options: dict[str, Any] = {
                "kernel_options": None if on_cpu or not any(map(is_looked_up, call.leaves)) else SMALL,
                "score_mod": score_mod(call),
                "block_mask": flex_masks.block_mask(call),
                "scale": call.scale,
                "enable_gqa": grouped(call),
            }
            out: Tensor = _compiled(_kind(call), on_cpu)(q, k, v, **options)
            return out[..., : call.v.shape[-1]]


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
    if is_looked_up(leaf):
        return None
    if not knows(encoding, "score_mod", "bias", "_broadcast"):
        return f"{encoding.name} defines its bias anew, and not the score_mod."
    if encoding not in _TRIED:
        _TRIED[encoding] = _tried(leaf)
    return _TRIED[encoding]


_TRIED: WeakKeyDictionary[Encoding, str | None] = WeakKeyDictionary()


def _tried(leaf: Leaf) -> str | None:
    """Run a score_mod on a few scores, and say why a kernel could not run it on one; or None.

    A kernel runs it score by score, so that all it makes of a score's indices must be one number for each score: it
    can look tables up, and can neither form vectors and sum them nor read a number.
    """
    name, device = leaf.encoding.name, leaf.placed.pos.device
    given = [torch.zeros(FEW, device=device), *(torch.zeros(FEW, dtype=torch.int64, device=device) for _ in range(4))]
    try:
        with torch.no_grad(), _Watch() as watch:
            torch.func.vmap(leaf_mod(leaf))(*given)
    except Exception as error:  # of any kind: what stops a trial stops torch's compiler
        return f"{name} has a score_mod that cannot be traced: {type(error).__name__}: {str(error)[:200]}"
    if watch.wide:
        return f"{name} forms vectors for each score ({watch.wide}), and compiled FlexAttention runs on numbers alone."
    return None


class _Watch(TorchFunctionMode):
    """Keep the name of the first operation within vmap that makes more than one number of a score."""

    wide = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not self.wide and any(t.ndim and is_wrapped(t) for t in tensors(out)):
            self.wide = str(getattr(func, "__name__", func))
        return out


def _refuses_gradients(call: Call, leaves: list[Leaf], named: bool) -> str | None:
    """Say why a backward pass is not to be had, or None if it is, or nothing wants one."""
    if not torch.is_grad_enabled():
        return None
    placed = [(leaf.placed, leaf.k_placed) for leaf in leaves]
    learned = [*(p for leaf in leaves for p in leaf.encoding.parameters()), *tensors(placed)]
    learns = any(t.requires_grad for t in (*learned, *([] if call.mask is None else [call.mask])))
    rotates = *call.encoding.parameters(), *tensors((call.placed, call.k_placed))  # q, k and v, perhaps as it learned
    trains = learns or any(t.requires_grad for t in (call.q, call.k, call.v, *rotates))
    if call.q.device.type == "cpu":
        return "FlexAttention has no backward pass on a CPU. Call it under torch.no_grad()." if trains else None
    if named or not trains:
        return None
    if learns:
        return (
            f"{call.encoding.name} learns its bias, whose gradients by FlexAttention are not tested here: torch has "
            "open issues about learned tensors in a score_mod. Ask for backend='flex' to have it all the same."
        )
    if call.shape[2] % flex_masks.SIZE or call.shape[3] % flex_masks.SIZE:
        return (
            f"torch has an open issue about NaN in FlexAttention's backward pass where lengths are no multiples of "
            f"{flex_masks.SIZE}; got {call.shape[2]} and {call.shape[3]}. "
            "Ask for backend='flex' to have it all the same."
        )
    return None


def _compiler() -> str | None:
    """Return the C++ compiler that torch would call, or None."""
    return next(filter(shutil.which, [os.environ.get("CXX", ""), "g++", "clang++"]), None)


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
    mask = call.mask if flex_masks.shown_keys(call) is None else None
    if not mods and mask is None:
        return None

    def mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        found = score.float()  # a kernel has it so, and in half precision what is added would be rounded
        for one in mods:
            found = one(found, b, h, i, j)
        if mask is not None:
            # not the number 0: torch 2.9 reads an index of numbers and tensors at once, which no kernel can
            entry = mask[tuple([at if n > 1 else 0 * at for at, n in zip((b, h, i, j), mask.shape, strict=True)])]
            seen = found if mask.dtype == torch.bool else found + entry
            found = torch.where(shown(entry), seen, -torch.inf)  # a key of NaN reaches no row that does not see it
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
    return is_by_distance(leaf) and is_plain(leaf.placed.pos) and leaf.is_near
