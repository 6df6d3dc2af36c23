"""Gradients of a rotation, and what is kept for them."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import posenc
from kernels.rotations import (
    BACKENDS,
    LAYOUTS,
    PAIRINGS,
    WIDTH,
    N,
    back,
    exact,
    kind_name,
    memory,
    q_and_k,
    rope_and_places,
    tables,
)
from posenc import positions
from strategies import normal


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
