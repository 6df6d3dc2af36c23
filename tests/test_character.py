"""Measurements of encodings whose properties are known by mathematics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import posenc
from posenc import Placed, registry
from posenc.character import CAP, measure

PI, SINE_1, SINE_HALF = torch.pi, 0.8414709848, 0.4794255386
INTEGERS = {"float32": CAP, "bfloat16": 257, "float16": 2049}  # bfloat16 rounds 257 to 256, float16 2049 to 2048


class Vectors(posenc.Additive):
    """Adds the dimensions that functions of the positions return."""

    def __init__(self, *dimensions: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.dimensions, self.d_model = dimensions, len(dimensions)

    def vectors(self, pos: Tensor) -> Tensor:
        return torch.stack([dimension(pos.double()) for dimension in self.dimensions], -1)


class Term(posenc.Bias):
    """Adds a function of the distance to the scores, one for each head."""

    def __init__(self, *heads: Callable[[Tensor], Tensor]) -> None:
        super().__init__(n_heads=len(heads))
        self.heads = heads

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        return torch.cat([head((q - k).double()) for head in self.heads], -3)


class Learns(posenc.Bias):
    """Falls or rises with distance by a learned slope; `positive` makes it always fall."""

    def __init__(self, *, positive: bool) -> None:
        super().__init__(n_heads=1)
        self.positive, self.slope = positive, nn.Parameter(torch.ones(1))

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        return -(self.slope.exp() if self.positive else self.slope) * (q - k).abs()


class Jumps(posenc.Additive):
    """Counts from 0 or from 128, by the sign of a learned number."""

    d_model = 1

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def vectors(self, pos: Tensor) -> Tensor:
        return (pos + 128 * (self.weight > 0)).double()[..., None]


class Swells(posenc.Rotary):
    """Rotates nothing; queries shrink and keys grow, by a factor of two in 100 positions."""

    def frequencies(self) -> Tensor:
        return torch.zeros(1, self.head_dim // 2, dtype=torch.float64)

    def amplitude(self, pos: Tensor) -> Tensor:
        return (0.5 ** (pos / 100).clamp(max=100))[..., None].expand(*pos.shape, self.head_dim // 2)


class Divides(Vectors):
    """Divides by the length, which `resolve` sets."""

    def __init__(self, length: int | None) -> None:
        super().__init__(lambda p: p)
        self.length = length

    def vectors(self, pos: Tensor) -> Tensor:
        if self.length is None:
            raise ValueError("Divides: the length is not known")
        return super().vectors(pos) / self.length

    def resolve(self, seq_len: int) -> posenc.Encoding:
        return Divides(seq_len)


class Rows(posenc.Additive):
    """One dimension counts axis 0 modulo 7, another one axis 1."""

    n_axes, d_model = 2, 2

    def vectors(self, pos: Tensor) -> Tensor:
        return torch.stack((pos[..., 0] % 7, pos[..., 1]), -1).double()


class ByColumn(posenc.Bias):
    """A bias that depends on axis 1 itself, not on a distance, and not on axis 0."""

    n_axes = 2

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        return (q[1] * k[1]).double() * (h + 1)


class Maps(posenc.ScoreMap):
    """Subtracts a function of the distance from the scores."""

    n_heads = 2

    def __init__(self, term: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.term = term

    def rescore(
        self, scores: Tensor, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed, mask: Tensor | None
    ) -> Tensor:
        return scores - self.term((placed.pos[:, None] - k_placed.pos).to(scores.dtype))


class Multiplies(posenc.Additive):
    """Multiplies the tokens by the position modulo 11, so that zeros do not show it."""

    d_model = 4

    def parts(self, pos: Tensor, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        return (pos.to(dtype) % 11,)

    def embed(self, x: Tensor, placed: Placed) -> Tensor:
        return x * placed.parts[0][:, None]


class Jitters(Vectors):
    """Is random in training."""

    def vectors(self, pos: Tensor) -> Tensor:
        return super().vectors(pos) + (torch.rand(()) if self.training else 0)


class Fails(posenc.Encoding):
    def place(self, pos: Tensor, *rest: Any, **options: Any) -> Placed:
        raise RuntimeError("nothing works today")


def zero(p: Tensor) -> Tensor:
    return 0 * p


def below(end: int) -> Callable[[Tensor], Tensor]:
    """Return the identity that refuses positions from `end` on."""

    def dimension(p: Tensor) -> Tensor:
        if bool((p >= end).any()):
            raise IndexError("out of the table")
        return p

    return dimension


def counts(n: int) -> dict[str, int]:
    return {"float32": n, "bfloat16": n, "float16": n}


def near(value: float, rel: float = 1e-4) -> Any:
    return pytest.approx(value, rel=rel)


# name: an encoding and its known properties
KNOWN: dict[str, tuple[posenc.Encoding, dict[str, Any]]] = {
    "position": (
        Vectors(lambda p: p),
        {"distinct": INTEGERS, "longest": None, "real_positions": True, "step": near(1 / 4096), "smooth": True}
        | {"recency": False, "linear_shift": False, "length_dependent": False},  # falls for some projections only
    ),
    "period 7": (Vectors(lambda p: p % 7), {"distinct": counts(7)}),
    "period 3000": (Vectors(lambda p: p % 3000), {"distinct": INTEGERS | {"float32": 3000}}),
    "periods 7, 13": (Vectors(lambda p: p % 7, lambda p: p % 13), {"distinct": counts(91)}),
    "rounding noise": (Vectors(lambda p: p % 7, lambda p: (p * PI).sin()), {"distinct": counts(7)}),
    "small, no noise": (Vectors(lambda p: p % 2, lambda p: (p % 3) / 1e6), {"distinct": counts(6)}),
    "circle": (Vectors(lambda p: (p * PI / 8).cos(), lambda p: (p * PI / 8).sin()), {"distinct": counts(16)}),
    "beyond float32": (Vectors(lambda p: p + 2.0**24), {"distinct": counts(1)}),  # float32 has no 2^24 + 1
    "large jump": (Vectors(lambda p: p + 4096 * (p >= 2000)), {"step": near(4097 / 8192), "smooth": False}),
    "small jump": (Vectors(lambda p: p + 2000 * (p >= 2000)), {"step": near(2001 / 6096), "smooth": True}),
    "period 2": (Vectors(lambda p: p % 2), {"step": near(1.0), "smooth": False}),
    "far from 0": (Vectors(lambda p: (p * PI / 2048).sin()), {"step": near(PI / 4096), "smooth": True}),  # both ends
    "sine and cosine": (
        Vectors(torch.sin, torch.cos),
        {"step": near(SINE_HALF), "smooth": False, "linear_shift": True}  # half the chord of one radian
        | {"shift_invariant": False, "symmetric": False},
    ),
    # the best multiple of sin p for sin(p + k) is cos k, and |sin k| of the size is left; largest for k = 1
    "sine": (Vectors(torch.sin), {"bounded": True, "linear_shift": False, "residual": near(SINE_1, 0.1)}),
    "slow sine": (Vectors(lambda p: (p / 10_000).sin(), torch.cos), {"bounded": True}),
    "two sines": (Vectors(torch.sin, lambda p: (p + 1).sin()), {"linear_shift": True}),
    "grows to 1000": (Vectors(lambda p: p.clamp(max=1000)), {"bounded": True}),
    "grows to 5000": (Vectors(lambda p: p.clamp(min=-5000, max=5000)), {"bounded": False}),
    "shear": (Vectors(lambda p: p, lambda p: 0 * p + 1), {"linear_shift": True}),
    "decay": (Vectors(lambda p: 2.0 ** (-p / 9000)), {"linear_shift": True}),
    "swap": (Vectors(lambda p: p % 2, lambda p: 1 - p % 2), {"linear_shift": True}),
    "signs": (Vectors(lambda p: p % 2, lambda p: p.sin().sign()), {"linear_shift": False}),
    "zero": (Vectors(zero), {"linear_shift": None}),
    "centred": (Vectors(lambda p: p - p.mean(-1, keepdim=True)), {"linear_shift": None}),  # depends on the others
    "1 position": (Vectors(below(1)), {"longest": 0, "shift_invariant": None, "symmetric": True}),  # no room to move
    "3 positions": (Vectors(below(3)), {"shift_invariant": False, "symmetric": False}),
    "20 positions": (Vectors(below(20)), {"distinct": counts(20), "longest": 19, "bounded": True}),
    "2^40 positions": (Vectors(below(2**40)), {"longest": 2**40 - 1}),
    "distance": (
        Term(lambda d: -d.abs()),
        {"step": near(1 / 4096), "smooth": True, "shift_invariant": True, "symmetric": True, "recency": True}
        # the distance, its conversion, size, sign and copy
        | {"cost": "score", "per_token": 0.0, "per_score": 5.0},
    ),
    "distance in one head": (Term(lambda d: -d.abs(), zero), {"recency": True}),
    "distance up to 3": (Term(lambda d: -d.clamp(max=3)), {"recency": True}),
    "no term": (Term(zero), {"recency": False}),
    "rises": (Term(lambda d: d.abs()), {"recency": False}),
    "rises at 5": (Term(lambda d: -d.abs() + 2 * (d >= 5)), {"recency": False}),
    "rises in one head": (Term(lambda d: -d.abs(), lambda d: -d.abs() + 2 * (d >= 5)), {"recency": False}),
    "rises far away": (Term(lambda d: -d.clamp(max=3) + (d > 20_000)), {"recency": False}),
    "41 distances": (Term(lambda d: d.clamp(max=40)), {"distinct": counts(41)}),
    "5 distances": (Term(zero, lambda d: d % 5), {"distinct": counts(5)}),
    "logarithm": (Term(lambda d: -d.abs().log1p()), {"bounded": False}),
    "slow line": (Term(torch.cos, lambda d: 1e-3 * d), {"bounded": False}),
    "one-sided": (
        Term(lambda d: -d.abs(), lambda d: -d.clamp(min=0)),
        {"shift_invariant": True, "symmetric": False},
    ),
    "even": (Term(torch.cos), {"shift_invariant": True, "symmetric": True, "linear_shift": None}),
    "odd": (Term(torch.sin), {"shift_invariant": True, "symmetric": False}),
    "learned fall": (Learns(positive=True), {"recency": True}),
    "learned slope": (Learns(positive=False), {"recency": False}),
    "the worst draw": (Jumps(), {"distinct": {"float32": CAP, "bfloat16": 129, "float16": 1921}}),  # 128 fewer in one
    "amplitude": (
        Swells(head_dim=4),  # only its keys grow
        {"bounded": False, "shift_invariant": True, "symmetric": False, "linear_shift": True},
    ),
    "axis 0": (Rows(), {"distinct": counts(7)}),
    "axis 1": (ByColumn(n_heads=2), {"shift_invariant": False, "symmetric": True}),
    "product": (Multiplies(), {"distinct": counts(11)}),
    "random in training": (Jitters(lambda p: p % 7).train(), {"distinct": counts(7), "length_dependent": False}),
    "length unknown": (Divides(None), {"length_dependent": True}),
    # measured at 1,024, a power of 2
    "length": (Divides(64), {"length_dependent": True, "distinct": INTEGERS}),
    "distance from scores": (
        Maps(torch.abs),
        # the distance, its conversion, its size, and a difference in each of two heads
        {"cost": "score", "per_token": 0.0, "per_score": 5.0, "distinct": INTEGERS}
        | {"recency": True, "symmetric": True, "bounded": False, "shift_invariant": True},
    ),
    "wave from scores": (
        Maps(lambda d: d % 5),
        {"distinct": counts(5), "recency": False, "symmetric": False, "bounded": True},
    ),
    "NoPE": (
        posenc.NoPE(),
        {"distinct": counts(1), "step": 0.0, "smooth": True, "bounded": True, "linear_shift": None}
        | {"shift_invariant": True, "symmetric": True, "learned": 0}
        | {"cost": "nothing", "per_token": 0.0, "per_score": 0.0},
    ),
    "RoPE": (
        posenc.RoPE(head_dim=8),
        {"shift_invariant": True, "symmetric": False, "recency": False, "linear_shift": True},
    ),
    "RoPE of period 16": (posenc.RoPE(head_dim=2, inv_freq=[PI / 8]), {"distinct": counts(16)}),
    "T5": (posenc.T5(n_heads=1), {"real_positions": False}),
    "Binary of 5 bits": (posenc.Binary(d_model=5), {"longest": 31}),
    "Binary of 64 bits": (posenc.Binary(d_model=64), {"longest": None}),
    # each token subtracts something, so farther ones score less, without end; the sums run along the tokens
    "FoX": (
        posenc.FoX(d_model=3, n_heads=2),
        {"recency": True, "bounded": False, "symmetric": False, "shift_invariant": True},
    ),
    "table": (posenc.Learned(d_model=2, max_len=77, offset=2), {"longest": 76, "learned": 158}),
    "long table": (posenc.Learned(d_model=8, max_len=64), {"linear_shift": False}),
    "short table": (posenc.Learned(d_model=64, max_len=64), {"linear_shift": None}),  # a matrix fits any 64 vectors
    "table of 128": (posenc.Learned(d_model=12, max_len=128), {"cost": "token", "per_token": 12.0, "per_score": 0.0}),
    "table of 2": (posenc.Learned(d_model=12, max_len=2), {"cost": "token"}),
    "table of 1": (posenc.Learned(d_model=4, max_len=1), {"length_dependent": False}),
    "table of one row": (posenc.Learned2D(d_model=4, height=1, width=5), {"length_dependent": False}),
    "nothing works": (Fails(), {trait: None for trait in registry.TRAITS if trait != "learned"} | {"learned": 0}),
}


@pytest.mark.parametrize("name", KNOWN)
def test_measurements(name: str) -> None:
    encoding, known = KNOWN[name]
    found = measure(encoding).as_dict()
    assert {trait: found[trait] for trait in known} == known
    assert (found["residual"] is None) == (found["linear_shift"] is None)


def test_the_residual_is_computed_on_positions_that_were_not_fitted() -> None:
    # at random: a fit of 20 dimensions to 31 positions leaves less than everything there, and more elsewhere
    assert measure(posenc.Learned(d_model=20, max_len=64)).residual > 1


def test_of_layers_the_first_is_measured() -> None:
    layers = posenc.PerLayer([posenc.ALiBi(n_heads=4), posenc.RoPE(head_dim=8)])
    assert measure(layers) == measure(posenc.ALiBi(n_heads=4))


def test_measuring_leaves_encoding_and_random_state_as_they_are() -> None:
    encoding = posenc.Learned(d_model=4, max_len=32).bfloat16().train()
    before, state = encoding.weight.detach().clone(), torch.get_rng_state()
    measure(encoding)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(encoding.weight, before)
    assert encoding.weight.dtype == torch.bfloat16
    assert encoding.training
