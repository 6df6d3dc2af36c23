"""Calls like one before are known by one look, turned by addresses alone, and nothing else is taken for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils._python_dispatch import TorchDispatchMode

import posenc
from kernels.rotations import LAYOUTS, PAIRINGS, bits_equal, exact, kind_name, memory, tables
from posenc import positions
from posenc.kernels import again, pages, plans
from strategies import normal

pytest.importorskip("numba")
KINDS = [torch.bfloat16, torch.float32, torch.float64]
PLACES = {"one": torch.arange(5, 12), "each": torch.arange(5, 12) + torch.tensor([[0], [40]])}
WAYS = ("in place", "given", "fresh")


@pytest.fixture(autouse=True)
def nothing_is_known() -> None:
    again._known.clear()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Of every call that had to be asked everything, one entry."""
    seen: list[object] = []
    find = plans.find

    def watched(*args: Any) -> Any:
        seen.append(args)
        return find(*args)

    monkeypatch.setattr(plans, "find", watched)
    return seen


def both(seed: int = 0, dtype: torch.dtype = torch.float32, heads: int = 6) -> tuple[Tensor, Tensor]:
    return normal(2, heads, 7, 42, seed=seed, dtype=dtype), normal(2, 3, 7, 42, seed=seed + 1, dtype=dtype)


def turned(rope: posenc.RoPE, q: Tensor, k: Tensor, placed: posenc.Placed, way: str) -> tuple[Tensor, Tensor]:
    if way == "in place":
        rope.rotate_(q, k, placed)
        return q, k
    out = (torch.zeros_like(q), torch.zeros_like(k)) if way == "given" else None
    return rope.rotate(q, k, placed, out=out)


@pytest.mark.sample(4)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("dtype", KINDS, ids=kind_name)
def test_the_second_call_is_known_and_right(
    dtype: torch.dtype, pairing: Any, where: str, way: str, looks: list[object]
) -> None:
    rope = posenc.RoPE(head_dim=42, rotary_dim=36, rotary_side="last", pairing=pairing)
    for seed in range(3):  # other numbers at other addresses, and other tables
        q, k = both(seed, dtype)
        placed = rope.place(PLACES[where] + seed)
        wanted = [exact(t, *tables(placed), pairing=pairing, side="last") for t in (q, k)]
        for got, w in zip(turned(rope, q, k, placed, way), wanted, strict=True):
            w.holds(got, torch.float32)
    assert len(looks) == 1


def test_heads_with_frequencies_of_their_own_are_known(looks: list[object]) -> None:
    rope = posenc.MixedRoPE(n_kv_heads=3, head_dim=40)
    with torch.no_grad():
        placed = rope.place(torch.arange(14).view(7, 2))
        (q, k), (cos, sin) = (t[..., :40] for t in both()), (t.movedim(-2, -3)[None] for t in placed.parts)
        for _ in range(2):
            for got, x in zip(rope.rotate(q, k, placed), (q, k), strict=True):
                exact(x, cos, sin, pairing=rope.pairing).holds(got, torch.float32)
    assert len(looks) == 1


def others() -> dict[str, Any]:
    """Calls that differ from `both()` at `PLACES["one"]`, half and first, in one thing: encoding, q, k, place."""
    rope, (q, k), pos = posenc.RoPE(head_dim=42), both(), PLACES["one"]
    half = q.bfloat16(), k.bfloat16()
    return {
        "pairing": (posenc.RoPE(head_dim=42, pairing="interleaved"), q, k, rope.place(pos)),
        "side": (posenc.RoPE(head_dim=42, rotary_dim=36, rotary_side="last"), q, k, None),
        "width": (posenc.RoPE(head_dim=42, rotary_dim=20), q, k, None),
        "dtype": (rope, *half, rope.place(pos)),
        "tables' dtype": (rope, q, k, rope.place(pos, dtype=torch.float64)),
        "tables' shape": (rope, q, k, rope.place(PLACES["each"])),
        "strides": (rope, memory(q, LAYOUTS[1]).tensor, memory(k, LAYOUTS[2]).tensor, rope.place(pos)),
        "key heads": (rope, q, k[:, :2], rope.place(pos)),
        "a parameter": (rope, nn.Parameter(q, requires_grad=False), k, rope.place(pos)),
        "negated lazily": (rope, torch._neg_view(q), k, rope.place(pos)),
        "one tensor twice": (rope, q, q, rope.place(pos)),
    }


@pytest.mark.parametrize("name", others())
def test_what_differs_in_one_thing_is_not_taken_for_it(name: str) -> None:
    plain = posenc.RoPE(head_dim=42)
    for way in ("given", "fresh"):
        turned(plain, *both(), plain.place(PLACES["one"]), way)
        rope, q, k, placed = others()[name]
        placed = rope.place(PLACES["one"]) if placed is None else placed
        cos, sin = (t.double() for t in tables(placed))
        for got, x in zip(turned(rope, q, k, placed, way), (q, k), strict=True):
            found = exact(x.detach(), cos, sin, pairing=rope.pairing, side=rope.rotary_side)
            found.holds(got.detach(), placed.parts[0].dtype)


def test_an_option_that_is_changed_afterwards_counts() -> None:
    rope, (q, k) = posenc.RoPE(head_dim=42), both()
    placed = rope.place(PLACES["one"])
    rope.rotate(q, k, placed)
    rope.pairing = "interleaved"
    exact(q, *tables(placed), pairing="interleaved").holds(rope.rotate(q, k, placed)[0], torch.float32)


def test_gradients_flow_after_calls_without() -> None:
    rope, (q, k) = posenc.RoPE(head_dim=42), both()
    placed = rope.place(PLACES["one"])
    rope.rotate(q, k, placed)
    with torch.no_grad():
        rope.rotate(q.requires_grad_(), k, placed)
    for _ in range(2):
        got, _ = rope.rotate(q, k, placed)
        (grad,) = torch.autograd.grad(got.sum(), q)
        back = rope.rotate(torch.ones_like(k[:, :1]).expand(-1, 6, -1, -1), k, placed, inverse=True)[0]
        torch.testing.assert_close(grad, back)


def test_memory_that_overlaps_is_refused_though_its_kind_is_known() -> None:
    rope, placed = posenc.RoPE(head_dim=8), posenc.RoPE(head_dim=8).place(torch.arange(4))
    room = normal(4, 1, 3, 4, 8, dtype=torch.float32)
    q, k, out, more = room.unbind(0)
    rope.rotate(q, k, placed, out=(out, more))
    rope.rotate_(q, k, placed)
    before = room.clone()
    flat = room.flatten()
    shifted = flat[8 : 8 + q.numel()].view_as(q)
    for slots in ((shifted, more), (out, shifted), (out, out.view_as(out)), (k.view_as(k), more)):
        with pytest.raises(ValueError, match="overlaps"):
            rope.rotate(q, k, placed, out=slots)
    with pytest.raises(ValueError, match="overlaps"):
        rope.rotate_(q, shifted, placed)
    assert bits_equal(room, before)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # forward_ad's own
def test_who_watches_operations_sees_them() -> None:
    """Modes, transforms and derivatives forwards find the turn made of operations, not written behind their back."""
    rope, (q, k) = posenc.RoPE(head_dim=42), both()
    placed = rope.place(PLACES["one"])
    wanted = rope.rotate(q, k, placed)[0]
    rope.rotate(q, k, placed)

    class Operations(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Operations.seen += 1
            return func(*args, **(kwargs or {}))

    with Operations():
        torch.testing.assert_close(rope.rotate(q, k, placed)[0], wanted)
    assert Operations.seen > 3
    each = torch.vmap(lambda x: rope.rotate(x, k, placed)[0])(torch.stack([q, 2 * q]))
    torch.testing.assert_close(each, torch.stack([wanted, 2 * wanted]))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, 3 * q)
        torch.testing.assert_close(forward_ad.unpack_dual(rope.rotate(dual, k, placed)[0]).tangent, 3 * wanted)
    _, out = torch.func.jvp(lambda x: rope.rotate(x, k, placed)[0], (q,), (q,))
    torch.testing.assert_close(out, wanted)
    for how in ("real", "symbolic"):
        recorded = make_fx(lambda x, y: rope.rotate(x, y, placed)[0], tracing_mode=how, _allow_non_fake_inputs=True)(
            q, k
        )
        torch.testing.assert_close(recorded(2 * q, k), 2 * wanted)


def test_a_device_as_context_is_no_watcher(looks: list[object]) -> None:
    rope, (q, k) = posenc.RoPE(head_dim=42), both()
    placed = rope.place(PLACES["one"])
    with torch.device("cpu"):
        for _ in range(2):
            exact(q, *tables(placed), pairing="half").holds(rope.rotate(q, k, placed)[0], torch.float32)
    assert len(looks) == 1


def test_a_subclass_is_asked_as_before() -> None:
    class Marked(Tensor):
        pass

    rope, (q, k) = posenc.RoPE(head_dim=42), both()
    placed = rope.place(PLACES["one"])
    wanted = rope.rotate(q, k, placed)[0]
    got = rope.rotate(q.as_subclass(Marked), k, placed)[0]
    assert type(got) is Marked
    torch.testing.assert_close(got.as_subclass(Tensor), wanted)


def test_shapes_may_be_symbols() -> None:
    rope = posenc.RoPE(head_dim=8)
    placed = rope.place(torch.arange(4))
    rope.rotate(torch.ones(1, 2, 4, 8), torch.ones(1, 2, 4, 8), placed)
    fakes = FakeTensorMode(shape_env=ShapeEnv())

    def fake(x: Tensor, name: str = "") -> Tensor:
        any_batch = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, *[DimDynamic.STATIC] * 3])
        return fakes.from_tensor(x, symbolic_context=any_batch if name else None, source=ConstantSource(name or "t"))

    q, k = fake(torch.ones(5, 2, 4, 8), "q"), fake(torch.ones(5, 2, 4, 8), "k")
    assert rope.rotate(q, k, posenc.Placed(placed.pos, tuple(map(fake, placed.parts))))[0].shape == q.shape


def test_versions_and_inference() -> None:
    rope, (q, k) = posenc.RoPE(head_dim=42), both()
    placed = rope.place(PLACES["one"])
    for _ in range(3):
        was = q._version
        rope.rotate_(q, k, placed)
        assert q._version > was
    wanted = exact(q, *tables(placed), pairing="half")
    with torch.inference_mode():
        inside = q.clone()
        for _ in range(2):
            wanted.holds(rope.rotate(inside, k, placed)[0], torch.float32)
        rope.rotate_(inside, torch.empty_like(k), placed)
        wanted.holds(inside, torch.float32)


def test_without_torch_s_guards_nothing_is_kept_and_all_is_right(
    monkeypatch: pytest.MonkeyPatch, looks: list[object]
) -> None:
    monkeypatch.setattr(again, "guards", None)
    rope, (q, k) = posenc.RoPE(head_dim=42), both()
    placed = rope.place(PLACES["one"])
    for _ in range(2):
        exact(q, *tables(placed), pairing="half").holds(rope.rotate(q, k, placed)[0], torch.float32)
    assert len(looks) == 2
    assert not again._known


def test_tensors_of_a_kept_call_are_not_kept() -> None:
    import gc
    import weakref

    rope, (q, k) = posenc.RoPE(head_dim=42), both()
    placed = rope.place(PLACES["one"])
    rope.rotate(q, k, placed)
    assert again._known
    gone = [weakref.ref(t) for t in (q, k, placed.parts[0])]
    del q, k, placed
    gc.collect()
    assert not any(r() for r in gone)


def test_parts_of_one_projection_are_kept_once() -> None:
    """They lie between each other, row by row, so that their addresses are looked at anew each time."""
    rope, kept = posenc.RoPE(head_dim=8), []
    placed = rope.place(torch.arange(4))
    for seed in range(3):
        fused = normal(2, 4, 5, 8, seed=seed, dtype=torch.float32).transpose(1, 2)
        q, k = fused[:, :3], fused[:, 3:]
        wanted = [exact(t.clone(), *tables(placed), pairing="half") for t in (q, k)]
        rope.rotate_(q, k, placed)
        for got, w in zip((q, k), wanted, strict=True):
            w.holds(got, torch.float32)
        kept += again._known.values()
    assert len(set(map(id, kept))) == 1


def test_large_outputs_ask_for_large_pages_when_known(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Tensor] = []
    monkeypatch.setattr(pages, "enlarge", asked.append)
    monkeypatch.setattr(pages, "are_worth_it", lambda xs: True)
    monkeypatch.setattr(plans, "_plans", {})
    rope, (q, k) = posenc.RoPE(head_dim=42), both()
    for n in (2, 4):
        rope.rotate(q, k, rope.place(PLACES["one"]))
        assert len(asked) == n


def test_no_more_are_kept_than_make_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(again, "_MOST", 3)
    rope = posenc.RoPE(head_dim=8)
    for n in range(1, 9):
        x = torch.ones(1, 1, n, 8)
        rope.rotate(x, x.clone(), rope.place(positions.arange(n)))
        assert 1 <= len(again._known) <= 3
