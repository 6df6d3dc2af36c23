"""Scalings of rotary frequencies, against published numbers, typed ones and limiting cases."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posenc import definitions
from posenc.definitions import frequencies as f
from posenc.definitions import versions
from posenc.definitions.frequencies import Array
from strategies import check

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


LLAMA_2 = {"width": WIDTH, "base": BASE, "original_max_len": LENGTH}
P_ROPE = {"head_dim": 8, "base": 1e4}
# a function, its arguments, what it returns, and the digits that are known
NUMBERS: list[tuple[Callable[..., Any], list[Any], dict[str, Any], Any, float]] = [
    (f.linear, [np.array([1.0, 0.01])], {"factor": 4}, [0.25, 0.0025], 1e-13),
    (f.ntk_base, [1e4], {"width": 128, "factor": 8}, 82684.62, 0.005),
    (f.ntk_base, [100], {"width": 4, "factor": 3}, 900, 1e-10),  # 3**(4/2)
    *((f.dynamic_base, [], {**LLAMA_2, "factor": 8, "seq_len": n}, BASE, 0) for n in (1, 2047, 4096)),
    # twice the length at factor 2: 2*2 - 1 = 3, and width 4 squares it; factor 1 is NTK at n / L
    (f.dynamic_base, [100], {"width": 4, "factor": 2, "seq_len": 20, "original_max_len": 10}, 900, 1e-10),
    (f.dynamic_base, [], {**LLAMA_2, "factor": 1, "seq_len": 8 * LENGTH}, 82684.62, 0.005),
    (f.yarn_bounds, [], {**LLAMA_2, "truncate": False}, (20.944, 45.027), 5e-4),
    (f.yarn_bounds, [], LLAMA_2, (20, 46), 0),
    (f.mscale, [40, 1], {}, 1.368888, 5e-7),
    (f.mscale, [40, 0.707], {}, 1.260804, 5e-7),
    (f.mscale, [math.e], {}, 1.1, 1e-13),
    (f.mscale, [1], {}, 1, 0),
    (f.mscale, [0.5], {}, 1, 0),
    (f.mscale, [40, 0], {}, 1, 0),
    (f.longrope, [np.array([1.0, 0.1, 0.01]), np.array([1.0, 2.0, 40.0])], {}, [1, 0.05, 0.00025], 1e-13),
    (f.longrope_gain, [32, 4096], {}, 1.190238, 5e-7),  # Phi-3-mini-128k: sqrt(1 + 5/12)
    (f.longrope_gain, [8, 2], {}, 2, 1e-13),
    (f.longrope_gain, [1, 4096], {}, 1, 0),
    (f.longrope_gain, [0.5, 4096], {}, 1, 0),
    (f.proportional, [], {**P_ROPE, "share": 1.0}, [1, 0.1, 0.01, 0.001], 1e-13),
    (f.proportional, [], {**P_ROPE, "share": 0.5}, [1, 0.1, 0, 0], 1e-13),
    (f.proportional, [], {**P_ROPE, "share": 0.7}, [1, 0.1, 0, 0], 1e-13),  # floor(2.8)
    (f.proportional, [], {**P_ROPE, "share": 0.0}, [0, 0, 0, 0], 0),
    (f.critical_dim, [], LLAMA_2, 92, 0),
    (f.critical_dim, [], {"width": 128, "base": 5e5, "original_max_len": 8192}, 70, 0),
    (f.first_negative, [plain(1e4)], {}, 1707, 0),
    (f.first_negative, [plain(5e5)], {}, 18438, 0),
    (f.first_negative, [plain(1e6)], {}, 27115, 0),
]


@pytest.mark.parametrize(
    ("function", "given", "options", "want", "atol"),
    NUMBERS,
    ids=[f"{function.__name__}-{i}" for i, (function, *_) in enumerate(NUMBERS)],
)
def test_numbers(
    function: Callable[..., Any], given: list[Any], options: dict[str, Any], want: Any, atol: float
) -> None:
    np.testing.assert_allclose(function(*given, **options), want, rtol=0, atol=atol)


def test_by_parts_of_typed_numbers_of_rotations() -> None:
    rotations = np.array([64, 32, 16.5, 1, 0.5, 0])
    got = f.by_parts(2 * math.pi * rotations / 1000, factor=4, original_max_len=1000)
    close(got * 1000 / (2 * math.pi), [64, 32, 16.5 * 0.625, 0.25, 0.125, 0])
    got = f.by_parts(2 * math.pi * rotations / 1000, factor=4, original_max_len=1000, low_turns=16, high_turns=48)
    close(got * 1000 / (2 * math.pi), [64, 32 * 0.625, 16.5 * (1 + 3 / 64) / 4, 0.25, 0.125, 0])


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
    steep = f.yarn(width=8, base=1e4, factor=4, original_max_len=199, beta_fast=1, beta_slow=1, truncate=False)
    close(steep, [1, 0.1, 0.0025, 0.00025])  # both bounds are log10(199 / 2 pi) = 1.5


@pytest.mark.parametrize(("distance", "want"), [(1000, 0.963064), (8192, 0.768946)])
def test_llama_3_1_run_unscaled(distance: int, want: float) -> None:
    """The mean over the pairs of the cosine of the error of their angles."""
    unscaled = plain(5e5)
    assert np.cos(distance * (unscaled - the_llama3(unscaled, 8))).mean() == pytest.approx(want, abs=5e-7)


def test_llama3_of_typed_numbers_of_rotations() -> None:
    rotations = np.array([5, 4, 2.5, 1, 0.9, 0])
    got = the_llama3(2 * math.pi * rotations / 8192, 8)
    close(got * 8192 / (2 * math.pi), [5, 4, 2.5 * 0.5625, 0.125, 0.1125, 0])


def test_resonance_of_powers_of_10() -> None:
    """2 pi, 20 pi, 200 pi, 2000 pi: 6, 63, 628 and 6283 positions."""
    close(2 * math.pi / f.resonance(10.0 ** -np.arange(4)), [6, 63, 628, 6283])
    assert f.resonance(np.array([0.0])) == 0


@pytest.mark.parametrize("width", [8, 80, 128])
@pytest.mark.parametrize("length", [7, 100, 4096, 60000])
def test_critical_dim_counts_the_dimensions(width: int, length: int) -> None:
    complete = sum(2 for theta in plain(BASE, width) if 2 * math.pi / theta < length)
    assert f.critical_dim(width=width, base=BASE, original_max_len=length) == complete


def test_first_negative_looks_below_end_only() -> None:
    assert f.first_negative(np.array([1.0])) == 2  # cos 2 = -0.42
    assert f.first_negative(np.array([1.0]), end=3) == 2
    assert f.first_negative(np.array([1.0]), end=2) is None
    assert f.first_negative(np.array([1.0, 0.0]), end=1000) is None


# m(1), m(0.707) and their quotient at DeepSeek-V2's factor 40: 0.1 * 3.688879 + 1, 0.0707 * 3.688879 + 1
M_1, M_707, QUOTIENT = 1.3688879, 1.2608038, 1.0857264


def version(name: str, factor: float, **options: Any) -> tuple[Array, float, float]:
    define = definitions.find(name)
    assert define is not None
    return define(factor=factor, **{**LLAMA_2, **options})


def of_transformers(factor: float | None, **options: Any) -> tuple[Array, float]:
    """Their own function; the score factor is their attention's."""
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    options = {**LLAMA_2, **options}
    width, base, length = (options.pop(key) for key in LLAMA_2)
    rope = {"rope_type": "yarn", "rope_theta": base, "factor": factor, "original_max_position_embeddings": length}
    config = SimpleNamespace(rope_parameters=rope | options, hidden_size=width, num_attention_heads=1, head_dim=width)
    config.standardize_rope_params = lambda: None
    inv_freq, gain = utils.ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    return inv_freq.double().numpy(), gain


def the_score_factor(deepseek: str, factor: float, **options: Any) -> float:
    """The factor of their attention on all scores."""
    modeling = pytest.importorskip(f"transformers.models.{deepseek}.modeling_{deepseek}")
    return float(modeling.yarn_apply_mscale({"rope_type": "yarn", "factor": factor, **options}, 1.0))


def test_versions_are_found_by_name_and_version() -> None:
    assert sorted(versions.VERSIONS) == ["yarn@deepseek-v2", "yarn@paper", "yarn@transformers-5"]
    for name, define in versions.VERSIONS.items():
        assert definitions.find(name) is define
        assert definitions.find(define.__name__) is None
    for name in ("yarn", "yarn@", "@", "yarn@transformers-4", "rope@paper", "@paper", "yarn@paper@paper", "linear"):
        assert definitions.find(name) is None


@st.composite
def yarns(draw: st.DrawFn) -> dict[str, Any]:
    keys = {
        "beta_slow": st.floats(0.5, 2.0) | st.just(0.0),
        "beta_fast": st.floats(16.0, 64.0) | st.just(0.0),
        "truncate": st.booleans(),
        "mscale": st.none() | st.floats(0.0, 2.0),
        "mscale_all_dim": st.none() | st.floats(0.0, 2.0),
        "attention_factor": st.none() | st.floats(0.5, 4.0),
    }
    drawn = {key: draw(values) for key, values in keys.items() if draw(st.booleans())}
    # the factor multiplies the rounding of float32 near the end of a ramp without whole bounds
    drawn["factor"] = draw(st.floats(0.5, 64.0 if drawn.get("truncate", True) else 16.0))
    drawn["width"], drawn["base"] = 2 * draw(st.integers(2, 128)), draw(st.floats(1e3, 1e7))
    drawn["original_max_len"] = draw(st.integers(64, 300_000))
    return drawn


@given(drawn=yarns())
@check(200)
def test_yarn_of_transformers_5(drawn: dict[str, Any]) -> None:
    inv_freq, gain, score_factor = version("yarn@transformers-5", **drawn)
    theirs, their_gain = of_transformers(**drawn)
    close(inv_freq, theirs, rtol=3e-6)
    assert gain == pytest.approx(their_gain, rel=1e-12)
    weights = {key: value for key, value in drawn.items() if key.startswith("mscale")}
    for deepseek in ("deepseek_v2", "deepseek_v3"):
        assert score_factor == pytest.approx(the_score_factor(deepseek, drawn["factor"], **weights), rel=1e-12)


@pytest.mark.parametrize(
    ("weights", "gain_deepseek", "gain_transformers", "score"),
    [
        ({}, M_1, M_1, 1.0),
        ({"mscale": 0.707, "mscale_all_dim": 0.707}, 1.0, 1.0, M_707**2),  # DeepSeek-V2 itself
        ({"mscale": 1.0, "mscale_all_dim": 0.707}, QUOTIENT, QUOTIENT, M_707**2),
        ({"mscale": 0.707}, M_707, M_1, 1.0),
        ({"mscale_all_dim": 0.707}, QUOTIENT, M_1, M_707**2),
        ({"mscale": 0.0, "mscale_all_dim": 0.707}, 1 / M_707, M_1, M_707**2),
        ({"mscale": 0.707, "mscale_all_dim": 0.0}, M_707, M_1, 1.0),
    ],
)
def test_versions_of_the_gain(
    weights: dict[str, float], gain_deepseek: float, gain_transformers: float, score: float
) -> None:
    """They differ where a weight is missing or 0; scores of rotated dimensions get gain**2 * score_factor."""
    theirs, their_gain = of_transformers(40.0, **weights)
    for name, gain in (("yarn@deepseek-v2", gain_deepseek), ("yarn@transformers-5", gain_transformers)):
        inv_freq, got, factor = version(name, 40.0, **weights)
        close(inv_freq, theirs, rtol=3e-6)
        assert got == pytest.approx(gain, abs=2e-7)
        assert factor == pytest.approx(score, abs=5e-7)
    assert their_gain == pytest.approx(gain_transformers, abs=2e-7)
    _, gain, factor = version("yarn@deepseek-v2", 40.0, **weights)
    assert gain**2 * factor == pytest.approx(f.mscale(40.0, weights.get("mscale", 1.0)) ** 2, rel=1e-12)


@pytest.mark.parametrize("name", ["yarn@deepseek-v2", "yarn@transformers-5"])
@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_versions_of_programs_never_reduce_scores(name: str, factor: float) -> None:
    """Not above 1, every m is 1: no gain and no score factor."""
    assert version(name, factor, mscale=0.3, mscale_all_dim=2.0)[1:] == (1.0, 1.0)
    assert version(name, factor)[1:] == (1.0, 1.0)


def test_versions_of_the_ramp() -> None:
    """Base 100, 4 dimensions, L = 1000, factor 4: theta 1/10 makes 15.9155 rotations and is at 1 of 0.697 to 2.202.

    The paper keeps (15.9155 - 1) / 31 of it. Programs keep (3 - 1) / 3 between whole bounds, 0 and 3, and
    (2.20182 - 1) / (2.20182 - 0.69667) untruncated; the rest of it is divided by 4.
    """
    shape = {"width": 4, "base": 100.0, "original_max_len": 1000}
    kept = {"yarn@paper": 0.481145, "yarn@deepseek-v2": 2 / 3, "yarn@transformers-5": 2 / 3}
    for name, share in kept.items():
        close(version(name, 4.0, **shape)[0], [1.0, 0.1 * (share + (1 - share) / 4)], rtol=1e-6)
    loose = 1.20182 / 1.50515
    close(version("yarn@transformers-5", 4.0, truncate=False, **shape)[0][1], 0.1 * (loose + (1 - loose) / 4), 1e-5)
    for name in kept:  # 2 and 20 rotations as bounds: (15.9155 - 2) / 18; pairs 0.901 and 1.901, so 0 and 2
        share = 0.773082 if name == "yarn@paper" else 0.5
        got = version(name, 4.0, beta_slow=2.0, beta_fast=20.0, **shape)[0]
        close(got, [1.0, 0.1 * (share + (1 - share) / 4)], rtol=1e-6)


def test_yarn_of_the_paper() -> None:
    """Outside the ramp, frequencies as in programs without truncation; gain 0.1 ln(factor) + 1, below factor 1 too."""
    inv_freq, gain, score_factor = version("yarn@paper", 8.0)
    programs = version("yarn@transformers-5", 8.0, truncate=False)
    close(inv_freq[:21], programs[0][:21])
    close(inv_freq[46:], programs[0][46:])
    assert (inv_freq[21:45] < programs[0][21:45] * (1 - 1e-3)).all()
    assert (gain, score_factor) == (pytest.approx(1.2079442, abs=1e-7), 1.0)
    assert programs[1:] == (pytest.approx(gain, rel=1e-14), 1.0)
    assert version("yarn@paper", 0.5)[1] == pytest.approx(0.9306853, abs=1e-7)
