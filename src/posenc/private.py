"""The parts of torch that have no public name, each with its reason and what posenc does without it.

- The attention kernel for the CPU (`attention_forward`, `attention_backward`): `scaled_dot_product_attention` runs it,
  and gives no logarithms of the sums of rows, without which a backward pass would have to attend once more. Where a
  release of torch has no such operators, `has_attention` is False and scores are formed.
- Whether a tensor or a call is within a transform of `torch.func` (`is_wrapped`, `within_transform`), where no value
  can be read and no memory written to. Without them any class of tensors but Tensor and Parameter counts as wrapped.
- Whether a dispatch mode sees each operation (`is_watched`): what counts, fakes or records operations finds a rotation
  made of them. Without it a rotation by a kernel is not seen; its numbers are the same.
- Each operation as it runs, with its result (`watching`), which no public mode sees below the functions of Python.
  Without it `watching` raises, and the character of an encoding leaves out what its numbers cost.
- Whether a length is a number or what a compiler leaves open (`is_known`), which a compiler hides from `isinstance`.
  Without it attention in a graph is traced in one block, as for open lengths.
- Classes whose tensors exporters and transforms find (`register_pytree`). Without it torch's public registration, for
  exporters, makes an input of every field, numbers as well, which transforms take for tensors.
- The parameters of a module by name and place (`shared_copy`): `copy.copy` shares the dictionaries that hold them.
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
    """Whether torch has its attention kernel for the CPU under the names that are known."""
    return _forward is not None and _backward is not None


def attention_forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Return the attention of queries (batch, n_heads, q_len, width), and the logarithms of the sums of its rows.

    q, k and v have one dtype and width; a mask, of any strides, has the dtype of sums.
    """
    assert _forward is not None  # as `has_attention` says
    k, v = _shared(q, k, v)
    out, lse = _forward(q, k, v, attn_mask=_readable(mask), scale=scale)
    return out, lse


def attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v."""
    assert _backward is not None  # as `has_attention` says
    n_kv = k.shape[1]
    k, v = _shared(q, k, v)
    of_q, *others = _backward(grad, q, k, v, out, lse, 0.0, False, attn_mask=_readable(mask), scale=scale)
    of_k, of_v = (t if t.shape[1] == n_kv else t.unflatten(1, (n_kv, -1)).sum(2) for t in others)
    return of_q, of_k, of_v


def _shared(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values, repeated for each head of queries where an older kernel wants that."""
    n = q.shape[1] // k.shape[1]
    return (k, v) if SHARES_KEYS or n == 1 else (k.repeat_interleave(n, 1), v.repeat_interleave(n, 1))


def _readable(mask: Tensor | None) -> Tensor | None:
    return mask if mask is None or READS_STRIDES or mask.stride(-1) <= 1 else mask.contiguous()


def is_wrapped(t: Tensor) -> bool:
    """Whether a transform of `torch.func` holds a tensor."""
    if _functorch is None:
        return type(t) not in (Tensor, nn.Parameter)
    return bool(_functorch.is_functorch_wrapped_tensor(t))


def within_transform() -> bool:
    """Whether a transform of `torch.func` runs, in eager code or as a compiler follows it."""
    if _functorch is None:
        return False
    if torch.compiler.is_compiling():
        return isinstance(_functorch.peek_interpreter_stack(), _functorch.CInterpreter)
    return _functorch.maybe_current_level() is not None


def is_watched() -> bool:
    """Whether a dispatch mode sees each operation, or each one before autograd does."""
    return any(count is not None and count() for count in _dispatch_modes)


def watching(see: Callable[[Any, Any], None]) -> AbstractContextManager[Any]:
    """Return a context in which `see` is given each operation of torch that has run, and its result.

    Raises:
        RuntimeError: This torch has no dispatch modes under the name that is known.
    """
    if _Mode is None:
        raise RuntimeError(f"watching: torch {torch.__version__} has no TorchDispatchMode where it is known to be.")

    class Watch(_Mode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            see(func, out)
            return out

    return Watch()


def is_known(length: int) -> bool:
    """Whether a length is a number, rather than what a compiler leaves open."""
    from torch.fx.experimental import symbolic_shapes  # slow to import

    for name in ("has_static_value", "is_concrete_int"):  # the first since 2.8
        if hasattr(symbolic_shapes, name):
            return bool(getattr(symbolic_shapes, name)(length))
    return isinstance(length, int) and not torch.compiler.is_compiling()


def register_pytree(cls: type[Any], tensors: tuple[str, ...], number: str) -> None:
    """Let exporters and transforms find the tensors of a dataclass, which has a number as well.

    Args:
        cls: The class, whose constructor takes tensors and the number in this order.
        tensors: The fields that hold tensors, or structures of them.
        number: The field that is part of the structure.
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
    """Return a copy that shares all tensors, in which others may stand for parameters while threads use the original.

    `functional_call` puts tensors into a module and takes them out again. Two threads that did so with one module would
    leave each other's tensors there, and these learn nothing.
    """
    twin = copy.copy(module)
    twin._parameters = dict(module._parameters)
    twin._modules = {name: None if child is None else shared_copy(child) for name, child in module._modules.items()}
    return twin
