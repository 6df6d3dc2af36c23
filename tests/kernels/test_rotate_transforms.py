"""Rotations within transforms, in recorded graphs, of tensors without memory, and under modes that watch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from kernels.rotations import BACKENDS, PAIRINGS, N, back, exact, q_and_k, rope_and_places, tables
from posenc import positions, private
from posenc.private import watching
from strategies import normal


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("backend", BACKENDS)
def test_transforms(backend: str) -> None:
    """torch.func sees tensors that are wrapped: none of them is turned behind its back, nor as a constant."""
    rope, placed = rope_and_places()
    q, k = q_and_k()

    def turn(q: Tensor, k: Tensor) -> Tensor:
        return rope.rotate(q, k, placed, backend=backend)[0]

    wanted = exact(q, *tables(placed), pairing="half", side="last")
    slope = back(torch.ones_like(q), placed).turn
    torch.testing.assert_close(torch.func.grad(lambda q: turn(q, k).sum())(q), slope)
    torch.testing.assert_close(torch.func.vmap(lambda q, k: turn(q[None], k[None])[0])(q, k), wanted.turn)
    torch.testing.assert_close(torch.func.vmap(turn, (4, None), 4)(torch.stack((q, q), 4), k)[..., 1], wanted.turn)
    value, tangent = torch.func.jvp(turn, (q, k), (torch.ones_like(q), torch.ones_like(k)))
    torch.testing.assert_close(value, wanted.turn)
    ones = exact(torch.ones_like(q), *tables(placed), pairing="half", side="last").turn
    torch.testing.assert_close(tangent, ones)
    jacobian = torch.func.jacrev(lambda q: turn(q, k))(q)
    torch.testing.assert_close(torch.einsum("abcdefgh,efgh->abcd", jacobian, q), wanted.turn)
    torch.testing.assert_close(torch.func.jacfwd(lambda q: turn(q, k))(q), jacobian)
    each = torch.func.vmap(torch.func.grad(lambda q, k: turn(q[None], k[None]).square().sum()))(q, k)
    torch.testing.assert_close(each, back(2 * wanted.turn, placed).turn)
    hessian = torch.func.hessian(lambda q: turn(q, k)[0, 0, 0].square().sum())(q)
    assert hessian.isfinite().all()
    functional = torch.func.functionalize(turn)(q, k)
    torch.testing.assert_close(functional, wanted.turn)


@pytest.mark.parametrize("backend", ["numba", "blocked", "auto"])
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_transforms_of_something_else(backend: str, pairing: Any) -> None:
    """Plain tensors inside of a transform, with gradients of their own."""
    rope, placed = rope_and_places(pairing)
    q, k = (t.requires_grad_() for t in q_and_k())
    wanted = exact(q, *tables(placed), pairing=pairing, side="last").turn
    factors = torch.tensor([1.0, 2.0], dtype=torch.float64)

    def scaled(a: Tensor) -> Tensor:
        return a * rope.rotate(q, k, placed, backend=backend)[0]

    got = torch.func.vmap(scaled)(factors)
    torch.testing.assert_close(got.detach(), torch.stack((wanted, 2 * wanted)))
    torch.testing.assert_close(torch.func.grad(lambda a: scaled(a).sum())(factors[0]).detach(), wanted.sum())
    with torch.no_grad():
        torch.testing.assert_close(torch.func.vmap(scaled)(factors), torch.stack((wanted, 2 * wanted)))
    up = torch.stack([normal(*q.shape, seed=i) for i in range(3)])
    many = torch.autograd.grad(rope.rotate(q, k, placed, backend=backend)[0], q, up, is_grads_batched=True)[0]
    torch.testing.assert_close(many, torch.stack([back(u, placed, pairing).turn for u in up]))
    jacobian = torch.autograd.functional.jacobian(
        lambda q: rope.rotate(q, k, placed, backend=backend)[0], q.detach(), vectorize=True
    )
    torch.testing.assert_close(torch.einsum("abcdefgh,efgh->abcd", jacobian, q.detach()), wanted)


def test_transforms_of_the_tables() -> None:
    """A batch of positions by vmap."""
    rope, _ = rope_and_places()
    q, k = q_and_k()
    pos = torch.stack([positions.arange(N, start=s) for s in (0, 7)])
    got = torch.func.vmap(lambda p: rope.rotate(q, k, rope.place(p, dtype=torch.float64))[0])(pos)
    for i in range(2):
        exact(q, *tables(rope.place(pos[i], dtype=torch.float64)), pairing="half", side="last").holds(
            got[i], torch.float64
        )


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("backend", BACKENDS)
def test_dual_numbers(backend: str) -> None:
    rope, placed = rope_and_places()
    q, k = q_and_k()
    wanted = exact(torch.ones_like(q), *tables(placed), pairing="half", side="last").turn
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
        turned, other = rope.rotate(dual, k, placed, backend=backend)
        tangent = torch.autograd.forward_ad.unpack_dual(turned).tangent
        torch.testing.assert_close(tangent, wanted)
        assert torch.autograd.forward_ad.unpack_dual(other).tangent is None
        rope.rotate_(dual, k.clone(), placed, backend=backend)
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(dual).tangent, wanted)


Turn = Callable[[Tensor, Tensor], Any]
# how make_fx records: real tensors or fakes, before or after autograd
RECORDS: dict[str, dict[str, Any]] = {
    "real": {},
    "fake": {"tracing_mode": "fake", "_allow_non_fake_inputs": True},
    "symbolic": {"tracing_mode": "symbolic", "_allow_non_fake_inputs": True},
    "pre-dispatch": {"pre_dispatch": True},
    "pre-dispatch-fake": {"pre_dispatch": True, "tracing_mode": "fake", "_allow_non_fake_inputs": True},
}


def record(turn: Turn, q: Tensor, k: Tensor, how: str) -> Turn:
    """Return what was recorded of a function while it ran on q and k."""
    if how == "jit":
        traced: Turn = torch.jit.trace(turn, (q, k), check_trace=False)
        return traced
    return make_fx(turn, **RECORDS[how])(q, k)


@pytest.mark.sample(10)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", [*RECORDS, pytest.param("jit", marks=pytest.mark.compiles)])
@pytest.mark.parametrize("way", ["fresh", "place", "out", "in place", "gradient"])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit:DeprecationWarning")
def test_recorded_graphs_hold_no_constants(way: str, how: str, backend: str) -> None:
    """What was recorded with some numbers is right for others."""
    rope, placed = rope_and_places(dtype=torch.float32)
    q, k = q_and_k(torch.float32)

    def turn(q: Tensor, k: Tensor) -> Any:
        if way == "in place":
            q, k = q.clone(), k.clone()
            rope.rotate_(q, k, placed, backend=backend)
            return q, k
        if way == "out":
            return rope.rotate(q, k, placed, out=(torch.empty_like(q), torch.empty_like(k)), backend=backend)
        if way == "place":
            return rope.rotate(q, k, rope.place(placed.pos), backend=backend)
        if way == "gradient":
            q, k = q.detach().requires_grad_(), k.detach()
            turned = rope.rotate(q, k, placed, backend=backend)
            return torch.autograd.grad(turned[0].square().sum(), q)
        return rope.rotate(q, k, placed, backend=backend)

    if way == "gradient" and how in ("jit", "pre-dispatch", "pre-dispatch-fake"):
        pytest.skip("records no gradients")
    recorded = record(turn, q, k, how)
    for x, y in ((q, k), (2 * q + 1, k - 3)):
        got = recorded(x, y)
        if way == "gradient":
            scale = 1.3**2
            gradient = torch.cat((2 * x[..., :4], 2 * scale * x[..., 4:]), -1)
            torch.testing.assert_close(got[0], gradient, rtol=1e-5, atol=1e-5)
            continue
        for given, turned in zip((x, y), got, strict=True):
            exact(given, *tables(placed), pairing="half", side="last").holds(turned, torch.float32)


@pytest.mark.parametrize("backend", BACKENDS)
def test_fake_and_meta_tensors_have_shapes_alone(backend: str) -> None:
    rope, placed = rope_and_places(dtype=torch.float32)
    q, k = q_and_k(torch.bfloat16)
    of_torch = next(iter(torch.export.export(torch.nn.Identity(), (q,)).graph.nodes)).meta["val"]
    of_torch.fake_mode.allow_non_fake_inputs = True
    with of_torch.fake_mode as mode:
        for given in ((q, k), [mode.from_tensor(t, static_shapes=True) for t in (q, k)]):
            got = rope.rotate(*given, placed, backend=backend)
            assert [(t.shape, t.dtype) for t in got] == [(q.shape, q.dtype), (k.shape, k.dtype)]
            assert all(isinstance(t, type(of_torch)) for t in got)
        inside = rope.place(positions.arange(N))
        rope.rotate_(*(mode.from_tensor(t, static_shapes=True) for t in (q, k)), inside, backend=backend)
    meta = rope.to("meta").place(placed.pos.to("meta"))
    got = rope.rotate(q.to("meta"), k.to("meta").requires_grad_(), meta, backend=backend)
    assert [(t.shape, t.dtype, t.device.type) for t in got] == [(t.shape, t.dtype, "meta") for t in (q, k)]
    rope.rotate_(q.to("meta"), k.to("meta"), meta, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_who_watches_operations_sees_them(backend: str) -> None:
    seen: list[str] = []
    rope, placed = rope_and_places()
    q, k = q_and_k()
    with watching(lambda operation, _: seen.append(str(operation))):
        got, _ = rope.rotate(q, k, placed, backend=backend)
    assert any("mul" in name for name in seen)
    exact(q, *tables(placed), pairing="half", side="last").holds(got, torch.float64)
    q.requires_grad_()
    with watching(lambda operation, _: seen.append(str(operation))):
        turned, _ = rope.rotate(q, k, placed, backend=backend)
    back(torch.ones_like(q), placed).holds(torch.autograd.grad(turned.sum(), q)[0], torch.float64)
    turned, _ = rope.rotate(q, k, placed, backend=backend)
    seen.clear()
    with watching(lambda operation, _: seen.append(str(operation))):
        grad = torch.autograd.grad(turned.sum(), q)[0]
    assert any("mul" in name for name in seen)
    back(torch.ones_like(q), placed).holds(grad, torch.float64)


def test_without_torch_s_count_of_modes_numbers_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release may take private names away: a mode then sees no rotation, and what it would have seen is right."""
    monkeypatch.setattr(private, "_dispatch_modes", [None, None])
    rope, placed = rope_and_places()
    q, k = q_and_k()
    with watching(lambda operation, _: None):
        for x, got in zip((q, k), rope.rotate(q, k, placed), strict=True):
            exact(x, *tables(placed), pairing="half", side="last").holds(got, torch.float64)


class Wrapped(Tensor):
    """A tensor of another kind."""


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensors_of_another_kind_stay_so(backend: str) -> None:
    rope, placed = rope_and_places()
    q, k = q_and_k()
    got, _ = rope.rotate(q.as_subclass(Wrapped), k, placed, backend=backend)
    assert isinstance(got, Wrapped)
    exact(q, *tables(placed), pairing="half", side="last").holds(got.as_subclass(Tensor), torch.float64)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_nested_tensors(pairing: Any) -> None:
    rope, placed = rope_and_places(pairing)
    q, k = (torch.nested.nested_tensor([*x, x[0, :1]], layout=torch.jagged) for x in q_and_k())
    for got, x in zip(rope.rotate(q, k, placed), (q, k), strict=True):
        for row, of in zip(got.unbind(), x.unbind(), strict=True):
            exact(of[None], *tables(placed), pairing=pairing, side="last").holds(row[None], torch.float64)


@pytest.mark.parametrize("backend", BACKENDS)
def test_negative_views(backend: str) -> None:
    """The imaginary part of a conjugate is a view whose sign is a flag and not in memory."""
    rope, placed = rope_and_places()
    whole = torch.complex(*(normal(2, 4, N, 10, seed=i) for i in range(2))).mT.contiguous().mT
    q = whole.conj().imag
    assert q.is_neg()
    got, _ = rope.rotate(q, q[:, :2].clone(), placed, backend=backend)
    exact(-whole.imag, *tables(placed), pairing="half", side="last").holds(got.resolve_neg(), torch.float64)
