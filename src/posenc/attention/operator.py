"""`posenc::attend`: attention as an operator of torch, whole in a compiled graph, which then runs what eager code does.

A compiler would write out every block, or one mask of all scores where it leaves lengths open, and `torch.func.grad`
would keep them all. The operator takes an encoding as text and tensors (`described`), so that a graph may be used in
another process. Backwards the attention is computed again: what is kept are its arguments.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import compress, islice
from typing import Any

import torch
from torch import Tensor

from posenc.attention import described
from posenc.attention.call import Call
from posenc.attention.checked import make_call
from posenc.attention.once import WORDS
from posenc.attention.traced import within_transform
from posenc.positions.checks import KINDS
from posenc.versions import is_exporting

_DEVICES = ("cpu", "cuda")
_AUTOGRAD = ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor", "ADInplaceOrView")
_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor[] tensors, Tensor? mask, Tensor? document_ids, Tensor? seed, "
    "int[] counts, str[] texts, bool rotated, bool causal, SymInt? window, float scale, float dropout_p, "
    "str backend, ScalarType dtype"
)
torch.library.define("posenc::attend", f"({_ARGUMENTS}) -> Tensor")
torch.library.define("posenc::attend_backward", f"(Tensor grad, bool[] wanted, {_ARGUMENTS}) -> Tensor[]")


def run(call: Call) -> Tensor | None:
    """Compute a call by the operator: for a compiler, or within one `torch.func.grad`.

    None for eager code, other transforms, exports, and where something of the call cannot be given.
    """
    compiled = torch.compiler.is_dynamo_compiling()
    if not (_is_compiled_whole() if compiled else _is_one_gradient()):
        return None
    parts = [described.encoding(call.encoding), described.placed(call.placed), described.placed(call.k_placed)]
    known = [part for part in parts if part is not None]
    tensors = [t for _, some in known for t in some]
    plain = all(type(t) in KINDS for t in (call.q, call.k, call.v, *tensors))
    if len(known) < len(parts) or not plain or call.q.device.type not in _DEVICES:
        return None
    seed = torch.randint(2**62, (), device="cpu") if call.dropout_p else None
    rest = [
        [len(some) for _, some in known],
        [text for text, _ in known],
        call.rotated,
        call.causal,
        call.window,
        call.scale,
        call.dropout_p,
        call.backend,
        call.out_dtype,
    ]
    own = call.mask, call.document_ids, seed
    found: Tensor
    if compiled:
        found = torch.ops.posenc.attend(call.q, call.k, call.v, tensors, *own, *rest)
    else:
        found = _Transformed.apply(_Rest(rest), call.q, call.k, call.v, *own, *tensors)
    return found


def _is_compiled_whole() -> bool:
    """Whether what a compiler follows is no export, which runs where posenc may not be, and no transform."""
    return not (is_exporting() or within_transform())


def _is_one_gradient() -> bool:
    """Whether eager code is within `torch.func.grad` or its kin, and no other transform."""
    if torch._C._functorch.maybe_current_level() is None:
        return False
    stack = torch._C._functorch.get_interpreter_stack() or []
    return [one.key() for one in stack] == [torch._C._functorch.TransformType.Grad]


@torch.library.impl("posenc::attend", _DEVICES)
def _attend(q: Tensor, k: Tensor, v: Tensor, tensors: Sequence[Tensor], *rest: Any) -> Tensor:
    """Attend as eager code does."""
    with torch.no_grad():
        return _run(q, k, v, tensors, *rest).contiguous()


def _attend_fake(q: Tensor, k: Tensor, v: Tensor, tensors: Sequence[Tensor], *rest: Any) -> Tensor:
    return q.new_empty((*q.shape[:3], v.shape[-1]), dtype=rest[-1])


@torch.library.impl("posenc::attend_backward", _DEVICES)
def _attend_backward(grad: Tensor, wanted: Sequence[bool], *arguments: Any) -> list[Tensor]:
    """Return the gradients of those that want one, among q, k, v, the mask and the tensors."""
    given: list[Any] = [None if t is None else t.detach() for t in _differentiable(arguments)]
    inputs = [t.requires_grad_() for t in compress(given, wanted)]
    rest = arguments[5:]
    with _above_autograd(), torch.enable_grad():
        q, k, v, mask, *tensors = given
        out = _run(q, k, v, tensors, mask, *rest)
        found: Sequence[Tensor | None] = [None] * len(inputs)
        if out.requires_grad:  # not if there are no queries
            found = torch.autograd.grad(out, inputs, grad, allow_unused=True)
    return [t.new_zeros(t.shape) if g is None else g.contiguous() for g, t in zip(found, inputs, strict=True)]


def _attend_backward_fake(grad: Tensor, wanted: Sequence[bool], *arguments: Any) -> list[Tensor]:
    return [t.new_empty(t.shape) for t in compress(_differentiable(arguments), wanted)]


def _above_autograd() -> AbstractContextManager[None]:
    """Let what an operator runs be followed by autograd again, below which operators run."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in _AUTOGRAD:
        excluded = excluded.remove(getattr(torch._C.DispatchKey, key))
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)


def _differentiable(arguments: Sequence[Any]) -> list[Any]:
    q, k, v, tensors, mask, *_ = arguments
    return [q, k, v, mask, *tensors]


def _keep(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
    q, k, v, tensors, mask, ids, seed, *ctx.rest = inputs
    ctx.save_for_backward(q, k, v, mask, ids, seed, *tensors)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    q, k, v, mask, ids, seed, *tensors = ctx.saved_tensors
    needs = ctx.needs_input_grad
    wanted = [*needs[:3], needs[4], *needs[3]]
    found = iter(torch.ops.posenc.attend_backward(grad, wanted, q, k, v, tensors, mask, ids, seed, *ctx.rest))
    in_order = [next(found) if want else None for want in wanted]
    return (*in_order[:3], in_order[4:], in_order[3], *[None] * (len(needs) - 5))


def _twice(ctx: Any, *grads: Any) -> None:
    raise RuntimeError(WORDS)


@dataclass(frozen=True)
class _Rest:
    """What is no tensor: no tree, so that transforms leave it alone."""

    arguments: Sequence[Any]
    wanted: Sequence[bool] = ()


class _Transformed(torch.autograd.Function):
    """The operator within `torch.func.grad`, which follows no operator's own gradients."""

    @staticmethod
    def forward(rest: _Rest, q: Tensor, k: Tensor, v: Tensor, *others: Tensor | None) -> Tensor:
        found: Tensor = torch.ops.posenc.attend(q, k, v, others[3:], *others[:3], *rest.arguments)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.rest = inputs[0]
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        needs = ctx.needs_input_grad
        wanted = [*needs[1:5], *needs[7:]]  # neither of documents nor of a seed
        found = iter(_TransformedBackward.apply(replace(ctx.rest, wanted=wanted), grad, *ctx.saved_tensors))
        in_order = [next(found) if want else None for want in wanted]
        return (None, *in_order[:4], None, None, *in_order[4:])


class _TransformedBackward(torch.autograd.Function):
    @staticmethod
    def forward(rest: _Rest, grad: Tensor, *given: Tensor | None) -> tuple[Tensor, ...]:
        q, k, v, mask, ids, seed, *tensors = given
        given = q, k, v, tensors, mask, ids, seed  # type: ignore[assignment]
        return tuple(torch.ops.posenc.attend_backward(grad, rest.wanted, *given, *rest.arguments))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep nothing: it has no derivative."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], rest: _Rest, *given: Tensor | None) -> Any:
        """Compute one after the other, as `torch.func.jacrev` asks for many gradients at a time."""
        found = [
            _TransformedBackward.apply(
                rest,
                *(t if t is None or d is None else t.select(d, i) for t, d in zip(given, in_dims[1:], strict=True)),
            )
            for i in range(info.batch_size)
        ]
        return tuple(map(torch.stack, zip(*found, strict=True))), (0,) * len(found[0])

    backward = staticmethod(_twice)


torch.library.register_fake("posenc::attend", _attend_fake)
torch.library.register_fake("posenc::attend_backward", _attend_backward_fake)
torch.library.register_autograd("posenc::attend", _gradients, setup_context=_keep)
torch.library.register_autograd("posenc::attend_backward", _twice)


def _run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tensors: Sequence[Tensor],
    mask: Tensor | None,
    document_ids: Tensor | None,
    seed: Tensor | None,
    counts: Sequence[int],
    texts: Sequence[str],
    rotated: bool,
    causal: bool,
    window: int | None,
    scale: float,
    dropout_p: float,
    backend: str,
    dtype: torch.dtype,
) -> Tensor:
    from posenc.attention.choice import compute  # which calls this file

    given = iter(tensors)
    of_encoding, *parts = ([*islice(given, n)] for n in counts)
    encoding = described.read_encoding(texts[0], of_encoding)
    placed, k_placed = (described.read_placed(text, part) for text, part in zip(texts[1:], parts, strict=True))
    options = (rotated, causal, mask, window, document_ids, scale, dropout_p, backend)
    with torch.autocast(q.device.type, dtype, enabled=dtype != q.dtype):
        call = make_call(q, k, v, encoding, placed, k_placed, *options)
        return compute(replace(call, seed=None if seed is None else int(seed)))
