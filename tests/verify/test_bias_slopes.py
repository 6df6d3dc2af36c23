"""Slopes: faults and innocent oddities, and what is said of each."""

import math

import numpy as np
import pytest
import torch

from bias_subjects import ALIBI, geometric, judged, next_power, of_local, of_ranks, slopes


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


def slopes_kept():
    kept = []

    def of(n):
        if len(kept) < n:
            kept[:] = slopes(n)
        return kept[:n]

    return of


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
    "harmonic": (lambda n: [1 / (h + 2) for h in range(n)], {}, "fail", "alibi.slopes.not_geometric"),
    "short": (lambda n: slopes(n)[:-1], {}, "fail", "alibi.slopes.count"),
    "growing": (growing, {}, "fail", None),
    "none": (lambda n: None, {}, "fail", "subject.shape"),
    "raises": (lambda n: 1 / 0, {}, "fail", "subject.raises"),
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


@pytest.mark.parametrize("name", SLOPES)
def test_slopes(name):
    subject, spec, *want = SLOPES[name]
    judged(subject, "slopes_fn", {**ALIBI, **spec}, *want)
