"""Scores of a model as they reach its softmax: what multiplies the products of queries and keys, and what is added.

Two texts at the same positions tell the two apart. What is added is the same for both, so their difference is the
scale times the difference of their products, and what is left over after that is the bias.
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN = torch.ops.aten
_PROJECTIONS = (_ATEN.mm, _ATEN.addmm)
_PRODUCTS = (_ATEN.bmm, _ATEN.baddbmm)
_SOFTMAX = (_ATEN._softmax, _ATEN._safe_softmax)
_PLAIN = ("eager", "sdpa")
_HIDDEN = -1e9  # what a mask adds is below
_LANES = 8  # of each side that are looked for among the projections
_SAME = 1e-4
_NUMBER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")


@dataclass(frozen=True)
class Scored:
    """What one attention made of its queries and keys.

    Args:
        name: The module that ran it.
        layer: The first number in its name, -1 where there is none.
        head_dim: Lanes of a head.
        scale: What products of queries and keys, as they were projected, are multiplied by.
        bias: What is added to them, (n_heads, q_len, k_len), float64.
        seen: Which keys a query sees (q_len, k_len).
        linear: How much of the scores is such a scale and such a bias; 1 is all.
    """

    name: str
    layer: int
    head_dim: int
    scale: float
    bias: Tensor
    seen: Tensor
    linear: float


def watch(model: nn.Module, run: Callable[[], Any], tell: Callable[[Scored], None]) -> None:
    """Run a model, and tell of each attention what reached its softmax, in the order of calls.

    Args:
        model: Its attention must run by products and a softmax of torch, without dropout: see `plainly`.
        run: Calls it with two texts, as the rows of one batch, that differ in every token.
        tell: Called with each attention as it runs.
    """
    places: list[str] = []
    with contextlib.ExitStack() as stack, torch.no_grad():
        for name, module in model.named_modules():
            stack.callback(module.register_forward_pre_hook(_enter(places, name)).remove)
            stack.callback(module.register_forward_hook(_leave(places), always_call=True).remove)
        stack.enter_context(_Recorder(places, tell))
        run()


def _enter(places: list[str], name: str) -> Callable[..., None]:
    return lambda _module, _args: places.append(name)


def _leave(places: list[str]) -> Callable[..., None]:
    def leave(_module: nn.Module, _args: Any, _out: Any) -> None:
        places.pop()

    return leave


class _Recorder(TorchDispatchMode):
    """Keep projections and products of the attention that runs, until its softmax comes."""

    def __init__(self, places: list[str], tell: Callable[[Scored], None]) -> None:
        super().__init__()
        self._places, self._tell = places, tell
        self._projected: list[Tensor] = []
        self._products: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and look at it."""
        kind = func.overloadpacket
        if kind in _PRODUCTS:
            a, b = args[-2:] if kind is _ATEN.bmm else args[1:3]
            self._products.append((a.clone(), b.clone()))  # later code may write into them
        elif kind in _SOFTMAX:
            self._scores(args[0])
        out = func(*args, **(kwargs or {}))
        if kind in _PROJECTIONS:
            self._projected = [*self._projected[-7:], out.clone()]
        return out

    def _scores(self, scores: Tensor) -> None:
        found = next((p for p in reversed(self._products) if _numel(*p) == scores.numel()), None)
        self._products = []
        if found is None or scores.dim() != 4 or len(scores) != 2 or not self._places:
            return
        batch, heads, q_len, k_len = scores.shape
        q = found[0].reshape(batch, heads, q_len, -1).double()
        k = found[1].mT.reshape(batch, heads, k_len, -1).double()
        name = next((p for p in reversed(self._places) if p), "")
        number = _NUMBER.search(name)
        scale, bias, seen, linear = _split(scores.double(), q @ k.mT)
        scale *= _factor(q, self._projected) * _factor(k, self._projected)
        self._tell(Scored(name, int(number[1]) if number else -1, q.shape[-1], scale, bias, seen, linear))


def _numel(a: Tensor, b: Tensor) -> int:
    return a.shape[0] * a.shape[1] * b.shape[2]


def _split(scores: Tensor, products: Tensor) -> tuple[float, Tensor, Tensor, float]:
    """Return the scale, the bias, what is seen, and how much of the scores they explain; for two texts."""
    seen = (scores > _HIDDEN).all(0).all(0)
    shown = torch.where(seen, scores, torch.zeros_like(scores))
    change, by = (torch.where(seen, t[0] - t[1], torch.zeros_like(t[0])) for t in (shown, products))
    scale = float((change * by).sum() / by.square().sum().clamp_min(1e-300))
    left = change - scale * by
    linear = 1 - float(left.norm() / change.norm().clamp_min(1e-300))
    return scale, torch.where(seen, (shown - scale * products).mean(0), torch.zeros_like(change)), seen, linear


def _factor(x: Tensor, projected: list[Tensor]) -> float:
    """Return what a projection was multiplied by to be these queries or keys (batch, heads, len, lanes).

    A lane of them is a lane of some projection times a number, whatever lies where; 1 where that is not so.
    """
    lanes = _centred(x.transpose(1, 2).reshape(x.shape[0] * x.shape[2], -1))
    lanes = lanes[:, :: max(1, lanes.shape[1] // _LANES)]
    for out in reversed(projected):
        if len(out) != len(lanes):
            continue
        others = _centred(out.double())
        sizes = others.norm(dim=0).clamp_min(1e-300)
        alike = (lanes.mT @ others) / sizes / lanes.norm(dim=0).clamp_min(1e-300)[:, None]
        most, which = alike.abs().max(1)
        if bool((most > 1 - _SAME).all()):
            factors = (lanes * others[:, which]).sum(0) / sizes[which].square()
            mean = float(factors.mean())
            return mean if bool((factors - mean).abs().max() <= 1e-3 * abs(mean)) else 1.0
    return 1.0


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(0)


@contextlib.contextmanager
def plainly(model: Any) -> Iterator[None]:
    """Let a model of transformers run its attention by products and a softmax, in eval mode; afterwards as before.

    "eager" and "sdpa" stay what they are, since a model may have code for each; others become what it would choose.
    """
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    before = [(c, getattr(c, "_attn_implementation_internal", None)) for c in configs.values()]
    was = model.training
    model.eval()
    for each, now in before:
        if now not in _PLAIN:
            each._attn_implementation_internal = "sdpa" if getattr(model, "_supports_sdpa", False) else "eager"
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        model.train(was)
        for each, now in before:
            each._attn_implementation_internal = now
