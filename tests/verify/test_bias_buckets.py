"""Buckets of distances: faults and innocent oddities, and what is said of each."""

import math

import pytest
import torch

from bias_subjects import bucket, judged
from posenc import definitions
from posenc.verify.biases import rules
from posenc.verify.biases.buckets import agrees


def exactly(rel, both):
    return rules.expected(rules.Rule(bidirectional=both), rel.flatten()).reshape(rel.shape)


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


@pytest.mark.parametrize("name", BUCKETS)
def test_buckets(name):
    subject, spec, *want = BUCKETS[name]
    judged(subject, "bucket_fn", {"encoding": "t5", **spec}, *want)


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize(("nb", "md"), [(32, 128), (64, 300), (12, 50), (128, 2048)])
def test_the_unspoilt_rule_is_the_definition(both, nb, md):
    rule = rules.Rule(nb, md, both)
    rel = rules.distances(rule)
    assert torch.equal(rule.buckets(rel)[0], rules.expected(rule, rel))


@pytest.mark.parametrize("both", [True, False])
def test_every_known_fault_of_a_bucket_is_told_by_its_own_code(both):
    rule = rules.Rule(32, 128, both)
    for fault in rules.faults(rule):
        spoilt = rules.replace(rule, **fault.changes)

        def rows(r, s=spoilt):
            return s.buckets(r)[0]

        if agrees(rows(rules.distances(rule)), rules.distances(rule), rule):
            continue  # it changes nothing with these numbers
        report = judged(rows, "bucket_fn", {"encoding": "t5", "bidirectional": both}, None, "")
        assert report.status != "pass", fault
        if (
            report.status == "fail"
        ):  # two faults may be one function: log(128) for log(128 / 8) is a max_distance of 1024
            at, _ = spoilt.buckets(rules.distances(rule))
            same = {
                f.code
                for f in rules.faults(rule)
                if torch.equal(rules.replace(rule, **f.changes).buckets(rules.distances(rule))[0], at)
            }
            assert report.causes[0].code in same, (fault, report.causes[0])
