"""Slopes in another order, in another series than powers of two, and along another axis than the heads."""

import pytest
import torch

from bias_subjects import ALIBI, column, geometric, judged, slopes, steps
from posenc import verify

CAUSAL = {**ALIBI, "causal": True}
ORDERS = {
    "sorted": lambda n: sorted(slopes(n), reverse=True),
    "sorted upwards": lambda n: sorted(slopes(n)),
    "reversed": lambda n: slopes(n)[::-1],
    "any": lambda n: slopes(n)[1:] + slopes(n)[:1],
}
SERIES = {
    "linear": (lambda n: [(h + 1) / n for h in range(n)], "(h + 1) / n"),
    "falling": (lambda n: [(n - h) / n for h in range(n)], "(n - h) / n"),
    "harmonic": (lambda n: [1 / (h + 1) for h in range(n)], "1 / (h + 1)"),
    "equal steps": (lambda n: torch.linspace(1.0, 0.1, n), "equal steps"),
}


def along(rule):
    return lambda h, q, k: -column(h, lambda n: [float(s) for s in rule(n)]) * steps(q, k)


@pytest.mark.parametrize("name", ORDERS)
def test_another_order_is_equivalent_and_warns_of_trained_weights(name):
    rule = ORDERS[name]
    for subject, convention, spec in ((rule, "slopes_fn", ALIBI), (along(rule), "bias_fn", CAUSAL)):
        report = judged(subject, convention, spec, "equivalent", "")
        assert "weights that were trained with the usual order need it" in report.because
    how = {"sorted upwards": "sorted", "reversed": "from the last head to the first"}.get(name, name)
    assert (f"another order, {how}" in report.because) == (name != "any")


@pytest.mark.parametrize("name", SERIES)
def test_a_series_that_is_not_geometric_is_named(name):
    rule, words = SERIES[name]
    for subject, convention, spec in ((rule, "slopes_fn", ALIBI), (along(rule), "bias_fn", CAUSAL)):
        report = judged(subject, convention, spec, "fail", "alibi.slopes.not_geometric")
        assert words in report.causes[0].message


def test_what_follows_a_series_in_some_numbers_only_is_not_named_after_it():
    judged(lambda n: [(h + 1) / n for h in range(n)] if n < 20 else [0.3**h for h in range(n)], "slopes_fn", ALIBI,
           "fail", "alibi.slopes.ratio")  # fmt: skip
    judged(lambda n: torch.rand(n, generator=torch.Generator().manual_seed(n)), "slopes_fn", ALIBI, "fail",
           "alibi.mismatch")  # fmt: skip


def test_exponents_are_written_as_people_write_them():
    report = verify.check(lambda n: [2.0**-h for h in range(n)], convention="slopes_fn", spec=ALIBI)
    assert "The exponents start at 0 and fall by 1 a head" in report.causes[0].message


QUERIES = {
    "as many as queries": lambda h, q, k: -torch.tensor(geometric(q))[None, :, None] * steps(q, k),
    "as many as heads": lambda h, q, k: -torch.tensor(geometric(h))[:, None] * steps(q, k),
}
KEYS = {
    "as many as keys": lambda h, q, k: -torch.tensor(geometric(k)) * steps(q, k),
    "as many as heads": lambda h, q, k: -torch.tensor(geometric(h)) * steps(q, k),
}


@pytest.mark.parametrize("heads", [{}, {"heads": 8}])
@pytest.mark.parametrize("name", ["as many as queries", "as many as heads"])
def test_slopes_along_queries_are_named(name, heads):
    judged(QUERIES[name], "bias_fn", {**CAUSAL, **heads}, "fail", "alibi.axis.queries")


@pytest.mark.parametrize("heads", [{}, {"heads": 8}])
@pytest.mark.parametrize("name", KEYS)
def test_slopes_along_keys_are_named(name, heads):
    judged(KEYS[name], "bias_fn", {**CAUSAL, **heads}, "fail", "alibi.axis.keys")


def test_slopes_of_a_score_mod_that_are_looked_up_by_the_query_or_the_key():
    m, eight = torch.tensor(geometric(8)), {**CAUSAL, "heads": 8}
    by_formula = lambda s, b, h, q, k: s + torch.exp2(-(q + 1.0)) * (k - q)  # noqa: E731
    by_table = lambda s, b, h, q, k: s + m[q] * (k - q)  # noqa: E731
    by_key = lambda s, b, h, q, k: s + torch.exp2(-(k + 1.0)) * (k - q)  # noqa: E731
    judged(by_formula, "score_mod", eight, "fail", "alibi.axis.queries")
    judged(by_table, "score_mod", eight, "fail", "alibi.axis.queries")
    judged(by_key, "score_mod", eight, "fail", "alibi.axis.keys")


def test_a_bias_that_is_the_same_in_all_heads_by_another_fault_is_not_named_so():
    judged(lambda h, q, k: -0.5 * steps(q, k), "bias_fn", CAUSAL, "fail", "alibi.slopes.shared")
    judged(lambda h, q, k: -(steps(q, k).abs() ** 0.5), "bias_fn", CAUSAL, "fail", "alibi.mismatch")
