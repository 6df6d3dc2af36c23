"""Faults and innocent oddities of biases, planted here, and what `biases.check` says of each."""

import json
import math
from importlib import resources
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from posenc import definitions
from posenc.verify import bias_buckets, bias_rules, biases

ALIBI = {"encoding": "alibi"}


def slopes(n, power=lambda n: [2 ** (-8 * (h + 1) / n) for h in range(n)]):
    """Return the slopes by the authors' rule, of any series for powers of two."""
    low = 2 ** math.floor(math.log2(n))
    return power(n) if low == n else power(low) + power(2 * low)[0::2][: n - low]


def geometric(n):
    return [2 ** (-8 * (h + 1) / n) for h in range(n)]


def next_power(n):
    return geometric(2 ** math.ceil(math.log2(n)))[:n]


def mosaic(n):
    m = torch.arange(1, 2 ** math.ceil(math.log2(n)) + 1) * 8 / 2 ** math.ceil(math.log2(n))
    s = 1 / torch.pow(2, m)
    return s if len(s) == n else torch.cat([s[1::2], s[::2]])[:n]


def uncut(n):
    low = 2 ** math.floor(math.log2(n))
    return geometric(n) if low == n else geometric(low) + geometric(2 * low)[0::2]


def raising(n):
    if n & (n - 1):
        raise ValueError("log2(num_heads) is not an integer")
    return geometric(n)


kept_list = []


def growing(n):
    kept_list.extend(slopes(n))
    return list(kept_list)


SLOPES = {
    # innocent
    "list": (slopes, {}, "pass", ""),
    "tuple": (lambda n: tuple(slopes(n)), {}, "pass", ""),
    "tensor": (lambda n: torch.tensor(slopes(n)), {}, "pass", ""),
    "double_column": (lambda n: torch.tensor(slopes(n), dtype=torch.float64).view(1, n, 1, 1), {}, "pass", ""),
    "array": (lambda n: np.array(slopes(n)), {}, "pass", ""),
    "keyword": (lambda *, n_heads: slopes(n_heads), {}, "pass", ""),
    "mosaic": (mosaic, {}, "pass", ""),
    "sorted": (lambda n: sorted(slopes(n), reverse=True), {}, "equivalent", ""),
    "reversed": (lambda n: slopes(n)[::-1], {}, "equivalent", ""),
    "geometric_where_equal": (geometric, {"heads": 16}, "pass", ""),
    "geometric_asked": (geometric, {"variant": "geometric"}, "pass", ""),
    "only_powers_asked": (raising, {"heads": 8}, "pass", ""),
    "bias_max": (lambda n: [s**2 for s in slopes(n)], {"config": {"alibi_bias_max": 16}}, "pass", ""),
    # faults
    "geometric": (geometric, {}, "fail", "alibi.slopes.not_power_of_two"),
    "geometric_12": (geometric, {"heads": 12}, "fail", "alibi.slopes.not_power_of_two"),
    "next_power": (next_power, {}, "fail", "alibi.slopes.not_power_of_two"),
    "uncut": (uncut, {}, "fail", "alibi.slopes.not_power_of_two"),
    "raising": (raising, {}, "fail", "alibi.slopes.not_power_of_two"),
    "raising_12": (raising, {"heads": 12}, "fail", "alibi.slopes.not_power_of_two"),
    "cut": (lambda n: slopes(2 ** math.floor(math.log2(n))), {}, "fail", "alibi.slopes.not_power_of_two"),
    "stride_1": (
        lambda n: (
            slopes(n)
            if n & (n - 1) == 0
            else (lambda a: (geometric(a) + geometric(2 * a)[1::2])[:n])(2 ** int(math.log2(n)))
        ),
        {},
        "fail",
        "alibi.slopes.not_power_of_two",
    ),
    "off_by_one": (
        lambda n: slopes(n, lambda n: [2 ** (-8 * h / n) for h in range(n)]),
        {},
        "fail",
        "alibi.slopes.exponent_off_by_one",
    ),
    "off_by_one_geometric": (
        lambda n: [2 ** (-8 * h / n) for h in range(n)],
        {},
        "fail",
        "alibi.slopes.exponent_off_by_one",
    ),
    "off_by_one_8": (
        lambda n: [2 ** (-8 * h / n) for h in range(n)],
        {"heads": 8},
        "fail",
        "alibi.slopes.exponent_off_by_one",
    ),
    "off_by_two": (
        lambda n: [2 ** (-8 * (h + 2) / n) for h in range(n)],
        {},
        "fail",
        "alibi.slopes.exponent_off_by_one",
    ),
    "hardwired": (lambda n: [2.0 ** -(h + 1) for h in range(n)], {}, "fail", "alibi.slopes.heads_hardwired"),
    "hardwired_16": (
        lambda n: [2.0 ** -(h + 1) for h in range(n)],
        {"heads": 16},
        "fail",
        "alibi.slopes.heads_hardwired",
    ),
    "sign": (lambda n: [-s for s in slopes(n)], {}, "fail", "alibi.sign"),
    "e": (
        lambda n: slopes(n, lambda n: [math.exp(-8 * (h + 1) / n) for h in range(n)]),
        {},
        "fail",
        "alibi.slopes.base",
    ),
    "inverted": (lambda n: [1 / s for s in slopes(n)], {}, "fail", "alibi.slopes.inverted"),
    "bias_max_4": (lambda n: [s**0.5 for s in slopes(n)], {}, "fail", "alibi.slopes.bias_max"),
    "shared": (lambda n: [0.25] * n, {}, "fail", "alibi.slopes.shared"),
    "bfloat16": (lambda n: torch.tensor(slopes(n)).bfloat16(), {}, "fail", "alibi.precision.slopes_fp16"),
    "half": (lambda n: torch.tensor(slopes(n)).half().float(), {}, "fail", "alibi.precision.slopes_fp16"),
    "ratio": (lambda n: [2 ** (-8 / n) * 0.3**h for h in range(n)], {}, "fail", "alibi.slopes.ratio"),
    "scaled": (lambda n: [s / 8 for s in slopes(n)], {"head_dim": 64}, "fail", "alibi.scale.applied_to_bias"),
    "unknown": (lambda n: [1 / (h + 2) for h in range(n)], {}, "fail", "alibi.mismatch"),
    "short": (lambda n: slopes(n)[:-1], {}, "fail", "alibi.slopes.count"),
    "growing": (growing, {}, "fail", None),
    "none": (lambda n: None, {}, "fail", "subject.shape"),
    "raises": (lambda n: 1 / 0, {}, "fail", "subject.raises"),
}


def column(n, rule=slopes):
    return torch.tensor(rule(n))[:, None, None]


def steps(q, k):
    return (torch.arange(k - q, k)[:, None] - torch.arange(k)).float()


def hides(t, q, k, value=float("-inf")):
    return t.masked_fill(steps(q, k) < 0, value)


def by_key(h, q, k):
    return column(h) * torch.arange(k)


def bf16_positions(h, q, k):
    at = torch.arange(k, dtype=torch.bfloat16)
    return -column(h) * (at[k - q :, None] - at).float()


def masked_from_zero(h, q, k):
    gone = torch.ones(q, k, dtype=torch.bool).triu(1)
    return (-column(h) * steps(q, k)).masked_fill(gone, float("-inf"))


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


def slopes_kept():
    kept = []

    def of(n):
        if len(kept) < n:
            kept[:] = slopes(n)
        return kept[:n]

    return of


def of_ranks(n, ranks=2):
    return slopes(n)[: n // ranks] * ranks


def of_local(n, ranks=4):
    return slopes(n // ranks) * ranks if n % ranks == 0 else slopes(n)


SLOPES |= {
    "first_of_each_rank": (of_ranks, {"heads": 16}, "fail", "alibi.tensor_parallel.head_offset"),
    "first_of_each_rank_all": (of_ranks, {}, "fail", "alibi.tensor_parallel.head_offset"),
    "local_heads": (of_local, {"heads": 32}, "fail", "alibi.tensor_parallel.head_offset"),
    "groups": (
        lambda n: [s for s in slopes(n // 4) for _ in range(4)],
        {"heads": 16},
        "fail",
        "alibi.slopes.shared",
    ),
    "kept_prefix": (slopes_kept(), {}, "fail", "alibi.mask_cached_on_class"),
    "kept_prefix_12": (slopes_kept(), {"heads": 12}, "fail", "alibi.mask_cached_on_class"),
    "bias_max_word": (lambda n: [s**2 for s in slopes(n)], {"bias_max": 16}, "pass", ""),
}


BIAS = {
    # innocent
    "fixed_heads": (lambda h, q, k: -column(6) * steps(q, k).abs(), {"heads": 6}, "pass", ""),
    "kept_by_lengths_in_one_model": (Cached(lambda h, q, k: (q, k)), {"heads": 6}, "pass", ""),
    "grown_last_rows": (
        Preallocated(lambda t, q, k: t[:, -q:, :k], grows=False, spare=5),
        {},
        "equivalent",
        "",
    ),
    "sliced_spare": (Preallocated(lambda t, q, k: t[:, k - q : k, :k], grows=False, spare=5), {}, "pass", ""),
    # faults of memory and of parts
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
    "fixed_heads_sign": (
        lambda h, q, k: column(12) * steps(q, k),
        {"heads": 12},
        "fail",
        "alibi.sign",
    ),
    "ranks": (
        lambda h, q, k: -column(h, of_local) * steps(q, k),
        {"heads": 12},
        "fail",
        "alibi.tensor_parallel.head_offset",
    ),
    # innocent
    "symmetric": (lambda h, q, k: -column(h) * steps(q, k).abs(), {}, "pass", ""),
    "masked": (lambda h, q, k: hides(-column(h) * steps(q, k), q, k), {}, "pass", ""),
    "masked_finite": (lambda h, q, k: hides(-column(h) * steps(q, k), q, k, -1e4), {}, "pass", ""),
    "masked_least": (
        lambda h, q, k: hides(-column(h) * steps(q, k), q, k, torch.finfo(torch.float32).min),
        {},
        "pass",
        "",
    ),
    "linear": (lambda h, q, k: column(h) * -steps(q, k), {"heads": 12}, "pass", ""),
    "clamped_ahead": (lambda h, q, k: -column(h) * steps(q, k).clamp(min=0), {}, "pass", ""),
    "batch_of_one": (lambda h, q, k: (-column(h) * steps(q, k).abs())[None], {}, "pass", ""),
    "double": (lambda h, q, k: -column(h).double() * steps(q, k).abs(), {}, "pass", ""),
    "bfloat16": (lambda h, q, k: (-column(h) * steps(q, k).abs()).bfloat16(), {}, "pass", ""),
    "keywords": (lambda *, heads, q_len, kv_len: -column(heads) * steps(q_len, kv_len).abs(), {}, "pass", ""),
    "sliced": (Sliced(), {}, "pass", ""),
    "one_sided_encoder": (lambda h, q, k: -column(h) * steps(q, k).clamp(min=0), {"causal": False}, "pass", ""),
    "encoder": (lambda h, q, k: -column(h) * steps(q, k).abs(), {"bidirectional": True}, "pass", ""),
    "learned": (
        lambda h, q, k: -torch.arange(1, h + 1)[:, None, None] * 0.1 * steps(q, k).abs(),
        {"variant": "learned"},
        "pass",
        "",
    ),
    "bfloat16_12": (lambda h, q, k: (-column(h) * steps(q, k).abs()).bfloat16(), {"heads": 12}, "pass", ""),
    "half_12": (lambda h, q, k: (-column(h) * steps(q, k).abs()).half(), {"heads": 12}, "pass", ""),
    "table_512": (
        lambda h, q, k: (-column(h) * steps(512, 512).abs())[:, 512 - q :, 512 - k :][:, :q, :k],
        {},
        "pass",
        "",
    ),
    "table_64": (lambda h, q, k: (-column(h) * steps(64, 64).abs())[:, :k, :k][:, -q:], {"heads": 8}, "pass", ""),
    "table_raises": (lambda h, q, k: 1 / 0 if k > 400 else -column(h) * steps(q, k), {"heads": 8}, "pass", ""),
    "key_only_12": (lambda h, q, k: by_key(h, q, k).bfloat16(), {"heads": 12}, "equivalent", ""),
    "key_only": (by_key, {}, "equivalent", ""),
    "key_only_bfloat16": (lambda h, q, k: by_key(h, q, k).bfloat16(), {}, "equivalent", ""),
    "key_from_end": (lambda h, q, k: column(h) * (torch.arange(k) - k), {}, "equivalent", ""),
    "key_only_masked": (lambda h, q, k: hides(by_key(h, q, k).expand(h, q, k), q, k), {}, "equivalent", ""),
    "offset": (lambda h, q, k: -column(h) * (steps(q, k) + 1), {}, "equivalent", ""),
    "local_linear": (lambda h, q, k: -column(h) * (torch.arange(q)[:, None] - torch.arange(k)), {}, "equivalent", ""),
    "other_order": (lambda h, q, k: -column(h).flip(0) * steps(q, k).abs(), {"heads": 6}, "equivalent", ""),
    # faults
    "sign": (lambda h, q, k: column(h) * steps(q, k), {}, "fail", "alibi.sign"),
    "sign_symmetric": (lambda h, q, k: column(h) * steps(q, k).abs(), {}, "fail", "alibi.sign"),
    "sign_key": (lambda h, q, k: -by_key(h, q, k), {}, "fail", "alibi.sign"),
    "geometric": (lambda h, q, k: -column(h, geometric) * steps(q, k), {}, "fail", "alibi.slopes.not_power_of_two"),
    "geometric_12": (
        lambda h, q, k: -column(h, geometric) * steps(q, k),
        {"heads": 12},
        "fail",
        "alibi.slopes.not_power_of_two",
    ),
    "next_power": (
        lambda h, q, k: column(h, next_power) * torch.arange(k),
        {"heads": 12},
        "fail",
        "alibi.slopes.not_power_of_two",
    ),
    "off_by_one": (
        lambda h, q, k: -column(h, lambda n: slopes(n, lambda n: [2 ** (-8 * i / n) for i in range(n)])) * steps(q, k),
        {},
        "fail",
        "alibi.slopes.exponent_off_by_one",
    ),
    "zero_over_queries": (
        lambda h, q, k: -column(h) * (torch.arange(q)[:, None] - torch.arange(q)).abs(),
        {},
        "fail",
        "alibi.kv_cache.bias_zero",
    ),
    "zero_if_one": (lambda h, q, k: -column(h) * steps(q, k) * (q > 1), {}, "fail", "alibi.kv_cache.bias_zero"),
    "zero_if_cached": (
        lambda h, q, k: -column(h) * steps(q, k) * (q == k),
        {"heads": 8},
        "fail",
        "alibi.kv_cache.bias_zero",
    ),
    "sign_and_zero": (lambda h, q, k: column(h) * steps(q, k) * (q > 1), {}, "fail", "alibi.sign"),
    "first_rows": (
        lambda h, q, k: -column(h) * (torch.arange(q)[:, None] - torch.arange(k)).abs(),
        {},
        "fail",
        "alibi.buffer_slice_shifted",
    ),
    "first_rows_clamped": (
        lambda h, q, k: -column(h) * (torch.arange(q)[:, None] - torch.arange(k)).clamp(min=0),
        {},
        "fail",
        None,
    ),
    "mask_from_zero": (masked_from_zero, {}, "fail", "alibi.buffer_slice_shifted"),
    "mask_inverted": (
        lambda h, q, k: (-column(h) * steps(q, k)).masked_fill(steps(q, k) > 0, -math.inf),
        {},
        "fail",
        "alibi.mask.hides_visible",
    ),
    "mask_off_by_one": (
        lambda h, q, k: (-column(h) * steps(q, k)).masked_fill(steps(q, k) < -1, -math.inf),
        {},
        "fail",
        "alibi.mask.shows_ahead",
    ),
    "by_query": (
        lambda h, q, k: (-column(h) * torch.arange(k - q, k)[:, None]).expand(h, q, k),
        {},
        "fail",
        "alibi.no_effect",
    ),
    "zero": (lambda h, q, k: torch.zeros(h, q, k), {}, "fail", "alibi.no_effect"),
    "shared": (lambda h, q, k: -0.5 * steps(q, k), {}, "fail", "alibi.slopes.shared"),
    "scaled": (lambda h, q, k: -column(h) * steps(q, k) / 8, {"head_dim": 64}, "fail", "alibi.scale.applied_to_bias"),
    "scaled_unsaid": (
        lambda h, q, k: -column(h) * steps(q, k) / math.sqrt(128),
        {},
        "fail",
        "alibi.scale.applied_to_bias",
    ),
    "log2e": (lambda h, q, k: -column(h) * steps(q, k) * 1.442695041, {}, "fail", "alibi.scale.factor"),
    "normalised": (lambda h, q, k: -column(h) * steps(q, k) / k, {}, "fail", "alibi.distance.normalised"),
    "clamped": (lambda h, q, k: -column(h) * steps(q, k).clamp(0, 64), {}, "fail", "alibi.distance.clamped"),
    "clamped_5": (lambda h, q, k: -column(h) * steps(q, k).clamp(0, 5), {}, "fail", "alibi.distance.clamped"),
    "bf16_positions": (bf16_positions, {}, "fail", "alibi.precision.positions_bf16"),
    "bf16_positions_out": (
        lambda h, q, k: bf16_positions(h, q, k).bfloat16(),
        {},
        "fail",
        "alibi.precision.positions_bf16",
    ),
    "bf16_product": (
        lambda h, q, k: (-column(h) * steps(q, k)).bfloat16().float(),
        {"heads": 12},
        "fail",
        "alibi.precision.product_bf16",
    ),
    "bf16_slopes": (
        lambda h, q, k: -column(h).bfloat16().float() * steps(q, k),
        {"heads": 12},
        "fail",
        "alibi.precision.slopes_fp16",
    ),
    "stale": (Cached(), {}, "fail", "alibi.mask_cached_on_class"),
    "stale_heads": (Cached(lambda h, q, k: (q, k)), {}, "fail", "alibi.mask_cached_on_class"),
    "kept_well": (Cached(lambda h, q, k: (h, q, k)), {}, "pass", ""),
    "encoder_linear": (
        lambda h, q, k: -column(h) * steps(q, k),
        {"causal": False},
        "fail",
        "alibi.bidirectional.ahead_favoured",
    ),
    "encoder_key": (by_key, {"causal": False}, "fail", "alibi.bidirectional.ahead_favoured"),
    "encoder_shifted": (
        lambda h, q, k: -column(h) * (steps(q, k) + 1).abs(),
        {"causal": False},
        "fail",
        "alibi.distance.shifted",
    ),
    "encoder_causal": (
        lambda h, q, k: hides(-column(h) * steps(q, k), q, k),
        {"causal": False},
        "fail",
        "alibi.mask.hides_visible",
    ),
    "squared": (lambda h, q, k: -column(h) * steps(q, k) ** 2, {}, "fail", "alibi.mismatch"),
    "logarithm": (lambda h, q, k: -column(h) * steps(q, k).abs().log1p(), {}, "fail", "alibi.mismatch"),
    "wraps": (lambda h, q, k: -column(h) * (steps(q, k) % 512), {}, "fail", "alibi.mismatch"),
    "two_last": (lambda h, q, k: -column(h) * steps(q, k) * (1 if q == k else 0.5), {}, "fail", "alibi.mismatch"),
    "nan": (lambda h, q, k: column(h) * steps(q, k) / 0 * 0, {}, "fail", "subject.not_finite"),
    "shape": (lambda h, q, k: -slopes(h)[0] * torch.ones(q + 1, k), {}, "fail", "subject.shape"),
    "no_tensor": (lambda h, q, k: 3, {}, "fail", "subject.shape"),
}


def mod(bias, n=8, rule=slopes):
    m = torch.tensor(rule(n))
    return lambda score, b, h, q, k: bias(score, m[h], q, k)


def branching(score, b, h, q, k):
    if k > q:
        return float("-inf")
    return score - 2.0 ** (-8 * (float(h) + 1) / 8) * (q - k)


EIGHT = {"heads": 8}
MODS = {
    "ranks": (
        mod(lambda s, m, q, k: s + m * (k - q), 16, of_ranks),
        {"heads": 16},
        "fail",
        "alibi.tensor_parallel.head_offset",
    ),
    "plain": (mod(lambda s, m, q, k: s + m * (k - q)), EIGHT, "pass", ""),
    "heads_unsaid": (mod(lambda s, m, q, k: s + m * (k - q), 12), {}, "pass", ""),
    "formula_heads_unsaid": (lambda s, b, h, q, k: s + torch.exp2(-((h + 1) * 8.0 / 8)) * (k - q), {}, "pass", ""),
    "where": (mod(lambda s, m, q, k: torch.where(q >= k, s - m * (q - k), -math.inf)), EIGHT, "pass", ""),
    "branching": (branching, EIGHT, "pass", ""),
    "key": (mod(lambda s, m, q, k: s + m * k), EIGHT, "equivalent", ""),
    "sign": (mod(lambda s, m, q, k: s + m * (q - k)), EIGHT, "fail", "alibi.sign"),
    "gym": (
        lambda s, b, h, q, k: s + torch.exp2(-((h + 1) * 8.0 / 12)) * (k - q),
        {"heads": 12},
        "fail",
        "alibi.slopes.not_power_of_two",
    ),
    "next_power": (
        mod(lambda s, m, q, k: s + m * (k - q), 12, next_power),
        {"heads": 12},
        "fail",
        "alibi.slopes.not_power_of_two",
    ),
    "off_by_one": (
        lambda s, b, h, q, k: s + torch.exp2(-(h * 8.0 / 8)) * (k - q),
        EIGHT,
        "fail",
        "alibi.slopes.exponent_off_by_one",
    ),
    "off_by_one_12": (
        lambda s, b, h, q, k: s + torch.exp2(-(h * 8.0 / 12)) * (k - q),
        {"heads": 12},
        "fail",
        "alibi.slopes.exponent_off_by_one",
    ),
    "scaled": (mod(lambda s, m, q, k: (s + m * (k - q)) * 0.125), EIGHT, "fail", "alibi.scale.applied_to_bias"),
    "times": (mod(lambda s, m, q, k: s * m * (k - q)), EIGHT, "fail", "alibi.score.not_added"),
    "dropped": (mod(lambda s, m, q, k: m * (k - q)), EIGHT, "fail", "alibi.score.not_added"),
    "by_batch": (lambda s, b, h, q, k: s + torch.exp2(-(b + 1.0)) * (k - q), EIGHT, "fail", "alibi.axis.batch"),
    "unknown": (mod(lambda s, m, q, k: s - m * (q - k).abs() ** 0.5), EIGHT, "fail", "alibi.mismatch"),
}


def bucket(rel, both=True, nb=32, md=128, *, clamp=None, exact=None, log=None, last=None, ahead=None):
    """Return T5's buckets, with one part of the rule exchanged."""
    start = torch.zeros_like(rel)
    if both:
        nb //= 2
        start = start + (rel > 0).long() * (nb if ahead is None else ahead)
        n = rel.abs()
    else:
        n = -torch.minimum(rel, torch.zeros_like(rel))
    half = nb // 2 if exact is None else exact(nb)
    share = torch.log(n.clamp(min=1).float() / half) / math.log(md / half) * (nb - half)
    if log is not None:
        share = log(n.clamp(min=1).float(), half, nb, md)
    far = half + share.long()
    far = far if clamp == "none" else far.clamp(max=nb - 1 if last is None else last(nb))
    return start + torch.where(n < half, n, far)


def exactly(rel, both):
    return bias_rules.expected(bias_rules.Rule(bidirectional=both), rel.flatten()).reshape(rel.shape)


BOTH, PAST = {"bidirectional": True}, {"bidirectional": False}
BUCKETS = {
    "both": (bucket, BOTH, "pass", ""),
    "unsaid": (bucket, {}, "pass", ""),
    "past": (lambda r: bucket(r, False), PAST, "pass", ""),
    "past_unsaid": (lambda r: bucket(r, False), {}, "pass", ""),
    "past_causal": (lambda r: bucket(r, False), {"causal": True}, "pass", ""),
    "int32": (lambda r: bucket(r).int(), BOTH, "pass", ""),
    "exact": (lambda r: exactly(r, True), BOTH, "pass", ""),
    "exact_past": (lambda r: exactly(r, False), PAST, "pass", ""),
    "log2": (
        lambda r: bucket(r, log=lambda n, e, b, m: torch.log2(n / e) / math.log2(m / e) * (b - e)),
        BOTH,
        "pass",
        "",
    ),
    "double": (
        lambda r: bucket(r, log=lambda n, e, b, m: (n.double() / e).log() / math.log(m / e) * (b - e)),
        BOTH,
        "pass",
        "",
    ),
    "clipped_before": (lambda r: bucket(r.clamp(-128, 128)), BOTH, "pass", ""),
    "other_sizes": (lambda r: bucket(r, True, 64, 500), {**BOTH, "num_buckets": 64, "max_distance": 500}, "pass", ""),
    "table_ends": (
        lambda r: bucket(torch.arange(-400, 401))[(r + 400).where(r.abs() <= 400, torch.tensor(10**6))],
        BOTH,
        "pass",
        "",
    ),
    "ahead_mirrored": (lambda r: bucket(r, False).where(r <= 0, bucket(-r, False)), PAST, "equivalent", ""),
    "direction_free": (lambda r: bucket(-r), {**BOTH, "direction": "any"}, "equivalent", ""),
    "direction": (lambda r: bucket(-r), BOTH, "fail", "t5.bucket.direction"),
    "direction_past": (lambda r: bucket(-r, False), PAST, "fail", "t5.bucket.direction"),
    "not_clamped": (lambda r: bucket(r, clamp="none"), BOTH, "fail", "t5.bucket.not_clamped"),
    "not_clamped_past": (lambda r: bucket(r, False, clamp="none"), PAST, "fail", "t5.bucket.not_clamped"),
    "clamped_over": (lambda r: bucket(r, last=lambda b: b), BOTH, "fail", "t5.bucket.not_clamped"),
    "clamped_all": (lambda r: bucket(r, last=lambda b: 2 * b - 1), BOTH, "fail", "t5.bucket.not_clamped"),
    "causal_for_both": (lambda r: bucket(r, False), BOTH, "fail", "t5.bucket.bidirectional"),
    "both_for_causal": (lambda r: bucket(r, True), PAST, "fail", "t5.bucket.bidirectional"),
    "sign_lost": (lambda r: bucket(-r.abs()), BOTH, "fail", "t5.bucket.sign_lost"),
    "not_halved": (lambda r: bucket(r, True, 64, ahead=0), BOTH, "fail", None),
    "halved_twice": (lambda r: bucket(r, True, 16), BOTH, "fail", "t5.bucket.halved_twice"),
    "quarter_exact": (lambda r: bucket(r, exact=lambda b: b // 4), BOTH, "fail", "t5.bucket.exact_range"),
    "hardwired_distance": (bucket, {**BOTH, "max_distance": 256}, "fail", "t5.bucket.max_distance_hardwired"),
    "hardwired_buckets": (bucket, {**BOTH, "num_buckets": 64}, "fail", "t5.bucket.num_buckets_hardwired"),
    "other_distance": (lambda r: bucket(r, md=64), BOTH, "fail", "t5.bucket.max_distance"),
    "rounded": (
        lambda r: bucket(r, log=lambda n, e, b, m: (torch.log(n / e) / math.log(m / e) * (b - e)).round()),
        BOTH,
        "fail",
        "t5.bucket.rounding",
    ),
    "ceil": (
        lambda r: bucket(r, log=lambda n, e, b, m: (torch.log(n / e) / math.log(m / e) * (b - e)).ceil()),
        BOTH,
        "fail",
        "t5.bucket.rounding",
    ),
    "off_by_one": (lambda r: bucket(r + 1), BOTH, "fail", "t5.bucket.off_by_one"),
    "off_by_one_past": (lambda r: bucket(r - 1, False), PAST, "fail", "t5.bucket.off_by_one"),
    "log_base": (
        lambda r: bucket(r, log=lambda n, e, b, m: torch.log2(n / e) / math.log(m / e) * (b - e)),
        BOTH,
        "fail",
        "t5.bucket.formula",
    ),
    "log_span": (
        lambda r: bucket(r, log=lambda n, e, b, m: torch.log(n / e) / math.log(m) * (b - e)),
        BOTH,
        "fail",
        "t5.bucket.formula",
    ),
    "log_all": (
        lambda r: bucket(r, log=lambda n, e, b, m: torch.log(n / e) / math.log(m / e) * b),
        BOTH,
        "fail",
        "t5.bucket.formula",
    ),
    "two": (lambda r: bucket(-r, clamp="none"), BOTH, "fail", "t5.bucket.direction"),
    "negative": (lambda r: torch.where(r > 0, -r, bucket(r, False)), PAST, "fail", "t5.bucket.out_of_table"),
    "no_buckets": (lambda r: (r + 128).clamp(0, 255), BOTH, "fail", "t5.mismatch"),
    "square_root": (lambda r: bucket(r, log=lambda n, e, b, m: (n / m).sqrt() * (b - e)), BOTH, "fail", "t5.mismatch"),
    "by_longest": (lambda r: r.abs() * 31 // r.abs().max(), BOTH, "fail", "t5.bucket.not_by_distance"),
    "float": (lambda r: bucket(r).float(), BOTH, "fail", "t5.bucket.not_integer"),
    "writes": (lambda r: bucket(r.abs_()), BOTH, "fail", "subject.writes_input"),
    "deberta": (
        lambda r: torch.tensor([definitions.scores._deberta_bucket(-int(v), 256, 512) for v in r.flatten()]).reshape(
            r.shape
        ),
        {"encoding": "deberta"},
        "pass",
        "",
    ),
    "deberta_plain": (lambda r: r, {"encoding": "deberta"}, "fail", "deberta.mismatch"),
}


def index(h, w, step=None, sign=1, absolute=False, shift=True, order="row"):
    n = torch.arange(h * w)
    y, x = (n // w, n % w) if order == "row" else (n % h, n // h)
    dy, dx = sign * (y[:, None] - y), sign * (x[:, None] - x)
    if absolute:
        dy, dx = dy.abs(), dx.abs()
    if shift:
        dy, dx = dy + h - 1, dx + w - 1
    return dy * (2 * w - 1 if step is None else step(h, w)) + dx


def ramps(h, w):
    """Return mmdetection's spelling."""
    one = torch.arange(0, (2 * w - 1) * h, 2 * w - 1)
    coords = (one[:, None] + torch.arange(w)[None]).reshape(1, -1)
    return (coords + coords.T.flip(0)).flip(1).contiguous()


INDICES = {
    "plain": (index, {}, "pass", ""),
    "asked": (index, {"window": (7, 7)}, "pass", ""),
    "asked_number": (index, {"window": 8}, "pass", ""),
    "int32": (lambda h, w: index(h, w).int(), {}, "pass", ""),
    "turned": (lambda h, w: index(h, w, sign=-1), {}, "equivalent", ""),
    "ramps": (ramps, {}, None, ""),
    "x_first": (lambda h, w: index(h, w).new_tensor(0) + _x_first(h, w), {}, "equivalent", ""),
    "columns_square": (lambda h, w: index(h, w, order="column"), {"window": 7}, "equivalent", ""),
    "shuffled": (
        lambda h, w: torch.randperm((2 * h - 1) * (2 * w - 1), generator=torch.Generator().manual_seed(0))[index(h, w)],
        {},
        "equivalent",
        "",
    ),
    "step_of_h": (lambda h, w: index(h, w, lambda h, w: 2 * h - 1), {"window": (3, 5)}, "fail", "swin.index.collision"),
    "step_of_h_unsaid": (lambda h, w: index(h, w, lambda h, w: 2 * h - 1), {}, "fail", "swin.index.collision"),
    "step_short": (lambda h, w: index(h, w, lambda h, w: 2 * w - 2), {}, "fail", "swin.index.collision"),
    "step_none": (lambda h, w: index(h, w, lambda h, w: 1), {}, "fail", "swin.index.collision"),
    "absolute": (lambda h, w: index(h, w, absolute=True), {}, "fail", "swin.index.collision"),
    "step_long": (lambda h, w: index(h, w, lambda h, w: 2 * w), {}, "fail", "swin.index.out_of_table"),
    "from_one": (lambda h, w: index(h, w) + 1, {}, "fail", "swin.index.out_of_table"),
    "not_shifted": (lambda h, w: index(h, w, shift=False), {}, "fail", "swin.index.out_of_table"),
    "columns": (lambda h, w: index(h, w, order="column"), {}, "fail", "swin.index.axes_swapped"),
    "each_pair": (
        lambda h, w: torch.arange(h * w * h * w).reshape(h * w, h * w) % ((2 * h - 1) * (2 * w - 1)),
        {},
        "fail",
        "swin.index.not_by_distance",
    ),
    "shape": (lambda h, w: index(h, w)[0], {}, "fail", "subject.shape"),
}


def _x_first(h, w):
    n = torch.arange(h * w)
    y, x = n // w, n % w
    return (x[:, None] - x + w - 1) * (2 * h - 1) + y[:, None] - y + h - 1


class T5(nn.Module):
    """A table of T5 behind `bias(heads, q_len, kv_len)`."""

    def __init__(self, both=True, local=False, turn=1, dropped=False, empty=False):
        super().__init__()
        self.table = nn.Embedding(32, 4)
        if empty:
            nn.init.zeros_(self.table.weight)
        self.both, self.local, self.turn, self.dropped = both, local, turn, dropped

    def forward(self, heads, q, k):
        start = 0 if self.local else k - q
        rel = torch.arange(k)[None] - (torch.arange(q)[:, None] + start)
        out = self.table(bucket(self.turn * rel, self.both)).permute(2, 0, 1)
        return out * 0 if self.dropped and q == 1 else out


def hide_table(module):
    return lambda h, q, k: module(h, q, k)


def ends_at_100(module):
    return lambda h, q, k: module(h, q, k) if k <= 100 else 1 / 0


class KeptByKeys:
    """A bias kept by the number of keys alone."""

    def __init__(self, bias):
        self.bias, self.kept = bias, {}

    def __call__(self, h, q, k):
        if k not in self.kept:
            self.kept[k] = self.bias(h, q, k)
        return self.kept[k]


def table_mod(change=lambda r: bucket(r, False)):
    table = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    return lambda s, b, h, q, k: s + table[change(k - q), h]


def swin_bias(make):
    table = torch.randn(400, 3, generator=torch.Generator().manual_seed(1))
    return lambda h, q, k: table[make(3, 5)].permute(2, 0, 1)


T5_BOTH, T5_PAST = {"encoding": "t5", "bidirectional": True}, {"encoding": "t5", "bidirectional": False}
SWIN = {"encoding": "swin_bias", "window": (3, 5)}
STRUCTURES = {
    "t5_module": (T5(), T5_BOTH, "pass", ""),
    "t5_past": (T5(False), T5_PAST, "pass", ""),
    "t5_hidden_table": (hide_table(T5()), T5_BOTH, "pass", ""),
    "t5_hidden_table_past": (hide_table(T5(False)), T5_PAST, "pass", ""),
    "t5_table_ends": (ends_at_100(T5()), T5_BOTH, "pass", ""),
    "t5_empty": (hide_table(T5(empty=True)), T5_BOTH, "cannot_tell", ""),
    "t5_turned": (T5(turn=-1), T5_BOTH, "fail", "t5.bucket.direction"),
    "t5_past_turned": (hide_table(T5(False, turn=-1)), T5_PAST, None, "t5.bucket.direction"),
    "t5_both_for_past": (T5(True), T5_PAST, "fail", "t5.bucket.bidirectional"),
    "t5_past_for_both": (hide_table(T5(False)), T5_BOTH, "fail", "t5.bucket.bidirectional"),
    "t5_from_zero": (T5(False, local=True), T5_PAST, "fail", "t5.kv_cache.query_from_zero"),
    "t5_dropped": (hide_table(T5(False, dropped=True)), T5_PAST, "fail", "t5.decode.bias_dropped"),
    "t5_kept_by_keys": (KeptByKeys(hide_table(T5(False))), T5_PAST, "fail", "t5.bias.state_kept"),
    "t5_random": (
        lambda h, q, k: torch.rand(h, q, k, generator=torch.Generator().manual_seed(q)),
        T5_PAST,
        "fail",
        "t5.bias.not_by_distance",
    ),
    "t5_unlike": (
        lambda h, q, k: torch.rand(4, 1, 1, generator=torch.Generator().manual_seed(q)) * steps(q, k),
        T5_PAST,
        "fail",
        "t5.mismatch",
    ),
    "swin": (swin_bias(index), SWIN, "pass", ""),
    "swin_collision": (
        swin_bias(lambda h, w: index(h, w, lambda h, w: 2 * h - 1)),
        SWIN,
        "fail",
        "swin.index.collision",
    ),
    "swin_columns": (swin_bias(lambda h, w: index(h, w, order="column")), SWIN, "fail", "swin.index.axes_swapped"),
}


def judged(subject, convention, spec, status, code):
    report = biases.check(subject, convention, spec).report(convention)
    said = [(c.code, c.message) for c in report.causes]
    if status is not None:
        assert report.status == status, (report.status, report.because, said)
    if code:
        assert report.causes, report
        assert report.causes[0].code == code, said
    for cause in report.causes:
        assert cause.message.endswith(".") or cause.code.startswith("subject."), cause.message
        json.dumps(report.to_dict())
        assert not cause.code.startswith(("alibi", "t5", "swin", "deberta")) or cause.code in codes(), cause.code
    assert bool(report.because) == (report.status in ("equivalent", "cannot_tell"))
    return report


def codes():
    return json.loads((resources.files("posenc.verify") / "codes" / "biases.json").read_text())


@pytest.mark.parametrize("name", SLOPES)
def test_slopes(name):
    subject, spec, *want = SLOPES[name]
    judged(subject, "slopes_fn", {**ALIBI, **spec}, *want)


@pytest.mark.parametrize("name", BIAS)
def test_bias(name):
    subject, spec, *want = BIAS[name]
    judged(subject, "bias_fn", {**ALIBI, **spec}, *want)


@pytest.mark.parametrize("name", MODS)
def test_score_mod(name):
    subject, spec, *want = MODS[name]
    judged(subject, "score_mod", {**ALIBI, **spec}, *want)


@pytest.mark.parametrize("name", BUCKETS)
def test_buckets(name):
    subject, spec, *want = BUCKETS[name]
    judged(subject, "bucket_fn", {"encoding": "t5", **spec}, *want)


@pytest.mark.parametrize("name", INDICES)
def test_indices(name):
    subject, spec, *want = INDICES[name]
    judged(subject, "relative_index_fn", {"encoding": "swin_bias", **spec}, *want)


@pytest.mark.parametrize("name", STRUCTURES)
def test_tables_that_are_not_known(name):
    subject, spec, *want = STRUCTURES[name]
    judged(subject, "bias_fn", spec, *want)


def test_score_mod_of_a_table():
    judged(table_mod(), "score_mod", {**T5_PAST, "heads": 4}, "pass", "")
    judged(
        table_mod(lambda r: bucket(r, False, 16)),
        "score_mod",
        {**T5_PAST, "heads": 4},
        "fail",
        "t5.bucket.bidirectional",
    )


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize(("nb", "md"), [(32, 128), (64, 300), (12, 50), (128, 2048)])
def test_the_unspoilt_rule_is_the_definition(both, nb, md):
    rule = bias_rules.Rule(nb, md, both)
    rel = bias_rules.distances(rule)
    assert torch.equal(rule.buckets(rel)[0], bias_rules.expected(rule, rel))


@pytest.mark.parametrize("both", [True, False])
def test_every_known_fault_of_a_bucket_is_told_by_its_own_code(both):
    rule = bias_rules.Rule(32, 128, both)
    for fault in bias_rules.faults(rule):
        spoilt = bias_rules.replace(rule, **fault.changes)

        def rows(r, s=spoilt):
            return s.buckets(r)[0]

        if bias_buckets.agrees(rows(bias_rules.distances(rule)), bias_rules.distances(rule), rule):
            continue  # it changes nothing with these numbers
        report = judged(rows, "bucket_fn", {"encoding": "t5", "bidirectional": both}, None, "")
        assert report.status != "pass", fault
        if (
            report.status == "fail"
        ):  # two faults may be one function: log(128) for log(128 / 8) is a max_distance of 1024
            at, _ = spoilt.buckets(bias_rules.distances(rule))
            same = {
                f.code
                for f in bias_rules.faults(rule)
                if torch.equal(bias_rules.replace(rule, **f.changes).buckets(bias_rules.distances(rule))[0], at)
            }
            assert report.causes[0].code in same, (fault, report.causes[0])


def test_codes_are_whole():
    reports = {}
    for code, entry in codes().items():
        assert set(entry) == {"title", "why", "mend", "reports"}, code
        assert all(entry[key].strip() for key in ("title", "why", "mend")), code
        assert all(url.startswith("https://github.com/") for url in entry["reports"]), code
        reports[code] = entry["reports"]
    assert reports["alibi.kv_cache.bias_zero"]
