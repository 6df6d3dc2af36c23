"""Angles against mpmath, at any position, in any dtype, with or without float64; and what forming them takes."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

import posenc
from posenc import positions
from posenc.families import angles
from posenc.placed import tensors
from posenc.positions import checks
from posenc.private import watching
from strategies import refuses
from watch import Largest

HEAD_DIM = 128
# the slowest and the fastest pairs, and some between
PAIRS = [0, 1, 2, 7, 15, 31, 32, 48, 62, 63]
FAR = [0, 1, 255, 257, 1023, 1024, 65_537, 999_983, 1_048_575, 2**23 + 1, 9_999_991, 10_000_000]
PLACES = {
    "whole": torch.tensor(FAR),
    "negative": -torch.tensor(FAR),
    "fractional": torch.tensor([p + 0.37 for p in FAR], dtype=torch.float64),
    "negative and fractional": torch.tensor([-p - 0.625 for p in FAR], dtype=torch.float64),
}


def exactly(pos: Tensor, pairs: list[int] = PAIRS, head_dim: int = HEAD_DIM) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines by mpmath with 60 digits, as float64, from the base itself."""
    with mpmath.workdps(60):
        turned = [
            [mpmath.mpf(p) * mpmath.mpf(10000) ** (mpmath.mpf(-2 * k) / head_dim) for k in pairs] for p in pos.tolist()
        ]
        return tuple(np.array([[float(f(a)) for a in row] for row in turned]) for f in (mpmath.cos, mpmath.sin))  # type: ignore[return-value]


def tables(pos: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    cos, sin = posenc.RoPE(head_dim=HEAD_DIM, **options).place(pos).parts
    return cos[..., PAIRS], sin[..., PAIRS]


@pytest.mark.parametrize("kind", PLACES)
def test_float32_is_right_to_2e_7_up_to_ten_million(kind: str) -> None:
    for got, wanted in zip(tables(PLACES[kind]), exactly(PLACES[kind]), strict=True):
        assert got.dtype == torch.float32
        np.testing.assert_allclose(got.double().numpy(), wanted, rtol=0, atol=2e-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", PLACES)
def test_halves_are_right_to_half_an_ulp(kind: str, dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    for got, wanted in zip(tables(PLACES[kind]), exactly(PLACES[kind]), strict=True):
        exponent = np.floor(np.log2(np.maximum(np.abs(wanted), info.tiny)))
        ulp = 2.0**exponent * info.eps
        # rounded to float32 on the way, which moves a tie by 2^-13 of an ulp of float16 at most
        slack = 1 + 2.0**-12 if dtype == torch.float16 else 1 + 2.0**-15
        assert (np.abs(got.to(dtype).double().numpy() - wanted) <= ulp / 2 * slack).all()


@pytest.mark.parametrize("start", [0, 1, 1000, 5_000_003, -3_000])
def test_a_long_run_has_the_angles_of_its_positions_alone(start: int) -> None:
    pos = positions.arange(70_000, start=start)
    rope = posenc.RoPE(head_dim=16, attention_factor=1.25)
    cos, sin = rope.place(pos).parts
    some = [0, 1, 23, 24, 511, 512, 1023, 1024, 1025, 16_383, 16_384, 65_535, 65_536, 69_999]
    for table, f in ((cos, np.cos), (sin, np.sin)):
        alone = torch.cat([rope.place(pos[i : i + 1]).parts[0 if f is np.cos else 1] for i in some])
        assert torch.equal(table[some], alone), "prefill and decoding would turn a key differently"
        angle = pos.double().numpy()[:, None] * 10000.0 ** (-np.arange(8) / 8)
        np.testing.assert_allclose(table.double().numpy(), 1.25 * f(angle), rtol=0, atol=2e-7)


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "packed": lambda: torch.cat([torch.arange(n) for n in (700, 1, 0, 1500, 40, 1, 1024, 300)]),
    "batched": lambda: torch.stack([torch.arange(3000) + s for s in (0, 5, 999)]),
    "left padded": lambda: torch.arange(3000).sub(77).clamp(min=0).repeat(2, 1),
    "backwards": lambda: torch.arange(3000).flip(0),
    "scattered": lambda: torch.randperm(3000, generator=torch.Generator().manual_seed(0)),
    "fractional": lambda: torch.arange(3000, dtype=torch.float64) * 0.37 - 11,
    "int32": lambda: torch.arange(-1500, 1500, dtype=torch.int32),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_of_positions(layout: str) -> None:
    pos = LAYOUTS[layout]()
    got = posenc.RoPE(head_dim=16).place(pos).parts
    angle = pos.double().numpy()[..., None] * 10000.0 ** (-np.arange(8) / 8)
    for table, f in zip(got, (np.cos, np.sin), strict=True):
        assert table.shape == (*pos.shape, 8)
        np.testing.assert_allclose(table.double().numpy(), f(angle), rtol=0, atol=2e-7)


def test_several_axes_far_out() -> None:
    pos = torch.tensor([[10_000_000, 9_999_999], [-5, 3], [1024, 2048]])
    cos, _ = posenc.AxialRoPE(head_dim=8).place(pos).parts
    angle = np.concatenate([pos.double().numpy()[:, [a]] * [1.0, 0.01] for a in range(2)], 1)
    np.testing.assert_allclose(cos.double().numpy(), np.cos(angle), rtol=0, atol=2e-7)


@pytest.mark.parametrize("scattered", [False, True])
def test_nothing_larger_than_the_tables_is_made(scattered: bool) -> None:
    pos = positions.arange(2**15)
    pos = pos[torch.randperm(len(pos))] if scattered else pos
    rope = posenc.RoPE(head_dim=128)
    with Largest() as seen:
        cos, _ = rope.place(pos).parts
    assert seen.bytes <= cos.numel() * cos.element_size()


def test_off_the_cpu_nothing_is_read() -> None:
    """On meta there is nothing to read: what asked for a value would raise."""
    rope = posenc.RoPE(head_dim=128)
    cos, _ = rope.place(torch.arange(100_000, device="meta")).parts
    assert cos.shape == (100_000, 64)
    assert cos.device.type == "meta"


def casts() -> dict[str, Callable[[Any], Any]]:
    def through_meta(rope: Any) -> Any:
        return rope.to("meta").to_empty(device="cpu")

    def saved(rope: Any) -> Any:
        twin = posenc.RoPE(**rope.options())
        twin.load_state_dict(rope.state_dict())
        return twin

    return {
        "bfloat16": lambda rope: rope.bfloat16(),
        "float16 and back": lambda rope: rope.half().float(),
        "meta and back": through_meta,
        "saved and loaded": saved,
        "copied": copy.deepcopy,
        "default dtype": lambda rope: rope,
    }


@pytest.mark.parametrize("cast", casts())
def test_the_same_angles_bit_for_bit_after(cast: str) -> None:
    pos = torch.tensor(FAR)
    options = {"head_dim": 128, "base": 500000.0}
    before = posenc.RoPE(**options).place(pos).parts
    after = casts()[cast](posenc.RoPE(**options)).place(pos).parts
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_the_same_angles_bit_for_bit_under_autocast() -> None:
    pos = positions.arange(3000)
    for encoding in (posenc.RoPE(head_dim=64), posenc.AxialRoPE(head_dim=64)):
        at = pos if encoding.n_axes == 1 else pos[:, None].expand(-1, 2)
        before = encoding.place(at).parts
        with torch.autocast("cpu", dtype=torch.bfloat16):
            after = encoding.place(at).parts
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("name", ["rope", "stretched_rope", "mixed_rope", "fope", "pope", "grape_m", "liere"])
def test_what_is_learned_keeps_its_angles_when_cast(name: str) -> None:
    learned = {"trainable": True} if name == "rope" else {}
    rope = posenc.create(name, **posenc.card(name).example, **learned)
    assert list(rope.parameters())
    pos = torch.tensor(FAR) if rope.n_axes == 1 else torch.tensor(FAR)[:, None].expand(-1, rope.n_axes) % 100
    before = rope.place(pos).parts
    after = rope.bfloat16().place(pos).parts
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("kind", PLACES)
def test_without_float64_on_the_device(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(angles, "has_float64", lambda device: False)
    pos = PLACES[kind] if not PLACES[kind].is_floating_point() else PLACES[kind].float()  # all that such a device has
    for got, wanted in zip(tables(pos), exactly(pos), strict=True):
        np.testing.assert_allclose(got.double().numpy(), wanted, rtol=0, atol=2e-6)
    for n_axes, place in ((2, torch.tensor([[10_000_000, 77]])), (2, torch.tensor([[0.25, -7.5]]))):
        got, _ = posenc.AxialRoPE(head_dim=8, n_axes=n_axes).place(place).parts
        wide = np.concatenate([place.double().numpy()[:, [a]] * [1.0, 0.01] for a in range(n_axes)], 1)
        np.testing.assert_allclose(got.double().numpy(), np.cos(wide), rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", [torch.int64, torch.float32])
def test_without_float64_nothing_on_the_device_is_float64(kind: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(angles, "has_float64", lambda device: False)
    monkeypatch.setattr(checks, "has_float64", lambda device: False)
    rope = posenc.RoPE(head_dim=128)
    place = torch.arange(10, dtype=kind, device="meta")
    seen: set[tuple[str, torch.dtype]] = set()

    with watching(lambda _, out: seen.update((t.device.type, t.dtype) for t in tensors(out))):
        rope.place(place)
    assert ("meta", torch.float32) in seen
    assert ("meta", torch.float64) not in seen


def test_learned_frequencies_without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    rope = posenc.RoPE(head_dim=8, trainable=True)
    wanted = rope.place(torch.tensor([5, 1_000_000])).parts[0]
    monkeypatch.setattr(angles, "has_float64", lambda device: False)
    got = rope.place(torch.tensor([5, 1_000_000])).parts[0]
    torch.testing.assert_close(got, wanted, rtol=0, atol=2e-6)
    got.sum().backward()  # type: ignore[no-untyped-call]
    assert rope.inv_freq.grad.abs().sum() > 0


def test_gradients_reach_learned_frequencies_at_any_position() -> None:
    rope = posenc.RoPE(head_dim=4, trainable=True)
    pos = torch.tensor([3, 5000])
    rope.place(pos, dtype=torch.float64).parts[0].sum().backward()
    wanted = [sum(-p * math.sin(p * w) for p in (3, 5000)) for w in (1.0, 0.01)]
    torch.testing.assert_close(rope.inv_freq.grad, torch.tensor(wanted), rtol=1e-5, atol=1e-5)


def test_tables_past_the_budget_are_refused_before_they_are_made() -> None:
    rope = posenc.RoPE(head_dim=128)
    with refuses(ValueError, "RoPE", "table_budget=16 GiB", "477 GiB", "Place fewer"):
        rope.place(torch.empty(10**9, dtype=torch.int64, device="meta"))
    rope.table_budget = 1000
    with refuses(ValueError, "table_budget"):
        rope.place(positions.arange(3))
    rope.place(positions.arange(1))
    rope.table_budget = 2**60
    rope.place(torch.empty(10**9, dtype=torch.int64, device="meta"))


@pytest.mark.compiles
def test_export_leaves_the_length_open() -> None:
    """The check of the budget must not bound a length that is open."""

    class Turns(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rope = posenc.RoPE(head_dim=8)

        def forward(self, q: Tensor, pos: Tensor) -> Tensor:
            return self.rope.rotate_q(q, self.rope.place(pos))

    n = torch.export.Dim("n")
    q, pos = torch.randn(1, 2, 33, 8), torch.arange(33)
    exported = torch.export.export(Turns(), (torch.randn(1, 2, 9, 8), torch.arange(9)), dynamic_shapes=({2: n}, {0: n}))
    torch.testing.assert_close(exported.module()(q, pos), Turns()(q, pos), rtol=0, atol=1e-6)


def test_what_int64_does_not_hold_is_refused() -> None:
    far = torch.tensor([5, 2**63 + 7], dtype=torch.uint64)
    with refuses(ValueError, "RoPE: positions must be below 2^63", str(2**63 + 7)):
        posenc.RoPE(head_dim=8).place(far)
    assert posenc.RoPE(head_dim=8).place(torch.tensor([2**63 - 1], dtype=torch.uint64)).pos.item() == 2**63 - 1
