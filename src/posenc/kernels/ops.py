"""The turn as operators of torch: `posenc::turn` and `posenc::turn_into`, for code that is compiled.

They stay whole in a compiled graph: `torch.library.triton_op` would show inductor the kernel, but with nothing to gain
and something to lose. Inductor fuses nothing into a kernel that it is given, and the tile's size, a power of two by
the number of tokens, would make every new number a graph of its own. What the operators cost beside the kernel, one
passage of torch's dispatcher, is on the host, and gone in a CUDA graph. Eager code calls a backend without them.

On a CPU compiled code calls them where neighbours turn, forwards and backwards: inductor makes no vectors of every
second lane in memory, so that its own code takes four times as long in bfloat16. Halves it turns at the bus's speed.

Norms are not part of them: where a norm comes first, inductor makes one kernel of it and the plain formula.
"""

from typing import Any

import torch
from torch import Tensor

from posenc.kernels import eager, pages
from posenc.kernels.job import Pairing, Side
from posenc.kernels.turning import Way, turn_all

_DEVICES = ("cpu", "cuda")
_TABLES = "Tensor q_cos, Tensor q_sin, Tensor k_cos, Tensor k_sin, str pairing, str side"

# define and impl, not custom_op: half its time on the host
torch.library.define("posenc::turn", f"(Tensor q, Tensor k, {_TABLES}) -> (Tensor, Tensor)")
torch.library.define("posenc::turn_into", f"(Tensor q, Tensor k, {_TABLES}, Tensor(a!) q_out, Tensor(b!) k_out) -> ()")


@torch.library.impl("posenc::turn", _DEVICES)
def _turn(
    q: Tensor,
    k: Tensor,
    q_cos: Tensor,
    q_sin: Tensor,
    k_cos: Tensor,
    k_sin: Tensor,
    pairing: Pairing,
    side: Side,
) -> tuple[Tensor, Tensor]:
    """Turn queries and keys (batch, heads, seq, head_dim) into new memory, laid out as theirs is."""
    q_out, k_out = _turn_fake(q, k, q_cos, q_sin, k_cos, k_sin, pairing, side)
    if pages.are_worth_it((q, k)):
        pages.enlarge(q_out)
        pages.enlarge(k_out)
    _run(q, k, (q_cos, q_sin, k_cos, k_sin), pairing, side, q_out, k_out)
    return q_out, k_out


def _turn_fake(
    q: Tensor, k: Tensor, q_cos: Tensor, q_sin: Tensor, k_cos: Tensor, k_sin: Tensor, pairing: str, side: str
) -> tuple[Tensor, Tensor]:
    """Return memory for what turns: models hand over (batch, seq, heads, head_dim) transposed, and get it so."""
    _check(q, k, (q_cos, q_sin, k_cos, k_sin), pairing, side)
    return _fresh(q), _fresh(k)


@torch.library.impl("posenc::turn_into", _DEVICES)
def _turn_into(
    q: Tensor,
    k: Tensor,
    q_cos: Tensor,
    q_sin: Tensor,
    k_cos: Tensor,
    k_sin: Tensor,
    pairing: Pairing,
    side: Side,
    q_out: Tensor,
    k_out: Tensor,
) -> None:
    """Turn queries and keys into given memory, which may be their own."""
    _turn_into_fake(q, k, q_cos, q_sin, k_cos, k_sin, pairing, side, q_out, k_out)
    _run(q, k, (q_cos, q_sin, k_cos, k_sin), pairing, side, q_out, k_out)


def _turn_into_fake(
    q: Tensor,
    k: Tensor,
    q_cos: Tensor,
    q_sin: Tensor,
    k_cos: Tensor,
    k_sin: Tensor,
    pairing: str,
    side: str,
    q_out: Tensor,
    k_out: Tensor,
) -> None:
    _check(q, k, (q_cos, q_sin, k_cos, k_sin), pairing, side)
    for x, out in ((q, q_out), (k, k_out)):
        if out.shape != x.shape or out.dtype != x.dtype or out.stride(-1) != 1:
            raise ValueError(
                f"posenc::turn_into: the memory given must have the shape {tuple(x.shape)} and the dtype {x.dtype} of "
                f"what turns, lanes side by side; got {tuple(out.shape)}, {out.dtype}, strides {tuple(out.stride())}."
            )


torch.library.register_fake("posenc::turn", _turn_fake)
torch.library.register_fake("posenc::turn_into", _turn_into_fake)


@torch.library.impl("posenc::turn_into", "Autograd")
def _turn_into_plain(*inputs: Any) -> None:
    """Refuse what gradients would be lost of; `turn_all` counts what is written, for those who kept it."""
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs):
        raise ValueError(
            "posenc::turn_into writes into given memory, which autograd cannot follow; got a tensor that requires "
            "grad. Call it under torch.no_grad(), or call posenc::turn."
        )
    with torch._C._AutoDispatchBelowAutograd():
        torch.ops.posenc.turn_into(*inputs)


class _Turn(torch.autograd.Function):
    """The turn and its transpose; of the forward pass it keeps the tables, and neither queries nor keys."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        """Turn below autograd."""
        ctx.save_for_backward(*inputs[2:6])
        ctx.how = inputs[6:8]
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.posenc.turn(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        """Turn the gradients back: the same cosines, and sines of the other sign."""
        q_cos, q_sin, k_cos, k_sin = ctx.saved_tensors
        turned = torch.ops.posenc.turn(*grads, q_cos, -q_sin, k_cos, -k_sin, *ctx.how)
        return (*turned, *[None] * 6)


@torch.library.impl("posenc::turn", "Autograd")
def _turn_with_gradients(*inputs: Any) -> Any:
    """Choose how gradients are formed; torch.library.register_autograd would not work inside torch.func."""
    if torch._C._are_functorch_transforms_active():
        return _formula(*inputs)
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs[:6]):
        if any(x.requires_grad for x in inputs[2:6]):
            raise ValueError(
                "posenc::turn gives no gradients to its tables; got some that require grad. Call "
                "posenc.kernels.eager.turn, which is plain torch, or detach them."
            )
        return _Turn.apply(*inputs)
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.posenc.turn(*inputs)


def _formula(*inputs: Any) -> tuple[Tensor, Tensor]:
    """Turn in plain torch, of which every transformation of torch.func knows what to do."""
    q, k, q_cos, q_sin, k_cos, k_sin, pairing, side = inputs
    _check(q, k, inputs[2:6], pairing, side)
    turned_q = eager.turn(q, q_cos, q_sin, pairing=pairing, side=side)
    return turned_q, eager.turn(k, k_cos, k_sin, pairing=pairing, side=side)


def _turn_many(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, int]]:
    """Turn one more axis of queries, keys or tables, as part of their batch."""
    size = info.batch_size
    q, k = (_in_front(x, axis, size) for x, axis in zip(inputs[:2], in_dims[:2], strict=True))
    tables = []
    for x, pair in ((q, (2, 3)), (k, (4, 5))):
        if all(in_dims[i] is None and inputs[i].shape[0] == 1 for i in pair):
            tables += [inputs[i] for i in pair]  # shared by all, as before
        else:
            wide = (_in_front(inputs[i], in_dims[i], size).expand(-1, x.shape[1], -1, -1, -1) for i in pair)
            tables += [t.flatten(0, 1) for t in wide]
    turned = torch.ops.posenc.turn(q.flatten(0, 1), k.flatten(0, 1), *tables, *inputs[6:8])
    return tuple(x.unflatten(0, (size, -1)) for x in turned), (0, 0)


torch.library.register_vmap("posenc::turn", _turn_many)


def _in_front(x: Tensor, axis: int | None, size: int) -> Tensor:
    return x.expand(size, *x.shape) if axis is None else x.movedim(axis, 0)


def _fresh(x: Tensor) -> Tensor:
    like = torch.empty_like(x)
    return like if like.stride(-1) == 1 else torch.empty_like(x, memory_format=torch.contiguous_format)


def _check(q: Tensor, k: Tensor, tables: tuple[Tensor, ...], pairing: str, side: str) -> None:
    """Raise unless tables fit: a kernel that trusted wrong ones would read memory that is not theirs."""
    if pairing not in ("half", "interleaved") or side not in ("first", "last"):
        raise ValueError(
            f"posenc::turn: pairing is 'half' or 'interleaved', side 'first' or 'last'; got {pairing!r}, {side!r}."
        )
    for x, cos, sin in ((q, *tables[:2]), (k, *tables[2:])):
        if not x.ndim == cos.ndim == sin.ndim == 4 or not x.device == cos.device == sin.device:
            raise ValueError(
                "posenc::turn: tensors and their tables must have four dimensions, and be on one device; got "
                f"{x.ndim}, {cos.ndim}, {sin.ndim} dimensions on {x.device}, {cos.device}, {sin.device}."
            )
        fit = cos.shape[0] in (1, x.shape[0]) and cos.shape[2] == x.shape[2] and 2 * cos.shape[3] <= x.shape[3]
        if not fit or cos.shape != sin.shape or x.shape[1] % cos.shape[1]:
            raise ValueError(
                "posenc::turn: tables must be (1 or batch, a divisor of heads, seq, at most half of head_dim); got "
                f"{tuple(cos.shape)}, {tuple(sin.shape)} for (batch, heads, seq, head_dim) = {tuple(x.shape)}."
            )


def _run(
    q: Tensor, k: Tensor, tables: tuple[Tensor, ...], pairing: Pairing, side: Side, q_out: Tensor, k_out: Tensor
) -> None:
    q, k = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k))
    pairs = [_alike(*tables[:2]), _alike(*tables[2:])]
    turn_all((q, k), pairs, Way(pairing, side), out=(q_out, k_out), who="posenc::turn")


def _alike(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Return tables with lanes side by side, and sines laid out as their cosines are: no kernel takes others."""
    if cos.stride(-1) == 1 and cos.stride() == sin.stride():
        return cos, sin
    return cos.contiguous(), sin.contiguous()
