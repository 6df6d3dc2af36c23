"""Biases that are kept between calls, well and badly."""

from typing import ClassVar

import pytest

from bias_subjects import ALIBI, column, judged, steps


class Cached:
    def __init__(self, by=lambda h, q, k: None):
        self.by, self.kept = by, {}

    def __call__(self, h, q, k):
        key = self.by(h, q, k)
        if key not in self.kept:
            self.kept[key] = -column(h) * steps(q, k).abs()
        return self.kept[key]


class Sliced:
    def __init__(self):
        self.kept = None

    def __call__(self, h, q, k):
        if self.kept is None or self.kept.shape[-1] < k or len(self.kept) != h:
            self.kept = -column(h) * steps(k, k).abs()
        return self.kept[:, -q:, -k:]


class Shared(Cached):
    """Kept where all objects see it, so that it survives in a copy too."""

    kept: ClassVar[dict] = {}

    def __init__(self):
        self.by = lambda h, q, k: (q, k)


class Preallocated:
    """A matrix of the first call's heads; fewer are its first ones, more are made anew if it may grow."""

    def __init__(self, cut, grows=True, spare=0):
        self.cut, self.grows, self.spare, self.kept = cut, grows, spare, None

    def __call__(self, h, q, k):
        short = self.kept is None or self.kept.shape[-1] < k
        if short or (self.grows and len(self.kept) < h) or (not self.grows and len(self.kept) != h):
            self.kept = -column(h) * steps(k + self.spare, k + self.spare).abs()
        return self.cut(self.kept[:h], q, k)


KEPT = {
    "kept_by_lengths_in_one_model": (Cached(lambda h, q, k: (q, k)), {"heads": 6}, "pass", ""),
    "grown_last_rows": (
        Preallocated(lambda t, q, k: t[:, -q:, :k], grows=False, spare=5),
        {},
        "equivalent",
        "",
    ),
    "sliced_spare": (Preallocated(lambda t, q, k: t[:, k - q : k, :k], grows=False, spare=5), {}, "pass", ""),
    "fewer_heads_after_more": (
        Preallocated(lambda t, q, k: t[:, k - q : k, :k]),
        {},
        "fail",
        "alibi.mask_cached_on_class",
    ),
    "shared_by_lengths": (Shared(), {"heads": 6}, "fail", "alibi.mask_cached_on_class"),
    "kept_by_keys": (Cached(lambda h, q, k: (h, k)), {"heads": 6}, "fail", "alibi.mask_cached_on_class"),
    "kept_by_queries": (Cached(lambda h, q, k: (h, q)), {"heads": 6}, "fail", "alibi.mask_cached_on_class"),
    "last_keys_of_first_rows": (
        Preallocated(lambda t, q, k: t[:, :q, -k:], grows=False),
        {},
        "fail",
        "alibi.buffer_slice_shifted",
    ),
    "sliced": (Sliced(), {}, "pass", ""),
    "stale": (Cached(), {}, "fail", "alibi.mask_cached_on_class"),
    "stale_heads": (Cached(lambda h, q, k: (q, k)), {}, "fail", "alibi.mask_cached_on_class"),
    "kept_well": (Cached(lambda h, q, k: (h, q, k)), {}, "pass", ""),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_bias_that_is_kept(name):
    subject, spec, *want = KEPT[name]
    judged(subject, "bias_fn", {**ALIBI, **spec}, *want)
