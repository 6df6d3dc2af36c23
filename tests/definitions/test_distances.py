"""The definitions that put another distance into RoPE, against rows worked by hand and printed ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from posenc.definitions import distances
from posenc.definitions.distances import Array, dual_chunk, leaky_rerope, rerope, self_extend
from posenc.definitions.rotary import rope

NAMES: dict[str, dict[str, Any]] = {
    "rerope": {"window": 3},
    "leaky_rerope": {"window": 2, "factor": 4.0},
    "self_extend": {"window": 4, "group": 2},
    "dual_chunk": {"chunk": 12, "local": 4},
}


def row(name: str, query: int, n_keys: int, **options: Any) -> list[float]:
    """The distances from one query to keys 0.. n_keys - 1."""
    define = getattr(distances, f"{name}_distance")
    got = define(np.array([query]), np.arange(n_keys), **(options or NAMES[name]))
    assert got.shape == (1, n_keys)
    return [float(d) for d in got[0]]


def test_rerope_rows() -> None:
    assert row("rerope", 6, 9) == [3, 3, 3, 3, 2, 1, 0, -1, -2]
    assert row("rerope", 2, 3) == [2, 1, 0]


def test_leaky_rerope_rows() -> None:
    """Beyond 2 a quarter of each step."""
    assert row("leaky_rerope", 6, 9) == [3.0, 2.75, 2.5, 2.25, 2.0, 1.0, 0.0, -1.0, -2.0]
    assert row("leaky_rerope", 6, 7, window=2, factor=1.0) == [6, 5, 4, 3, 2, 1, 0]


def test_self_extend_rows() -> None:
    """Ten tokens for a model of seven positions, groups of two, four neighbours, the example of arXiv 2401.01325."""
    assert row("self_extend", 9, 10) == [6, 6, 5, 5, 4, 4, 3, 2, 1, 0]
    assert row("self_extend", 8, 10) == [6, 6, 5, 5, 4, 3, 2, 1, 0, -1]
    assert row("self_extend", 4, 5) == [4, 3, 2, 1, 0]


def test_self_extend_where_the_group_does_not_divide() -> None:
    """w = 5, G = 3: floor(11/3) - floor(j/3) + 5 - 1 = 7, 6, 5 from keys 0, 3, 6; below 5 the distance."""
    assert row("self_extend", 11, 12, window=5, group=3) == [7, 7, 7, 6, 6, 6, 5, 4, 3, 2, 1, 0]
    assert row("self_extend", 12, 13, window=5, group=3) == [8, 8, 8, 7, 7, 7, 6, 6, 4, 3, 2, 1, 0]


def test_dual_chunk_rows() -> None:
    """chunk 12, local 4: stretches of 8; a query's index is no more than 12 beyond its own."""
    assert row("dual_chunk", 15, 16) == [12, 11, 10, 9, 8, 7, 6, 5, 7, 6, 5, 4, 3, 2, 1, 0]
    assert row("dual_chunk", 9, 11) == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0, -1]
    far = [12, 11, 10, 9, 8, 7, 6, 5]
    assert row("dual_chunk", 23, 24) == far + far + [7, 6, 5, 4, 3, 2, 1, 0]
    assert row("dual_chunk", 17, 18) == [*far, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert row("dual_chunk", 32, 33) == far + far + far + [8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert row("dual_chunk", 6, 18)[5:] == [1, 0, -1, -2, -3, -4, -5, *[-6] * 6]  # ahead: what the other looks back


def test_dual_chunk_of_the_paper() -> None:
    """Section 3 of arXiv 2402.17463, s = 6, c = 10, w = 4: successive queries at 6 7 8 9 9 9, all further at 9."""
    first = distances.dual_chunk_distance(np.arange(18), np.array([0]), 9, 3)[:, 0]
    assert first.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9, 9, 9, 9, 9, 9]


@pytest.mark.parametrize(("name", "exact", "most"), [("rerope", 3, 3), ("self_extend", 4, 99), ("dual_chunk", 4, 12)])
def test_near_keys_keep_their_distance(name: str, exact: int, most: int) -> None:
    for query in range(60):
        for key, d in enumerate(row(name, query, query + 1)):
            assert d <= most
            if query - key <= exact:
                assert d == query - key


def scores(name: str, *args: Any, **kw: Any) -> Array:
    define: Callable[..., Array] = getattr(distances, name)
    return define(*args, **NAMES[name], **kw)


@pytest.mark.parametrize("name", NAMES)
def test_scores_typed(name: str) -> None:
    """One pair of lanes turns one radian a position: a query on the first lane meets the keys as cosine and sine."""
    q = np.array([[[2.0, 0.0], [2.0, 0.0]], [[0.0, 2.0], [0.0, 2.0]]])
    k = np.array([[[1.0, 0.0]] * 20, [[0.0, 1.0]] * 20])
    pos = np.array([15, 3])
    got = scores(name, q, k, pos, np.arange(20), head_dim=2)
    turns = np.array([row(name, int(p), 20) for p in pos])
    np.testing.assert_allclose(got[0], math.sqrt(2) * np.cos(turns), atol=1e-14)
    np.testing.assert_allclose(got[1], math.sqrt(2) * np.cos(turns), atol=1e-14)
    crossed = scores(name, q, k[::-1], pos, np.arange(20), head_dim=2)
    np.testing.assert_allclose(crossed, [math.sqrt(2) * np.sin(turns), -math.sqrt(2) * np.sin(turns)], atol=1e-14)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_scores_are_of_rope_where_nothing_changes(pairing: Any) -> None:
    """Windows beyond the text: q and k turned each by its own position; two query heads to a key head."""
    rng = np.random.default_rng(0)
    q, k, pos = rng.standard_normal((4, 6, 8)), rng.standard_normal((2, 6, 8)), np.arange(6)
    want = np.zeros((4, 6, 6))
    for h, i, j in np.ndindex(want.shape):
        turned = [rope(p, head_dim=8, base=50.0, pairing=pairing)[0] for p in (i, j)]
        want[h, i, j] = (turned[0] @ q[h, i]) @ (turned[1] @ k[h // 2, j]) / math.sqrt(8)
    kw: dict[str, Any] = {"head_dim": 8, "base": 50.0, "pairing": pairing}
    args = (q, k, pos, pos)
    for got in (
        rerope(*args, window=9, **kw),
        leaky_rerope(*args, window=9, factor=3.0, **kw),
        self_extend(*args, window=9, group=4, **kw),
        dual_chunk(*args, chunk=12, local=4, **kw),
    ):
        np.testing.assert_allclose(got, want, atol=1e-13)
