"""ALiBi's other side, KERPLE's power, Sandwich and Shaw, against typed numbers, limits and the papers' own form."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from posenc.definitions.additive import sinusoidal
from posenc.definitions.bias import alibi, kerple_power, sandwich, shaw

LOG_2 = 0.6931471805599453


def test_alibi_one_sided() -> None:
    """The figure of the paper, whose masked half costs nothing instead."""
    figure = np.array([[0, 0, 0, 0], [-1, 0, 0, 0], [-2, -1, 0, 0], [-3, -2, -1, 0]])
    got = alibi(np.arange(4), np.arange(4), n_heads=3, sides="one-sided")
    np.testing.assert_array_equal(got, [figure / 16, figure / 256, figure / 4])
    np.testing.assert_array_equal(
        alibi(np.array([0.5]), np.array([0.0, 2.0]), n_heads=1, sides="one-sided"), [[[-0.5 / 256, 0.0]]]
    )


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({"heads": 2}, [1 / 16, 1 / 256, 0.0]),
        ({"heads": (2, 0)}, [1 / 256, 0.0, 1 / 16]),
        ({"heads": (1,), "bias_max": 4.0}, [0.0, 1 / 16, 0.0]),
        ({"heads": (2, 1), "slopes": "geometric"}, [0.0, 1 / 256, 1 / 16]),
        ({"slopes": [0.5, 0.0, 3.0]}, [0.5, 0.0, 3.0]),
        ({"slopes": (0.5, 3.0), "heads": 2}, [0.5, 3.0, 0.0]),
        ({"slopes": [0.5, 3.0], "heads": (2, 0)}, [3.0, 0.0, 0.5]),
        ({"slopes": "learned", "log_slope": np.array([0.0, LOG_2, -LOG_2])}, [1.0, 2.0, 0.5]),
        ({"slopes": "learned", "log_slope": np.array([LOG_2]), "heads": (1,)}, [0.0, 2.0, 0.0]),
    ],
)
@pytest.mark.parametrize(("sides", "at_seven"), [("symmetric", -5.0), ("one-sided", 0.0), ("key", 7.0)])
def test_alibi_heads_and_slopes_typed(options: dict[str, Any], want: list[float], sides: Any, at_seven: float) -> None:
    """Three heads; the query at 2, the key at 7."""
    got = alibi(np.array([2]), np.array([7]), n_heads=3, sides=sides, **options)
    assert got.shape == (3, 1, 1)
    np.testing.assert_allclose(got[:, 0, 0], np.multiply(want, at_seven), rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    "options",
    [
        {"slopes": [1.0, 2.0]},
        {"slopes": [1.0, 2.0, 3.0], "heads": 2},
        {"slopes": "learned"},
        {"slopes": "learned", "log_slope": np.zeros(4)},
        {"precision": "falcon-bfloat16"},
        {"precision": "falcon-bfloat16", "sides": "one-sided"},
    ],
)
def test_alibi_without_its_numbers(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"zip\(\) argument|alibi: precision"):
        alibi(np.arange(2), np.arange(2), n_heads=3, **options)


def test_alibi_by_key_is_the_same_after_the_softmax() -> None:
    """Behind a causal mask, whatever the scores; it does not ask where the query is."""
    rng = np.random.default_rng(5)
    pos = np.array([3.0, 4.5, 6.0, 20.0])
    scores = np.where(np.tri(4) > 0, rng.standard_normal((6, 4, 4)), -np.inf)

    def weights(sides: Any) -> Any:
        each = np.exp(scores + alibi(pos, pos, n_heads=6, sides=sides))
        return each / each.sum(-1, keepdims=True)

    np.testing.assert_allclose(weights("key"), weights("symmetric"), rtol=1e-13)
    by_key = alibi(pos, pos, n_heads=6, sides="key")
    np.testing.assert_array_equal(by_key, by_key[:, :1].repeat(4, 1))


def test_alibi_in_bfloat16_typed() -> None:
    """Eight digits: a tie of positions goes to the even one; then the slope 1/sqrt(2), and its products, round."""
    options: dict[str, Any] = {"n_heads": 1, "sides": "key", "precision": "falcon-bfloat16"}
    keys = np.array([0, 255, 256, 257, 258, 259, 261, 263, -257, 65281, 65407, 65408])
    want = [[[0, 255, 256, 256, 258, 260, 260, 264, -256, 65280, 65280, 65536]]]
    np.testing.assert_array_equal(alibi(np.array([9]), keys, slopes=[1.0], **options), want)
    got = alibi(np.array([9, 0]), np.array([1.0, 3.0, 0.5]), slopes=[0.7071067811865476], **options)
    np.testing.assert_array_equal(got, [[[0.70703125, 2.125, 0.353515625]] * 2])  # 2.12109375 is not on the grid
    tiny = alibi(np.array([0]), np.array([1]), slopes=[2.0**-134], **options)  # half of the least number: a tie
    np.testing.assert_array_equal(tiny, [[[0.0]]])
    tiny = alibi(np.array([0]), np.array([1]), slopes=[1.5 * 2.0**-133], **options)
    np.testing.assert_array_equal(tiny, [[[2.0**-132]]])


@pytest.mark.parametrize("n_heads", [1, 8, 12, 71])
def test_alibi_in_bfloat16_is_falcons_tensor(n_heads: int) -> None:
    """Bit for bit, at positions that bfloat16 has and that it has not."""
    falcon = pytest.importorskip("transformers.models.falcon.modeling_falcon")
    import torch

    theirs = falcon.build_alibi_tensor(torch.ones(1, 900, dtype=torch.long), n_heads, torch.float32)
    keys = np.arange(900)
    got = alibi(np.array([0]), keys, n_heads=n_heads, sides="key", precision="falcon-bfloat16")
    np.testing.assert_array_equal(got, theirs.double().numpy())
    assert (got != alibi(np.array([0]), keys, n_heads=n_heads, sides="key")).any()


def test_kerple_power_typed() -> None:
    """Heads with r1, r2 = 1, 1; 2, 1.5; 1/2, 0.5: at distances 0, 1, 4 and, ahead, 9."""
    log_r1, logit_r2 = np.array([0.0, LOG_2, -LOG_2]), np.array([0.0, math.log(3), -math.log(3)])
    got = kerple_power(np.array([9]), np.array([9, 8, 5, 18]), n_heads=3, log_r1=log_r1, logit_r2=logit_r2)
    want = [[[0, -1, -4, -9]], [[0, -2, -16, -54]], [[0, -0.5, -1, -1.5]]]
    np.testing.assert_allclose(got, want, rtol=1e-14, atol=0)


def test_kerple_power_contains_alibi() -> None:
    pos = np.arange(6)
    log_r1 = -LOG_2 * np.arange(1, 9)
    got = kerple_power(pos, pos, n_heads=8, log_r1=log_r1, logit_r2=np.zeros(8))
    np.testing.assert_allclose(got, alibi(pos, pos, n_heads=8), rtol=1e-14)


@pytest.mark.parametrize("logit", [-3.0, 0.0, 3.0, 30.0])
def test_kerple_power_is_conditionally_positive_definite(logit: float) -> None:
    """What the paper asks of the kernel, and why r2 stays below 2: c' K c >= 0 for every c that sums to 0."""
    pos = np.arange(8)
    kernel = kerple_power(pos, pos, n_heads=1, log_r1=np.array([-1.0]), logit_r2=np.array([logit]))[0]
    centring = np.eye(8) - 1 / 8
    assert np.linalg.eigvalsh(centring @ kernel @ centring)[0] > -1e-12
    cubed = centring @ -(np.abs(np.subtract.outer(pos, pos)) ** 3.0) @ centring
    assert np.linalg.eigvalsh(cubed)[0] < -1


def test_sandwich_one_wave() -> None:
    """Width 2: one cosine, of wavelength 2 pi; heads of 4 divided by 2, 4, 6, 8."""
    turns = 2 * math.pi * np.array([0, 1 / 6, 1 / 2, 1])
    got = sandwich(np.zeros(1), turns, n_heads=4, width=2)
    want = [[np.array([1.0, 0.5, -1.0, 1.0]) / share] for share in (2, 4, 6, 8)]
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)


def test_sandwich_base() -> None:
    """Width 4, base 16: wavelengths 2 pi times 1 and 4, after a half and a whole turn of the first."""
    got = sandwich(2 * math.pi * np.array([0.5, 1.0]), np.zeros(1), n_heads=8, width=4, base=16.0)
    np.testing.assert_allclose(got[0], [[-1 + 0.7071067811865476], [1.0]], rtol=1e-12)


def test_sandwich_is_the_inner_product_of_sinusoids() -> None:
    """For 12 heads, each with its own share."""
    q_pos, k_pos = np.array([0, 5, 300]), np.array([0, 1, 7, 1000])
    inner = sinusoidal(q_pos, d_model=128) @ sinusoidal(k_pos, d_model=128).T
    got = sandwich(q_pos, k_pos, n_heads=12)
    assert got[0, 0, 0] == pytest.approx(96, abs=1e-12)  # 64 waves at their crests, over 8/12
    for head, ratio in enumerate(range(8, 97, 8)):
        np.testing.assert_allclose(got[head], inner / (ratio / 12), rtol=1e-11)


def test_shaw_by_hand() -> None:
    """A query that picks lane 0 (and sqrt 4 undone) reads rows: distances -2 -1 0 1 2 are a..e."""
    letters = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    a, b, c, d, e = letters
    weight = np.stack([letters, 10 * letters, 0 * letters, 0 * letters], axis=1)
    q = np.zeros((2, 5, 4))
    q[0, :, 0], q[1, :, 1] = 2.0, 2.0
    toeplitz = np.array([[c, b, a, a, a], [d, c, b, a, a], [e, d, c, b, a], [e, e, d, c, b], [e, e, e, d, c]])
    got = shaw(q, q, np.arange(5), np.arange(5), head_dim=4, max_distance=2, weight=weight)
    np.testing.assert_array_equal(got, [toeplitz, 10 * toeplitz])
    # three back, one ahead: rows are distances -1 0 1 2 3
    lopsided = np.array([[b, a, a, a, a], [c, b, a, a, a], [d, c, b, a, a], [e, d, c, b, a], [e, e, d, c, b]])
    got = shaw(q, q, np.arange(5), np.arange(5), head_dim=4, max_distance=3, max_ahead=1, weight=weight)
    np.testing.assert_array_equal(got[0], lopsided)
    none = shaw(q, q, np.arange(5), np.arange(5), head_dim=4, max_distance=4, max_ahead=0, weight=weight)
    np.testing.assert_array_equal(none[0, 0], [a, a, a, a, a])
    np.testing.assert_array_equal(none[0, 4], [e, d, c, b, a])


def test_shaw_default_reach() -> None:
    """16 either way: 33 vectors, and positions beyond are alike."""
    weight, q = np.arange(33.0)[:, None], np.ones((1, 1, 1))
    got = shaw(q, np.ones((1, 5, 1)), np.array([100]), np.array([0, 84, 100, 116, 500]), head_dim=1, weight=weight)
    np.testing.assert_array_equal(got, [[[32, 32, 16, 0, 0]]])


def test_shaw_equation_4() -> None:
    """x_i W^Q (x_j W^K + a_ij)' / sqrt(d_z), a_ij = w_clip(j - i), w_-k first: the paper's order, ours reversed."""
    rng = np.random.default_rng(6)
    n_heads, head_dim, reach = 2, 3, 2
    x, w = rng.standard_normal((6, 4)), rng.standard_normal((2 * reach + 1, head_dim))
    w_q, w_k = rng.standard_normal((2, n_heads, 4, head_dim))
    want = np.zeros((n_heads, 6, 6))
    for h, i, j in np.ndindex(want.shape):
        a_ij = w[max(-reach, min(reach, j - i)) + reach]
        want[h, i, j] = sum((x[i] @ w_q[h])[c] * ((x[j] @ w_k[h])[c] + a_ij[c]) for c in range(head_dim)) / 3**0.5
    q, k = x @ w_q, x @ w_k
    kw: dict[str, Any] = {"head_dim": head_dim, "max_distance": reach, "weight": w[::-1]}
    got = q @ np.swapaxes(k, 1, 2) / 3**0.5 + shaw(q, k, np.arange(6), np.arange(6), **kw)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)
