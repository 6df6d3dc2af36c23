"""Biases out of tables: buckets, row numbers of windows, and tables that are not shown."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from posenc import definitions, verify
from posenc.verify.engine import Choice, Seen
from posenc.verify.engine.judge import explains, settle
from posenc.verify.families import buckets

INF = math.inf
BOTH, PAST = {"bidirectional": True}, {"bidirectional": False}


def bucket(
    rel, both=True, nb=32, md=128, *, last=lambda side: side - 1, exact=lambda side: side // 2, log=None, ahead=None
):
    """Return T5's buckets, with one part of the rule exchanged."""
    start = torch.zeros_like(rel)
    if both:
        nb //= 2
        start = (rel > 0).long() * (nb if ahead is None else ahead)
    n = rel.abs() if both else (-rel).clamp(min=0)
    half = exact(nb)
    ratio = n.clamp(min=1).float() / half
    share = torch.log(ratio) / math.log(md / half) * (nb - half) if log is None else log(ratio, half, nb, md)
    return start + torch.where(n < half, n, (half + share.long()).clamp(max=last(nb)))


MID, DEBERTA = "deberta.bucket.num_buckets_hardwired", "deberta.bucket.formula"


def deberta(rel, count=256):
    rows = [definitions.scores._deberta_bucket(-int(r), count, 512) for r in rel.flatten()]
    return torch.tensor(rows).reshape(rel.shape)


def past(rel, **options):
    return bucket(rel, False, **options)


def by_all(ratio, exact, side, top):
    return torch.log(ratio) / math.log(top) * (side - exact)


def only_in_lists(relative_position):
    return [int(bucket(torch.tensor(int(one)))) for one in relative_position]


def without_exact(ratio, half, nb, md):
    return torch.where(ratio < 1, 0.0, (torch.log(ratio) / math.log(md / half) * (nb - half)).floor() - half)


BUCKETS = {
    "both": (bucket, BOTH, "pass", ""),
    "only lists": (only_in_lists, BOTH, "pass", ""),
    "not said": (bucket, {}, "pass", ""),
    "past": (past, PAST, "pass", ""),
    "any direction": (lambda r: bucket(-r), {**BOTH, "direction": "any"}, "equivalent", ""),
    "deberta": (deberta, {"encoding": "deberta"}, "pass", ""),
    "direction": (lambda r: bucket(-r), BOTH, "fail", "t5.bucket.direction"),
    "direction, past": (lambda r: past(-r), PAST, "fail", "t5.bucket.direction"),
    "end one too high": (partial(bucket, last=lambda side: side), BOTH, "fail", "t5.bucket.not_clamped"),
    "past for both": (past, BOTH, "fail", "t5.bucket.bidirectional"),
    "no sign": (lambda r: bucket(-r.abs()), BOTH, "fail", "t5.bucket.sign_lost"),
    "always 128": (bucket, {**BOTH, "max_distance": 256}, "fail", "t5.bucket.max_distance_hardwired"),
    "always 32": (bucket, {**BOTH, "num_buckets": 64}, "fail", "t5.bucket.num_buckets_hardwired"),
    "minus missing": (lambda r: r.clamp(max=0), PAST, "fail", "t5.bucket.not_absolute"),
    "key + 1": (lambda r: bucket(r + 1), BOTH, "fail", "t5.bucket.off_by_one"),
    "key + 1, ahead": (lambda r: bucket(r - (r > 0).long()) + 16 * (r == 1), BOTH, "fail", "t5.bucket.off_by_one"),
    "span": (partial(bucket, log=by_all), BOTH, "fail", "t5.bucket.formula"),
    "no span": (partial(bucket, log=lambda x, e, n, top: torch.log(x) * (n - e)), BOTH, "fail", "t5.bucket.formula"),
    "octaves": (partial(past, log=lambda x, *_: torch.log2(x)), PAST, "fail", "t5.bucket.formula"),
    "share alone": (partial(bucket, log=without_exact), BOTH, "fail", "t5.bucket.formula"),
    "ahead from 32 on": (partial(bucket, ahead=32), BOTH, "fail", "t5.bucket.renumbered"),
    "128 and 64": (partial(bucket, nb=128, md=64), BOTH, "fail", "t5.bucket.num_buckets_hardwired"),
    "within the exact ones": (partial(bucket, md=4), {**BOTH, "max_distance": 4}, "cannot_tell", ""),
    "by the longest": (lambda r: r.abs() * 31 // r.abs().max(), BOTH, "fail", "t5.bucket.not_by_distance"),
    "float": (lambda r: bucket(r).float(), BOTH, "fail", "t5.bucket.not_integer"),
    "t5 for deberta": (partial(bucket, nb=256, md=512), {"encoding": "deberta"}, "fail", "deberta.bucket.formula"),
    "deberta ahead": (lambda r: torch.where(r < 0, -r, deberta(r)), {"encoding": "deberta"}, "fail", DEBERTA),
    "no deberta": (lambda r: r, {"encoding": "deberta"}, "fail", "deberta.bucket.formula"),
}


def judged(subject, convention, spec, status, code):
    report = verify.check(subject, convention=convention, spec=spec)
    first = report.causes[0].code if report.causes else ""
    assert (report.status, first if code else "") == (status, code), report
    assert not any("{" in cause.message + cause.fix for cause in report.causes), report
    return report


def test_buckets_that_two_faults_give_alike_are_reported_with_both():
    by_side = partial(bucket, log=lambda ratio, half, nb, md: torch.log(ratio) / math.log(md / nb) * (nb - half))
    report = judged(by_side, "bucket_fn", BOTH, "fail", "t5.bucket.max_distance_hardwired")
    assert "max_distance is 64, not 128, or the logarithm is divided by log(max_distance / side)" in str(report)
    report = judged(partial(deberta, count=512), "bucket_fn", {"encoding": "deberta"}, "fail", MID)
    assert "there are 512 buckets, not 256, or mid is num_buckets, not num_buckets // 2" in str(report)


@pytest.mark.parametrize("both", [True, False])
def test_every_fault_of_a_bucket_is_named_by_its_own_code_or_by_one_that_predicts_the_same(both):
    for fault in buckets.family("bucket_fn", {"bidirectional": both}).faults():
        family = buckets.family("bucket_fn", {"bidirectional": both})
        case = next(iter(family.cases()))
        seen = [Seen(case, family.predict({**family.truth, **fault.change}, case), 0.0)]
        verdict = settle(family, seen)
        if verdict.status != "fail":
            right = ({**family.truth, **choice.change} for choice in (Choice({}), *family.free()))
            assert any(explains(family, model, seen) for model in right), fault
        elif verdict.faults[0].code != fault.code:
            assert explains(family, {**family.truth, **verdict.faults[0].change}, seen), (fault, verdict.faults)


def index(h, w, step=lambda h, w: 2 * w - 1, sign=1, absolute=False, shift=True, by_columns=False):
    n = torch.arange(h * w)
    y, x = (n % h, n // h) if by_columns else (n // w, n % w)
    dy, dx = sign * (y[:, None] - y), sign * (x[:, None] - x)
    if absolute:
        dy, dx = dy.abs(), dx.abs()
    return (dy + (h - 1) * shift) * step(h, w) + dx + (w - 1) * shift


def shuffled(h, w):
    return torch.randperm((2 * h - 1) * (2 * w - 1), generator=torch.Generator().manual_seed(0))[index(h, w)]


def each_pair(h, w):
    return torch.arange((h * w) ** 2).reshape(h * w, h * w) % ((2 * h - 1) * (2 * w - 1))


def down_the_columns(h, w):
    n = torch.arange(h * w)
    y, x = n // w, n % w
    return (x[:, None] - x + w - 1) * (2 * h - 1) + y[:, None] - y + h - 1


def test_a_known_order_of_rows_is_named():
    for made, words in (
        (partial(index, sign=-1), "(steps are counted as key - query)"),
        (down_the_columns, "(row (dx + w - 1) (2 h - 1) + dy + h - 1)"),
        (shuffled, "rows of another implementation do not fit"),
    ):
        assert judged(made, "relative_index_fn", SWIN, "equivalent", "").because.endswith(words)


INDICES = {
    "plain": (index, {}, "pass", ""),
    "other sign": (partial(index, sign=-1), {}, "equivalent", ""),
    "shuffled": (shuffled, {}, "equivalent", ""),
    "columns": (partial(index, by_columns=True), {}, "fail", "swin.index.axes_swapped"),
    "step of h": (partial(index, step=lambda h, w: 2 * h - 1), {"window": (3, 5)}, "fail", "swin.index.collision"),
    "no sign": (partial(index, absolute=True), {}, "fail", "swin.index.collision"),
    "step long": (partial(index, step=lambda h, w: 2 * w), {}, "fail", "swin.index.out_of_table"),
    "each pair": (each_pair, {}, "fail", "swin.index.not_by_distance"),
    "not whole": (lambda h, w: index(h, w) / 2, {}, "fail", "swin.index.not_integer"),
    "shape": (lambda h, w: index(h, w)[0], {}, "fail", "subject.shape"),
}


class T5(nn.Module):
    """A table of T5 behind `bias(heads, q_len, kv_len)`."""

    def __init__(self, both=True, local=False, sign=1, md=128):
        super().__init__()
        self.table = nn.Embedding(32, 4)
        self.both, self.local, self.sign, self.md = both, local, sign, md

    def forward(self, heads, q, k):
        at = torch.arange(q) + (0 if self.local else k - q)
        rel = self.sign * (torch.arange(k) - at[:, None])
        return self.table(bucket(rel, self.both, md=self.md)).permute(2, 0, 1)


class Scaled(T5):
    """The same, divided by the root of a head_dim of 64."""

    def __init__(self, *, by=1 / 8, **options):
        super().__init__(**options)
        self.by = by

    def forward(self, heads, q, k):
        return super().forward(heads, q, k) * self.by


class ScaledScores(Scaled):
    """Scores with a scaled row."""

    def forward(self, score, batch, head, q, k):
        return score + self.table(past(k - q))[..., head] * self.by


def hidden(module, change=lambda t, q, k: t):
    """Return the bias of a table that is not shown, with what else becomes of it."""
    return lambda h, q, k: change(module(h, q, k).detach(), q, k)


def masked(gone):
    return lambda t, q, k: t.masked_fill(gone(torch.arange(k - q, k)[:, None] - torch.arange(k)), -INF)


def decoder(window):
    return masked(lambda d: (d < 0) | (d >= window))


class ByKeys:
    """Keeps a bias by the number of keys."""

    def __init__(self):
        self.bias, self.kept = hidden(T5(False)), {}

    def __call__(self, h, q, k):
        return self.kept.setdefault(k, self.bias(h, q, k))


def viewed(bias):
    """Return heads moved by a view, not by a permutation."""
    return lambda h, q, k: bias(h, q, k).permute(1, 2, 0).reshape(h, q, k)


def clipped(h, q, k, first=None, size=abs):
    at = torch.arange(q) + (k - q if first is None else first)
    rows = torch.randn(33, 4, generator=torch.Generator().manual_seed(2))
    return rows[16 + size(torch.arange(k) - at[:, None]).clamp(-16, 16)].permute(2, 0, 1)


def own_number(h, q, k):
    d = torch.arange(k - q, k)[:, None] - torch.arange(k)
    return torch.sin(torch.arange(1, 5).double()[:, None, None] * (d + 1000) ** 2)


def swin(**options):
    table = torch.randn(400, 3, generator=torch.Generator().manual_seed(1))
    return lambda h, q, k: table[index(3, 5, **options)].permute(2, 0, 1)


ENCODER, DECODER = {"encoding": "t5", **BOTH}, {"encoding": "t5", **PAST}
SWIN, CLIPPED = {"encoding": "swin_bias", "window": (3, 5)}, {"encoding": "relative_bias", "causal": True, "heads": 4}
OPEN = {"encoding": "relative_bias", "heads": 4, "max_distance": 16}
T5_FROM_0 = "t5.kv_cache.query_from_zero"
OPEN_FROM_0 = "relative_bias.kv_cache.query_from_zero"
both_sides = masked(lambda d: d.abs() > 20)
TABLES = {
    "encoder": (T5(), ENCODER, "pass", ""),
    "decoder": (T5(False), DECODER, "pass", ""),
    "hidden": (hidden(T5()), ENCODER, "pass", ""),
    "ends": (hidden(T5(), lambda t, q, k: t if k <= 100 else 1 / 0), ENCODER, "pass", ""),
    "empty": (hidden(T5(), lambda t, q, k: t * 0), ENCODER, "cannot_tell", ""),
    "other sign": (T5(sign=-1), ENCODER, "fail", "t5.bucket.direction"),
    "always 64": (hidden(T5(md=64)), ENCODER, "fail", "t5.bucket.max_distance_hardwired"),
    "scaled": (Scaled(), ENCODER, "equivalent", ""),
    "scaled, other sign": (Scaled(sign=-1), ENCODER, "fail", "t5.bucket.direction"),
    "scaled by -1": (Scaled(by=-1), ENCODER, "fail", "t5.scale.applied_to_bias"),
    "heads viewed": (viewed(hidden(T5())), ENCODER, "fail", "t5.bias.heads_viewed"),
    "from 0": (T5(False, local=True), DECODER, "fail", "t5.kv_cache.query_from_zero"),
    "dropped": (hidden(T5(False), lambda t, q, k: t * (q > 1)), DECODER, "fail", "t5.decode.bias_dropped"),
    "last row": (hidden(T5(False), lambda t, q, k: t if q == k else t[:, -1:]), DECODER, "fail", T5_FROM_0),
    "kept": (ByKeys(), DECODER, "fail", "t5.bias.state_kept"),
    "by places": (lambda *n: torch.arange(math.prod(n)).reshape(n), DECODER, "fail", "t5.bias.not_by_distance"),
    "window": (hidden(T5(False), decoder(64)), {**DECODER, "window": 64}, "pass", ""),
    "one key more": (hidden(T5(False), decoder(65)), {**DECODER, "window": 64}, "fail", "t5.mask.window"),
    "window not said": (hidden(T5(False), decoder(64)), DECODER, "fail", "t5.mask.hides_visible"),
    "both sides": (hidden(T5(), both_sides), {**ENCODER, "window": 20}, "pass", ""),
    "both sides, past": (hidden(T5(False), both_sides), {**DECODER, "window": 21}, "fail", "t5.mask.shows_ahead"),
    "mask off by one": (hidden(T5(False), masked(lambda d: d < -1)), DECODER, "fail", "t5.mask.shows_ahead"),
    "own numbers, clipped": (own_number, {**CLIPPED, "max_distance": 16}, "fail", "relative_bias.mismatch"),
    "from 0, sides open": (partial(clipped, first=0, size=lambda d: d), OPEN, "fail", OPEN_FROM_0),
    "swin": (swin(), SWIN, "pass", ""),
    "swin, heads viewed": (viewed(swin()), SWIN, "fail", "swin.bias.heads_viewed"),
    "swin, no window": (swin(), {"encoding": "swin"}, "cannot_tell", ""),
    "swin, collision": (swin(step=lambda h, w: 2 * h - 1), SWIN, "fail", "swin.index.collision"),
}


ALL = (("bucket_fn", "t5", BUCKETS), ("relative_index_fn", "swin", INDICES), ("bias_fn", "", TABLES))
ROWS = [
    (convention, name, subject, {"encoding": encoding, **spec}, *want)
    for convention, encoding, table in ALL
    for name, (subject, spec, *want) in table.items()
]


@pytest.mark.parametrize("row", ROWS, ids=[" ".join(row[:2]) for row in ROWS])
def test_status_and_first_code(row):
    convention, _, subject, spec, *want = row
    judged(subject, convention, spec, *want)


def test_score_mods_of_a_table():
    table = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    spec = {**DECODER, "heads": 4}
    judged(lambda s, b, h, q, k: s + table[past(k - q), h], "score_mod", spec, "pass", "")
    judged(ScaledScores(), "score_mod", spec, "fail", "t5.scale.applied_to_bias")
    judged(lambda s, b, h, q, k: s + 0 * table[past(k - q), h], "score_mod", spec, "cannot_tell", "")
    for words, change in (
        ("the score is lost", lambda s, bias: bias),
        ("the score is multiplied by 0.25", lambda s, bias: (s + bias) / 4),
        ("the score is multiplied by the bias", lambda s, bias: s * bias),
        ("a score of -2.5 is returned as", lambda s, bias: (s + bias).exp()),
    ):
        mod = lambda s, b, h, q, k, change=change: change(s, table[past(k - q), h])  # noqa: E731
        report = judged(mod, "score_mod", spec, "fail", "t5.score.not_added")
        assert report.causes[0].message.startswith(words)
    judged(lambda s, b, h, q, k: s + table[bucket(k - q), h], "score_mod", spec, "fail", "t5.bucket.bidirectional")


def test_what_is_not_judged_of_a_table():
    fewer = (
        "calls with fewer queries than keys: if the model is not causal, queries have no declared place among the keys"
    )
    report = judged(hidden(T5()), "bias_fn", ENCODER, "pass", "")
    assert report.not_judged == (fewer, "which row of the table belongs to a distance: the table is not visible")
    assert judged(T5(), "bias_fn", ENCODER, "pass", "").not_judged == (fewer,)
    because = judged(Scaled(), "bias_fn", ENCODER, "equivalent", "").because
    assert because == "the bias is 0.125 times the rows of the table, right if the scores are scaled likewise"
    alike = judged(hidden(T5(), lambda t, q, k: t[:1].expand_as(t)), "bias_fn", ENCODER, "pass", "")
    assert "whether each head has a bias of its own: all heads have the same numbers" in alike.not_judged
    ahead = "keys ahead of the query, which are right only if a causal mask hides them"
    assert ahead in judged(clipped, "bias_fn", OPEN, "pass", "").not_judged
    assert ahead not in judged(partial(clipped, size=lambda d: d), "bias_fn", OPEN, "pass", "").not_judged
    assert "dy" in judged(partial(index, absolute=True), "relative_index_fn", SWIN, "fail", "").causes[0].message


def test_buckets_must_leave_some_to_each_side():
    with pytest.raises(ValueError, match="num_buckets must be 2 or more for a side; got 1 in all"):
        verify.check(bucket, convention="bucket_fn", spec={"encoding": "t5", "num_buckets": 1})
