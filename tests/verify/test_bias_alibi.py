"""ALiBi as a bias: faults and innocent oddities, and what is said of each."""

import math

import pytest
import torch

from bias_subjects import ALIBI, codes, column, geometric, judged, next_power, of_local, slopes, steps


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


BIAS = {
    # innocent
    "fixed_heads": (lambda h, q, k: -column(6) * steps(q, k).abs(), {"heads": 6}, "pass", ""),
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


@pytest.mark.parametrize("name", BIAS)
def test_bias(name):
    subject, spec, *want = BIAS[name]
    judged(subject, "bias_fn", {**ALIBI, **spec}, *want)


def test_codes_are_whole():
    reports = {}
    for code, entry in codes().items():
        assert set(entry) == {"title", "why", "mend", "reports"}, code
        assert all(entry[key].strip() for key in ("title", "why", "mend")), code
        assert all(url.startswith("https://github.com/") for url in entry["reports"]), code
        reports[code] = entry["reports"]
    assert reports["alibi.kv_cache.bias_zero"]
