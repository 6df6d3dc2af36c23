"""torch's FlexAttention: biases by their `score_mod`, masks as blocks of 128 x 128 tokens that are left out."""

import importlib.util
import os
import shutil
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from posenc.attention.call import Call, mixed
from posenc.attention.flex_mods import SIZE, block_mask, hides, is_looked_up, leaf_mod, score_mod
from posenc.attention.leaves import Leaf
from posenc.attention.spans import Spans, blank
from posenc.attention.whole import grouped
from posenc.encoding import Encoding
from posenc.families import Bias, no_autocast
from posenc.positions.checks import is_plain

SMALL = {"BLOCK_M": 64, "BLOCK_N": 64, "num_stages": 2}  # of the sizes that were tried the fastest for a lookup
NARROW = 16  # lanes that its kernels for GPUs want at least


class Flex:
    """Compiled FlexAttention, for GPUs; on a CPU by name, forwards."""

    name = "flex"

    def rejects(self, call: Call) -> str | None:
        """Refuse devices, dtypes and biases that it cannot run, and gradients that nobody has proved."""
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
    learned = [t for leaf in leaves for t in (*leaf.encoding.parameters(), *pytree.tree_leaves(_placed(leaf)))]
    learns = any(t.requires_grad for t in (*learned, *([] if call.mask is None else [call.mask])))
    trains = learns or any(t.requires_grad for t in (call.q, call.k, call.v))
    if call.q.device.type == "cpu":
        return "FlexAttention has no backward pass on a CPU. Call it under torch.no_grad()." if trains else None
    if named or not trains:
        return None
    if learns:
        return (
            f"{call.encoding.name} learns its bias, whose gradients by FlexAttention nobody has proved here: torch has "
            "open issues about learned tensors in a score_mod. Ask for backend='flex' to have it all the same."
        )
    if call.shape[2] % SIZE or call.shape[3] % SIZE:
        return (
            f"torch has an open issue about NaN in FlexAttention's backward pass where lengths are no multiples of "
            f"{SIZE}; got {call.shape[2]} and {call.shape[3]}. Ask for backend='flex' to have it all the same."
        )
    return None


def _placed(leaf: Leaf) -> tuple[Any, Any]:
    return leaf.placed, leaf.k_placed


def _says_all(encoding: Bias) -> bool:
    """Whether the class that defines the score_mod knows of how the bias is formed: nothing below it is anew."""

    def owner(name: str) -> type:
        return next(cls for cls in type(encoding).__mro__ if name in vars(cls))

    return all(issubclass(owner("score_mod"), owner(door)) for door in ("bias", "_broadcast"))


_TRIED: WeakKeyDictionary[Encoding, str | None] = WeakKeyDictionary()
_FEW = 3  # scores of a trial


def _tried(leaf: Leaf) -> str | None:
    """Run a score_mod on a few scores that are not there, and say why a kernel could not run it on one; or None.

    A kernel runs it score by score, so that all it makes of a score's indices must be one number for each score: it
    can look tables up, and cannot form vectors and sum them.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    assert isinstance(leaf.encoding, Bias)  # others are refused
    name, device = leaf.encoding.name, leaf.placed.pos.device
    with torch.no_grad():
        mod = leaf_mod(leaf)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        score, where = torch.zeros(_FEW, device=device), torch.zeros(_FEW, dtype=torch.int64, device=device)
        indices = [where.clone() for _ in range(4)]
        try:
            with _Watch([score, *indices]) as watch:
                mod(score, *indices)
        except Exception as error:  # of any kind: what stops a trial stops torch's compiler
            return f"{name} has a score_mod that cannot be traced: {type(error).__name__}: {str(error)[:200]}"
    if watch.wide:
        return f"{name} forms vectors for each score ({watch.wide}), and compiled FlexAttention runs on numbers alone."
    return None


class _Watch(TorchDispatchMode):
    """Follow what is made of some tensors, and keep the name of the first operation whose result has another shape."""

    def __init__(self, given: list[Tensor]) -> None:
        super().__init__()
        self.made, self.wide = {id(t): t for t in given}, ""  # tensors are kept, so that no number is given twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if any(id(t) in self.made for t in pytree.tree_leaves((args, kwargs))):
            for t in pytree.tree_leaves(out):
                if isinstance(t, Tensor):
                    self.made[id(t)] = t
                    if t.shape != (_FEW,) and not self.wide:
                        self.wide = str(func)
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
    """Zero slots that nobody sees, where there may be some: a kernel multiplies them with zero, and 0 times NaN is NaN.

    Where keys are as many as queries, a causal mask, windows and documents show each key to its own query.
    """
    if call.mask is None and call.shape[2] == call.shape[3]:
        return call
    return blank(call, [Spans(call)])
