"""The scalings of rotary frequencies, against published numbers, typed ones and their limiting cases."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from posenc.definitions import frequencies as f
from posenc.definitions.frequencies import Array

BASE, WIDTH, LENGTH = 10000.0, 128, 4096  # Llama-2


def plain(base: float = BASE, width: int = WIDTH) -> Array:
    return 1 / base ** (np.arange(0, width, 2) / width)


def close(got: Array | float, want: Array | float | list[float], rtol: float = 1e-13) -> None:
    np.testing.assert_allclose(got, want, rtol=rtol, atol=0)


def the_yarn(factor: float, **options: float) -> Array:
    return f.yarn(width=WIDTH, base=BASE, factor=factor, original_max_len=LENGTH, **options)


def the_llama3(inv_freq: Array, factor: float) -> Array:
    return f.llama3(inv_freq, factor=factor, low_freq_factor=1, high_freq_factor=4, original_max_len=8192)


# factor -> the frequencies of Llama-2 under it
SCALINGS: dict[str, Callable[[float], Array]] = {
    "linear": lambda s: f.linear(plain(), factor=s),
    "ntk": lambda s: plain(f.ntk_base(BASE, width=WIDTH, factor=s)),
    "by_parts": lambda s: f.by_parts(plain(), factor=s, original_max_len=LENGTH),
    "yarn": lambda s: the_yarn(s),
    "yarn, not truncated": lambda s: the_yarn(s, truncate=False),
    "llama3": lambda s: the_llama3(plain(), s),
    "longrope": lambda s: f.longrope(plain(), np.linspace(1, s, WIDTH // 2)),
}


@pytest.mark.parametrize("name", SCALINGS)
def test_factor_1_changes_nothing(name: str) -> None:
    close(SCALINGS[name](1.0), plain())


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("factor", [1.5, 8.0, 40.0])
def test_slowest_pair_is_divided_by_the_factor(name: str, factor: float) -> None:
    got = SCALINGS[name](factor)
    assert got.shape == (WIDTH // 2,)
    close(got[-1], plain()[-1] / factor)


@pytest.mark.parametrize("name", sorted(SCALINGS.keys() - {"linear"}))
@pytest.mark.parametrize("factor", [1.5, 8.0, 40.0])
def test_fastest_pair_stays_and_all_lie_between(name: str, factor: float) -> None:
    got = SCALINGS[name](factor)
    assert got[0] == 1.0
    assert (got <= plain() * (1 + 1e-13)).all()
    assert (got >= plain() / factor * (1 - 1e-13)).all()
    assert (np.diff(got) < 0).all()


def test_linear() -> None:
    close(f.linear(np.array([1.0, 0.01]), factor=4), [0.25, 0.0025])


def test_ntk_base_of_8() -> None:
    assert f.ntk_base(1e4, width=128, factor=8) == pytest.approx(82684.62, abs=0.005)
    assert f.ntk_base(100, width=4, factor=3) == pytest.approx(900, rel=1e-14)  # 3**(4/2)


@pytest.mark.parametrize("seq_len", [1, 2047, 4096])
def test_dynamic_base_within_the_trained_length(seq_len: int) -> None:
    got = f.dynamic_base(BASE, width=WIDTH, factor=8, seq_len=seq_len, original_max_len=LENGTH)
    assert got == BASE


def test_dynamic_base_beyond_the_trained_length() -> None:
    """Twice the length at factor 2: 2*2 - 1 = 3, and width 4 squares it; factor 1 is NTK at n / L."""
    assert f.dynamic_base(100, width=4, factor=2, seq_len=20, original_max_len=10) == pytest.approx(900, rel=1e-14)
    assert f.dynamic_base(BASE, width=WIDTH, factor=1, seq_len=8 * LENGTH, original_max_len=LENGTH) == pytest.approx(
        82684.62, abs=0.005
    )


def test_by_parts_of_typed_turns() -> None:
    turns = np.array([64, 32, 16.5, 1, 0.5, 0])
    got = f.by_parts(2 * math.pi * turns / 1000, factor=4, original_max_len=1000)
    close(got * 1000 / (2 * math.pi), [64, 32, 16.5 * 0.625, 0.25, 0.125, 0])
    got = f.by_parts(2 * math.pi * turns / 1000, factor=4, original_max_len=1000, low_turns=16, high_turns=48)
    close(got * 1000 / (2 * math.pi), [64, 32 * 0.625, 16.5 * (1 + 3 / 64) / 4, 0.25, 0.125, 0])


def test_yarn_bounds_of_llama_2() -> None:
    low, high = f.yarn_bounds(width=128, base=1e4, original_max_len=4096, truncate=False)
    assert low == pytest.approx(20.944, abs=5e-4)
    assert high == pytest.approx(45.027, abs=5e-4)
    assert f.yarn_bounds(width=128, base=1e4, original_max_len=4096) == (20, 46)


@pytest.mark.parametrize(("beta", "which"), [(32.0, 0), (1.0, 1), (5.0, 1)])
def test_yarn_bounds_turn_as_often_as_asked(beta: float, which: int) -> None:
    k = f.yarn_bounds(width=64, base=5e5, original_max_len=8192, beta_slow=beta, truncate=False)[which]
    assert 8192 * 5e5 ** (-2 * k / 64) == pytest.approx(2 * math.pi * beta, rel=1e-12)


@pytest.mark.parametrize("truncate", [False, True])
def test_yarn_bounds_are_clamped(truncate: bool) -> None:
    assert f.yarn_bounds(width=8, base=1e4, original_max_len=64, truncate=truncate)[0] == 0
    assert f.yarn_bounds(width=8, base=10, original_max_len=10**9, truncate=truncate)[1] == 7


def test_yarn_on_the_ramp() -> None:
    """Pair 33 is midway between 20 and 46: half of 1 and half of 1/8."""
    got = the_yarn(8.0)
    close(got[:21], plain()[:21])
    close(got[33], plain()[33] * 0.5625)
    close(got[40], plain()[40] * (6 / 26 + 20 / 26 / 8))
    close(got[46:], plain()[46:] / 8)
    whole = the_yarn(8.0, truncate=False)
    t = (33 - 20.94448162) / (45.02688127 - 20.94448162)
    close(whole[33], plain()[33] * (1 - t + t / 8), rtol=1e-8)
    close(the_yarn(8.0, beta_fast=10.0, beta_slow=2.0)[33], plain()[33] * (1 - 4 / 12 + 4 / 12 / 8))  # 29, 41


def test_yarn_where_the_bounds_meet() -> None:
    """Six positions: both bounds are 0, and only pair 0 stays."""
    assert f.yarn_bounds(width=8, base=1e4, original_max_len=6) == (0, 0)
    got = f.yarn(width=8, base=1e4, factor=4, original_max_len=6)
    close(got, [1, 0.025, 0.0025, 0.00025])


def test_yarn_and_by_parts_agree_off_their_ramps() -> None:
    parts = f.by_parts(plain(), factor=8, original_max_len=LENGTH)
    whole = the_yarn(8.0, truncate=False)
    close(parts[:21], whole[:21])
    close(parts[46:], whole[46:])
    assert (parts[21:45] < whole[21:45]).all()  # turns fall off faster than the index rises


@pytest.mark.parametrize(
    ("factor", "weight", "want"),
    [(40, 1, 1.368888), (40, 0.707, 1.260804), (math.e, 1, 1.1), (1, 1, 1), (0.5, 1, 1), (40, 0, 1)],
)
def test_mscale(factor: float, weight: float, want: float) -> None:
    assert f.mscale(factor, weight) == pytest.approx(want, abs=5e-7)
    if weight == 1:
        assert f.mscale(factor) == f.mscale(factor, 1)


@pytest.mark.parametrize(("distance", "want"), [(1000, 0.963064), (8192, 0.768946)])
def test_llama_3_1_run_unscaled(distance: int, want: float) -> None:
    """The mean over the pairs of the cosine of what their angles are off by."""
    unscaled = plain(5e5)
    assert np.cos(distance * (unscaled - the_llama3(unscaled, 8))).mean() == pytest.approx(want, abs=5e-7)


def test_llama3_of_typed_turns() -> None:
    turns = np.array([5, 4, 2.5, 1, 0.9, 0])
    got = the_llama3(2 * math.pi * turns / 8192, 8)
    close(got * 8192 / (2 * math.pi), [5, 4, 2.5 * 0.5625, 0.125, 0.1125, 0])


def test_llama3_is_by_parts() -> None:
    want = f.by_parts(plain(5e5), factor=8, original_max_len=8192, low_turns=1, high_turns=4)
    close(the_llama3(plain(5e5), 8), want)


def test_longrope() -> None:
    close(f.longrope(np.array([1.0, 0.1, 0.01]), np.array([1.0, 2.0, 40.0])), [1, 0.05, 0.00025])


@pytest.mark.parametrize(("factor", "length", "want"), [(32, 4096, 1.190238), (8, 2, 2), (1, 4096, 1), (0.5, 4096, 1)])
def test_longrope_gain(factor: float, length: int, want: float) -> None:
    """32 over 4096 is Phi-3-mini-128k: sqrt(1 + 5/12)."""
    assert f.longrope_gain(factor, length) == pytest.approx(want, abs=5e-7)


def test_proportional() -> None:
    close(f.proportional(head_dim=128, base=BASE, share=1.0), plain())
    close(f.proportional(head_dim=8, base=1e4, share=0.5), [1, 0.1, 0, 0])
    close(f.proportional(head_dim=8, base=1e4, share=0.7), [1, 0.1, 0, 0])  # floor(2.8)
    close(f.proportional(head_dim=8, base=1e4, share=0.0), [0, 0, 0, 0])


def test_resonance_of_powers_of_10() -> None:
    """2 pi, 20 pi, 200 pi, 2000 pi: 6, 63, 628 and 6283 positions."""
    close(2 * math.pi / f.resonance(10.0 ** -np.arange(4)), [6, 63, 628, 6283])
    assert f.resonance(np.array([0.0])) == 0


def test_resonance_is_periodic_in_whole_positions() -> None:
    for theta in f.resonance(plain()):
        period = round(2 * math.pi / theta)
        assert period * theta == pytest.approx(2 * math.pi, rel=1e-15)
        for p in (0, 1, 5, 17):
            assert math.cos((p + period) * theta) == pytest.approx(math.cos(p * theta), abs=1e-13)
            assert math.sin((p + period) * theta) == pytest.approx(math.sin(p * theta), abs=1e-13)


@pytest.mark.parametrize(("base", "length", "want"), [(1e4, 4096, 92), (5e5, 8192, 70)])
def test_critical_dim_of_llama(base: float, length: int, want: int) -> None:
    assert f.critical_dim(width=128, base=base, original_max_len=length) == want


@pytest.mark.parametrize("width", [8, 80, 128])
@pytest.mark.parametrize("length", [7, 100, 4096, 60000])
def test_critical_dim_counts_the_lanes(width: int, length: int) -> None:
    turned = sum(2 for theta in plain(BASE, width) if 2 * math.pi / theta < length)
    assert f.critical_dim(width=width, base=BASE, original_max_len=length) == turned


@pytest.mark.parametrize(("base", "want"), [(1e4, 1707), (5e5, 18438), (1e6, 27115)])
def test_first_negative_of_128(base: float, want: int) -> None:
    assert f.first_negative(plain(base)) == want


def test_first_negative_looks_below_end_only() -> None:
    assert f.first_negative(np.array([1.0])) == 2  # cos 2 = -0.42
    assert f.first_negative(np.array([1.0]), end=3) == 2
    assert f.first_negative(np.array([1.0]), end=2) is None
    assert f.first_negative(np.array([1.0, 0.0]), end=1000) is None
