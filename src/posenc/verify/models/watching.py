"""What a model of transformers makes of queries, keys and scores, seen as they reach its softmax.

Nothing of a model is replaced: functions of torch are watched while it runs, and forward hooks say which module runs.
"""

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

_NUMBER = re.compile(r"(?:^|\.)(\d+)$")
_PRODUCTS = ("matmul", "bmm", "baddbmm")
_OUTPUTS = 12  # of modules that ran last, among which are the projections of queries and keys


@dataclass(frozen=True)
class Attention:
    """One attention of two texts at the same positions.

    Args:
        name: The module that ran it.
        layer: Its number, -1 outside of layers.
        q: Queries (2, n_heads, q_len, head_dim), float64.
        k: Keys, for each head.
        scores: What reached the softmax, (2, n_heads, q_len, k_len); one column more for a sink is left out.
        outputs: What modules returned before, the last one last.
    """

    name: str
    layer: int
    q: Tensor
    k: Tensor
    scores: Tensor
    outputs: list[Tensor]


class _Watcher(TorchFunctionMode):
    """Keeps products of the attention that runs until its softmax comes."""

    def __init__(self, use: Callable[[Attention], None], *, blank: bool) -> None:
        super().__init__()
        self.places: list[tuple[str, int]] = [("", -1)]
        self.outputs: list[Tensor] = []
        self._use, self._blank, self._products = use, blank, list[tuple[Tensor, Tensor]]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch and look at it."""
        name, kwargs = getattr(func, "__name__", "").strip("_"), kwargs or {}
        if name == "softmax":
            scores = args[0] if args else kwargs["input"]
            if self._found(scores) and self._blank:
                return torch.zeros_like(scores)
        elif name == "scaled_dot_product_attention":
            query, key, value, scores = _whole(*args, **kwargs)
            self._products = [(query, key.mT)]
            if self._found(scores) and self._blank:
                return query.new_zeros(*query.shape[:-1], value.shape[-1])
        elif name in _PRODUCTS:
            a, b = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)][-2:]
            if b.dim() > 2:
                self._products.append((a.clone(), b.clone()))  # later code may write into them
        return func(*args, **kwargs)

    def _found(self, scores: Tensor) -> bool:
        """Hand on the attention whose scores these are; return whether it is one."""
        products, self._products = self._products, []
        if scores.dim() != 4 or len(scores) != 2:
            return False
        batch, heads, q_len, k_len = scores.shape
        for a, b in reversed(products):
            n = b.shape[-1]
            if a.shape[-2] == q_len and a.shape[:-1].numel() == batch * heads * q_len and n in (k_len, k_len - 1):
                q, k = a.reshape(batch, heads, q_len, -1), b.mT.reshape(batch, -1, n, b.shape[-2])
                k = k.repeat_interleave(heads // k.shape[1], 1).double()
                self._use(Attention(*self.places[-1], q.double(), k, scores[..., :n].double(), self.outputs))
                return True
        return False


def _whole(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return queries, keys, values and scores of a call of scaled_dot_product_attention."""
    keys = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = query @ keys.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    mask = torch.ones_like(scores, dtype=torch.bool).tril() if is_causal else attn_mask
    if mask is not None:
        scores = scores.where(mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return query, key, value, scores


@contextlib.contextmanager
def watched(model: nn.Module, use: Callable[[Attention], None], *, blank: bool = False) -> Iterator[None]:
    """Watch what runs in the block.

    Args:
        model: Its attention runs by functions of torch; see `plainly`.
        use: Called with each attention.
        blank: Whether attention gives zeros, so that layers depend on tokens and not on positions.
    """
    watcher = _Watcher(use, blank=blank)
    with contextlib.ExitStack() as stack:
        for name, module in model.named_modules():

            def enter(_module: Any, _args: Any, name: str = name, own: int | None = _index(name, module)) -> None:
                watcher.places.append((name, watcher.places[-1][1] if own is None else own))

            def leave(_module: Any, _args: Any, out: Any) -> None:
                watcher.places.pop()
                if isinstance(out, Tensor) and out.is_floating_point():
                    watcher.outputs = [*watcher.outputs[1 - _OUTPUTS :], out.detach().clone()]

            stack.callback(module.register_forward_pre_hook(enter, prepend=True).remove)
            stack.callback(module.register_forward_hook(leave, prepend=True, always_call=True).remove)
        stack.enter_context(torch.no_grad())
        stack.enter_context(watcher)
        yield


def _index(name: str, module: nn.Module) -> int | None:
    """Return the number of a layer: its own, or its place in a list that is not inside another layer."""
    own, found = getattr(module, "layer_idx", None), _NUMBER.search(name)
    return own if isinstance(own, int) else int(found[1]) if found and name.count(".") <= 3 else None


def made_of(x: Tensor, outputs: list[Tensor]) -> tuple[float, Tensor] | None:
    """Return what an output of a module was multiplied by to be columns of queries or keys, and which columns it has.

    Args:
        x: Queries or keys, (batch, len, columns).
        outputs: What modules returned, (batch, len, ...) or (batch, heads, len, head_dim).

    Returns:
        The factor and the columns of that output; None where there is no such output.
    """
    batch, n, _ = x.shape
    columns = _centred(x.flatten(0, 1))
    for out in reversed(outputs):
        rows = out.transpose(1, 2) if out.dim() == 4 and out.shape[2] == n else out
        if rows.dim() < 3 or rows.shape[:2] != (batch, n):
            continue
        others = _centred(rows.flatten(0, 1).flatten(1).double())
        sizes = others.norm(dim=0).clamp_min(1e-300)
        alike = (columns.mT @ others) / sizes / columns.norm(dim=0).clamp_min(1e-300)[:, None]
        most, which = alike.abs().max(1)
        if bool((most > 1 - 1e-4).all()):
            factors = (columns * others[:, which]).sum(0) / sizes[which].square()
            mean = float(factors.mean())
            return (mean, which) if bool((factors - mean).abs().max() <= 1e-3 * abs(mean)) else None
    return None


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(0)


def takes(model: Any, name: str) -> bool:
    """Return whether a model's forward has a parameter."""
    return name in inspect.signature(type(model).forward).parameters


def text(model: nn.Module, tokens: int) -> Tensor:
    """Return two texts (2, tokens) that differ in nearly every token."""
    table = model.get_input_embeddings()  # type: ignore[operator]
    vocab = int(getattr(table, "num_embeddings", 0) or table.weight.shape[0])
    low = min(16, vocab // 2)  # the first ones are often special
    ids = torch.randint(low, vocab, (2, tokens), generator=torch.Generator().manual_seed(0))
    return ids.to(next(model.parameters()).device)


@contextlib.contextmanager
def plainly(model: Any) -> Iterator[None]:
    """Let a model run its attention by functions of torch, in eval mode; afterwards it runs as before.

    "eager" and "sdpa" stay what they are, since a model may have code for each; others become what it would choose.
    """
    own, was = "sdpa" if getattr(model, "_supports_sdpa", False) else "eager", model.training
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    before = [(c, getattr(c, "_attn_implementation_internal", None)) for c in configs.values()]
    model.eval()
    try:
        for each, now in before:  # not through the setter, which refuses what a class does not list
            each._attn_implementation_internal = now if now in ("eager", "sdpa") else own
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        model.train(was)
        for each, now in before:
            each._attn_implementation_internal = now
