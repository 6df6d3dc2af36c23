"""Profiles, biases, mapped distances and scores over the whole registry, against definitions in float64."""

import inspect
import math
from typing import Any

import numpy as np
import pytest
import torch

import defined
import posenc
import strategies
from posenc import Compose, Encoding, Mapped, PerLayer, definitions, measure
from posenc.defined import of_text

NAMES = posenc.names()
N = 7
BIASES = [n for n in NAMES if posenc.card(n).family in ("bias", "content_bias")]
MAPS = [n for n in NAMES if posenc.card(n).family == "piecewise"]
COUNTS = ("cope", "dape", *sorted(defined.READ_TOKENS))  # what a query sees of the text before it matters


def example(name: str, length: int = 50) -> Any:
    """The registry's example for texts of that length, with all that it learns drawn from N(0, 1) in float64."""
    card = posenc.card(name)
    return strategies.randomise(card.cls(**card.example).resolve(length), 5).eval()


def places(encoding: Any, n: int, seed: int = 0) -> np.ndarray:
    """Different positions below 16, the last of which is 15, so that a text has 16 tokens."""
    random = np.random.default_rng(seed)
    if encoding.n_axes == 1:
        return np.append(np.sort(random.permutation(15)[: n - 1]), 15)
    return np.append(random.integers(0, 15, (n - 1, encoding.n_axes)), np.full((1, encoding.n_axes), 15), 0)


def sizes(encoding: Any) -> tuple[int, int]:
    heads = getattr(encoding, "n_heads", getattr(encoding, "n_kv_heads", None)) or 2
    return heads, getattr(encoding, "head_dim", 4)


@pytest.mark.parametrize("name", NAMES)
def test_score_matrix_is_that_of_the_definition(name: str) -> None:
    encoding = example(name, 16)
    whole = name in COUNTS
    pos = np.arange(16) if whole else places(encoding, 5)
    k_pos = pos if whole else places(encoding, 4, seed=1)
    q, k = (
        strategies.normal(sizes(encoding)[0], len(p), sizes(encoding)[1], seed=len(p)).numpy() for p in (pos, k_pos)
    )
    text = strategies.normal(16, getattr(encoding, "d_model", 4)).numpy()
    allowed = np.tril(np.ones((16, 16), bool)) if whole else np.ones((5, 4), bool)
    tokens = text if encoding.reads_x else None
    found = measure.score_matrix(encoding, q, k, pos, k_pos, causal=whole, tokens=tokens)
    wanted = defined.scores(name, encoding, q, k, pos, k_pos, allowed, text)
    seen = allowed if name in ("cope", "grape_ap") else np.ones_like(allowed)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found[:, seen], wanted[:, seen], rtol=0, atol=1e-9 * max(1.0, np.abs(wanted).max()))


class Drawn:
    """What a profile draws, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all: list[np.ndarray] = []
        draw = torch.randn

        def watched(*shape: Any, **options: Any) -> torch.Tensor:
            out = draw(*shape, **options)
            self.all.append(out.numpy().copy())
            return out

        monkeypatch.setattr(torch, "randn", watched)


def by_definition(name: str, encoding: Any, drawn: list[np.ndarray], same: bool, q_pos: Any, k_pos: Any) -> np.ndarray:
    """Scores (draws, heads, n) of what was drawn, by the definitions; the whole text where it counts."""
    q, k = drawn[0], drawn[0] if same else drawn[1]
    texts = drawn[1 if same else 2 :]
    found = []
    for i in range(len(q)):
        if posenc.card(name).family in ("additive", "embedded"):
            tokens = (np.repeat(t[i][None], len(p), 0) for t, p in ((q, q_pos), (k, k_pos)))
            a, b = (defined.embedded(name, encoding, t, p) for t, p in zip(tokens, (q_pos, k_pos), strict=True))
            found.append((a @ b.T / math.sqrt(a.shape[1]))[None, 0])
            continue
        keys_at = np.arange(int(q_pos[0]) + 1) if name in COUNTS else k_pos
        keys = np.repeat(k[i], len(keys_at), 1)
        text = np.concatenate(texts)[i] if encoding.reads_x else None
        row = defined.scores(name, encoding, q[i], keys, q_pos, keys_at, np.ones((1, len(keys_at)), bool), text)[:, 0]
        found.append(row[:, k_pos] if name in COUNTS else row)
    return np.array(found)


@pytest.mark.parametrize("content", ["same", "independent"])
@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("cpvt", "graphormer")])
def test_profile_is_the_mean_of_defined_scores(name: str, content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoding = example(name, 16)
    drawn = Drawn(monkeypatch)
    distance = np.array([0, 1, 5, -9 if name in MAPS else 12])  # maps see keys ahead as well
    found = measure.profile(encoding, distance, content=content, n_draws=9, seed=3, q_pos=15)
    pad = (lambda p: np.pad(p[:, None], ((0, 0), (0, encoding.n_axes - 1)))) if encoding.n_axes > 1 else lambda p: p
    q_pos, k_pos = pad(np.array([15])), pad(15 - distance)
    wanted = by_definition(name, encoding, drawn.all, content == "same", q_pos, k_pos)
    size = max(1.0, np.abs(wanted).max())
    low, high = np.quantile(wanted, [0.05, 0.95], axis=0)
    for got, expected in ((found.mean, wanted.mean(0)), (found.low, low), (found.high, high)):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-9 * size)
    np.testing.assert_array_equal(found.distance, distance)


@pytest.mark.parametrize("content", ["same", "independent"])
def test_profile_of_rope_is_the_sum_of_cosines(content: str) -> None:
    """Each pair of two numbers from N(0, 1) has the square 2 in the mean, and the variance 4 of it."""
    rope, distance = posenc.RoPE(head_dim=128), np.arange(0, 3000, 7)
    found = measure.profile(rope, distance, content=content, n_draws=400)
    theta = 10000.0 ** (-np.arange(64) / 64)
    same = content == "same"
    wanted = 2 * np.cos(np.outer(distance, theta)).sum(1) / math.sqrt(128) * same
    error = 2 * 8.0 / math.sqrt(400 * 128)  # of one sum of 64 squares at most: sqrt(64 * 4), by the draws and the scale
    assert np.abs(found.mean[0] - wanted).max() < 4 * error
    assert np.abs(found.mean[0] - wanted).max() > 0
    unscaled = measure.profile(rope, distance, content=content, n_draws=400, scaled=False)
    np.testing.assert_allclose(unscaled.mean, found.mean * math.sqrt(128), rtol=0, atol=1e-11)
    inside = (found.low < found.mean) & (found.mean < found.high)
    assert inside.all()


def test_profile_of_what_adds_shows_content_and_position() -> None:
    """E (x + p)·(x + r) = d_model + p·r, and of different tokens p·r alone."""
    d = 32
    sinusoidal = posenc.Sinusoidal(d_model=d)
    theta = 10000.0 ** (-2 * np.arange(d // 2) / d)
    dot = np.cos(np.outer(np.arange(40), theta)).sum(1)
    for content, extra in (("same", d), ("independent", 0)):
        found = measure.profile(sinusoidal, np.arange(40), content=content, n_draws=4000)
        assert np.abs(found.mean[0] - (dot + extra) / math.sqrt(d)).max() < 5 * math.sqrt(2 * d + 2 * d) / math.sqrt(
            4000 * d
        )


def test_unscaled_scores_of_index_maps_and_of_their_rotation_are_alike_near_by() -> None:
    rope, rerope = posenc.RoPE(head_dim=8), posenc.ReRoPE(head_dim=8, window=50)
    q, k = (strategies.normal(1, 9, 8, seed=s).numpy() for s in (1, 2))
    near = [measure.score_matrix(e, q, k, range(9), scaled=False) for e in (rope, rerope)]
    np.testing.assert_allclose(near[0], near[1], atol=1e-12)
    np.testing.assert_allclose(near[0], measure.score_matrix(rope, q, k, range(9)) * math.sqrt(8), atol=1e-12)


@pytest.mark.parametrize("name", BIASES)
def test_bias_matrix_is_that_of_the_definition(name: str) -> None:
    encoding = example(name, 16)
    pos, k_pos = (np.arange(16),) * 2 if encoding.reads_x else (places(encoding, 5), places(encoding, 4, seed=1))
    heads, head_dim = sizes(encoding)
    q, k = np.ones((heads, len(pos), head_dim)), np.ones((heads, len(k_pos), head_dim))
    if posenc.card(name).family == "content_bias" and "n_heads" not in inspect.signature(type(encoding)).parameters:
        q, k = q[:1], k[:1]
    text = strategies.normal(16, getattr(encoding, "d_model", 4)).numpy()
    define, arguments = defined.find(name), defined.mathematics(encoding)
    if encoding.reads_x:
        wanted = define(*of_text(define, text, pos), **arguments)
    elif posenc.card(name).family == "bias":
        wanted = define(pos, k_pos, **arguments)
    else:
        wanted = define(q, k, pos, k_pos, **arguments)
    wanted = np.broadcast_to(wanted, (len(q), len(pos), len(k_pos)))
    found = measure.bias_matrix(encoding, pos, k_pos, tokens=text if encoding.reads_x else None)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-9 * max(1.0, np.abs(wanted).max()))


def test_bias_matrix_of_contents() -> None:
    shaw = example("shaw")
    q, k = (strategies.normal(1, 8, seed=s).numpy() for s in (1, 2))
    wanted = defined.find("shaw")(
        *(np.repeat(t[:, None], 6, 1) for t in (q, k)), *[np.arange(6)] * 2, **defined.mathematics(shaw)
    )
    np.testing.assert_allclose(measure.bias_matrix(shaw, range(6), q=q[0], k=k[0]), wanted, atol=1e-12)


@pytest.mark.parametrize("name", [n for n in BIASES if n not in {"graphormer", *defined.READ_TOKENS}])
def test_bias_curve_is_a_row_of_the_definition(name: str) -> None:
    """Distances run along axis 0, from the query at the largest one, or from where it is put."""
    encoding = example(name, 16)
    heads, head_dim = sizes(encoding)
    distance = np.array([0, 3, 4, 11])
    for given, q_at in ((None, 11), (14, 14)):
        pad = (lambda p: np.pad(p[:, None], ((0, 0), (0, encoding.n_axes - 1)))) if encoding.n_axes > 1 else lambda p: p
        pos, k_pos = pad(np.array([q_at])), pad(q_at - distance)
        ones = [np.ones((heads, len(p), head_dim)) for p in (pos, k_pos)]
        content = () if posenc.card(name).family == "bias" else tuple(ones)
        wanted = defined.find(name)(*content, pos, k_pos, **defined.mathematics(encoding))[:, 0]
        found = measure.bias_curve(encoding, distance, given)
        np.testing.assert_allclose(
            found, np.broadcast_to(wanted, (heads, 4))[: len(found)], rtol=0, atol=1e-9 * np.abs(wanted).max()
        )


def test_bias_curve_of_fox_is_a_row_of_its_matrix() -> None:
    fox, text = example("fox"), strategies.normal(9, 16).numpy()
    gates = -np.logaddexp(0, -(text @ fox.weight.detach().numpy().T + fox.b.detach().numpy()))
    curve = measure.bias_curve(fox, [0, 2, 8], tokens=text)
    wanted = [[gates[9 - d :, h].sum() for d in (0, 2, 8)] for h in range(4)]
    np.testing.assert_allclose(curve, wanted, atol=1e-12)


@pytest.mark.parametrize("name", MAPS)
def test_effective_distance_is_that_of_the_definition(name: str) -> None:
    encoding = example(name)
    define = getattr(definitions.distances, f"{name}_distance")
    options = {k: v for k, v in encoding.options().items() if k in inspect.signature(define).parameters}
    wanted = define(np.arange(30), np.arange(30), **options)
    np.testing.assert_allclose(measure.effective_distance(encoding, 30), wanted, rtol=0, atol=1e-12)
    some = measure.effective_distance(encoding, [29, 3], [0, 7, 8])
    np.testing.assert_allclose(some, wanted[[29, 3]][:, [0, 7, 8]], rtol=0, atol=1e-12)
    halved = Mapped(encoding, lambda pos: pos // 2)
    every = Compose(posenc.QueryTemperature(), halved)
    np.testing.assert_allclose(measure.effective_distance(every, 60), wanted.repeat(2, 0).repeat(2, 1), atol=1e-12)


def test_effective_distance_of_dual_chunks_as_the_paper_draws_it() -> None:
    row = measure.effective_distance(posenc.DualChunk(head_dim=2, chunk=12, local=4), 16)[15]
    assert row.tolist() == [12, 11, 10, 9, 8, 7, 6, 5, 7, 6, 5, 4, 3, 2, 1, 0]


def test_layers_and_members() -> None:
    rope, alibi = posenc.RoPE(head_dim=4), posenc.ALiBi(n_heads=2)
    layers = PerLayer([Compose(rope, alibi), rope])
    q, k = (strategies.normal(2, 5, 4, seed=s).numpy() for s in (1, 2))
    first, second = (measure.score_matrix(layers, q, k, range(5), layer=i) for i in (0, 1))
    slopes = np.array([2.0**-4, 2.0**-8])
    steps = -np.abs(np.subtract.outer(np.arange(5), np.arange(5)))
    np.testing.assert_allclose(first - second, slopes[:, None, None] * steps, atol=1e-12)
    np.testing.assert_allclose(measure.bias_matrix(layers, range(5)), slopes[:, None, None] * steps, atol=1e-12)
    with strategies.refuses(ValueError, "RoPE adds nothing to the scores"):
        measure.bias_matrix(layers, range(5), layer=1)
    here, there = (measure.profile(layers, range(5), layer=i, n_draws=3).mean for i in (0, 1))
    assert not np.allclose(here, there)
    plain = measure.profile(Compose(rope, alibi), range(5), n_draws=3)
    np.testing.assert_allclose(here, plain.mean)


def test_token_lanes_are_dealt_to_heads() -> None:
    """Sinusoids of 8 lanes for two heads of 4 that turn as well: each head has lanes of its own."""
    both = Compose(posenc.Sinusoidal(d_model=8), posenc.RoPE(head_dim=4, base=100.0))
    found = measure.profile(both, [0, 3], content="independent", n_draws=20000).mean
    assert found.shape == (2, 2)
    p = [np.array([f(m * t) for t in 10000.0 ** (-np.arange(4) / 4) for f in (np.sin, np.cos)]) for m in (3, 0)]
    for h in range(2):
        a, b = (v[4 * h : 4 * h + 4] for v in p)
        turned = [complex(a[i], a[i + 2]) * np.exp(3j * t) for i, t in enumerate((1.0, 0.1))]
        wanted = sum((z * complex(b[i], -b[i + 2])).real for i, z in enumerate(turned)) / 2
        assert abs(found[h, 1] - wanted) < 0.1
        assert abs(found[h, 0] - a @ a / 2) < 0.1
    with strategies.refuses(ValueError, "d_model=8, n_heads=3 and head_dim=2"):
        measure.profile(Compose(posenc.Sinusoidal(d_model=8), posenc.ALiBi(n_heads=3)), [0])


def test_a_map_of_scores_sees_the_whole_text_of_tokens_with_position(monkeypatch: pytest.MonkeyPatch) -> None:
    cope = strategies.randomise(posenc.CoPE(head_dim=8), 5)
    drawn = Drawn(monkeypatch)
    found = measure.profile(Compose(posenc.Sinusoidal(d_model=8), cope), [0, 2, 9], n_draws=3, q_pos=9)
    angle = np.outer(np.arange(10), 10000.0 ** (-np.arange(4) / 4))
    rows = [t + np.stack([np.sin(angle), np.cos(angle)], -1).reshape(10, 8) for t in drawn.all[0]]
    query, keys, whole = np.array([9]), np.arange(10), np.ones((1, 10), bool)
    wanted = [defined.scores("cope", cope, row[None, 9:], row[None], query, keys, whole, None)[0, 0] for row in rows]
    np.testing.assert_allclose(found.mean[0], np.mean(wanted, 0)[[9, 7, 0]], atol=1e-12)


def test_what_is_given_stays_as_it_is() -> None:
    kerple = example("kerple").float().train()
    before = {name: p.clone() for name, p in kerple.named_parameters()}
    state = torch.get_rng_state()
    measure.profile(kerple, range(4))
    measure.bias_matrix(kerple, range(4))
    assert kerple.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(p, before[name]) and p.dtype == torch.float32 for name, p in kerple.named_parameters())
    a, b, c = (measure.profile(kerple, range(4), seed=s).mean for s in (1, 1, 2))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)


def test_dependence_on_length_is_resolved_for_the_last_position() -> None:
    ntk = posenc.DynamicNTK(head_dim=4, factor=2.0, original_max_len=8)
    q = k = np.ones((1, 20, 4))
    wanted = measure.score_matrix(ntk.resolve(20), q, k, range(20))
    np.testing.assert_array_equal(measure.score_matrix(ntk, q, k, range(20)), wanted)
    assert not np.allclose(measure.score_matrix(ntk.resolve(9), q, k, range(20)), wanted)


def test_nope_has_a_flat_profile() -> None:
    found = measure.profile(Encoding(), [0, 5, 900], n_draws=16)
    assert (found.mean[:, :1] == found.mean).all()
    assert found.low[0, 0] < found.mean[0, 0] < found.high[0, 0]
