"""Gradients of a turn, what is kept for them, and everything that watches, transforms or records operations."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import posenc
from kernels.rotations import BACKENDS, LAYOUTS, PAIRINGS, Exact, exact, kind_name, memory, tables
from posenc import positions, private
from posenc.private import watching
from strategies import normal

N = 5
WIDTH: dict[str, Any] = {"head_dim": 10, "rotary_dim": 6, "rotary_side": "last"}


def rope_and_places(pairing: Any = "half", *, dtype: torch.dtype = torch.float64) -> tuple[posenc.RoPE, posenc.Placed]:
    rope = posenc.RoPE(**WIDTH, pairing=pairing, attention_factor=1.3)
    return rope, rope.place(positions.arange(N, start=2), dtype=dtype)


def q_and_k(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return normal(2, 4, N, 10, dtype=dtype), normal(2, 2, N, 10, seed=1, dtype=dtype)


def back(grad: Tensor, placed: posenc.Placed, pairing: str = "half", which: int = 0) -> Exact:
    """Gradients are the transposed turn: the same cosines, and sines of the other sign."""
    cos, sin = tables(placed, which)
    return exact(grad, cos, -sin, pairing=pairing, side="last")


@pytest.mark.sample(8)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=kind_name)
def test_gradients_are_the_transposed_turn(dtype: torch.dtype, pairing: Any, backend: str) -> None:
    table = torch.promote_types(dtype, torch.float32)
    rope, placed = rope_and_places(pairing, dtype=table)
    for layout in LAYOUTS:
        q, k = (memory(t, layout).tensor.requires_grad_() for t in q_and_k(dtype))
        turned = rope.rotate(q, k, placed, backend=backend)
        above = [memory(normal(*t.shape, seed=i, dtype=dtype), LAYOUTS[i]).tensor for i, t in enumerate(turned)]
        grads = torch.autograd.grad(turned, (q, k), above)
        for x, y, g, up in zip((q, k), turned, grads, above, strict=True):
            exact(x, *tables(placed), pairing=pairing, side="last").holds(y.detach(), table)
            back(up, placed, pairing).holds(g, table)


@pytest.mark.sample(3)
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_first_second_and_forward_gradients_by_differences(pairing: Any, backend: str) -> None:
    rope, _ = rope_and_places(pairing)
    q, k = (t[:1, :1, :2].clone().requires_grad_() for t in q_and_k())
    placed = rope.place(positions.arange(2, start=2), dtype=torch.float64)

    def turn(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return rope.rotate(q, k, placed, backend=backend)

    forward = backend in ("formula", "auto")
    assert torch.autograd.gradcheck(turn, (q, k), check_forward_ad=forward, check_batched_grad=forward)
    assert torch.autograd.gradgradcheck(turn, (q, k))
    assert torch.autograd.gradgradcheck(lambda q, k: [t.square() for t in turn(q, k)], (q, k))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_that_are_expanded_or_not_there(backend: str) -> None:
    rope, placed = rope_and_places(dtype=torch.float32)
    for used in ((0,), (1,), (0, 1)):
        for of in ((0,), (1,), (0, 1)):
            both = [t.requires_grad_(i in of) for i, t in enumerate(q_and_k(torch.float32))]
            turned = rope.rotate(both[0], both[1], placed, backend=backend)
            if not set(used) & set(of):
                continue
            sum(turned[i].sum() for i in used).backward()  # type: ignore[union-attr]
            for i, x in enumerate(both):
                if i not in of:
                    assert x.grad is None
                elif i in used:
                    back(torch.ones_like(x), placed).holds(x.grad, torch.float32)
                else:
                    assert x.grad is None or not x.grad.any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_needs_no_gradient_has_none(backend: str) -> None:
    """As queries that are adapted beside keys that are frozen."""
    rope, placed = rope_and_places()
    q, k = q_and_k()
    turned_q, turned_k = rope.rotate(q.requires_grad_(), k, placed, backend=backend)
    assert (turned_q.requires_grad, turned_k.requires_grad) == (True, False)
    with torch.no_grad():
        assert not rope.rotate(q, k, placed, backend=backend)[0].requires_grad


@pytest.mark.parametrize("backend", ["numba", "blocked", "auto"])
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=kind_name)
def test_tables_alone_are_kept(dtype: torch.dtype, pairing: Any, backend: str) -> None:
    rope, placed = rope_and_places(pairing, dtype=torch.float32)
    q, k = (t.requires_grad_() for t in q_and_k(dtype))
    kept: list[Tensor] = []

    def keep(t: Tensor) -> Tensor:
        kept.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        turned = rope.rotate(q, k, placed, backend=backend)
    assert kept
    assert {(tuple(t.shape[-2:]), t.dtype) for t in kept} == {((N, 3), torch.float32)}
    assert {t.untyped_storage().data_ptr() for t in kept} == {t.untyped_storage().data_ptr() for t in placed.parts}
    del kept[:]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        torch.autograd.grad(turned, (q, k), [torch.ones_like(t) for t in turned], create_graph=True)
    assert all(t.numel() == 3 * N and t.dtype == torch.float32 for t in kept)


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("backend", ["formula", "auto"])
def test_learned_frequencies(backend: str, pairing: Any) -> None:
    rope = posenc.RoPE(**WIDTH, pairing=pairing, trainable=True)
    q, k = q_and_k()
    pos, above = positions.arange(N, start=2), [normal(*t.shape, seed=3) for t in (q, k)]
    turned = rope.rotate(q.requires_grad_(), k, rope.place(pos, dtype=torch.float64), backend=backend)
    got, of_q = torch.autograd.grad(turned, (rope.inv_freq, q), above)
    freq = rope.inv_freq.detach().double()
    angles = pos.double()[:, None] * freq
    wanted = torch.zeros_like(freq)
    for x, up in zip((q.detach(), k), above, strict=True):
        # d/dangle turns by a quarter more
        slope = exact(x, -angles.sin()[None, None], angles.cos()[None, None], pairing=pairing, side="last").turn
        product = (slope * up)[..., 4:].sum((0, 1)) * pos[:, None]
        lanes = product.unflatten(-1, (2, 3)).sum(-2) if pairing == "half" else product.unflatten(-1, (3, 2)).sum(-1)
        wanted += lanes.sum(0)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-6, atol=1e-5)
    back(above[0], rope.place(pos, dtype=torch.float64), pairing).holds(of_q, torch.float64)


def test_what_was_kept_and_then_changed_is_noticed() -> None:
    rope, placed = rope_and_places(dtype=torch.float32)
    for backend in BACKENDS:
        q, k = (t.requires_grad_() for t in q_and_k(torch.float32))
        hidden = q * 1.0
        loss = hidden.sin().sum()
        with torch.no_grad():
            rope.rotate_(hidden, torch.empty_like(k), placed, backend=backend)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        fresh = rope.place(placed.pos)
        loss = rope.rotate(q, k, fresh, backend=backend)[0].sum()
        fresh.parts[0].mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_checkpointing(backend: str, reentrant: bool) -> None:
    rope, placed = rope_and_places()
    q, k = (t.requires_grad_() for t in q_and_k())

    def layer(q: Tensor, k: Tensor) -> Tensor:
        turned = rope.rotate(q.sin(), k, placed, backend=backend)
        return turned[0].square().sum() + turned[1].sum()

    plain = torch.autograd.grad(layer(q, k), (q, k))
    checkpoint(layer, q, k, use_reentrant=reentrant).backward()  # type: ignore[no-untyped-call]
    assert torch.equal(q.grad, plain[0])  # type: ignore[arg-type]
    assert torch.equal(k.grad, plain[1])  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_changes_nothing(backend: str) -> None:
    rope, placed = rope_and_places(dtype=torch.float32)
    for dtype in (torch.float32, torch.bfloat16):
        q, k = (t.requires_grad_() for t in q_and_k(dtype))
        wanted = rope.rotate(q, k, placed, backend=backend)
        with torch.autocast("cpu", torch.bfloat16):
            got = rope.rotate(q, k, placed, backend=backend)
        assert [t.dtype for t in got] == [dtype, dtype]
        assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
        grads = torch.autograd.grad(got, (q, k), [torch.ones_like(t) for t in got])
        assert [t.dtype for t in grads] == [dtype, dtype]


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


@pytest.mark.parametrize("backend", BACKENDS)
def test_negative_views(backend: str) -> None:
    """The imaginary part of a conjugate is a view whose sign is told and not written."""
    rope, placed = rope_and_places()
    whole = torch.complex(*(normal(2, 4, N, 10, seed=i) for i in range(2))).mT.contiguous().mT
    q = whole.conj().imag
    assert q.is_neg()
    got, _ = rope.rotate(q, q[:, :2].clone(), placed, backend=backend)
    exact(-whole.imag, *tables(placed), pairing="half", side="last").holds(got.resolve_neg(), torch.float64)
