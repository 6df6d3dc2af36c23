"""Slopes, biases and score_mods of ALiBi: what is right, every known fault, and what is said of each."""

import math
from functools import partial

import pytest
import torch

from posenc import verify
from posenc.verify.engine import Seen
from posenc.verify.engine.judge import explains, settle
from posenc.verify.families import bias as biases
from posenc.verify.families.bias import PAST_INT16

INF = math.inf
CAUSAL, BOTH, EIGHT = {"causal": True}, {"causal": False}, {"heads": 8}


def series(n, top=8.0, first=1, over=None):
    return [2.0 ** (-top * (h + first) / (over or n)) for h in range(n)]


def authors(n, power=series):
    """Return the slopes as the authors' code has them, of a series for powers of two."""
    low = 2 ** math.floor(math.log2(n))
    return power(n) if low == n else power(low) + power(2 * low)[0::2][: n - low]


def raising(n):
    if n & (n - 1):
        raise ValueError("log2(num_heads) is not an integer")
    return series(n)


def kept_slopes(kept):
    def slopes(n):
        if len(kept) < n:
            kept[:] = authors(n)
        return kept[:n]

    return slopes


def kept_ratio(kept):
    return lambda n: [(kept or kept.append(2 ** (-8 / n)) or kept)[0] ** (h + 1) for h in range(n)]


SLOPES = {
    "list": (authors, {}, "pass", ""),
    "tensor": (lambda n: torch.tensor(authors(n), dtype=torch.float64).view(1, n, 1, 1), {}, "pass", ""),
    "sorted, any order": (lambda n: sorted(authors(n)), {"order": "any"}, "equivalent", ""),
    "sorted": (lambda n: sorted(authors(n), reverse=True), {}, "fail", "slopes.head_order"),
    "next power": (lambda n: series(2 ** math.ceil(math.log2(n)))[:n], {}, "fail", "slopes.not_power_of_two"),
    "cut": (lambda n: authors(2 ** math.floor(math.log2(n))), {}, "fail", "slopes.not_power_of_two"),
    "raising": (raising, {}, "fail", "slopes.not_power_of_two"),
    "off by one": (lambda n: authors(n, partial(series, first=0)), {}, "fail", "slopes.exponent_off_by_one"),
    "hardwired": (partial(series, over=8), {}, "fail", "slopes.heads_hardwired"),
    "of the first call": (kept_ratio([]), {}, "fail", "slopes.heads_hardwired"),
    "bias_max 4": (lambda n: authors(n, partial(series, top=4.0)), {}, "fail", "slopes.bias_max"),
    "one for all": (lambda n: [0.25] * n, {}, "fail", "slopes.shared"),
    "half": (lambda n: torch.tensor(authors(n)).half().float(), {}, "fail", "precision.slopes_fp16"),
    "linear": (lambda n: [(h + 1) / n for h in range(n)], {}, "fail", "slopes.linear"),
    "NaN": (lambda n: [math.nan] * n, {}, "fail", "subject.shape"),
    "first of each rank": (lambda n: authors(n)[: n // 2] * 2, {}, "fail", "tensor_parallel.head_offset"),
    "kept": (kept_slopes([]), {}, "fail", "mask_cached_on_class"),
    "array": (lambda n: torch.tensor(authors(n)).numpy(), {}, "pass", ""),
    "raises": (lambda n: 1 / 0, {}, "fail", "subject.raises"),
}


def ahead_by(q, k):
    """Return query - key, queries last."""
    return (torch.arange(k - q, k)[:, None] - torch.arange(k)).float()


def alibi(of=torch.abs, rule=authors, d=ahead_by, mask=None, value=-INF, out=lambda t: t):
    """Return a bias(heads, q_len, k_len): -slope * of(distance), hidden where mask(distance) says so."""

    def bias(h, q, k):
        t = -torch.tensor([float(s) for s in rule(h)])[:, None, None] * of(d(q, k))
        return out(t if mask is None else t.masked_fill(mask(ahead_by(q, k)), value))

    return bias


def local(q, k):
    return (torch.arange(q)[:, None] - torch.arange(k)).float()


def bf16_positions(h, q, k):
    at = torch.arange(k, dtype=torch.bfloat16)
    return -torch.tensor(authors(h))[:, None, None] * (at[k - q :, None] - at).float()


def of_queries(h, q, k):
    return (-torch.tensor(series(h))[:, None] * ahead_by(q, k)).expand(h, q, k)


def all_only(bias, error=ValueError):
    """Return a bias that refuses fewer queries than keys, as code without a cache does."""

    def of(h, q, k):
        if q != k:
            raise error("only self-attention without a cache")
        return bias(h, q, k)

    return of


def no_step(h, q, k):
    """Fail in an operation, not by a refusal, after a cache."""
    return alibi()(h, k, k).view(h, q, q)


BIASES = {
    "symmetric": (alibi(), {}, "pass", ""),
    "fixed heads": (lambda h, q, k: alibi()(6, q, k), {"heads": 6}, "pass", ""),
    "masked by the least": (
        alibi(torch.clone, mask=lambda d: d < 0, value=torch.finfo(torch.float32).min),
        {},
        "pass",
        "",
    ),
    "batch of one": (alibi(out=lambda t: t[None]), {}, "pass", ""),
    "bfloat16": (alibi(out=torch.Tensor.bfloat16), {}, "pass", ""),
    "one-sided encoder": (alibi(torch.relu), BOTH, "pass", ""),
    "learned": (alibi(rule=lambda n: [0.1 * h for h in range(1, n + 1)]), {"variant": "learned"}, "pass", ""),
    "learned, still 0": (lambda *size: torch.zeros(size), {"variant": "learned"}, "cannot_tell", ""),
    "a table that ends": (lambda h, q, k: alibi()(h, 64, 64)[:, :k, :k][:, -q:], EIGHT, "pass", ""),
    "array": (alibi(out=lambda t: t.numpy()), {}, "pass", ""),
    "window of 1": (alibi(mask=lambda d: d != 0), {**CAUSAL, "window": 1}, "cannot_tell", ""),
    "sign": (alibi(lambda d: -d), {}, "fail", "sign"),
    "no cache": (all_only(alibi()), CAUSAL, "pass", ""),
    "no cache, sides not said": (all_only(alibi(), AssertionError), EIGHT, "pass", ""),
    "no cache, sign": (all_only(alibi(lambda d: -d), NotImplementedError), {**CAUSAL, **EIGHT}, "fail", "sign"),
    "steps fail": (no_step, {**CAUSAL, **EIGHT}, "fail", "subject.raises"),
    "sign, then squares": (lambda h, q, k: alibi(lambda d: -d if q == k else d**2)(h, q, k), {}, "fail", "sign"),
    "first rows": (alibi(d=local), {}, "fail", "buffer_slice_shifted"),
    "mask off by one": (alibi(torch.clone, mask=lambda d: d < -1), {}, "fail", "mask.shows_ahead"),
    "encoder masked": (alibi(torch.clone, mask=lambda d: d < 0), BOTH, "fail", "mask.hides_visible"),
    "bfloat16 positions": (bf16_positions, {}, "fail", "precision.positions_bf16"),
    "bfloat16 product": (
        alibi(torch.clone, out=lambda t: t.bfloat16().float()),
        {"heads": 12},
        "fail",
        "precision.product_bf16",
    ),
    "encoder, linear": (alibi(torch.clone), BOTH, "fail", "bidirectional.ahead_favoured"),
    "encoder, half ahead": (alibi(lambda d: d.where(d > 0, -d / 2)), BOTH, "fail", "bidirectional.ahead_slope"),
    "encoder, shifted": (alibi(lambda d: (d + 1).abs()), BOTH, "fail", "distance.shifted"),
    "root, the same in all heads": (alibi(lambda d: d.abs() ** 0.5, lambda n: [1.0]), CAUSAL, "fail", "mismatch"),
    "geometric, sign": (alibi(lambda d: -d, series), {"heads": 12}, "fail", "sign"),
    "geometric, scaled": (alibi(lambda d: d / 8, series), {"heads": 12}, "fail", "scale.applied_to_bias"),
    "one-sided": (alibi(torch.relu), {**BOTH, "variant": "symmetric"}, "fail", "definition.other_version"),
    "encoder, distance - 1": (alibi(lambda d: (d.abs() - 1).clamp(min=0)), BOTH, "fail", "distance.shifted"),
    "encoder, distance + 1": (alibi(lambda d: d.abs() + (d != 0)), BOTH, "fail", "distance.shifted"),
    "queries' slopes": (of_queries, {**CAUSAL, **EIGHT}, "fail", "axis.queries"),
    "whole numbers": (alibi(out=torch.round), {}, "fail", "precision.whole_numbers"),
    "NaN": (alibi(lambda d: d / 0 * 0), {}, "fail", "subject.not_finite"),
}


class Cut:
    """Cuts a matrix of an earlier call; fewer heads than it has are its first ones where `fewer` is true."""

    def __init__(self, cut, fewer=False, spare=5):
        self.cut, self.fewer, self.spare, self.kept = cut, fewer, spare, torch.zeros(0, 0, 0)

    def __call__(self, h, q, k):
        if self.kept.shape[-1] < k or (len(self.kept) < h if self.fewer else len(self.kept) != h):
            self.kept = alibi()(h, k + self.spare, k + self.spare)
        return self.cut(self.kept[:h], q, k)


def rows(t, q, k):
    return t[:, k - q : k, :k]


def kept_by(key, kept):
    return lambda *size: kept.setdefault(key(*size), alibi()(*size))


STATE = {
    "by all": (kept_by(lambda *size: size, {}), {}, "pass", ""),
    "last rows of a longer one": (Cut(lambda t, q, k: t[:, -q:, :k]), {}, "equivalent", ""),
    "fewer heads": (Cut(rows, fewer=True), {}, "fail", "mask_cached_on_class"),
    "by lengths": (kept_by(lambda h, *lengths: lengths, {}), {}, "fail", "mask_cached_on_class"),
}


def mod(of, n=8, rule=authors):
    m = torch.tensor(rule(n))
    return lambda score, b, h, q, k: of(score, m[h], q, k)


def branching(score, b, h, q, k):
    return -INF if k > q else score - 2.0 ** (-float(h) - 1) * (q - k)


def int16(score, b, h, q, k):
    return score - torch.exp2(-(h + 1.0)) * (q.to(torch.int16) - k.to(torch.int16))


def added(s, m, q, k):
    return s + m * (k - q)


MODS = {
    "plain": (mod(added), EIGHT, "pass", ""),
    "heads not said": (mod(added, 12), {}, "pass", ""),
    "formula, heads not said": (lambda s, b, h, q, k: s + torch.exp2(-(h + 1.0)) * (k - q), {}, "pass", ""),
    "no number of heads": (lambda s, b, h, q, k: s + 0.7 * (k - q), {}, "cannot_tell", ""),
    "branching": (branching, EIGHT, "pass", ""),
    "scaled": (mod(lambda s, m, q, k: added(s, m, q, k) * 0.125), EIGHT, "fail", "score.not_added"),
    "bent": (mod(lambda s, m, q, k: 30 * torch.tanh(s / 30) + m * (k - q)), EIGHT, "fail", "score.not_added"),
    "int16": (int16, EIGHT, "fail", "distance.wrapped"),
    "no window": (branching, {**CAUSAL, **EIGHT, "window": 64}, "fail", "mask.window"),
    "causality left, no window": (mod(added), {**CAUSAL, **EIGHT, "window": 64}, "pass", ""),
}


def windowed(window, value=-INF, both=False):
    return alibi(mask=lambda d: (d.abs() >= window) | ((d < 0) & (not both)), value=value)


def square_only(hidden):
    """Return ALiBi of which hidden(distance) is hidden where there are as many queries as keys, and causality."""

    def bias(h, q, k):
        d = ahead_by(q, k)
        return alibi()(h, q, k).masked_fill(hidden(d) & (q == k), -INF)

    return bias


def dropped(where, window=64):
    """Return a window that some calls drop."""
    return lambda h, q, k: (alibi(mask=lambda d: d < 0) if where(q, k) else windowed(window))(h, q, k)


def refuses_parts(h, q, k):
    if q not in (1, k):
        raise ValueError("one query, or as many as keys")
    return alibi()(h, q, k)


def windowed_mod(window, value=-INF, n=8):
    return mod(lambda s, m, q, k: torch.where((q >= k) & (q - k < window), s - m * (q - k), value), n)


WINDOWS = {
    "one more, by -10,000": (windowed(65, -1e4), {**CAUSAL, "window": 64}, "fail", "mask.window"),
    "one more, and the sign": (alibi(lambda d: -d, mask=lambda d: (d < 0) | (d > 4)), {"window": 4}, "fail", "sign"),
    "not declared": (windowed(5), CAUSAL, "fail", "mask.hides_visible"),
    "both sides": (windowed(5, both=True), {**BOTH, "window": 5}, "pass", ""),
    "both sides, not said": (windowed(5, both=True), {"window": 5}, "pass", ""),
    "both sides, another size": (windowed(9, both=True), {"window": 5}, "fail", "mask.window"),
    "none for one query": (dropped(lambda q, k: q == 1, 4), {**CAUSAL, "window": 4}, "fail", "mask.window"),
    "64, none for one query": (dropped(lambda q, k: q == 1), {**CAUSAL, "window": 64}, "fail", "mask.window"),
    "64, none for a square": (dropped(lambda q, k: q == k), {**CAUSAL, "window": 64}, "fail", "mask.window"),
    "64, none for a part": (dropped(lambda q, k: 1 < q < k), {**CAUSAL, "window": 64}, "fail", "mask.window"),
    "causality of squares alone": (square_only(lambda d: d < 0), CAUSAL, "fail", "mask.shows_ahead"),
    "causality alone, not the window": (alibi(mask=lambda d: d < 0), {**CAUSAL, "window": 4}, "fail", "mask.window"),
    "neither": (alibi(), {**CAUSAL, "window": 4}, "pass", ""),
    "behind alone": (alibi(mask=lambda d: d >= 5), {**BOTH, "window": 5}, "fail", "mask.window"),
    "causality from query 0": (
        alibi(d=local, mask=lambda d: d - d[0, 0] < 0),
        {**CAUSAL, **EIGHT},
        "fail",
        "buffer_slice_shifted",
    ),
    "both sides of a decoder": (windowed(5, both=True), {**CAUSAL, "window": 5}, "fail", "mask.shows_ahead"),
}


TABLES = {"slopes_fn": (SLOPES,), "bias_fn": (BIASES, STATE, WINDOWS), "score_mod": (MODS,)}
ROWS = [(convention, *row) for convention, tables in TABLES.items() for table in tables for row in table.items()]


def judged(subject, convention, spec, status, code):
    report = verify.check(subject, convention=convention, spec={"encoding": "alibi", **spec})
    first = report.causes[0].code if report.causes else ""
    want = code if not code or code.startswith(("alibi.", "subject.")) else f"alibi.{code}"
    assert (report.status, first if code else "") == (status, want), report
    assert bool(report.because) == (status in ("equivalent", "cannot_tell"))
    assert not any("{" in cause.message + cause.fix for cause in report.causes), report
    return report


@pytest.mark.parametrize(("convention", "name", "row"), ROWS, ids=[" ".join(row[:2]) for row in ROWS])
def test_status_and_first_code(convention, name, row):
    report = judged(row[0], convention, *row[1:])
    assert name != "int16" or report.causes[0].smallest_case["k_len"] > 2**15


@pytest.mark.parametrize("value", [-INF, -1e9])
@pytest.mark.parametrize("window", [2, 6, 64, 3000])
def test_one_key_more_or_less_than_a_window_is_reported_by_its_numbers(window, value):
    for make, convention, heads in ((windowed, "bias_fn", {}), (windowed_mod, "score_mod", EIGHT)):
        spec = {**CAUSAL, **heads, "window": window}
        judged(make(window, value), convention, spec, "pass", "")
        for off in (1, -1) if window > 2 else (1,):
            report = judged(make(window + off, value), convention, spec, "fail", "mask.window")
            words = f"a query sees {window + off} keys including its own, but the declared window is {window}"
            assert words in report.causes[0].message
            assert report.causes[0].smallest_case["q_len"] <= report.causes[0].smallest_case["k_len"]


def test_parts_of_several_queries_may_be_refused_and_a_long_window_is_not_asked_of_a_whole_text():
    assert any(
        "(8, 3, 8) raised" in said for said in judged(refuses_parts, "bias_fn", {"heads": 8}, "pass", "").not_judged
    )
    assert judged(authors, "slopes_fn", EIGHT, "pass", "").not_judged == ("slopes of other numbers of heads",)
    left = judged(windowed(3000), "bias_fn", {**CAUSAL, "window": 3000}, "pass", "").not_judged
    assert "the window of 3000 keys in calls of more than 19 queries" in left


def test_a_second_row_of_a_batch_has_the_same_bias():
    def by_row(score, b, h, q, k):
        return score - 2.0 ** -(h + 1.0 + b) * (q - k).abs()

    report = judged(by_row, "score_mod", EIGHT, "fail", "axis.batch")
    assert report.causes[0].smallest_case["heads"] == 8


def test_far_keys_are_not_taken_for_hidden_ones():
    spec = {**CAUSAL, "heads": 32, "window": 20_000}
    judged(windowed_mod(20_000, n=32), "score_mod", spec, "pass", "")
    judged(windowed_mod(20_001, n=32), "score_mod", spec, "fail", "mask.window")


def test_what_a_window_and_an_order_cannot_be():
    for window in (0, -3, True, "64", [64, 0], 3.5):
        with pytest.raises(ValueError, match="window must be the number of keys that a query sees"):
            judged(windowed(4), "bias_fn", {"window": window}, "", "")
    with pytest.raises(ValueError, match="order of ALiBi's heads can only be 'any'"):
        judged(authors, "slopes_fn", {"order": "sorted"}, "", "")


WORDS = [
    (lambda n: [2.0**-h for h in range(n)], "slopes_fn", "-8 (h) / n, not -8 (h + 1) / n; found 1, expected 0.5"),
    (lambda n: authors(2 * n)[:n], "slopes_fn", "the last head is 4, not 8, as in the first 8 slopes of 16 heads"),
    (lambda n: [*authors(n // 2), *[0.0] * (n // 2)], "slopes_fn", "0.003906, ..., and 0 from head 4 on, not 0.5"),
    (lambda n: [*authors(n)[:6], 1, 1], "slopes_fn", "are from head 6 on 1, 1, not from head 6 on 0.007812, 0.003906"),
    (alibi(mask=lambda d: d < -3), "bias_fn", "shows each query 3 keys ahead: its number, or the edge of the mask, is"),
    (lambda n: authors(n)[::-1], "slopes_fn", "another order: the exponents are [8.0, 7.0, 6.0"),
    (alibi(mask=lambda d: d <= 0), "bias_fn", "hides keys that should be visible; found hidden, expected seen"),
    (alibi(mask=lambda d: d - d[0, 0] < 0), "bias_fn", "the mask, or both the mask and the bias, count queries from 0"),
    (mod(lambda s, m, q, k: m * (k - q)), "score_mod", "the score is lost"),
    (alibi(lambda d: d / 8, series), "bias_fn", "0.125 times ALiBi's, that is, divided by sqrt(64)"),
]


def test_a_last_exponent_of_8_is_no_other_base_where_4_is_declared():
    report = judged(authors, "slopes_fn", {**EIGHT, "bias_max": 4}, "fail", "slopes.bias_max")
    assert "the exponent of the last head is 8, not 4; found" in report.causes[0].message


@pytest.mark.parametrize(("subject", "convention", "words"), WORDS)
def test_words_of_findings(subject, convention, words):
    report = verify.check(subject, convention=convention, spec={"encoding": "alibi", **EIGHT})
    assert words in report.causes[0].message
    assert ('"order": "any"' in report.causes[0].fix) == ("order" in words)


def test_what_is_said_of_what_is_right():
    assert judged(alibi(), "bias_fn", {}, "pass", "").not_judged == ("distances from 2,080 on",)
    assert judged(alibi(torch.relu), "bias_fn", BOTH, "pass", "").definitions == ("alibi@one-sided",)


SPECS = [("slopes_fn", {}), ("bias_fn", {**CAUSAL, "heads": 12}), ("bias_fn", BOTH), ("score_mod", EIGHT)]


# a constant of a decoder's rows; of an encoder, whose queries are not asked with a cache, one side left out
@pytest.mark.parametrize(("subject", "is_left"), [(alibi(), True), (windowed(4), False)])
def test_a_window_that_the_bias_leaves_to_others_is_not_judged(subject, is_left):
    report = verify.check(subject, convention="bias_fn", spec={"encoding": "alibi", "heads": 8, **CAUSAL, "window": 4})
    assert report.status == "pass"
    assert ["window of 4" in said for said in report.not_judged] == ([True, False] if is_left else [False])


UNSEEN = {"alibi.distance.shifted", "alibi.buffer_slice_shifted", "alibi.definition.other_version"}


@pytest.mark.parametrize(("convention", "spec"), SPECS)
def test_every_fault_is_named_by_its_own_code_or_by_one_that_predicts_the_same(convention, spec):
    make = partial(biases.family, convention, {"encoding": "alibi", **spec})
    for fault in make().faults():
        family = make()
        model = {**family.truth, **fault.change}
        cases = [case for case in family.cases() if case.kind != "other" and case.args[-1] != PAST_INT16]
        seen = [Seen(case, family.predict(model, case), note=-1e30) for case in cases]
        verdict = settle(family, seen)
        if verdict.status != "fail":
            assert fault.code in UNSEEN or explains(family, family.truth, seen), fault
        elif verdict.faults[0].code != fault.code:
            assert explains(family, {**family.truth, **verdict.faults[0].change}, seen), (fault, verdict.faults)
