"""Queries and keys of a model of transformers, before and after each layer turns them.

They are seen in two places: where functions such as `apply_rotary_pos_emb` take and return them, and where attention
receives them. The second is the last word, and the first shows the gain, which is the same at all positions.
"""

import contextlib
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

_TURNS = re.compile(r"_?apply_\w*(rotary|rope)\w*")
_NUMBER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")
_WATCH = "posenc_watch"
_DIVISORS = ("scale_attn", "norm_factor")
_MOST = 1 << 28  # numbers kept of one run


@dataclass(frozen=True)
class Turned:
    """What one call of a function that turns was given and returned, both (batch, heads, seq, lanes)."""

    layer: int
    before: Tensor
    after: Tensor


@dataclass(frozen=True)
class Attended:
    """What one attention received, (batch, heads, seq, head_dim), and what it multiplies scores by, if told."""

    layer: int
    q: Tensor
    k: Tensor
    scaling: float | None = None


@dataclass
class Seen:
    """What one run showed, in the order of calls."""

    turned: list[Turned] = field(default_factory=list)
    attended: list[Attended] = field(default_factory=list)
    _layers: list[int] = field(default_factory=list)
    _seq: int = 0
    _kept: int = 0

    def keep(self, *tensors: Tensor) -> list[Tensor]:
        """Return copies; later code may write into the tensors."""
        self._kept += sum(t.numel() for t in tensors)
        if self._kept > _MOST:
            raise MemoryError("queries and keys of one run take too much memory")
        return [t.detach().clone() for t in tensors]


_NOW: list[Seen] = []  # the run that is watched, the innermost last


def takes_positions(model: nn.Module) -> bool:
    """Whether positions can be given to a model."""
    return "position_ids" in inspect.signature(type(model).forward).parameters


def run(model: nn.Module, ids: Tensor, pos: Tensor | None) -> Seen:
    """Run a text through a model that is watched.

    Args:
        model: A bare model of transformers.
        ids: Tokens (batch, seq).
        pos: Positions (batch, seq), or None to let the model count.
    """
    seen = Seen(_seq=ids.shape[1])
    given = {} if pos is None else {"position_ids": pos}
    if "use_cache" in inspect.signature(type(model).forward).parameters:
        given["use_cache"] = False  # type: ignore[assignment]
    _NOW.append(seen)
    try:
        with torch.no_grad():
            model(input_ids=ids, **given)
    finally:
        _NOW.pop()
    return seen


@contextlib.contextmanager
def watched(model: nn.Module) -> Iterator[None]:
    """Watch a model while the block runs; afterwards it is as it was."""
    with contextlib.ExitStack() as stack:
        _follow_layers(model, stack)
        for space in _namespaces(model):
            for name in [n for n, f in space.items() if _TURNS.fullmatch(n) and inspect.isfunction(f)]:
                stack.callback(space.__setitem__, name, space[name])
                space[name] = _watching(space[name])
        _stand_in(model, stack)
        yield


def _namespaces(model: nn.Module) -> list[dict[str, Any]]:
    """Return the globals that the model's own code looks names up in."""
    spaces: dict[int, dict[str, Any]] = {}
    for module in model.modules():
        home = sys.modules.get(type(module).__module__)
        own = inspect.unwrap(vars(module).get("forward", type(module).forward))
        own = getattr(own, "func", own)
        for space in (vars(home) if home else None, getattr(own, "__globals__", None)):
            if space is not None and not str(space.get("__name__", "")).startswith("torch."):
                spaces[id(space)] = space
    return list(spaces.values())


def _follow_layers(model: nn.Module, stack: contextlib.ExitStack) -> None:
    for name, module in model.named_modules():
        if (index := _index(name, module)) is None:
            continue

        def enter(_module: nn.Module, _args: Any, index: int = index) -> None:
            if _NOW:
                _NOW[-1]._layers.append(index)

        def leave(_module: nn.Module, _args: Any, _out: Any) -> None:
            if _NOW and _NOW[-1]._layers:
                _NOW[-1]._layers.pop()

        stack.callback(module.register_forward_pre_hook(enter, prepend=True).remove)
        stack.callback(module.register_forward_hook(leave, always_call=True).remove)


def _index(name: str, module: nn.Module) -> int | None:
    told = getattr(module, "layer_idx", None)
    if isinstance(told, int):
        return told
    found = _NUMBER.search(name)
    # only modules right under a list count: those inside them are reached through it
    return int(found[1]) if found and name.endswith(found[1]) and name.count(".") <= 3 else None


def _watching(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that records what another turns."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not _NOW or not _NOW[-1]._layers:
            return function(*args, **kwargs)
        seen = _NOW[-1]
        if seen._layers[-1] < 0:  # one that turns by calling another
            return function(*args, **kwargs)
        given = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor) and t.is_floating_point()]
        before = [(t, *seen.keep(t)) for t in given if t.dim() in (3, 4)]
        layer = seen._layers[-1]
        seen._layers.append(-1)
        try:
            out = function(*args, **kwargs)
        finally:
            seen._layers.pop()
        turned = [t for t in (out if isinstance(out, tuple | list) else (out,)) if isinstance(t, Tensor)]
        for (_, x), y in zip(before, turned, strict=False):
            if x.shape == y.shape and (pair := _laid(x, y, seen._seq)) is not None:
                seen.turned.append(Turned(layer, *seen.keep(*pair)))
        return out

    return wrapper


def _laid(x: Tensor, y: Tensor, n: int) -> tuple[Tensor, Tensor] | None:
    """Return both as (batch, heads, seq, lanes), None where no axis is that of the text."""
    if x.dim() == 3:
        x, y = x.unsqueeze(1), y.unsqueeze(1)
    if x.shape[2] == n:
        return x, y
    return (x.transpose(1, 2), y.transpose(1, 2)) if x.shape[1] == n else None


def _attend(module: Any, q: Tensor, k: Tensor, v: Tensor, *_: Any, **named: Any) -> tuple[Tensor, None]:
    """Stand in for attention: what reaches the next layer does not depend on positions."""
    if _NOW:
        seen = _NOW[-1]
        index = getattr(module, "layer_idx", None)
        layer = index if isinstance(index, int) else seen._layers[-1] if seen._layers else -1
        if q.dim() == 4 and q.shape[2] == seen._seq == k.shape[2]:
            scaling = named.get("scaling")
            told = float(scaling) if isinstance(scaling, int | float) else None
            kept_q, kept_k = seen.keep(q, k)
            seen.attended.append(Attended(layer, kept_q, kept_k, told))
    return v.new_zeros(q.shape[0], q.shape[2], q.shape[1], v.shape[-1]), None


def _attend_inside(module: Any, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    """The same for attention as a method, which keeps (batch, heads, seq, lanes) and divides by a number of its own."""
    by = next((d for name in _DIVISORS if isinstance(d := getattr(module, name, None), int | float) and d), None)
    out, _nothing = _attend(module, q, k, v, scaling=None if by is None else 1 / by)
    return out.transpose(1, 2), None


def _stand_in(model: Any, stack: contextlib.ExitStack) -> None:
    """Put ours in place of the attention, where a model hands it out."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(_WATCH, _attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(_WATCH, eager_mask)
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    before = [(c, getattr(c, "_attn_implementation_internal", None)) for c in configs.values()]

    def restore() -> None:
        for each, was in before:
            each._attn_implementation_internal = was

    stack.callback(restore)
    for each in configs.values():  # not through the setter, which asks whether a class supports ours
        each._attn_implementation_internal = _WATCH
    for module in model.modules():
        if inspect.ismethod(getattr(module, "_attn", None)) and "_attn" not in vars(module):
            vars(module)["_attn"] = functools.partial(_attend_inside, module)
            stack.callback(vars(module).pop, "_attn", None)
