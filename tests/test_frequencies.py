"""Scalings of rotary frequencies against their definitions, and against transformers' own functions."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import posenc
from posenc import families, frequencies
from posenc.definitions import frequencies as definitions
from strategies import check

WIDTHS = st.integers(2, 64).map(lambda n: 2 * n)
BASES = st.floats(1.5, 1e9)
FACTORS = st.floats(1.0, 1e4)
LENGTHS = st.integers(7, 2_000_000)
TURNS = st.tuples(st.floats(0.25, 8.0), st.floats(8.5, 64.0))


def close(got: np.ndarray, wanted: np.ndarray) -> None:
    assert type(got) is np.ndarray
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-300)


@given(width=WIDTHS, base=BASES, factor=FACTORS, length=LENGTHS, turns=TURNS)
@check(80)
def test_by_parts_and_llama3(width: int, base: float, factor: float, length: int, turns: tuple[float, float]) -> None:
    plain, (low, high) = frequencies.geometric(width // 2, base=base, width=width), turns
    ours = frequencies.by_parts(plain, factor=factor, original_max_len=length, low_turns=low, high_turns=high)
    theirs = definitions.by_parts(plain, factor=factor, original_max_len=length, low_turns=low, high_turns=high)
    close(ours, theirs)
    given_ = {"factor": factor, "low_freq_factor": low, "high_freq_factor": high, "original_max_len": length}
    np.testing.assert_allclose(frequencies.llama3(plain, **given_), definitions.llama3(plain, **given_), rtol=1e-11)


@given(width=WIDTHS, base=BASES, factor=FACTORS, length=LENGTHS, turns=TURNS, truncate=st.booleans())
@check(80)
def test_yarn(width: int, base: float, factor: float, length: int, turns: tuple[float, float], truncate: bool) -> None:
    slow, fast = turns
    shape = {"width": width, "base": base, "original_max_len": length, "truncate": truncate}
    betas = {"beta_fast": fast, "beta_slow": slow}
    assert frequencies.yarn_bounds(**shape, **betas) == pytest.approx(definitions.yarn_bounds(**shape, **betas))
    close(frequencies.yarn(factor=factor, **shape, **betas), definitions.yarn(factor=factor, **shape, **betas))


@given(width=WIDTHS, base=BASES, factor=FACTORS, length=LENGTHS, seq_len=LENGTHS)
@check(80)
def test_what_changes_the_base_or_divides(width: int, base: float, factor: float, length: int, seq_len: int) -> None:
    plain = frequencies.geometric(width // 2, base=base, width=width)
    shape = {"width": width, "factor": factor}
    assert frequencies.ntk_base(base, **shape) == pytest.approx(definitions.ntk_base(base, **shape), rel=1e-12)
    lengths = {"seq_len": seq_len, "original_max_len": length}
    assert frequencies.dynamic_base(base, **shape, **lengths) == pytest.approx(
        definitions.dynamic_base(base, **shape, **lengths), rel=1e-9
    )
    close(frequencies.linear(plain, factor=factor), definitions.linear(plain, factor=factor))
    factors = [1 + factor * k for k in range(width // 2)]
    close(frequencies.longrope(plain, factors), definitions.longrope(plain, np.array(factors)))
    close(frequencies.resonance(plain), definitions.resonance(plain))
    assert frequencies.mscale(factor, 0.7) == pytest.approx(definitions.mscale(factor, 0.7), rel=1e-14)
    assert frequencies.longrope_gain(factor, length) == pytest.approx(
        definitions.longrope_gain(factor, length), rel=1e-14
    )
    share = min(1.0, factor / 100)
    close(
        frequencies.proportional(head_dim=width, base=base, share=share),
        definitions.proportional(head_dim=width, base=base, share=share),
    )


@pytest.mark.parametrize("base", [2.0, 100.0, 1e4])
@pytest.mark.parametrize("width", [2, 16, 128])
def test_bounds_of_a_base(base: float, width: int) -> None:
    plain = frequencies.geometric(width // 2, base=base, width=width)
    assert frequencies.first_negative(plain, end=5000) == definitions.first_negative(plain, end=5001)
    for length in (64, 4096):
        shape = {"width": width, "base": base, "original_max_len": length}
        assert frequencies.critical_dim(**shape) == min(definitions.critical_dim(**shape), width)


@pytest.mark.parametrize("width", [2, 64, 130])
def test_encodings_start_from_the_same_frequencies(width: int) -> None:
    wanted = [math.exp(-2 * k / width * math.log(5e5)) for k in range(width // 2)]
    np.testing.assert_allclose(frequencies.geometric(width // 2, base=5e5, width=width), wanted, rtol=1e-13)
    np.testing.assert_allclose(families.geometric(width // 2, base=5e5, width=width).numpy(), wanted, rtol=1e-13)


@pytest.mark.compiles
def test_what_is_compiled_under_another_default_device_forms_them_on_the_cpu() -> None:
    rope, pos = posenc.RoPE(head_dim=8), torch.arange(3)
    wanted = torch.cos(pos[:, None] * 10.0 ** -torch.arange(4.0))
    with torch.device("meta"):
        cos, _ = torch.compile(rope.place, backend="eager", fullgraph=True)(pos).parts
    torch.testing.assert_close(cos, wanted)


def test_a_pair_that_does_not_turn_keeps_to_itself() -> None:
    np.testing.assert_array_equal(frequencies.resonance(np.array([0.0, 2.0])), [0.0, 2 * math.pi / 3])


def test_no_distance_where_constant_cosines_outweigh_the_others() -> None:
    assert frequencies.first_negative(np.array([1.0, 0.0, 0.0]), end=10_000) is None


def test_llama_run_without_its_scaling_is_out_of_phase() -> None:
    """The mean cosine of the angle error of Llama-3.1-8B, computed apart from this code: 0.963064 and 0.768946."""
    plain = frequencies.geometric(64, base=5e5, width=128)
    scaled = frequencies.llama3(plain, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_len=8192)
    for distance, wanted in ((1000, 0.963064), (8192, 0.768946)):
        assert np.cos((plain - scaled) * distance).mean() == pytest.approx(wanted, abs=5e-7)


@pytest.mark.parametrize(("low", "high"), [(2.0, 2.0), (4.0, 2.0)])
def test_a_ramp_without_width_or_the_wrong_way_round_is_a_step_at_the_low_number_of_turns(
    low: float, high: float
) -> None:
    plain = frequencies.geometric(16, base=5e5, width=32)
    words = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 256}
    config = {"model_type": "llama", "head_dim": 32, "rope_theta": 5e5, "max_position_embeddings": 4096}
    scaled = config | {"rope_scaling": words | {"low_freq_factor": low, "high_freq_factor": high}}
    wanted = np.where(plain * 256 / (2 * math.pi) < low, plain / 8.0, plain)
    np.testing.assert_array_equal(frequencies.from_config(scaled).inv_freq, wanted)
    assert 0 < (wanted == plain).sum() < 16
