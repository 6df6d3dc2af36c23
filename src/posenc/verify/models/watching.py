"""What a model of transformers makes of queries and keys, seen while it runs.

Queries and keys are seen where functions such as `apply_rotary_pos_emb` take and return them, which shows the gain, and
where attention receives them, which is the last word.
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
from torch.nn.attention import SDPBackend, sdpa_kernel

_ROTATES = re.compile(r"_?apply_\w*(rotary|rope)\w*")
_NUMBER = re.compile(r"(?:^|\.)(\d+)$")
_WATCH = "posenc_watch"
_DIVISORS = ("scale_attn", "norm_factor")
_MOST = 1 << 28  # numbers kept of one run


@dataclass(frozen=True)
class Call:
    """Two tensors (batch, heads, seq, head_dim) that one call of a layer has.

    Args:
        layer: Its number, -1 outside of layers.
        a: What a rotating function was given, or the queries of an attention.
        b: What it returned, or the keys.
        scale: What attention multiplies scores by, where it says so.
    """

    layer: int
    a: Tensor
    b: Tensor
    scale: float | None = None


@dataclass
class Seen:
    """What one run showed, in the order of calls; `attended` are attentions, `rotated` calls of rotating functions."""

    rotated: list[Call] = field(default_factory=list)
    attended: list[Call] = field(default_factory=list)
    kept: int = 0

    def keep(self, *tensors: Tensor) -> list[Tensor]:
        """Return copies; later code may write into the tensors."""
        self.kept += sum(t.numel() for t in tensors)
        if self.kept > _MOST:
            raise MemoryError("queries and keys of one run take too much memory")
        return [t.detach().clone() for t in tensors]


def takes(model: Any, name: str) -> bool:
    """Return whether a model's forward has a parameter."""
    return name in inspect.signature(type(model).forward).parameters


@contextlib.contextmanager
def followed(model: nn.Module) -> Iterator[list[tuple[str, int]]]:
    """Give the modules that run, by name and layer, the innermost last."""
    places: list[tuple[str, int]] = [("", -1)]
    with contextlib.ExitStack() as stack:
        for name, module in model.named_modules():

            def enter(_module: nn.Module, _args: Any, name: str = name, own: int | None = _index(name, module)) -> None:
                places.append((name, places[-1][1] if own is None else own))

            def leave(_module: nn.Module, _args: Any, _out: Any) -> None:
                places.pop()

            stack.callback(module.register_forward_pre_hook(enter, prepend=True).remove)
            stack.callback(module.register_forward_hook(leave, always_call=True).remove)
        yield places


def _index(name: str, module: nn.Module) -> int | None:
    """Return the number of a layer: its own, or its place in a list that is not inside another layer."""
    own, found = getattr(module, "layer_idx", None), _NUMBER.search(name)
    return own if isinstance(own, int) else int(found[1]) if found and name.count(".") <= 3 else None


class Watcher:
    """Runs texts through a model whose attention gives zeros, so that layers depend on tokens and not on positions."""

    def __init__(self, model: Any) -> None:
        self._model, self._seen, self._seq, self._inside = model, Seen(), 0, False
        self._places: list[tuple[str, int]] = []

    def run(self, ids: Tensor, pos: Tensor | None) -> Seen:
        """Run texts (batch, seq) at positions (seq,), or at those that the model counts."""
        self._seen, self._seq = Seen(), ids.shape[1]
        given: dict[str, Any] = {} if pos is None else {"position_ids": pos.expand(len(ids), -1).to(ids.device)}
        with torch.no_grad():
            self._model(input_ids=ids, **given, **({"use_cache": False} if takes(self._model, "use_cache") else {}))
        return self._seen

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the model while the block runs; afterwards it is as it was."""
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        with contextlib.ExitStack() as stack:
            self._places = stack.enter_context(followed(self._model))
            for space in self._namespaces():
                for name in [n for n, f in space.items() if _ROTATES.fullmatch(n) and inspect.isfunction(f)]:
                    stack.callback(space.__setitem__, name, space[name])
                    space[name] = self._watched(space[name])
            ALL_MASK_ATTENTION_FUNCTIONS.register(_WATCH, eager_mask)
            ALL_ATTENTION_FUNCTIONS[_WATCH] = self._attend
            stack.callback(ALL_ATTENTION_FUNCTIONS.pop, _WATCH)
            stack.enter_context(attention_by(self._model, lambda _now: _WATCH))
            for module in self._model.modules():
                if inspect.ismethod(getattr(module, "_attn", None)) and "_attn" not in vars(module):
                    vars(module)["_attn"] = functools.partial(self._attend_inside, module)
                    stack.callback(vars(module).pop, "_attn", None)
            yield

    def _namespaces(self) -> list[dict[str, Any]]:
        """Return the globals that the model's own code looks names up in."""
        spaces: dict[int, dict[str, Any]] = {}
        for module in self._model.modules():
            home = sys.modules.get(type(module).__module__)
            own = inspect.unwrap(vars(module).get("forward", type(module).forward))
            for space in (vars(home) if home else None, getattr(getattr(own, "func", own), "__globals__", None)):
                if space is not None and not str(space.get("__name__", "")).startswith("torch."):
                    spaces[id(space)] = space
        return list(spaces.values())

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that records what another one rotates."""

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if self._inside or self._places[-1][1] < 0:  # one that rotates by calling another
                return function(*args, **kwargs)
            given = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor) and t.is_floating_point()]
            before = self._seen.keep(*(t for t in given if t.dim() in (3, 4)))
            self._inside = True
            try:
                out = function(*args, **kwargs)
            finally:
                self._inside = False
            after = [t for t in (out if isinstance(out, tuple | list) else (out,)) if isinstance(t, Tensor)]
            for x, y in zip(before, after, strict=False):
                if x.shape == y.shape and (pair := self._by_heads(x, y)) is not None:
                    self._seen.rotated.append(Call(self._places[-1][1], *self._seen.keep(*pair)))
            return out

        return wrapper

    def _by_heads(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return both as (batch, heads, seq, head_dim), None where no axis is that of the text."""
        if x.dim() == 3:
            x, y = x.unsqueeze(1), y.unsqueeze(1)
        if x.shape[2] == self._seq:
            return x, y
        return (x.transpose(1, 2), y.transpose(1, 2)) if x.shape[1] == self._seq else None

    def _attend(self, module: Any, q: Tensor, k: Tensor, v: Tensor, *_: Any, **named: Any) -> tuple[Tensor, None]:
        """Stand in for attention."""
        index, scale = getattr(module, "layer_idx", None), named.get("scaling")
        if q.dim() == 4 and q.shape[2] == self._seq == k.shape[2]:
            layer = index if isinstance(index, int) else self._places[-1][1]
            known = float(scale) if isinstance(scale, int | float) else None
            self._seen.attended.append(Call(layer, *self._seen.keep(q, k), known))
        return v.new_zeros(q.shape[0], q.shape[2], q.shape[1], v.shape[-1]), None

    def _attend_inside(self, module: Any, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        """Stand in for attention as a method, which keeps (batch, heads, seq, head_dim) and has a divisor."""
        by = next((d for name in _DIVISORS if isinstance(d := getattr(module, name, None), int | float) and d), None)
        out, _nothing = self._attend(module, q, k, v, scaling=None if by is None else 1 / by)
        return out.transpose(1, 2), None


@contextlib.contextmanager
def attention_by(model: nn.Module, choose: Callable[[Any], str]) -> Iterator[None]:
    """Let attention run by another of transformers' functions than now; afterwards it runs as before."""
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    before = [(c, getattr(c, "_attn_implementation_internal", None)) for c in configs.values()]
    try:
        for each, now in before:  # not through the setter, which asks whether a class supports ours
            each._attn_implementation_internal = choose(now)
        yield
    finally:
        for each, now in before:
            each._attn_implementation_internal = now


@contextlib.contextmanager
def plainly(model: Any) -> Iterator[None]:
    """Let a model run its own attention in eval mode; "eager" and "sdpa" stay, as a model may have code for each."""
    own, was = "sdpa" if getattr(model, "_supports_sdpa", False) else "eager", model.training
    model.eval()
    try:
        with attention_by(model, lambda now: now if now in ("eager", "sdpa") else own), sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        model.train(was)
