"""ALiBi as a score_mod: faults and innocent oddities, and what is said of each."""

import math

import pytest
import torch

from bias_subjects import ALIBI, judged, next_power, of_ranks, slopes


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


@pytest.mark.parametrize("name", MODS)
def test_score_mod(name):
    subject, spec, *want = MODS[name]
    judged(subject, "score_mod", {**ALIBI, **spec}, *want)
