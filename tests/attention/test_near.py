"""Keys that count for nothing are left out, and no others: against the reference in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import posenc
from posenc import attend
from posenc.attention import fused, near, plan
from strategies import normal

N, HEADS, LANES = 90, 4, 8
POS = torch.arange(N)
SIZES = torch.tensor([20, 70])
IDS = torch.repeat_interleave(torch.tensor([3, 0]), SIZES)
AGAIN = torch.cat([torch.arange(int(n)) for n in SIZES])  # positions that begin anew


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (("LEAST", 1), ("HIDES", 1), ("LEARNS", 1), ("ROWS", 8), ("STEP", 4)):
        monkeypatch.setattr(near, name, number)
    monkeypatch.setattr(fused, "AT_ONCE", 8)
    monkeypatch.setattr(plan, "LONG", 24)
    monkeypatch.setattr(plan, "SHORT", 16)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many scores each call of torch's kernel formed."""
    found: list[int] = []
    real = fused.forward

    def forward(q: Tensor, k: Tensor, *args: Any, **options: Any) -> Any:
        found.append(q.shape[1] * q.shape[2] * k.shape[2])
        return real(q, k, *args, **options)

    monkeypatch.setattr(fused, "forward", forward)
    return found


def steep(first: float = 16.0) -> posenc.ALiBi:
    """Slopes of which the first leaves a few keys, and the last all."""
    return posenc.ALiBi(n_heads=HEADS, slopes=[first, first / 2, first / 8, 0.01])


class Shared(posenc.Bias):
    """The same for all heads."""

    by_distance = True

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        return -4.0 * (q - k).abs() + 0.0 * h

    def over(self, distance: Tensor) -> Tensor:
        return -4.0 * distance.abs().float()[None]


def near_to(found: Tensor, expected: Tensor, error: float) -> None:
    torch.testing.assert_close(found.double(), expected.double(), rtol=error, atol=error)


def tensors(n: int = N, n_kv: int = HEADS, *, keys: int = N) -> list[Tensor]:
    shapes = (2, HEADS, n, LANES), (2, n_kv, keys, LANES), (2, n_kv, keys, LANES)
    return [normal(*shape, seed=seed, dtype=torch.float32) for seed, shape in enumerate(shapes)]


CALLS: dict[str, dict[str, Any]] = {
    "causal": {},
    "bidirectional": {"causal": False},
    "window": {"window": 30},
    "documents": {"document_ids": IDS},
    "mixed": {"document_ids": POS // 7 % 2},
    "positions of documents": {"document_ids": IDS, "pos": AGAIN},
    "packed ahead": {"document_ids": IDS, "causal": False},
    "strong": {"scale": 3.0},
    "negative scale": {"scale": -0.2},
}


@pytest.mark.parametrize("n_kv", [HEADS, 2])
@pytest.mark.parametrize("name", CALLS)
def test_forwards_and_backwards(name: str, n_kv: int, seen: list[int]) -> None:
    options = dict(CALLS[name])
    pos = options.pop("pos", POS)
    q, k, v = (t.requires_grad_() for t in tensors(n_kv=n_kv))
    out = attend(q, k, v, steep(), pos, backend="distance", **options)
    wide = [t.detach().double().requires_grad_() for t in (q, k, v)]
    expected = attend(*wide, steep(), pos, backend="reference", **options)
    near_to(out, expected, 2e-6)
    grad = normal(*out.shape, seed=4, dtype=torch.float32)
    found = torch.autograd.grad(out, (q, k, v), grad)
    for one, other in zip(found, torch.autograd.grad(expected, wide, grad.double()), strict=True):
        near_to(one, other, 1e-4)


def test_leaves_out(seen: list[int]) -> None:
    q, k, v = tensors()
    attend(q, k, v, steep(), POS, backend="distance")
    few = sum(seen)
    seen.clear()
    attend(q, k, v, steep(0.08), POS, backend="distance")
    assert few < 0.8 * sum(seen)


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """Which share of scores is minus infinity by head of the bias, where no keys are left out; the result is right."""
    masks: list[Tensor] = []
    real = fused.forward

    def forward(*args: Any, attn_mask: Tensor, **options: Any) -> Any:
        masks.append(attn_mask)
        return real(*args, attn_mask=attn_mask, **options)

    monkeypatch.setattr(fused, "forward", forward)
    monkeypatch.setattr(near, "LEAST", N + 1)
    monkeypatch.setattr(plan, "SHORT", N)

    def shares(encoding: posenc.Bias, q: Tensor, k: Tensor, v: Tensor) -> list[float]:
        masks.clear()
        found = attend(q, k, v, encoding, POS, backend="distance", causal=False)
        wide = [t.double() for t in (q, k, v)]
        near_to(found, attend(*wide, encoding, POS, backend="reference", causal=False), 2e-6)
        found_shares: list[float] = (torch.cat(masks, 1) == -torch.inf).float().mean((0, 2, 3)).tolist()
        return found_shares

    return shares


@pytest.mark.parametrize("threads", [2, 1000])
def test_hides_what_would_be_no_normal_number(
    threads: int, hidden: Callable[..., list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where heads are not to follow each other, since more threads wait for work."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(near, "LEAST", 1 if threads > 2 else N + 1)
    first, second, third, last = hidden(steep(), *tensors())
    assert 0.95 > first > second > third > last == 0.0


def test_hides_of_a_bias_that_heads_share_what_all_can_spare(hidden: Callable[..., list[float]]) -> None:
    q, k, v = tensors()
    before = hidden(Shared(n_heads=HEADS), q, k, v)[0]
    k[:, 1] *= 4.0
    assert 0.9 > before > hidden(Shared(n_heads=HEADS), q, k, v)[0] > 0.1


@pytest.mark.parametrize("n_kv", [HEADS, 2])
def test_gradients_of_slopes(n_kv: int) -> None:
    found, expected = [], []
    for dtype, backend, into in ((torch.float32, "distance", found), (torch.float64, "reference", expected)):
        encoding = posenc.ALiBi(n_heads=HEADS, slopes="learned")
        encoding.log_slope.data = torch.tensor([16.0, 8.0, 2.0, 0.01]).log()
        encoding.to(dtype)
        q, k, v = (t.to(dtype).requires_grad_() for t in tensors(n_kv=n_kv))
        out = attend(q, k, v, encoding, POS, backend=backend)
        into += [out, *torch.autograd.grad(out.square().sum(), (q, k, v, *encoding.parameters()))]
    for one, other in zip(found, expected, strict=True):
        near_to(one, other, 1e-4)


def test_last_queries_of_a_cache(seen: list[int]) -> None:
    q, k, v = tensors(20)
    out = attend(q, k, v, steep(), POS[-20:], POS, backend="distance")
    wide = [t.double() for t in (q, k, v)]
    near_to(out, attend(*wide, steep(), POS[-20:], POS, backend="reference"), 2e-6)
    assert sum(seen) < 0.6 * HEADS * 20 * N


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    q, k, v = (t.to(dtype) for t in tensors())
    out = attend(q, k, v, steep(), POS, backend="distance")
    expected = attend(*(t.double() for t in (q, k, v)), steep(), POS, backend="reference")
    near_to(out, expected, {torch.float64: 1e-13, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype])


@pytest.mark.parametrize("where", ["k", "v"])
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_far_nan_and_infinity_come_through(where: str, number: float) -> None:
    q, k, v = tensors()
    (k if where == "k" else v)[:, :, 0] = number
    found, expected = (attend(q, k, v, steep(), POS, backend=b) for b in ("distance", "reference"))
    assert torch.equal(found.isnan(), expected.isnan())
    assert expected[:, :, -1].isnan().any()


@pytest.mark.parametrize("scale", [0.3, -0.3])
def test_far_key_that_wins(scale: float) -> None:
    q, k, v = tensors(n_kv=2)
    q[:, 0, -1] = 30.0  # of two heads that share the keys, the other sees nothing of it
    k[:, 0, 0] = 30.0 * scale / abs(scale)  # a score of 2,160, and the bias is -1,424
    found, expected = (attend(q, k, v, steep(), POS, scale=scale, backend=b) for b in ("distance", "reference"))
    near_to(found, expected, 2e-6)
    near_to(found[:, 0, -1], v[:, 0, 0], 1e-6)


def test_far_values_that_are_large() -> None:
    q, k, v = tensors()
    v[:, :, 0] *= 1e30
    wide = [t.double() for t in (q, k, v)]
    found = attend(q, k, v, steep(), POS, backend="distance")
    expected = attend(*wide, steep(), POS, backend="reference")
    near_ones = expected.abs() < 10  # to which the large ones add less than a rounding
    assert near_ones[:, 0, -1].all()
    near_to(found[near_ones], expected[near_ones], 1e-5)
    assert not near_ones[:, -1, -1].any()


def test_hidden_own_key() -> None:
    q, k, v = tensors()
    mask = (POS < 30)[None, None, None]  # what is nearest is none of the keys that a query is sure to reach
    found, expected = (attend(q, k, v, steep(), POS, mask=mask, backend=b) for b in ("distance", "reference"))
    near_to(found, expected, 2e-5)
    assert found[:, :, -1].abs().min() > 0


def test_bias_that_rises_again() -> None:
    """Far keys count where what lies between does not."""

    class Valley(posenc.Bias):
        by_distance = True

        def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
            distance = (q - k).abs() + 0.0 * h
            return torch.where(distance > 60, 0.0, -20.0 * distance)

    q, k, v = tensors()
    found, expected = (attend(q, k, v, Valley(n_heads=HEADS), POS, backend=b) for b in ("distance", "reference"))
    near_to(found, expected, 2e-6)
