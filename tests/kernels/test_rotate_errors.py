"""What rotate refuses: one sentence each, which names who refuses, what is wrong and what it got."""

import pytest
import torch
from torch import Tensor

import posenc
from kernels.rotations import BACKENDS, able, bits_equal, exact, tables
from posenc import Norm, positions
from strategies import normal, refuses

N = 4


def call(head_dim: int = 8, dtype: torch.dtype = torch.float32) -> tuple[posenc.RoPE, posenc.Placed, Tensor, Tensor]:
    rope = posenc.RoPE(head_dim=head_dim)
    q, k = (normal(2, h, N, head_dim, seed=h, dtype=dtype) for h in (4, 2))
    return rope, rope.place(positions.arange(N)), q, k


def one_sentence(error: BaseException) -> None:
    assert "\n" not in str(error)
    assert len(str(error)) < 420, str(error)


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_devices(backend: str) -> None:
    rope, placed, q, k = call()
    there = q.to("meta"), k.to("meta")
    words = "RoPE: q, k and their positions must be on one device; got q on "
    far = rope.place(positions.arange(N).to("meta"))
    for given in ((there[0], k, placed), (q, there[1], placed), (*there, placed), (q, k, far), (q, k, placed, far)):
        with refuses(ValueError, words):
            rope.rotate(*given, backend=backend)
        with refuses(ValueError, words):
            rope.rotate_(*given, backend=backend)
    with refuses(ValueError, "RoPE: out must be on the device of q and k; got meta for q on cpu"):
        rope.rotate(q, k, placed, out=(there[0], k), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_dtypes(backend: str) -> None:
    rope, placed, q, k = call()
    with refuses(TypeError, "RoPE: q and k must have one dtype", "got torch.float32 and torch.bfloat16. Cast one"):
        rope.rotate(q, k.bfloat16(), placed, backend=backend)
    with refuses(TypeError, "RoPE: q and k must have one dtype"):
        rope.rotate_(q.double(), k, placed, backend=backend)
    for kind in (torch.int32, torch.bool, torch.complex64):
        with refuses(TypeError, f"RoPE: q and k must be floating-point, to hold a rotation; got {kind}. Cast"):
            rope.rotate(q.to(kind), k.to(kind), placed, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_shapes_that_do_not_fit(backend: str) -> None:
    rope, placed, q, k = call()
    with refuses(ValueError, "RoPE: q and k must have head_dim=8 dimensions; got shape (2, 4, 4, 6)"):
        rope.rotate(q[..., :6], k, placed, backend=backend)
    with refuses(ValueError, "RoPE: q and k must have head_dim=8 dimensions; got shape (2, 2, 4, 1)"):
        rope.rotate(q, k[..., :1], placed, backend=backend)
    for bad in ((q[:, :, :3], k), (q, k[:, :, :1]), (q.transpose(1, 2)[:, :3].contiguous(), k)):
        if bad[0].shape[2] == N == bad[1].shape[2]:
            continue
        with refuses(ValueError, "RoPE: q and k must have a token for each of their positions; got shape"):
            rope.rotate(*bad, placed, backend=backend)
    many = rope.place(positions.arange(N).expand(3, -1))
    with refuses(
        ValueError, "RoPE: q and k must have a token for each of their positions", "positions of shape (3, 4)"
    ):
        rope.rotate(q, k, many, backend=backend)
    with refuses(ValueError, "RoPE: q and k must have a token for each of their positions"):
        rope.rotate(q[0], k[0], many, backend=backend)
    with refuses(ValueError, "With a cache, k_placed must cover all keys passed"):
        rope.rotate(q[:, :, 3:], k, rope.place(positions.arange(1, start=3)), backend=backend)
    with refuses(ValueError, "RoPE: q and k must be"):
        rope.rotate(q[0, 0, 0], k[0, 0, 0], placed, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_heads_that_are_no_multiple_of_the_tables(backend: str) -> None:
    mixed = posenc.MixedRoPE(n_kv_heads=3, head_dim=8).requires_grad_(False)
    placed = mixed.place(positions.grid(2, 2))
    for q_heads, k_heads in ((4, 3), (3, 4), (6, 2), (0, 3)):
        q, k = torch.zeros(1, q_heads, N, 8), torch.zeros(1, k_heads, N, 8)
        with refuses(ValueError, "MixedRoPE: has separate tables for each of n_kv_heads=3 key heads", "got shape (1, "):
            mixed.rotate(q, k, placed, backend=backend)
        with refuses(ValueError, "MixedRoPE: has separate tables for each of n_kv_heads=3 key heads"):
            mixed.rotate_(q, k, placed, backend=backend)
    with refuses(ValueError, "MixedRoPE: has separate tables for each of n_kv_heads=3 key heads"):
        mixed.rotate(torch.zeros(3, N, 8), torch.zeros(3, N, 8), placed, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("learned", [False, True])
def test_memory_of_another_kind(learned: bool, backend: str) -> None:
    """The same with gradients and without."""
    _, placed, q, k = call()
    rope = posenc.RoPE(head_dim=8, trainable=learned)
    placed = rope.place(positions.arange(N))
    slots = torch.zeros_like(q), torch.zeros_like(k)
    with refuses(ValueError, "RoPE: out must have the shapes of q and k; got (2, 4, 5, 8) for q of (2, 4, 4, 8)"):
        rope.rotate(q, k, placed, out=(torch.zeros(2, 4, 5, 8), slots[1]), backend=backend)
    with refuses(ValueError, "RoPE: out must have the shapes of q and k; got (1, 2, 4, 8) for k of (2, 2, 4, 8)"):
        rope.rotate(q, k, placed, out=(slots[0], slots[1][:1]), backend=backend)
    lower = torch.zeros_like(q), torch.zeros_like(k, dtype=torch.bfloat16)  # a cache of another precision
    wanted = rope.rotate(q, k, placed, backend=backend)
    rope.rotate(q, k, placed, out=lower, backend=backend)
    assert torch.equal(lower[0], wanted[0])
    assert torch.equal(lower[1], wanted[1].bfloat16())
    with refuses(ValueError, "RoPE: cannot write k into expanded or overlapping memory"):
        rope.rotate(q, k, placed, out=(slots[0], slots[1][:1].expand(2, -1, -1, -1)), backend=backend)
    both = torch.zeros(2, 6, N, 8)
    with refuses(ValueError, "RoPE: out[0] overlaps out[1] in memory"):
        rope.rotate(q, k, placed, out=(both[:, :4], both[:, 3:5]), backend=backend)
    assert not any(t.any() for t in (*slots, both))


@pytest.mark.parametrize("backend", BACKENDS)
def test_in_place_where_autograd_needs_what_was_there(backend: str) -> None:
    rope, placed, q, k = call()
    before = q.clone()
    for given in ((q.requires_grad_(), k), (q.detach() * 1, k.clone().requires_grad_()), (q * 1, k)):
        with refuses(ValueError, "RoPE: rotate_ overwrites q and k, which their gradients need", "torch.no_grad()"):
            rope.rotate_(*given, placed, backend=backend)
    assert bits_equal(q.detach(), before)
    with pytest.raises(RuntimeError, match="leaf") as caught:
        rope.rotate(q, k, placed, out=(q, k), backend=backend)
    one_sentence(caught.value)
    assert bits_equal(q.detach(), before)
    with torch.no_grad():
        rope.rotate_(q, k, placed, backend=backend)
    exact(before, *tables(placed), pairing="half").holds(q.detach(), torch.float32)


NOT_THERE = ["cuda", "", "Numba", "eager", "compiled", "cpu"]


@pytest.mark.parametrize("where", ["plain", "gradient", "learned", "meta", "in place", "vmap", "empty"])
@pytest.mark.parametrize("backend", NOT_THERE)
def test_a_backend_that_is_not_there(backend: str, where: str) -> None:
    """Said in every way to turn, not first when the code is no longer traced or trained."""
    rope, placed, q, k = call()
    if where == "learned":
        rope = posenc.RoPE(head_dim=8, trainable=True)
        placed = rope.place(positions.arange(N))
    if where == "meta":
        q, k, placed = q.to("meta"), k.to("meta"), rope.place(positions.arange(N).to("meta"))
    if where == "gradient":
        q.requires_grad_()
    if where == "empty":
        q, k = q[:0], k[:0]
    words = f"rotate: backend must be one of auto, numba, triton, blocked, formula; got {backend!r}."
    with refuses(ValueError, words):
        if where == "in place":
            rope.rotate_(q, k, placed, backend=backend)
        elif where == "vmap":
            torch.func.vmap(lambda q: rope.rotate(q, k[0], placed, backend=backend)[0])(q)
        else:
            rope.rotate(q, k, placed, backend=backend)


def test_a_backend_that_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    rope, placed, q, k = call()
    if not torch.cuda.is_available():
        with refuses(ValueError, "rotate: backend 'triton' cannot be used here: ", "Pass backend='auto'.") as _:
            rope.rotate(q, k, placed, backend="triton")
    wide = rope.place(placed.pos, dtype=torch.float64)
    for dtype in (torch.bfloat16, torch.float16):
        assert not able("numba", dtype, torch.float64)
        for given in ((wide, wide), (placed, wide), (wide, placed)):
            words = f"rotate: backend 'numba' cannot be used here: it does not support {dtype} with tables of"
            with refuses(ValueError, words, "torch.float64. Pass backend='auto'."):
                rope.rotate(q.to(dtype), k.to(dtype), *given, backend="numba")
            got = rope.rotate(q.to(dtype), k.to(dtype), *given)
            for x, y, p in zip((q, k), got, given, strict=True):
                exact(x.to(dtype), *tables(p), pairing="half").holds(y, p.parts[0].dtype)
    mixed = rope.rotate(q, k, placed, wide, backend="numba")
    exact(q, *tables(placed), pairing="half").holds(mixed[0], torch.float32)
    exact(k, *tables(wide), pairing="half").holds(mixed[1], torch.float64)
    for backend in ("numba", "blocked"):
        for given in ((q.mT.contiguous().mT, k), (q, k.mT.contiguous().mT)):
            with refuses(ValueError, f"rotate: backend {backend!r} requires ", "with contiguous head dimensions"):
                rope.rotate(*given, placed, backend=backend)


def test_what_a_subclass_turns_by_itself() -> None:
    """GRAPE-M turns by more than cosines and sines: it has no backends, and says so."""
    q, k = normal(1, 4, N, 8, dtype=torch.float32), normal(1, 2, N, 8, dtype=torch.float32)
    plane = posenc.GRAPEM(n_kv_heads=2, head_dim=8, n_planes=2).requires_grad_(False)
    placed, before = plane.place(positions.arange(N)), q.clone()
    wanted = plane.rotate(q, k, placed)
    plane.rotate_(q, k, placed)
    assert torch.equal(q, wanted[0])
    with refuses(ValueError, "GRAPEM: q_norm, k_norm and backend apply only to a plain forward rotation"):
        plane.rotate(q, k, placed, q_norm=Norm(torch.ones(8)))
    with refuses(ValueError, "GRAPEM: q_norm, k_norm and backend apply only to a plain forward rotation"):
        plane.rotate_(before, k, placed, backend="blocked")


def test_turning_back_is_turning_back() -> None:
    """Into given memory and in place, where the shapes are asked for too."""
    rope, placed, q, k = call(dtype=torch.float64)
    turned = rope.rotate(q, k, placed)
    slots = torch.empty_like(q), torch.empty_like(k)
    rope.rotate(*turned, placed, inverse=True, out=slots)
    torch.testing.assert_close(slots[0], q, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(slots[1], k, rtol=1e-6, atol=1e-6)
    with refuses(ValueError, "RoPE: out must have the shapes of q and k"):
        rope.rotate(*turned, placed, inverse=True, out=(slots[1], slots[1]))
