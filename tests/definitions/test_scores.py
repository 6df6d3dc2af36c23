"""The definitions of more score encodings, against numbers worked by hand and against second forms."""

from __future__ import annotations

import ast
import inspect
import math
from types import ModuleType
from typing import Any

import mpmath
import numpy as np
import pytest

from posenc import definitions
from posenc.definitions import distances, images, scores
from posenc.definitions.scores import Array, cope, dape, deberta, fire, fox, graphormer, tupe

LN2, LN3 = 0.6931471805599453, 1.0986122886681098  # sigmoid(ln 3) = 3/4, sigmoid(-ln 3) = 1/4


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (scores, ["fire", "deberta", "tupe", "graphormer", "fox", "cope", "dape"]),
        (images, ["dynamic_position_bias", "swin", "swin_v2", "beit", "decomposed_2d"]),
        (distances, ["rerope", "leaky_rerope", "self_extend", "dual_chunk"]),
    ],
)
def test_find_and_no_torch(module: ModuleType, names: list[str]) -> None:
    for name in names:
        assert definitions.find(name) is getattr(module, name)
    nodes = list(ast.walk(ast.parse(inspect.getsource(module))))
    imported = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    imported += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    assert not [name for name in imported if name.split(".")[0] == "torch"]


# relu of t and of 3/4 - t; head 0: 1/2 + 2 first + 4 second, head 1: 10 - second
NETWORK = {
    "n_heads": 2,
    "width": 2,
    "w1": np.array([1.0, -1.0]),
    "b1": np.array([0.0, 0.75]),
    "w2": np.array([[2.0, 4.0], [0.0, -1.0]]),
    "b2": np.array([0.5, 10.0]),
}
OF_SHARE = {0.0: (3.5, 9.25), 0.25: (3.0, 9.5), 0.5: (2.5, 9.75), 1.0: (2.5, 10.0)}


@pytest.mark.parametrize("threshold", [3.0, -3.0])
def test_fire_typed(threshold: float) -> None:
    """c = 1: log 2 / log 4, log 4 / log 4 from position 3; over log 16 from position 15; |distance| for keys ahead."""
    kw: dict[str, Any] = NETWORK | {
        "eps": 0.0,
        "log_c": np.array(0.0),
        "init_threshold": 1.0,
        "threshold_scale": np.array(threshold),
    }
    for q, at in (
        (3, {2: 0.5, 0: 1.0, 3: 0.0, 4: 0.5}),
        (0, {0: 0.0, 1: 0.5, 3: 1.0}),
        (15, {14: 0.25, 12: 0.5, 0: 1.0, 15: 0.0, 16: 0.25}),
        (-15, {-14: 0.25, -12: 0.5}),
    ):
        want = np.array([OF_SHARE[share] for share in at.values()]).T[:, None]
        got = fire(np.array([q]), np.array(list(at)), **kw)
        np.testing.assert_allclose(got, want, rtol=1e-14)


def test_fire_starts_and_eps() -> None:
    """From c = 0.1 and L = 512: log 2 / (log 52.2 + 1e-6) at distance 10; a network that returns its input."""
    plain: dict[str, Any] = {"n_heads": 1, "width": 1, "w1": np.ones(1), "b1": np.zeros(1)}
    plain |= {"w2": np.ones((1, 1)), "b2": np.zeros(1)}
    q, k = np.array([20, 512, 1014]), np.array([10])
    with mpmath.workdps(30):
        want = [mpmath.log(2) / (mpmath.log("52.2") + mpmath.mpf("1e-6"))]
        want.append(mpmath.log("51.2") / (mpmath.log("52.2") + mpmath.mpf("1e-6")))
        want.append(mpmath.log("101.4") / (mpmath.log("102.4") + mpmath.mpf("1e-6")))
        typed = [[[float(x)] for x in want]]
    np.testing.assert_allclose(fire(q, k, **plain), typed, rtol=1e-14)
    assert 0.17525 < typed[0][0][0] < 0.17526
    given = fire(q, k, **plain, log_c=np.log(0.1), threshold_scale=np.array(512.0), init_c=7.0, init_threshold=1.0)
    np.testing.assert_allclose(given, typed, rtol=1e-14)


def test_fire_has_no_unit() -> None:
    """All lengths doubled, c per length halved: the same bias."""
    pos = np.array([0.0, 3.0, 4.5, 40.0])
    once = fire(pos, pos, **NETWORK, log_c=np.array(0.3), init_threshold=6.0)  # type: ignore[arg-type]
    twice = fire(2 * pos, 2 * pos, **NETWORK, log_c=np.array(0.3 - LN2), init_threshold=12.0)  # type: ignore[arg-type]
    np.testing.assert_allclose(twice, once, rtol=1e-13)


def deberta_rows(positions: list[int], n_buckets: int, max_distance: int, term: str, at: int = 0) -> list[int]:
    """The rows that queries at `positions` take from a table which holds them, for a key at `at`."""
    table = np.stack([np.arange(2.0 * n_buckets), np.ones(2 * n_buckets)], -1)[None]
    ask = np.array([[[2.0, 0.0]]])  # divided by sqrt(2 * (1 + 1)) = 2
    q = np.repeat(ask, len(positions), axis=1)
    kw: dict[str, Any] = {"n_heads": 1, "head_dim": 2, "n_buckets": n_buckets, "max_distance": max_distance}
    kw |= {"terms": (term,), {"c2p": "key_table", "p2c": "query_table"}[term]: table}
    got = deberta(q, ask, np.array(positions), np.array([at]), **kw)
    assert got.shape == (1, len(positions), 1)
    return [int(x) for x in got[0, :, 0]]


@pytest.mark.parametrize("term", ["c2p", "p2c"])
def test_deberta_whole_number_edges(term: str) -> None:
    """mid = 4, (33 - 1)/4 = 2**3, so the buckets beyond end at 8, 16, 32; both tables by query minus key."""
    ends = {0: 8, 1: 9, 3: 11, 4: 12, 5: 13, 8: 13, 9: 14, 16: 14, 17: 15, 32: 15, 33: 15, 1000: 15}
    assert deberta_rows(list(ends), 8, 33, term) == list(ends.values())
    ahead = {-1: 7, -4: 4, -5: 3, -8: 3, -9: 2, -16: 2, -17: 1, -32: 1, -33: 0, -1000: 0}
    assert deberta_rows([d + 7 for d in ahead], 8, 33, term, at=7) == list(ahead.values())


def test_deberta_defaults_against_the_formula() -> None:
    places = [1, 127, 128, 129, 130, 200, 300, 400, 500, 510, 511, 512, 600, 5000]
    want = []
    for d in places:
        with mpmath.workdps(50):
            steps = mpmath.ceil(127 * mpmath.log(mpmath.mpf(d) / 128) / mpmath.log(mpmath.mpf(511) / 128))
        want.append(min(256 + (d if d <= 128 else 128 + int(steps)), 511))
    want[places.index(511)] = 511  # an edge: the logarithms' quotient is 1, their rounding decides above
    assert want[2:6] == [384, 385, 386, 425]
    assert deberta_rows(places, 256, 512, "c2p") == want


def test_deberta_terms() -> None:
    """Heads apart; sqrt(3 * 3) with both terms; q.Kr = 1*2 + 2*0 + 0*5, k.Qr = 3*1 + 0*7 + 1*3."""
    keys, queries = np.zeros((2, 4, 3)), np.zeros((2, 4, 3))
    keys[0, 3], queries[0, 3] = [2.0, 0.0, 5.0], [1.0, 7.0, 3.0]  # row 2 + 1: distance 1, two buckets
    keys[1, 1], queries[1, 1] = [0.0, 1.0, 0.0], [0.0, 0.0, -3.0]  # row 2 - 1: the key ahead
    q = np.array([[[1.0, 2.0, 0.0]]] * 2)
    k = np.array([[[3.0, 0.0, 1.0]] * 2] * 2)
    kw: dict[str, Any] = {"n_heads": 2, "head_dim": 3, "n_buckets": 2, "max_distance": 4}
    got = deberta(q, k, np.array([5]), np.array([4, 6]), **kw, key_table=keys, query_table=queries)
    np.testing.assert_allclose(got, [[[8 / 3, 0.0]], [[0.0, -1 / 3]]], rtol=1e-15)
    for terms, table, want in ((["c2p"], {"key_table": keys}, 2.0), (["p2c"], {"query_table": queries}, 6.0)):
        one = deberta(q, k, np.array([5]), np.array([4]), **kw, terms=terms, **table)  # type: ignore[arg-type]
        np.testing.assert_allclose(one[0], [[want / math.sqrt(6)]], rtol=1e-15)
    none = deberta(q, k, np.array([5]), np.array([4]), **kw, terms=())
    np.testing.assert_array_equal(none, np.zeros((2, 1, 1)))
    with pytest.raises(IndexError):
        deberta(q, k, np.array([5]), np.array([4]), **kw, key_table=keys)


TUPE: dict[str, Any] = {
    "n_heads": 1,
    "head_dim": 2,
    "max_len": 3,
    "q_table": np.array([[[9.0, 9.0], [2.0, 0.0], [1.0, 1.0]]]),
    "k_table": np.array([[[4.0, 2.0], [6.0, 8.0], [2.0, 4.0]]]),
}


def test_tupe_typed() -> None:
    """Divided by sqrt(2 * 2); rows 2 0 and 1 1 of the queries by 6 8 and 2 4 of the keys; [CLS] apart."""
    kw = TUPE | {"cls_to": np.array([-5.0]), "to_cls": np.array([7.0])}
    want = [[-5.0, -5.0, -5.0], [7.0, 6.0, 2.0], [7.0, 7.0, 3.0]]
    np.testing.assert_array_equal(tupe(np.arange(3), np.arange(3), **kw), [want])
    np.testing.assert_array_equal(tupe(np.array([2, 0]), np.array([1, 0]), **kw), [[[7.0, 7.0], [-5.0, -5.0]]])
    tied = [[27.0, 63.0, 27.0], [4.0, 6.0, 2.0], [3.0, 7.0, 3.0]]  # (36 + 18) / 2, (54 + 72) / 2, (18 + 36) / 2
    np.testing.assert_array_equal(tupe(np.arange(3), np.arange(3), **TUPE, untie_cls=False), [tied])


def test_tupe_outside() -> None:
    for q, k in (([3], [0]), ([0], [-1])):
        with pytest.raises(IndexError, match=r"outside 0\.\.2"):
            tupe(np.array(q), np.array(k), **TUPE, untie_cls=False)


def test_graphormer_typed() -> None:
    """0 - 1 - 2 - 3 - 4 and 5 by itself; from 4 a one-way road to 0; paths of 2 and longer share a number."""
    road = np.array([[abs(i - j) for j in range(5)] for i in range(5)])
    apart = -np.ones((6, 6), dtype=int)
    apart[:5, :5], apart[5, 5], apart[4, 0] = road, 0, 1
    weight = np.array([[10.0, 11.0, 12.0, 99.0], [0.0, -1.0, -2.0, -9.0]])
    kw: dict[str, Any] = {"n_heads": 2, "max_distance": 2, "distances": apart, "weight": weight}
    got = graphormer(np.array([0, 4, 5]), np.array([0, 1, 2, 3, 4, 5]), **kw)
    np.testing.assert_array_equal(
        got[0], [[10, 11, 12, 12, 12, 99], [11, 12, 12, 11, 10, 99], [99, 99, 99, 99, 99, 10]]
    )
    np.testing.assert_array_equal(got[1, 0], [0, -1, -2, -2, -2, -9])
    with pytest.raises(IndexError, match=r"node 6 is outside 0\.\.5"):
        graphormer(np.array([0]), np.array([6]), **kw)


def test_fox_typed() -> None:
    """Gates ?, 1/2, 1/4, 3/4 in head 0; 3/4 each in head 1, a plain slope; the first gate never enters."""
    x = np.array([[77.0], [0.0], [-LN3], [LN3]])
    got = fox(x, n_heads=2, d_model=1, weight=np.array([[1.0], [0.0]]), b=np.array([0.0, LN3]))
    kept = [[1.0, 2, 8, 32 / 3], [1 / 2, 1, 4, 16 / 3], [1 / 8, 1 / 4, 1, 4 / 3], [3 / 32, 3 / 16, 3 / 4, 1.0]]
    np.testing.assert_allclose(np.exp(got[0]), kept, rtol=1e-14)
    slope = math.log(4 / 3)
    np.testing.assert_allclose(got[1], [[-slope * (i - j) for j in range(4)] for i in range(4)], atol=1e-15)


def test_fox_far_gates() -> None:
    """log sigmoid(-1000) is -1000, and 0 at 1000; lanes by 2, -1 and an offset of 3."""
    x = np.array([[0.0, 0.0], [0.0, 1003.0], [500.0, 3.0]])
    got = fox(x, n_heads=1, d_model=2, weight=np.array([[2.0, -1.0]]), b=np.array([3.0]))
    np.testing.assert_allclose(got[0], [[0, 1000, 1000], [-1000, 0, 0], [-1000, 0, 0]], rtol=1e-15)


COPE: dict[str, Any] = {"head_dim": 1, "max_count": 3, "weight": np.array([[10.0, 20.0, 40.0]])}
# gates by row: 1/4 3/4 1/2, 1/2 3/4 1/4, 3/4 1/2 1/2
GATED = np.array([[[-LN3, LN3, 0.0], [0.0, LN3, -LN3], [LN3, 0.0, 0.0]]])


@pytest.mark.parametrize(
    ("allowed", "want"),
    [
        ([[1, 0, 0], [1, 1, 0], [1, 1, 1]], [[12.5, 0, 0], [25.0, 17.5, 0], [35.0, 20.0, 15.0]]),
        ([[1, 0, 0], [0, 1, 0], [1, 0, 1]], [[12.5, 0, 0], [0, 17.5, 0], [25.0, 0, 15.0]]),
        ([[1, 1, 1], [1, 1, 1], [1, 1, 1]], [[30.0, 25.0, 15.0], [30.0, 20.0, 12.5], [35.0, 20.0, 15.0]]),
    ],
)
def test_cope_typed(allowed: list[list[int]], want: list[list[float]]) -> None:
    """Between 10 20 40: at 1/4, 1/2, 3/4 are 12.5, 15, 17.5; at 1.25, 1.5, 1.75 are 25, 30, 35."""
    q, seen = np.array([[[1.0], [1.0], [-2.0]]]), np.array(allowed, dtype=bool)
    got = cope(GATED, q, 99 * np.ones((1, 3, 1)), seen, **COPE)
    by_query = (got - GATED)[0] / np.array([[1.0], [1.0], [-2.0]])
    np.testing.assert_allclose(by_query[seen], np.array(want)[seen], rtol=1e-14)


def test_cope_counts_no_further() -> None:
    """Five gates of almost 1 and three vectors: 2, then 1, a key's own count; heads and lanes apart."""
    points = np.full((2, 1, 5), 50.0)
    points[1] = -800.0  # gates of 0: at the first vector, and no overflow
    q = np.array([[[1.0, 0.0]], [[0.0, 2.0]]])
    weight = np.array([[10.0, 20.0, 40.0], [1.0, 2.0, 3.0]])
    got = cope(points, q, q, np.ones((1, 5), dtype=bool), head_dim=2, max_count=3, weight=weight)
    np.testing.assert_allclose(got, [[[90.0, 90.0, 90.0, 90.0, 70.0]], [[-798.0] * 5]], rtol=1e-14)


def dape_weights() -> dict[str, Any]:
    """Hidden: A0 + B0 - 1, and A1 - 2 B1; out: head 0 their sum, head 1 the second times 100 and 7."""
    return {
        "n_heads": 2,
        "width": 2,
        "w1": np.array([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, -2.0]]),
        "b1": np.array([-1.0, 0.0]),
        "w2": np.array([[1.0, 1.0], [0.0, 100.0]]),
        "b2": np.array([0.0, 7.0]),
    }


def test_dape_typed() -> None:
    """Pair one: hidden 1 and -4, so 1 and -0.04; pair two: -2 and 3, so -0.02 and 3."""
    a = np.array([[[1.5, -1.0]], [[2.0, 5.0]]])
    b = np.array([[[0.5, 0.0]], [[3.0, 1.0]]])
    got = dape(a, b, np.ones((1, 2), dtype=bool), **dape_weights())
    want = [[[2.0 + 1.0 - 0.04, -1.0 - 0.02 + 3.0]], [[5.0 - 4.0 + 7.0, 6.0 + 300.0 + 7.0]]]
    np.testing.assert_allclose(got, want, rtol=1e-14)
    np.testing.assert_array_equal(dape(a, b, np.zeros((1, 2), dtype=bool), **dape_weights()), got)


def test_dape_without_a_bias_or_a_network() -> None:
    a = np.array([[[1.0, 2.0]], [[-3.0, 0.0]]])
    seen = np.ones((1, 2), dtype=bool)
    idle: dict[str, Any] = dape_weights() | {"w2": np.zeros((2, 2)), "b2": np.zeros(2)}
    np.testing.assert_array_equal(dape(a, np.zeros((2, 1, 1)), seen, **idle), a)
    joined: Array = np.array([[[5.0]], [[6.0]]])
    np.testing.assert_array_equal(dape(a, joined, seen, **idle), a + joined)
