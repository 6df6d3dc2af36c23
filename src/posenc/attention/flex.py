"""torch's FlexAttention: biases as a `score_mod`, or looked up in a vector over distances."""

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
from posenc.attention.call import Call, grouped, mixed, visible, widened
from posenc.attention.distances import over
from posenc.attention.leaves import Leaf, is_by_distance
from posenc.attention.spans import Spans, blank
from posenc.encoding import Encoding
from posenc.families import Bias, no_autocast
from posenc.families.bias import keeps_promise
from posenc.placed import tensors
from posenc.positions.checks import is_plain
from posenc.private import is_wrapped

SMALL = {"BLOCK_M": 64, "BLOCK_N": 64, "num_stages": 2}  # the fastest sizes tried for a lookup
NARROW = 16  # the smallest head dimension that the GPU kernels support
FEW = 3  # scores of a trial

Mod = Callable[..., Tensor]


class Flex:
    """Compiled FlexAttention for GPUs; on a CPU only if named, and only its forward pass."""

    name = "flex"

    def rejects(self, call: Call) -> str | None:
        """Refuse devices, dtypes and biases that FlexAttention cannot run, and gradients that are not tested."""
        named = call.backend == self.name
        if (reason := mixed(call) or _refuses_place(call, named)) is not None:
            return reason
        if call.dropout_p:
            return "FlexAttention has no dropout."
        if call.out_dtype not in (torch.float32, torch.bfloat16, torch.float16):
            return f"FlexAttention computes scores in float32, which is less precise than {call.out_dtype}."
        if 0 in (*call.q.shape, *call.k.shape, *call.v.shape):
            return "there is nothing to compile for tensors without elements."
        if call.encoding.rescores:
            return f"{call.encoding.name} maps whole rows of scores to new ones, but a score_mod sees one score."
        leaves = call.leaves
        if (reason := next((r for leaf in leaves if (r := _refuses_bias(leaf)) is not None), None)) is not None:
            return reason
        return _refuses_gradients(call, leaves, named)

    def memory(self, call: Call) -> int:
        """Estimate the four tables of a block mask, and the copies in which unseen slots are zero."""
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
        # the CPU kernel has no gradient, and raises an error for tensors that require one
        on_cpu = call.q.device.type == "cpu"
        with no_autocast(call.q.device), torch.set_grad_enabled(torch.is_grad_enabled() and not on_cpu):
            call = _blanked(call)
            q, k, v = (widened(t.detach() if on_cpu else t, NARROW) for t in call.operands())
            options: dict[str, Any] = {
                "kernel_options": None if on_cpu or not any(map(is_looked_up, call.leaves)) else SMALL,
                "score_mod": score_mod(call),
                "block_mask": flex_masks.block_mask(call),
                "scale": call.scale,
                "enable_gqa": grouped(call.q, call.k),
            }
            out: Tensor = _compiled(_kind(call), on_cpu)(q, k, v, **options)
            return out[..., : call.v.shape[-1]]


def _refuses_place(call: Call, named: bool) -> str | None:
    """Return why FlexAttention does not run on the tensors' device, or None."""
    device = call.q.device.type
    if not is_plain(call.q):
        return "this backend compiles FlexAttention itself, so it cannot run within a compiler or a transform."
    if device == "cpu" and not named:
        return (
            "on a CPU FlexAttention has no backward pass and takes seconds to compile; the backend 'blocked' is "
            "faster. Pass backend='flex' to run it anyway."
        )
    if device not in ("cpu", "cuda"):
        return f"FlexAttention is not tested on {device}."
    if device == "cpu" and not _compiler():
        return "without a C++ compiler FlexAttention forms all scores on a CPU. Install g++, or use another backend."
    if device == "cuda" and importlib.util.find_spec("triton") is None:
        return "without Triton FlexAttention forms all scores on a GPU. Install triton, or use another backend."
    return None


def _refuses_bias(leaf: Leaf) -> str | None:
    """Return why a bias cannot be a score_mod, or None."""
    encoding = leaf.encoding
    if not isinstance(encoding, Bias):
        return f"{encoding.name} reads whole queries and keys, but a score_mod sees one score."
    if is_looked_up(leaf):
        return None
    if not keeps_promise(encoding, "score_mod", "bias", "_broadcast"):
        return f"{encoding.name} overrides its bias but not its score_mod."
    if encoding not in _TRIED:
        _TRIED[encoding] = _tried(leaf)
    return _TRIED[encoding]


_TRIED: WeakKeyDictionary[Encoding, str | None] = WeakKeyDictionary()


def _tried(leaf: Leaf) -> str | None:
    """Run a score_mod on a few scores; return why a kernel could not run it, or None.

    A kernel runs it for each score, so every intermediate result must be one number for each score. It may look values
    up in tables, but may not form and sum vectors, nor read a value into Python.
    """
    name, device = leaf.encoding.name, leaf.placed.pos.device
    given = [torch.zeros(FEW, device=device), *(torch.zeros(FEW, dtype=torch.int64, device=device) for _ in range(4))]
    try:
        with torch.no_grad(), _Watch() as watch:
            torch.func.vmap(leaf_mod(leaf))(*given)
    except Exception as error:  # any error in the trial would also stop torch's compiler
        return f"{name} has a score_mod that cannot be traced: {type(error).__name__}: {str(error)[:200]}"
    if watch.wide:
        return f"{name} forms vectors for each score ({watch.wide}), but compiled FlexAttention supports only numbers."
    return None


class _Watch(TorchFunctionMode):
    """Record the first operation within vmap that returns more than one number for each score."""

    wide = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not self.wide and any(t.ndim and is_wrapped(t) for t in tensors(out)):
            self.wide = str(getattr(func, "__name__", func))
        return out


def _refuses_gradients(call: Call, leaves: list[Leaf], named: bool) -> str | None:
    """Return why there is no backward pass, or None if there is one or none is needed."""
    if not torch.is_grad_enabled():
        return None
    placed = [(leaf.placed, leaf.k_placed) for leaf in leaves]
    learned = [*(p for leaf in leaves for p in leaf.encoding.parameters()), *tensors(placed)]
    learns = any(t.requires_grad for t in (*learned, *([] if call.mask is None else [call.mask])))
    # a learned rotation gives q, k and v gradients
    rotates = *call.encoding.parameters(), *tensors((call.placed, call.k_placed))
    trains = learns or any(t.requires_grad for t in (call.q, call.k, call.v, *rotates))
    if call.q.device.type == "cpu":
        return "FlexAttention has no backward pass on a CPU. Call it under torch.no_grad()." if trains else None
    if named or not trains:
        return None
    if learns:
        return (
            f"gradients of a learned bias or mask through FlexAttention are not tested, here with "
            f"{call.encoding.name}: torch has open issues about learned tensors in a score_mod. "
            "Pass backend='flex' to run it anyway."
        )
    if call.shape[2] % flex_masks.SIZE or call.shape[3] % flex_masks.SIZE:
        return (
            f"torch has an open issue about NaN in FlexAttention's backward pass where lengths are not multiples of "
            f"{flex_masks.SIZE}; got {call.shape[2]} and {call.shape[3]}. "
            "Pass backend='flex' to run it anyway."
        )
    return None


def _compiler() -> str | None:
    """Return the C++ compiler that torch would call, or None."""
    return next(filter(shutil.which, [os.environ.get("CXX", ""), "g++", "clang++"]), None)


def _kind(call: Call) -> str:
    """Return a key for the program of a call. On a GPU it leaves out shapes, since a few programs serve all of them."""
    mask = None if call.mask is None else (call.mask.dtype, [n > 1 for n in call.mask.shape])
    masks = call.causal, call.window is None, call.document_ids is None, mask
    shapes = (call.q.shape, call.k.shape) if call.q.device.type == "cpu" else None
    leaves = [(str(leaf.encoding), is_looked_up(leaf)) for leaf in call.leaves]
    return f"{leaves}, {masks}, {call.q.dtype}, {shapes}"


@lru_cache(maxsize=64)
def _compiled(kind: str, on_cpu: bool) -> Callable[..., Tensor]:
    """Return compiled FlexAttention, one function for each kind of call.

    Each kind has its own code object, because torch stops compiling a code object after too many versions; fullgraph
    makes that an error instead of a fallback that forms all scores. On a GPU, lengths become symbolic when a second one
    occurs. On a CPU they stay constant, since torch 2.13's CPU code confuses the names of many symbolic lengths.
    """
    from torch.nn.attention.flex_attention import flex_attention

    def attention(*args: Any, **options: Any) -> Any:
        return flex_attention(*args, **options)

    attention.__code__ = attention.__code__.replace()  # a copy
    compiled: Callable[..., Tensor] = torch.compile(attention, fullgraph=True, dynamic=False if on_cpu else None)
    return compiled


def _blanked(call: Call) -> Call:
    """Zero slots that no query sees, since 0 times NaN is NaN.

    With as many keys as queries and no mask, each key is seen at least by its own query.
    """
    if call.mask is None and call.shape[2] == call.shape[3]:
        return call
    return blank(call, [Spans(call)])


def score_mod(call: Call) -> Mod | None:
    """Return f(score, b, h, q_idx, kv_idx): all biases, and a mask that depends on more than the key."""
    mods = [leaf_mod(leaf) for leaf in call.leaves]
    mask = call.mask if flex_masks.allowed_keys(call) is None else None
    if not mods and mask is None:
        return None

    def mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        found = score.float()  # the kernel's dtype; half precision would round the biases
        for one in mods:
            found = one(found, b, h, i, j)
        if mask is not None:
            # 0 * at, not 0: torch 2.9 reads the values of an index of numbers and tensors, which a kernel cannot do
            entry = mask[tuple([at if n > 1 else 0 * at for at, n in zip((b, h, i, j), mask.shape, strict=True)])]
            seen = found if mask.dtype == torch.bool else found + entry
            found = torch.where(visible(entry), seen, -torch.inf)  # so a NaN score reaches no row that does not see it
        return found.float()  # float64 positions make a float64 bias

    return mod


def leaf_mod(leaf: Leaf) -> Mod:
    """Return the score_mod of one encoding: a lookup in a vector over distances, or the encoding's own `score_mod`.

    On a GPU, T5's bias takes 3.6 times as long as plain attention if looked up, and 9 times if each score computes its
    bucket. Learned slopes take 550 times as long, since all scores of a head add their gradients to one number
    (benchmarks/ATTEND_GPU.md).
    """
    assert isinstance(leaf.encoding, Bias)  # all others are refused
    if not is_looked_up(leaf):
        return leaf.encoding.score_mod(leaf.placed, leaf.k_placed)
    low, high = leaf.extremes
    vector = over(leaf.encoding, leaf.placed, torch.arange(low, high + 1, device=leaf.placed.pos.device))
    pos, k_pos = (p.pos if p.seq_dim else p.pos[None] for p in (leaf.placed, leaf.k_placed))
    start = k_pos[:1, :1]  # subtracted, since large positions may not fit a kernel's 32 bits
    pos, k_pos = (pos - start).int(), (k_pos - start + low).int()  # tensors, since a compiler specialises on numbers

    def mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        row, k_row = (b if t.shape[0] > 1 else 0 * b for t in (pos, k_pos))
        return score + vector[h, pos[row, i] - k_pos[k_row, j]]

    return mod


def is_looked_up(leaf: Leaf) -> bool:
    """Whether a bias is looked up in a vector: it depends on integer distances that span few more than the tokens."""
    return is_by_distance(leaf) and is_plain(leaf.placed.pos) and leaf.is_near
