"""What each method of extension does to each pair, against formulas written out here."""

import math

import numpy as np
import pytest

from posenc import inspection
from posenc.measure import METHODS, extend

D, BASE, TRAINED, TARGET = 128, 1e4, 4096, 32768
FACTOR = TARGET / TRAINED
PLAIN = BASE ** (-2 * np.arange(D // 2) / D)
TURNS = PLAIN * TRAINED / (2 * math.pi)


def after(method: str) -> np.ndarray:
    return extend(D, BASE, TRAINED, TARGET, method).after


def ramp(low: float, high: float) -> np.ndarray:
    kept = np.clip((TURNS - low) / (high - low), 0, 1)
    return PLAIN * kept + PLAIN / FACTOR * (1 - kept)


def test_frequencies_are_those_of_the_formulas() -> None:
    np.testing.assert_allclose(after("none"), PLAIN, rtol=1e-14)
    np.testing.assert_allclose(after("linear"), PLAIN / 8, rtol=1e-14)
    np.testing.assert_allclose(after("by_parts"), ramp(1, 32), rtol=1e-13)
    np.testing.assert_allclose(after("llama3"), ramp(1, 4), rtol=1e-13)
    base = BASE * FACTOR ** (128 / 126)
    np.testing.assert_allclose(after("ntk"), base ** (-2 * np.arange(64) / D), rtol=1e-13)
    base = BASE * (2 * FACTOR - 1) ** (128 / 126)
    np.testing.assert_allclose(after("dynamic_ntk"), base ** (-2 * np.arange(64) / D), rtol=1e-13)


def test_ramps_may_lie_elsewhere() -> None:
    def found(method: str, **turns: float) -> np.ndarray:
        return extend(D, BASE, TRAINED, TARGET, method, **turns).after

    np.testing.assert_allclose(found("by_parts", beta_slow=2.0, beta_fast=16.0), ramp(2, 16), rtol=1e-13)
    np.testing.assert_allclose(found("llama3", low_freq_factor=0.5, high_freq_factor=8.0), ramp(0.5, 8), rtol=1e-13)
    low, high = (D * math.log(TRAINED / (turns * 2 * math.pi)) / (2 * math.log(BASE)) for turns in (16, 2))
    kept = 1 - np.clip((np.arange(64) - math.floor(low)) / (math.ceil(high) - math.floor(low)), 0, 1)
    wanted = PLAIN * kept + PLAIN / 8 * (1 - kept)
    np.testing.assert_allclose(found("yarn", beta_slow=2.0, beta_fast=16.0), wanted, rtol=1e-13)
    np.testing.assert_allclose(found("llama3", beta_slow=2.0), ramp(1, 4), rtol=1e-13)
    with pytest.raises(ValueError, match=r"beta_slow must be below beta_fast.*got beta_slow=4, beta_fast=4"):
        found("none", beta_slow=4.0, beta_fast=4.0)
    with pytest.raises(ValueError, match="low_freq_factor must be a finite number above zero"):
        found("none", low_freq_factor=0.0)


def test_yarn_is_the_ramp_over_the_pairs_with_its_gain() -> None:
    found = extend(D, BASE, TRAINED, TARGET, "yarn")
    low, high = 20, 46  # 20.944 and 45.027, as the authors' code rounds them outwards
    kept = 1 - np.clip((np.arange(64) - low) / (high - low), 0, 1)
    np.testing.assert_allclose(found.after, PLAIN * kept + PLAIN / 8 * (1 - kept), rtol=1e-13)
    assert found.gain == pytest.approx(0.1 * math.log(8) + 1)
    assert found.pairs.count("kept") == 21
    assert all(extend(D, BASE, TRAINED, TARGET, m).gain == 1.0 for m in METHODS if m != "yarn")


def test_a_larger_base_keeps_the_number_of_pairs_that_turn_fully() -> None:
    found = extend(D, BASE, TRAINED, TARGET, "larger_base")
    assert (found.after * TARGET >= 2 * math.pi).sum() == (2 * math.pi <= PLAIN * TRAINED).sum() == 46
    # the pair that would just turn once does so in both
    k = D / 2 * math.log(TRAINED / (2 * math.pi)) / math.log(BASE)
    assert 2 * math.pi * found.base ** (2 * k / D) == pytest.approx(TARGET)


def test_what_becomes_of_each_pair() -> None:
    found = extend(D, BASE, TRAINED, TARGET, "by_parts")
    assert found.pairs == tuple("kept" if t >= 32 else "divided" if t <= 1 else "blended" for t in TURNS)
    assert set(extend(D, BASE, TRAINED, TARGET, "linear").pairs) == {"divided"}
    assert set(extend(D, BASE, TRAINED, TRAINED, "linear").pairs) == {"kept"}
    ntk = extend(D, BASE, TRAINED, TARGET, "ntk").pairs
    assert (ntk[0], ntk[-1], set(ntk[1:-1])) == ("kept", "divided", {"blended"})
    np.testing.assert_allclose(found.divided_by[[0, -1]], [1, 8], rtol=1e-13)
    np.testing.assert_allclose(found.wavelength[0], 2 * math.pi)


def test_it_counts_pairs_as_the_inspection_of_a_configuration_does() -> None:
    config = {"model_type": "llama", "head_dim": 128, "num_hidden_layers": 1, "rope_theta": 5e5}
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config |= {"rope_scaling": scaling | {"original_max_position_embeddings": 8192}, "max_position_embeddings": 65536}
    (layer,) = inspection.inspect(config)["layers"]
    found = extend(128, 5e5, 8192, 65536, "llama3")
    np.testing.assert_array_equal(found.after, layer["inv_freq"])
    assert (
        {fate: found.pairs.count(fate) for fate in ("kept", "blended", "divided")}
        == {fate: layer["pairs"][fate] for fate in ("kept", "blended", "divided")}
        == {"kept": 29, "blended": 6, "divided": 29}
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"head_dim": 7}, "head_dim must be even"),
        ({"head_dim": 0}, "head_dim must be at least 1"),
        ({"base": 1.0}, "base must be a finite number greater than 1"),
        ({"original_max_len": 6}, "original_max_len must be at least 7"),
        ({"target_len": 4095}, "target_len must be at least original_max_len=4096"),
        ({"method": "magic"}, "method must be one of none, linear"),
    ],
)
def test_what_is_out_of_range_is_refused(change: dict[str, object], said: str) -> None:
    asked = {"head_dim": D, "base": BASE, "original_max_len": TRAINED, "target_len": TARGET, "method": "ntk"} | change
    with pytest.raises(ValueError, match=said):
        extend(**asked)  # type: ignore[arg-type]


def test_lengths_are_whole_numbers() -> None:
    with pytest.raises(TypeError, match="target_len must be a whole number"):
        extend(D, BASE, TRAINED, True, "ntk")
