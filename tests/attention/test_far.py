"""Keys so far behind that all have one bias are a call of their own: against the reference in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import posenc
from posenc import attend
from posenc.attention import explain, far, fused
from strategies import normal

N, HEADS, LANES = 150, 4, 8
POS = torch.arange(N)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (("LEAST", 1), ("LEARNS", 1), ("TIMES", 2), ("AT_ONCE", 64), ("SIZES", (8, 16))):
        monkeypatch.setattr(far, name, number)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many queries each causal call of torch's kernel had."""
    found: list[int] = []
    real = fused.forward

    def forward(q: Tensor, *args: Any, is_causal: bool = False, **options: Any) -> Any:
        found.extend([q.shape[2]] * is_causal)
        return real(q, *args, is_causal=is_causal, **options)

    monkeypatch.setattr(fused, "forward", forward)
    return found


def t5(**options: Any) -> posenc.Bias:
    return drawn(posenc.T5(n_heads=HEADS, n_buckets=8, max_distance=20, **options))


def clipped(max_distance: int = 30) -> posenc.Bias:
    return drawn(posenc.RelativeBias(n_heads=HEADS, max_distance=max_distance))


def drawn(encoding: posenc.Bias) -> posenc.Bias:
    assert isinstance(encoding.weight, Tensor)
    with torch.no_grad():
        encoding.weight.copy_(3.0 * normal(*encoding.weight.shape, seed=9, dtype=torch.float32))
    return encoding


class OneForAll(posenc.Bias):
    """One number for all heads."""

    by_distance, alike_from = True, 10

    def __init__(self) -> None:
        super().__init__(n_heads=HEADS)
        self.steps = torch.nn.Parameter(normal(11, seed=5, dtype=torch.float32))

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        return self.steps[(q - k).abs().clamp(max=10).long()] + 0.0 * h

    def over(self, distance: Tensor) -> Tensor:
        return self.steps[distance.abs().clamp(max=10).long()][None]


def tensors(n: int = N, n_kv: int = HEADS, dtype: torch.dtype = torch.float32, lanes: int = LANES) -> list[Tensor]:
    shapes = (2, HEADS, n, LANES), (2, n_kv, n, LANES), (2, n_kv, n, lanes)
    return [normal(*shape, seed=seed, dtype=torch.float32).to(dtype) for seed, shape in enumerate(shapes)]


def both(encoding: posenc.Encoding, given: list[Tensor], *pos: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return results and gradients of q, k, v and what is learned: of this backend, and of the reference."""
    found = []
    for backend, dtype in (("distance", given[0].dtype), ("reference", torch.float64)):
        wide = [t.to(dtype).requires_grad_() for t in given]
        out = attend(*wide, encoding, *(pos or (torch.arange(given[0].shape[2]),)), backend=backend)
        learned = [p for p in encoding.parameters() if p.requires_grad]
        grad = normal(*out.shape, seed=4, dtype=torch.float32).to(dtype)
        found.append([out, *torch.autograd.grad(out, (*wide, *learned), grad)])
    return found[0], found[1]


def near_to(found: list[Tensor], expected: list[Tensor], error: float) -> None:
    for one, other in zip(found, expected, strict=True):
        size = float(other.detach().abs().max()) or 1.0
        wanted = max(error, 1e-5) if other.dtype == torch.float32 else error  # of a table
        torch.testing.assert_close(one.double() / size, other.double() / size, rtol=0.0, atol=wanted)


ENCODINGS: dict[str, Any] = {
    "t5": t5,
    "t5, of both sides": lambda: t5(bidirectional=True),
    "clipped": clipped,
    "a sum": lambda: posenc.Compose(t5(), clipped()),
    "turned": lambda: posenc.Compose(posenc.RoPE(head_dim=LANES), t5()),
    "one for all": OneForAll,
    "some heads": lambda: drawn(posenc.T5(n_heads=8, n_buckets=8, max_distance=20)).of_heads(3, HEADS),
}


@pytest.mark.parametrize("n_kv", [HEADS, 2, 1])
@pytest.mark.parametrize("name", ENCODINGS)
def test_forwards_and_backwards(name: str, n_kv: int, plain: list[int]) -> None:
    found, expected = both(ENCODINGS[name](), tensors(n_kv=n_kv))
    assert plain
    near_to(found[:1], expected[:1], 2e-6)
    near_to(found[1:], expected[1:], 1e-5)


@pytest.mark.parametrize("n", [60, 61, 67, 90, 151])
@pytest.mark.parametrize("reach", [7, 8, 9, 16, 30])
def test_wherever_blocks_begin(n: int, reach: int, plain: list[int]) -> None:
    near_to(*both(clipped(reach), [t.double() for t in tensors(n)]), 1e-12)
    assert set(plain) == {n - reach}


def test_a_bias_that_is_given_no_gradient(plain: list[int]) -> None:
    near_to(*both(t5().requires_grad_(False), tensors()), 1e-5)
    assert plain


def test_nothing_learns(plain: list[int]) -> None:
    q, k, v = tensors()
    with torch.no_grad():
        found = attend(q, k, v, t5(), POS, backend="distance")
    near_to([found], [attend(*(t.double() for t in (q, k, v)), t5(), POS, backend="reference")], 2e-6)
    assert plain


@pytest.mark.parametrize("lanes", [5, 12])
def test_values_of_another_width(lanes: int, plain: list[int]) -> None:
    near_to(*both(t5(), tensors(lanes=lanes)), 1e-5)
    assert plain


def test_in_half_precision_as_exact_as_blocks(plain: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    given = tensors(dtype=torch.bfloat16)
    frozen = clipped().requires_grad_(False)
    found, expected = both(frozen, given)
    assert plain
    monkeypatch.setattr(far, "LEAST", N + 1)
    blocks, _ = both(frozen, given)
    for one, other, right in zip(found, blocks, expected, strict=True):
        assert (one.double() - right).norm() < 1.5 * (other.double() - right).norm()


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-3), (torch.bfloat16, 0.05), (torch.float16, 0.01)])
def test_the_gradient_of_a_far_number_of_little_weight(dtype: torch.dtype, error: float, plain: list[int]) -> None:
    """In half precision, too, where what near gradients lack to zero would be what rounding the result does."""
    encoding = t5()
    with torch.no_grad():
        encoding.weight[7] = -6.0
    found, expected = (grads[4][7] for grads in both(encoding, tensors(n=600, dtype=dtype)))
    assert (found - expected).norm() < error * expected.norm()
    assert bool(plain) == (dtype == torch.float32)


def test_far_keys_that_blocks_may_leave_out_are_left_to_these(plain: list[int]) -> None:
    encoding = t5()
    with torch.no_grad():
        encoding.weight[7, 2] = encoding.weight[0, 2] - 60.0
    near_to(*both(encoding, tensors()), 1e-5)
    assert not plain


def test_distances_that_float32_does_not_hold(plain: list[int]) -> None:
    class Step(posenc.Bias):
        by_distance, alike_from = True, 2**24 + 1

        def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
            return 5.0 * ((q - k) >= 2**24 + 1) + 0.0 * h

    near_to(*both(Step(n_heads=HEADS), [t.double() for t in tensors()], POS + 2**24 - 10, POS), 1e-12)
    assert plain


def test_what_is_told_of_no_lanes() -> None:
    q = torch.zeros(1, HEADS, N, 0)
    assert {one.backend for one in explain(q, q, q, t5(), POS, scale=1.0)} >= {"distance", "blocked"}


@pytest.mark.parametrize("shift", [5, -5])
def test_keys_whose_positions_begin_elsewhere(shift: int, plain: list[int]) -> None:
    """Distances by position are larger or smaller than by index, and so is what is far."""
    near_to(*both(t5(), [t.double() for t in tensors()], POS + max(shift, 0), POS + max(-shift, 0)), 1e-12)
    assert plain


def test_positions_that_a_map_makes_follow_each_other(plain: list[int]) -> None:
    """What is passed in jumps, so that other blocks would begin there; what the bias sees does not."""
    pos = POS + 1000 * (POS >= 77)
    mapped = posenc.Mapped(t5(), lambda pos: pos - 1000 * (pos > 500))
    near_to(*both(mapped, [t.double() for t in tensors()], pos), 1e-12)
    assert plain


def test_tokens_before_heads_in_memory(plain: list[int]) -> None:
    near_to(*both(t5(), [t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors()]), 1e-5)
    assert plain


def test_far_keys_that_are_never_seen(plain: list[int]) -> None:
    """Minus infinity for all that are far, for all that are near, but for the query itself or with it, or for all."""
    for bucket in (slice(7, 8), slice(1, 7), slice(0, 7), slice(0, 8)):
        encoding = t5()
        with torch.no_grad():
            encoding.weight[bucket] = -torch.inf
        near_to(*both(encoding.requires_grad_(False), tensors()), 1e-5)
    assert plain


def test_numbers_far_apart(plain: list[int]) -> None:
    for number in (-1e9, -200.0, 200.0):
        encoding = t5()
        with torch.no_grad():
            encoding.weight[7] = number
        found, expected = both(encoding, tensors())
        near_to(found[:4], expected[:4], 1e-5)
        # gradients of the far number lie below what is lost of larger ones
        torch.testing.assert_close(found[4].double(), expected[4].double(), rtol=1e-4, atol=1e-3)
    assert plain


def test_a_token_that_is_no_number_spoils_those_behind_it_alone(plain: list[int]) -> None:
    for which in (1, 2):
        given = tensors()
        given[which][0, 1, 70] = torch.nan
        found, expected = (attend(*given, t5(), POS, backend=backend) for backend in ("distance", "reference"))
        assert torch.equal(found.isnan(), expected.isnan())
        assert not found[0, 1, :70].isnan().any()


OTHERS: dict[str, dict[str, Any]] = {
    "bidirectional": {"causal": False},
    "window": {"window": 60},
    "documents": {"document_ids": POS // 50},
    "mask": {"mask": POS > 5},
    "dropout": {"dropout_p": 0.5},
}


@pytest.mark.parametrize("name", OTHERS)
def test_calls_of_which_far_keys_are_not_one_triangle(name: str, plain: list[int]) -> None:
    attend(*tensors(), t5(), POS, backend="distance", **OTHERS[name])
    assert not plain


def test_biases_that_say_nothing_of_far_keys(plain: list[int]) -> None:
    class Buckets(posenc.T5):
        def bucket(self, distance: Tensor) -> Tensor:
            return super().bucket(distance // 2)

    class At(posenc.T5):
        def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
            return super().at(h, q, k) - (q - k)

    kerple = posenc.KERPLE(n_heads=HEADS)
    own = [cls(n_heads=HEADS, n_buckets=8, max_distance=20) for cls in (Buckets, At)]
    for encoding in (kerple, posenc.Compose(t5(), kerple), *own):
        for backend in ("distance", "blocked"):
            if not (backend == "distance" and encoding is own[1]):  # which is no vector until it says so
                attend(*tensors(), encoding, POS, backend=backend)
    assert not plain


@pytest.mark.parametrize(("name", "number"), [("TIMES", 8), ("LEARNS", N + 1)])
def test_a_short_call_is_one_triangle(
    name: str, number: int, monkeypatch: pytest.MonkeyPatch, plain: list[int]
) -> None:
    """Far keys begin 19 tokens behind a query; 150 are fewer than eight times as many."""
    attend(*tensors(), clipped(19), POS, backend="distance")
    assert set(plain) == {N - 19}
    plain.clear()
    monkeypatch.setattr(far, name, number)
    attend(*tensors(), clipped(19), POS, backend="distance")
    assert not plain


def test_what_is_told_grows_with_the_length() -> None:
    def told(n: int, *, learns: bool) -> int:
        q = torch.zeros(1, HEADS, n, 64)
        with torch.set_grad_enabled(learns):
            (said,) = (one.memory for one in explain(q, q, q, t5(), torch.arange(n)) if one.backend == "distance")
        return said

    for learns in (False, True):
        assert 2.5 < told(2**16, learns=learns) / told(2**14, learns=learns) < 4.1


@pytest.mark.parametrize("scale", [-0.5, 0.0, 1e-46])
def test_a_scale_that_the_causal_kernel_cannot_hide_by(scale: float, plain: list[int]) -> None:
    given = tensors()
    found = attend(*given, t5(), POS, scale=scale, backend="distance")
    exact = attend(*(t.double() for t in given), t5(), POS, scale=scale, backend="reference")
    near_to([found], [exact], 2e-6)
    assert not plain


def test_a_far_number_of_infinity_leaves_no_mean(plain: list[int]) -> None:
    encoding = t5()
    with torch.no_grad():
        encoding.weight[7, 1] = torch.inf
        given = tensors()
        found, exact = (attend(*given, encoding, POS, backend=name) for name in ("distance", "reference"))
    assert torch.equal(found.isnan(), exact.isnan())
    assert bool(exact.isnan().any())
    assert not plain


def test_what_is_told_of_tables_that_may_not_be_read() -> None:
    """Of an ensemble: queries are plain, and what is learned is within a transform."""
    q, encoding = tensors()[0].detach(), t5()

    class Told(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoding = encoding

        def forward(self) -> Tensor:
            assert "distance" in {one.backend for one in explain(q, q, q, self.encoding, POS)}
            return attend(q, q, q, self.encoding, POS)

    many = torch.stack([encoding.weight.detach(), 2 * encoding.weight.detach()])
    step = torch.func.vmap(lambda w: torch.func.functional_call(Told(), {"encoding.weight": w}, ()))
    torch.testing.assert_close(step(many)[0], attend(q, q, q, encoding, POS).detach(), rtol=0, atol=1e-5)
