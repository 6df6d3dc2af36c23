"""Waves: wavelengths as the papers have them, sums of cosines against models and mpmath, Su's bound, zeros."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import posenc
from posenc import frequencies, measure
from strategies import check, normal, refuses

LLAMA = frequencies.geometric(64, base=1e4, width=128)
KNOWN = [  # what papers and code say of small widths, by hand
    (posenc.RoPE(head_dim=4), [[1, 0.01]]),
    (posenc.RoPE(head_dim=8, rotary_dim=4, pairing="interleaved", attention_factor=1.5), [[1, 0.01]]),
    (posenc.RoPE(head_dim=4, inv_freq=[-0.5, 0.0]), [[-0.5, 0]]),
    (posenc.RoPE(head_dim=4, trainable=True), [[1, 0.01]]),
    (posenc.XPos(head_dim=4), [[1, 0.01]]),
    (posenc.RetNet(n_kv_heads=2, head_dim=4), [[1, 0.01]]),
    (posenc.DynamicNTK(head_dim=4, original_max_len=8, length=16), [[1, 0.01 / 2]]),
    (posenc.AxialRoPE(head_dim=8, base=100.0), [[1, 0.1, 0, 0], [0, 0, 1, 0.1]]),
    (posenc.MRoPE(head_dim=8, sections=(2, 1, 1)), [[1, 0.1, 0, 0], [0, 0, 0.01, 0], [0, 0, 0, 0.001]]),
    (posenc.PoPE(n_kv_heads=1, head_dim=4), [[1, 0.1, 0.01, 0.001]]),
    (posenc.Sinusoidal(d_model=4), [[1, 0.01]]),
    (posenc.Sinusoidal(d_model=3, learned_scale=0.25), [[1, 1e4 ** (-2 / 3)]]),
    (posenc.Sinusoidal(d_model=4, inv_freq=[-3.0, 0.0], order="concatenated"), [[-3, 0]]),
    (posenc.SinusoidalND(d_model=8), [[1, 0.01, 0, 0], [0, 0, 1, 0.01]]),
    (posenc.SinusoidalND(d_model=7, order="concatenated"), [[1, 0.01, 0, 0], [0, 0, 1, 0.01]]),
    (posenc.Sine(d_model=3), [[1, 0.5, 0.25]]),
    (posenc.TAPE(d_model=4, length=8), [[0.5, 0.005]]),
    (posenc.ComplexOrder(d_model=4), [[1, 0.01]]),
]


@pytest.mark.parametrize(("encoding", "wanted"), KNOWN, ids=lambda v: getattr(v, "name", ""))
def test_frequencies_are_those_of_the_papers(encoding: posenc.Encoding, wanted: list[list[float]]) -> None:
    found = measure.frequencies_of(encoding)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, wanted, rtol=1e-7, atol=0)  # learned ones are in float32
    with np.errstate(divide="ignore"):
        waves = 2 * np.pi / np.abs(np.array(wanted, dtype=float))
    np.testing.assert_allclose(measure.wavelengths(encoding), waves, rtol=1e-7)
    np.testing.assert_allclose(measure.turns(encoding, 4096), 4096 / waves, rtol=1e-7)


def test_heads_with_frequencies_of_their_own_come_first() -> None:
    mixed = posenc.MixedRoPE(n_kv_heads=3, head_dim=8)
    found = measure.frequencies_of(mixed)
    assert found.shape == (3, 2, 4)
    assert not np.allclose(found[0], found[1])  # each drew a direction
    placed = mixed.place(torch.tensor([[0.3, 0.7]], dtype=torch.float64), dtype=torch.float64)
    angle = np.array([0.3, 0.7]) @ found
    np.testing.assert_allclose(placed.parts[0].detach().numpy().reshape(3, 4), np.cos(angle), atol=1e-12)


@pytest.mark.parametrize("n_axes", [1, 2])
def test_random_waves_are_found_in_their_vectors(n_axes: int) -> None:
    fourier = posenc.GaussianFourier(d_model=16, n_axes=n_axes, sigma=2.0, extent=100.0, seed=3)
    found = measure.frequencies_of(fourier)
    pos = np.random.default_rng(0).uniform(-50, 50, (5, n_axes))
    vectors = fourier.vectors(torch.tensor(pos if n_axes > 1 else pos[:, 0])).numpy()
    np.testing.assert_allclose(vectors[:, :8], np.sin(pos @ found), atol=1e-12)
    np.testing.assert_allclose(vectors[:, 8:], np.cos(pos @ found), atol=1e-12)


@pytest.mark.parametrize("name", ["nerf_fourier", "sine", "tape", "sinusoidal_nd"])
def test_vectors_come_back_after_a_wavelength(name: str) -> None:
    card = posenc.card(name)
    encoding = posenc.create(name, **card.example).resolve(64)
    waves = measure.wavelengths(encoding)
    for axis, row in enumerate(waves):
        for wave in row[np.isfinite(row)][:5]:
            pos = torch.full((2, encoding.n_axes), 1.3, dtype=torch.float64)
            pos[1, axis] += wave
            there, back = encoding.vectors(pos if encoding.n_axes > 1 else pos[:, 0]).numpy()
            assert int(np.isclose(there, back, atol=1e-8).sum()) >= 1
            pos[1, axis] -= wave / 2
            there, across = encoding.vectors(pos if encoding.n_axes > 1 else pos[:, 0]).numpy()
            assert int(np.isclose(there, -across, atol=1e-8).sum()) >= 1


def test_learned_waves_are_taken_as_they_stand() -> None:
    rope, time = posenc.RoPE(head_dim=4, trainable=True), posenc.Time2Vec(d_model=3)
    with torch.no_grad():
        rope.inv_freq.copy_(torch.tensor([0.5, 0.125]))
        time.inv_freq.copy_(torch.tensor([7.0, 0.5, 0.25]))
    assert measure.frequencies_of(rope).tolist() == [[0.5, 0.125]]
    assert measure.frequencies_of(time).tolist() == [[0.5, 0.25]]  # lane 0 is a line
    assert rope.inv_freq.requires_grad
    assert rope.inv_freq.grad is None


NO_WAVES = [
    *("alibi", "binary", "cape", "cope", "fire", "fope", "integer", "learnable_fourier", "learned", "liere", "nope"),
    *("normalised", "sandwich", "shaw", "t5", "transformer_xl"),
]


@pytest.mark.parametrize("name", NO_WAVES)
def test_what_has_no_waves_is_refused(name: str) -> None:
    encoding = posenc.create(name, **posenc.card(name).example).resolve(64)
    with pytest.raises(ValueError, match=f"frequencies_of: {encoding.name} has no wavelengths"):
        measure.wavelengths(encoding)


class HalfWave(posenc.Additive):
    """A sine, and a lane that is its cosine near 0 alone."""

    def vectors(self, pos: torch.Tensor) -> torch.Tensor:
        pos = pos.double()
        return torch.stack((pos.sin(), 1 - pos**2 / 2), -1)


class SlowBowl(posenc.Additive):
    """A slow sine, and what is its cosine near 0 alone."""

    def vectors(self, pos: torch.Tensor) -> torch.Tensor:
        angle = 1e-5 * pos.double()
        return torch.stack((angle.sin(), 1 - angle**2 / 2), -1)


class Silent(posenc.Rotary):
    """A rotation that says other frequencies than those of its tables."""

    def frequencies(self) -> torch.Tensor:
        return torch.ones(1, self.head_dim // 2, dtype=torch.float64)

    def parts(self, pos: torch.Tensor, x: object, past: object, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        angle = pos.double()[:, None] * torch.full((self.head_dim // 2,), 1.001)
        return angle.cos(), angle.sin()


def test_numbers_that_only_look_like_waves_are_refused() -> None:
    slow = posenc.Normalised(d_model=2, length=10**7)  # a line that near 0 is as good as a sine
    for encoding in (HalfWave(d_model=2), SlowBowl(d_model=2), Silent(head_dim=4), slow):
        with pytest.raises(ValueError, match="has no wavelengths"):
            measure.frequencies_of(encoding)


def test_a_length_must_be_known() -> None:
    for encoding in (posenc.DynamicNTK(head_dim=4, original_max_len=8), posenc.TAPE(d_model=4)):
        with pytest.raises(ValueError, match=r"Call resolve\(seq_len\)"):
            measure.wavelengths(encoding)


@given(
    distance=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=3),
    inv_freq=st.lists(st.floats(-2, 2), min_size=1, max_size=4),
)
@check(60)
def test_sums_of_cosines_are_those_of_mpmath(distance: list[float], inv_freq: list[float]) -> None:
    with mpmath.workdps(40):
        wanted = [float(mpmath.fsum(mpmath.cos(mpmath.mpf(x) * f) for f in inv_freq)) for x in distance]
    room = 1e-15 + 2.3e-16 * max(map(abs, distance)) * max(map(abs, inv_freq))
    np.testing.assert_allclose(measure.dot_by_distance(inv_freq, distance), wanted, atol=len(inv_freq) * room, rtol=0)
    np.testing.assert_allclose(
        measure.cosine_by_distance(inv_freq, distance), np.divide(wanted, len(inv_freq)), atol=room
    )


@pytest.mark.parametrize("options", [{}, {"base": 100.0, "order": "concatenated"}, {"inv_freq": lambda k: 0.3 * k}])
def test_the_sum_is_the_dot_product_of_sinusoidal_vectors(options: dict) -> None:
    sinusoidal = posenc.Sinusoidal(d_model=32, **options)
    pos = torch.tensor([7, 0, 6, 8, 100, 999_999])
    vectors = sinusoidal.vectors(pos).numpy()
    inv_freq = measure.frequencies_of(sinusoidal)
    distance = 7 - pos.numpy()
    np.testing.assert_allclose(measure.dot_by_distance(inv_freq, distance), vectors @ vectors[0], atol=2e-9)
    cosine = (vectors @ vectors[0]) / np.linalg.norm(vectors, axis=-1) / np.linalg.norm(vectors[0])
    np.testing.assert_allclose(measure.cosine_by_distance(inv_freq, distance), cosine, atol=1e-10)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_the_sum_is_the_score_of_one_direction_under_rope(pairing: str) -> None:
    rope = posenc.RoPE(head_dim=16, base=500.0, pairing=pairing)
    q = torch.ones(1, 1, 5, 16, dtype=torch.float64)
    places = [rope.place(torch.tensor(p), dtype=torch.float64) for p in ([1000] * 5, [1000, 999, 990, 0, 1003])]
    turned, keys = rope.rotate(q, q, *places)
    score = (turned * keys).sum(-1).flatten() / 2  # (1, 1) in each pair is twice as much as (1, 0)
    found = measure.dot_by_distance(rope.frequencies(), [0, 1, 10, 1000, -3])
    np.testing.assert_allclose(found, score.numpy(), atol=1e-11)


def test_a_million_distances_are_each_themselves() -> None:
    every = measure.dot_by_distance(LLAMA, np.arange(1_000_001))
    chosen = [0, 1, 16_383, 16_384, 999_999, 1_000_000]
    assert every.shape == (1_000_001,)
    one_by_one = [math.fsum(math.cos(x * f) for f in LLAMA.tolist()) for x in chosen]
    np.testing.assert_allclose(every[chosen], one_by_one, atol=1e-12)


@pytest.mark.parametrize(("base", "first"), [(1e4, 1707), (5e5, 18438), (1e6, 27115)])
def test_the_first_negative_sum(base: float, first: int) -> None:
    inv_freq = frequencies.geometric(64, base=base, width=128)
    assert measure.first_negative(inv_freq) == first
    sums = measure.dot_by_distance(inv_freq, np.arange(first + 1))
    assert (sums < 0).nonzero()[0].tolist() == [first]
    assert measure.first_negative is frequencies.first_negative


def test_sus_bound_has_the_known_numbers() -> None:
    found = measure.decay_bound(LLAMA, [0, 10, 1000, -10])
    np.testing.assert_allclose(found, [32.5, 17.9541371371, 4.47076103425, 17.9541371371], rtol=1e-10)


@given(distance=st.integers(-(10**6), 10**6), seed=st.integers(0, 99))
@check(30)
def test_sus_bound_bounds_the_scores_of_rope(distance: int, seed: int) -> None:
    rope = posenc.RoPE(head_dim=16, pairing="interleaved")
    q, k = normal(2, 1, 1, 1, 16, seed=seed)
    there, here = (rope.place(torch.tensor([p]), dtype=torch.float64) for p in (distance, 0))
    turned, _ = rope.rotate(q, k, there, here)
    score = abs(float((turned * k).sum()))
    h = torch.view_as_complex(q.view(-1, 2)) * torch.view_as_complex(k.view(-1, 2)).conj()
    step = float((torch.cat((h[1:], torch.zeros(1))) - h).abs().max())
    assert score <= step * 8 * measure.decay_bound(rope.frequencies(), distance)[0] * (1 + 1e-9)


@given(data=st.data())
@check(30)
def test_sus_bound_is_a_mean_of_partial_sums(data: st.DataObject) -> None:
    inv_freq = data.draw(st.lists(st.floats(-1, 1), min_size=1, max_size=5))
    x = data.draw(st.floats(-1e4, 1e4))
    sums = [
        abs(sum(complex(math.cos(x * f), math.sin(x * f)) for f in inv_freq[:j])) for j in range(1, len(inv_freq) + 1)
    ]
    np.testing.assert_allclose(measure.decay_bound(inv_freq, x), [sum(sums) / len(sums)], atol=1e-11)


def test_zeros_are_where_the_sign_changes() -> None:
    found = measure.zeros(lambda x: np.sin(x / 3), 1.0, 100.0)
    np.testing.assert_allclose(found, 3 * np.pi * np.arange(1, 11), rtol=4e-16)
    assert measure.zeros(np.cosh, -5.0, 5.0).tolist() == []
    assert measure.zeros(lambda x: 1e-200 * (x - math.e), 0, 5).tolist() == [math.e]  # products would be 0
    assert measure.zeros(lambda x: x, -1.0, 1.0, step=0.7).tolist() == [0.0]  # on a sample, and once
    assert measure.zeros(lambda x: x, 0, 3).tolist() == [0.0]
    near = [10.1, 10.2]
    both = measure.zeros(lambda x: (x - near[0]) * (x - near[1]), 0.0, 20.0, step=0.01)
    np.testing.assert_allclose(both, near, rtol=1e-12)
    sums = measure.zeros(lambda x: measure.dot_by_distance(LLAMA, x), 1.0, 2000.0)
    assert 1706 < sums[0] < 1707


BAD = [
    *((ValueError, bad) for bad in ([], [[1.0, 2.0], [3.0, 4.0]], [1.0, math.nan], [math.inf], torch.zeros(2, 2))),
    *((TypeError, bad) for bad in (None, [1j], "1000", [[1.0], [1.0, 2.0]], True, ..., [None])),
]


@pytest.mark.parametrize(("kind", "bad"), BAD, ids=str)
def test_bad_numbers_get_one_sentence(kind: type[Exception], bad: object) -> None:
    for function in (measure.dot_by_distance, measure.cosine_by_distance, measure.decay_bound):
        with refuses(kind, f"{function.__name__}: distance must be"):
            function([1.0], bad)
        with refuses(kind, f"{function.__name__}: inv_freq must be"):
            function(bad, 1.0)
