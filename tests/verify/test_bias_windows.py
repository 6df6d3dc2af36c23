"""Biases that hide keys by -inf: ahead of a query, or beyond a window; the right ones pass, one key more fails."""

import math

import pytest
import torch

from bias_subjects import ALIBI, bucket, column, judged, slopes, steps
from posenc import verify

LEAST = torch.finfo(torch.float32).min


def biased(window, value=-math.inf, ahead=True):
    """Return ALiBi whose queries see so many keys, their own being the first."""

    def bias(heads, q_len, kv_len):
        d = steps(q_len, kv_len)
        gone = (d >= window) | ((d < 0) if ahead else False)
        return (-column(heads) * d.abs()).masked_fill(gone, value)

    return bias


def scored(window, value=-math.inf, n=8):
    m = torch.tensor(slopes(n))

    def score_mod(score, b, h, q, k):
        d = q - k
        return torch.where((d >= 0) & (d < window), score - m[h] * d, value)

    return score_mod


def table(window=None, both=False, shift=0):
    """Return T5's bias with a table of its own, that hides keys beyond a window."""
    rows = torch.randn(4, 32, generator=torch.Generator().manual_seed(0)).double()

    def bias(heads, q_len, kv_len):
        d = steps(q_len, kv_len).long()
        found = rows[:heads][:, bucket(-d + shift, both=both)]
        return found if window is None else found.masked_fill((d < 0) | (d >= window), -math.inf)

    return bias


CAUSAL = {**ALIBI, "causal": True}
EIGHT = {**CAUSAL, "heads": 8}
T5 = {"encoding": "t5", "causal": True, "num_buckets": 32, "max_distance": 128, "heads": 4}


@pytest.mark.parametrize("value", [-math.inf, -1e9, LEAST])
@pytest.mark.parametrize("window", [2, 3, 5, 6, 7, 11, 16, 64, 1024, 3000])
def test_a_declared_window_may_be_hidden(window, value):
    judged(biased(window, value), "bias_fn", {**CAUSAL, "window": window}, "pass", "")
    judged(scored(window, value), "score_mod", {**EIGHT, "window": window}, "pass", "")


@pytest.mark.parametrize("value", [-math.inf, -1e9])
@pytest.mark.parametrize("window", [3, 6, 16, 64, 1024, 3000])
@pytest.mark.parametrize("off", [1, -1])
def test_one_key_more_or_less_is_told_by_its_numbers(window, off, value):
    for subject, convention, spec in (
        (biased(window + off, value), "bias_fn", CAUSAL),
        (scored(window + off, value), "score_mod", EIGHT),
    ):
        report = verify.check(subject, convention=convention, spec={**spec, "window": window})
        assert [c.code for c in report.causes] == ["alibi.mask.window"], report
        assert (
            f"a query sees {window + off} keys with its own, where a window of {window} is" in report.causes[0].message
        )
        case = report.causes[0].smallest_case
        assert case["q_len"] <= case["k_len"]


def test_a_window_of_twice_the_keys_is_seen():
    report = verify.check(biased(2000), convention="bias_fn", spec={**CAUSAL, "window": 1000})
    assert report.causes[0].code == "alibi.mask.window"


def test_a_window_may_be_left_to_others_and_needs_no_causal_mask():
    judged(biased(10**6), "bias_fn", {**CAUSAL, "window": 5}, "pass", "")
    judged(biased(5, ahead=False), "bias_fn", {**CAUSAL, "window": 5}, "pass", "")


@pytest.mark.parametrize("window", [5, 64])
def test_a_window_that_nobody_declared_is_a_fault(window):
    for subject, convention, spec in ((biased(window), "bias_fn", CAUSAL), (scored(window), "score_mod", EIGHT)):
        report = verify.check(subject, convention=convention, spec=spec)
        assert report.causes[0].code == "alibi.mask.hides_visible", report
        assert f"sees {window} keys with its own, where no window is declared" in report.causes[0].message


def test_faults_are_found_inside_a_window():
    def steep(heads, q_len, kv_len):
        return 2 * biased(64)(heads, q_len, kv_len)

    def local(heads, q_len, kv_len):
        d = torch.arange(q_len)[:, None] - torch.arange(kv_len)
        return (-column(heads) * d).masked_fill((d < 0) | (d >= 4), -math.inf)

    judged(steep, "bias_fn", {**CAUSAL, "window": 64}, "fail", "alibi.scale.factor")
    judged(local, "bias_fn", {**CAUSAL, "window": 4}, "fail", "alibi.buffer_slice_shifted")


def test_the_past_hidden_in_place_of_the_future_is_named():
    def turned(score, b, h, q, k):
        return torch.where(q <= k, score - torch.exp2(-(h + 1.0)) * (q - k), -math.inf)

    report = verify.check(turned, convention="score_mod", spec=EIGHT)
    assert report.causes[0].code == "alibi.mask.hides_visible"
    assert "compared the wrong way round" in report.causes[0].message


def test_what_a_window_cannot_be():
    for window in (0, -3, True, "64", [64, 0], 3.5):
        with pytest.raises(ValueError, match="window must be how many keys a query sees"):
            verify.check(biased(4), convention="bias_fn", spec={**CAUSAL, "window": window})
    assert verify.check(biased(1), convention="bias_fn", spec={**CAUSAL, "window": 1}).status == "cannot_tell"


@pytest.mark.parametrize("window", [3, 9, 64, 300])
def test_a_table_of_buckets_beside_a_window(window):
    judged(table(window), "bias_fn", {**T5, "window": window}, "pass", "")
    judged(table(), "bias_fn", {**T5, "window": window}, "pass", "")
    judged(table(window + 1), "bias_fn", {**T5, "window": window}, "fail", "t5.mask.window")
    judged(table(window - 1), "bias_fn", {**T5, "window": window}, "fail", "t5.mask.window")
    judged(table(window), "bias_fn", T5, *(("fail", "t5.mask.hides_visible") if window < 150 else ("pass", "")))


def test_faults_of_a_table_are_found_inside_a_window():
    judged(table(64, shift=-1), "bias_fn", {**T5, "window": 64}, "fail", "t5.bucket.off_by_one")


def test_one_number_for_each_distance_beside_a_window():
    def bias(heads, q_len, kv_len):
        d = steps(q_len, kv_len).long()
        found = torch.sin(torch.arange(1, 5).double()[:, None, None] * (d + 1000) ** 2)
        return found.masked_fill((d < 0) | (d >= 8), -math.inf)

    words = {"encoding": "relative_bias", "causal": True, "heads": 4}
    judged(bias, "bias_fn", {**words, "window": 8}, "pass", "")
    judged(bias, "bias_fn", {**words, "window": 9}, "fail", "relative_bias.mask.window")
    judged(bias, "bias_fn", words, "fail", "relative_bias.mask.hides_visible")


def test_far_keys_are_not_taken_for_hidden_ones():
    judged(scored(20_000, n=32), "score_mod", {**CAUSAL, "heads": 32, "window": 20_000}, "pass", "")
    judged(scored(20_001, n=32), "score_mod", {**CAUSAL, "heads": 32, "window": 20_000}, "fail", "alibi.mask.window")


def test_far_distances_of_a_score_mod_are_asked_for():
    def short(score, b, h, q, k):
        return score - torch.exp2(-(h + 1.0)) * (q.to(torch.int16) - k.to(torch.int16))

    report = verify.check(short, convention="score_mod", spec=EIGHT)
    assert report.status == "fail"
    assert report.causes[0].smallest_case["k_len"] > 2**15


@pytest.mark.parametrize("decodes", [False, True])
@pytest.mark.parametrize("window", [2, 3, 7])
def test_a_window_whose_queries_are_counted_from_the_first_key(window, decodes):
    def bias(heads, q_len, kv_len):
        here = torch.arange(q_len)[:, None] - torch.arange(kv_len)  # right where there is no cache
        if decodes and q_len == 1:  # one token at a time is right, several beside a cache are not
            here = steps(q_len, kv_len)
        return (-column(heads) * steps(q_len, kv_len).abs()).masked_fill((here < 0) | (here >= window), -math.inf)

    judged(bias, "bias_fn", {**CAUSAL, "window": window}, "fail", "alibi.buffer_slice_shifted")
