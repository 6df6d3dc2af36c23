"""Observe queries, keys and scores of a transformers model as they reach its softmax.

Nothing of a model is replaced: torch functions are observed while it runs, and forward hooks name the running module.
"""

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from posenc.config.model import Model

_NUMBER = re.compile(r"(?:^|\.)(\d+)$")
_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")  # of scaled_dot_product_attention
_PRODUCTS = ("matmul", "bmm", "baddbmm")
LEAST, TOKENS = 16, 256  # tokens of a text for a check of layers
_UNKNOWN = 8192  # positions if a file declares no limit
_OUTPUTS = 12  # of the last modules, which include the projections of queries and keys


@dataclass(frozen=True)
class Attention:
    """One attention of two texts at the same positions."""

    name: str  # of the module that ran it
    layer: int  # -1 outside of layers
    q: Tensor  # (2, n_heads, q_len, head_dim), float64
    k: Tensor  # for each head
    scores: Tensor  # (2, n_heads, q_len, k_len), as they reach the softmax, without the column of a sink
    outputs: list[Tensor]  # outputs of modules before it, in order


class Watched(TorchFunctionMode):
    """Call `use` with each attention in the block; `blank`: attention returns zeros, so layers see no positions."""

    def __init__(self, model: nn.Module, use: Callable[[Attention], None], *, blank: bool = False) -> None:
        super().__init__()
        self._names = {module: name for name, module in model.named_modules()}
        self._use, self._blank, self._products = use, blank, list[tuple[Tensor, Tensor]]()
        self._places: list[tuple[str, int]] = [("", -1)]
        self._outputs: list[Tensor] = []

    def __enter__(self) -> Self:
        self._hooks = (
            register_module_forward_pre_hook(self._start),
            register_module_forward_hook(self._end, always_call=True),
        )
        found: Self = super().__enter__()
        return found

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for hook in self._hooks:
            hook.remove()

    def _start(self, module: nn.Module, _args: Any) -> None:
        """Keep the name of a module that starts, and the number of the layer that contains it."""
        name = self._names.get(module, "")
        own, found = getattr(module, "layer_idx", None), _NUMBER.search(name)
        if not isinstance(own, int):  # its place in a list that is not inside another layer
            own = int(found[1]) if found and name.count(".") <= 3 else self._places[-1][1]
        self._places.append((name, own))

    def _end(self, _module: nn.Module, _args: Any, out: Any) -> None:
        self._places.pop()
        if isinstance(out, Tensor) and out.is_floating_point():
            self._outputs = [*self._outputs[1 - _OUTPUTS :], out.detach().clone()]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a torch function and observe it."""
        name, kwargs = getattr(func, "__name__", "").strip("_"), kwargs or {}
        if name == "softmax":
            scores = args[0] if args else kwargs["input"]
            if self._found(scores) and self._blank:
                return torch.zeros_like(scores)
        elif name == "scaled_dot_product_attention":
            given = dict(zip(_ARGUMENTS, args, strict=False)) | kwargs
            self._products = [(given["query"], given["key"].mT)]
            if self._found(_scores(given)) and self._blank:
                return torch.zeros_like(func(*args, **kwargs))
        elif name in _PRODUCTS:
            a, b = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)][-2:]
            if b.dim() > 2:
                self._products.append((a.clone(), b.clone()))  # later code may write to them
        return func(*args, **kwargs)

    def _found(self, scores: Tensor) -> bool:
        """Pass on the attention of these scores, if there is one; return whether there is."""
        products, self._products = self._products, []
        if scores.dim() != 4 or len(scores) != 2:
            return False
        batch, heads, q_len, k_len = scores.shape
        for a, b in reversed(products):
            n = b.shape[-1]
            if a.shape[-2] == q_len and a.shape[:-1].numel() == batch * heads * q_len and n in (k_len, k_len - 1):
                q, k = a.reshape(batch, heads, q_len, -1), b.mT.reshape(batch, -1, n, b.shape[-2])
                k = k.repeat_interleave(heads // k.shape[1], 1).double()
                self._use(Attention(*self._places[-1], q.double(), k, scores[..., :n].double(), self._outputs))
                return True
        return False


def _scores(given: Mapping[str, Any]) -> Tensor:
    """Return the scores of a call of scaled_dot_product_attention."""
    query, key, mask = given["query"], given["key"], given.get("attn_mask")
    scale = given.get("scale")
    keys = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores: Tensor = query @ keys.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if given.get("is_causal"):
        mask = torch.ones_like(scores, dtype=torch.bool).tril()
    if mask is None:
        return scores
    return scores.where(mask, -torch.inf) if mask.dtype == torch.bool else scores + mask


def made_of(x: Tensor, outputs: list[Tensor]) -> tuple[float, Tensor] | None:
    """Return the factor and the columns of the module output that x (batch, len, columns) comes from."""
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


def run(model: Any, given: Mapping[str, Any], **optional: Any) -> Any:
    """Run a model with some arguments, and with those optional ones that it accepts and that are not None."""
    more = {key: value for key, value in optional.items() if value is not None and takes(model, key)}
    return model(**given, **more)


def room_of(opened: Model) -> int:
    """Return how many positions a configuration allows."""
    sizes = (opened.size("max_len"), opened.fields.get("n_ctx"))
    return min((size for size in sizes if isinstance(size, int) and size > 0), default=_UNKNOWN)


def text(model: nn.Module, tokens: int) -> Tensor:
    """Return two texts (2, tokens) that differ in nearly every token."""
    table = model.get_input_embeddings()  # type: ignore[operator]
    vocab = int(getattr(table, "num_embeddings", 0) or table.weight.shape[0])
    low = min(16, vocab // 2)  # the first ones are often special
    ids = torch.randint(low, vocab, (2, tokens), generator=torch.Generator().manual_seed(0))
    return ids.to(next(model.parameters()).device)


@contextlib.contextmanager
def plainly(model: Any) -> Iterator[None]:
    """Let a model run its attention by torch functions, in eval mode; restore it afterwards.

    "eager" and "sdpa" are kept, since a model may have code for each; others become transformers' default.
    """
    own = "sdpa" if getattr(model, "_supports_sdpa", False) else "eager"
    key = "_attn_implementation_internal"  # not through its setter, which refuses values that a class does not list
    with contextlib.ExitStack() as stack:
        stack.callback(model.train, model.training)
        model.eval()
        for each in {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}.values():
            now = getattr(each, key, None)
            stack.enter_context(mock.patch.object(each, key, now if now in ("eager", "sdpa") else own, create=True))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(torch.no_grad())
        yield
