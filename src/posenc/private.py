"""All uses of torch's private names, each with its reason and the fallback without it.

- The attention kernel for the CPU (`attention_forward`, `attention_backward`). `scaled_dot_product_attention` runs it
  but does not return the log-sum-exp, without which a backward pass would have to attend again. In releases of torch
  without these operators `has_attention` is False, and scores are formed.
- Whether a tensor or a call is within a transform of `torch.func` (`is_wrapped`, `within_transform`), where no value
  can be read and no memory written. Without them any tensor class except Tensor and Parameter counts as wrapped.
- Whether a dispatch mode is active (`is_watched`), such as that of `make_fx` (`is_recorded`). Modes that count, fake or
  record operations need a rotation made of torch operations. Without it they do not see the rotation of a kernel, whose
  results are the same.
- Each operation as it runs, with its result (`watching`), which no public mode offers below Python functions. Without
  it `watching` raises an error, and the measured properties of an encoding lack its cost.
- Whether a length is a number or a compiler's symbol (`is_known`), which a compiler hides from `isinstance`. Without it
  attention in a graph is traced as one block, as for symbolic lengths.
- Classes whose tensors exporters and transforms find (`register_pytree`). Without it torch's public registration for
  exporters makes every field an input, including numbers, which transforms then treat as tensors.
- The parameters of a module by name and place (`shared_copy`), since `copy.copy` shares the dictionaries of parameters.
"""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from posenc.versions import READS_STRIDES, SHARES_KEYS

_NAME = "_scaled_dot_product_flash_attention_for_cpu"
_forward: Callable[..., Any] | None = getattr(torch.ops.aten, _NAME, None)
_backward: Callable[..., Any] | None = getattr(torch.ops.aten, f"{_NAME}_backward", None)
_functorch: Any = getattr(torch._C, "_functorch", None)
_dispatch_modes: list[Callable[[], int] | None] = [
    getattr(torch._C, "_len_torch_dispatch_stack", None),
    getattr(torch._ops, "_len_torch_dispatch_stack_pre_dispatch", None),
]
_Mode: Any = getattr(getattr(torch.utils, "_python_dispatch", None), "TorchDispatchMode", None)
_pytree: Any = getattr(torch.utils, "_pytree", None)
_Module = TypeVar("_Module", bound=nn.Module)


def has_attention() -> bool:
    """Whether torch has its attention kernel for the CPU under the known names."""
    return _forward is not None and _backward is not None


def attention_forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Return the attention of queries (batch, n_heads, q_len, width), and the log-sum-exp of each row.

    q, k and v have one dtype and width. A mask may have any strides, and has the dtype of sums.
    """
    assert _forward is not None  # as `has_attention` ensures
    k, v = _shared(q, k, v)
    out, lse = _forward(q, k, v, attn_mask=_readable(mask), scale=scale)
    return out, lse


def attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v."""
    assert _backward is not None  # as `has_attention` ensures
    n_kv = k.shape[1]
    k, v = _shared(q, k, v)
    of_q, *others = _backward(grad, q, k, v, out, lse, 0.0, False, attn_mask=_readable(mask), scale=scale)
    of_k, of_v = (t if t.shape[1] == n_kv else t.unflatten(1, (n_kv, -1)).sum(2) for t in others)
    return of_q, of_k, of_v


def _shared(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values, repeated for each query head if an older kernel requires it."""
    n = q.shape[1] // k.shape[1]
    return (k, v) if SHARES_KEYS or n == 1 else (k.repeat_interleave(n, 1), v.repeat_interleave(n, 1))


def _readable(mask: Tensor | None) -> Tensor | None:
    return mask if mask is None or READS_STRIDES or mask.stride(-1) <= 1 else mask.contiguous()


def is_wrapped(t: Tensor) -> bool:
    """Whether a transform of `torch.func` wraps a tensor."""
    if _functorch is None:
        return type(t) not in (Tensor, nn.Parameter)
    return bool(_functorch.is_functorch_wrapped_tensor(t))


def within_transform() -> bool:
    """Whether a transform of `torch.func` is active, in eager code or in traced code."""
    if _functorch is None:
        return False
    if torch.compiler.is_compiling():
        return isinstance(_functorch.peek_interpreter_stack(), _functorch.CInterpreter)
    return _functorch.maybe_current_level() is not None


def is_watched() -> bool:
    """Whether a dispatch mode is active, after or before autograd."""
    return any(count is not None and count() for count in _dispatch_modes)


def is_recorded() -> bool:
    """Whether `make_fx` records operations, before or after autograd."""
    if not is_watched():
        return False
    from torch.fx.experimental import proxy_tensor  # slow to import

    return proxy_tensor.get_proxy_mode() is not None


def watching(see: Callable[[Any, Any], None]) -> AbstractContextManager[Any]:
    """Return a context in which `see` is called with each torch operation that has run, and its result.

    Raises:
        RuntimeError: This torch has no dispatch modes under the known name.
    """
    if _Mode is None:
        raise RuntimeError(f"watching: torch {torch.__version__} has no TorchDispatchMode under the known name.")

    class Watch(_Mode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            see(func, out)
            return out

    return Watch()


def is_known(length: int) -> bool:
    """Whether a length is a number, not a compiler's symbol nor a tensor of `torch.jit.trace`."""
    if torch.jit.is_tracing():
        return False
    from torch.fx.experimental import symbolic_shapes  # slow to import

    for name in ("has_static_value", "is_concrete_int"):  # the first exists since 2.8
        if hasattr(symbolic_shapes, name):
            return bool(getattr(symbolic_shapes, name)(length))
    return isinstance(length, int) and not torch.compiler.is_compiling()


def register_pytree(cls: type[Any], tensors: tuple[str, ...], number: str) -> None:
    """Register a dataclass of tensors and one number, for exporters and transforms.

    Args:
        cls: The class, whose constructor has the tensors and the number as arguments in this order.
        tensors: The fields with tensors, or structures of them.
        number: The field with the number.
    """
    name = f"posenc.{cls.__name__}"
    if _pytree is None:
        torch.export.register_dataclass(cls, serialized_type_name=name)
        return
    _pytree.register_pytree_node(
        cls,
        lambda t: ([getattr(t, field) for field in tensors], getattr(t, number)),
        lambda children, n: cls(*children, n),
        serialized_type_name=name,
        to_dumpable_context=lambda n: n,
        from_dumpable_context=lambda n: n,
        flatten_with_keys_fn=lambda t: (
            [(_pytree.GetAttrKey(field), getattr(t, field)) for field in tensors],
            getattr(t, number),
        ),
    )


def shared_copy(module: _Module) -> _Module:
    """Return a copy that shares all tensors, for `functional_call` while other threads use the original.

    `functional_call` puts tensors into a module and removes them again. Two threads that do so with one module could
    leave each other's tensors in it, which get no gradients.
    """
    twin = copy.copy(module)
    twin._parameters = dict(module._parameters)
    twin._modules = {name: None if child is None else shared_copy(child) for name, child in module._modules.items()}
    return twin
