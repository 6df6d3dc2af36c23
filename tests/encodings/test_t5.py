"""T5: the scale of the published models, and buckets at their edges."""

import torch

import posenc
from posenc import attend, positions
from strategies import normal, randomise


def test_score_scale() -> None:
    plain, published = posenc.T5(n_heads=2), posenc.T5(n_heads=2, score_scale=1.0)
    assert plain.score_scale(64) == 0.125
    assert published.score_scale(64) == 1.0
    assert published.options()["score_scale"] == 1.0
    assert "score_scale=1.0" in repr(published)


def test_attend_does_not_divide_the_published_scores() -> None:
    t5 = randomise(posenc.T5(n_heads=2, score_scale=1.0), 7)
    q, k, v = (normal(1, 2, 3, 16, seed=i) for i in range(3))
    pos = positions.arange(3)
    scores = q @ k.mT + t5.dense(pos, dtype=torch.float64)
    wanted = scores.softmax(-1) @ v
    torch.testing.assert_close(attend(q, k, v, t5, pos, causal=False), wanted, rtol=0, atol=1e-12)
    scaled = attend(q / 4, k, v, t5, pos, causal=False, scale=4.0)
    torch.testing.assert_close(scaled, wanted, rtol=0, atol=1e-12)


def test_buckets_of_the_paper() -> None:
    """32 buckets: 16 of one distance each, then edges at 16·8^(m/16), everything from 128 on in the last."""
    starts = [*range(17), 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
    bucket = posenc.T5(n_heads=1).bucket
    assert bucket(torch.tensor(starts)).tolist() == list(range(32))
    assert bucket(torch.tensor([s - 1 for s in starts[1:]])).tolist() == list(range(31))
    assert bucket(torch.tensor([-1, -500, 127, 128, 1_000_000])).tolist() == [0, 0, 31, 31, 31]


def test_bidirectional_buckets_put_keys_ahead_into_the_upper_half() -> None:
    bucket = posenc.T5(n_heads=1, bidirectional=True).bucket
    assert bucket(torch.tensor([0, 1, 7, 8, -1, -7, -8, 10**6, -(10**6)])).tolist() == [
        0, 1, 7, 8, 17, 23, 24, 15, 31,
    ]  # fmt: skip
