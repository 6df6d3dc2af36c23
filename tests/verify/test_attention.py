"""Attention as a whole: each fault planted by itself, next to code that is right and unusual."""

import math

import pytest
import torch

from posenc import verify
from posenc.verify.engine.judge import settle
from posenc.verify.engine.records import CannotTellError, Seen
from posenc.verify.families.attention import family
from posenc.verify.rules import known

ROPE = {"encoding": "rope", "head_dim": 16, "heads": 3, "layout": "half", "base": 10000.0}
ALIBI = {"encoding": "alibi", "heads": 3, "head_dim": 16}
SLOPES = torch.tensor([2.0**-4, 2.0**-8, 2.0**-2])  # of three heads, from the authors' code


def rotate(x, p, base=10000.0, layout="half"):
    rates = base ** (-torch.arange(x.shape[-1] // 2).double() / (x.shape[-1] // 2))
    angle = p.double()[..., None] * rates
    pairs = x.double().chunk(2, -1) if layout == "half" else (x.double()[..., ::2], x.double()[..., 1::2])
    z = torch.complex(*pairs) * torch.polar(torch.ones_like(angle), angle)
    joined = torch.cat((z.real, z.imag), -1) if layout == "half" else torch.view_as_real(z).flatten(-2)
    return joined.to(x.dtype)


def attention(
    of_q=lambda p: p, of_k=lambda p: p, bias=None, causal=True, scale=0.25, base=10000.0, layout="half", sink=None,
    window=None, after=lambda weights: weights, k_base=None, zeta=None, hides=lambda q, k: q < 0,
):  # fmt: skip
    """Return attention(q, k, v, positions) with one choice that may be wrong."""

    def run(q, k, v, positions):
        p = positions
        a, b = rotate(q, of_q(p), base, layout), rotate(k, of_k(p), k_base or base, layout)
        if zeta is not None:
            grade = (torch.arange(8) / 8 + 0.4) / 1.4
            size = torch.cat((grade, grade)) ** (p[:, None] / 512)
            a, b = a * size ** zeta[0], b * size ** zeta[1]
        scores = (q @ k.mT if bias else a @ b.mT) * scale
        scores = scores if bias is None else scores + bias(p)
        apart = torch.arange(len(p))[:, None] - torch.arange(len(p))
        hidden = (apart < 0) & bool(causal) | (apart.abs() >= (window or 10**6)) | hides(index(p)[:, None], index(p))
        scores = scores.masked_fill(hidden, -math.inf)
        if sink is not None:
            column = torch.tensor(sink)[:, None, None].expand(*scores.shape[:-1], 1)
            return torch.cat((scores, column), -1).softmax(-1)[..., :-1] @ v
        return after(scores.softmax(-1)) @ v

    return run


def index(p):
    return torch.arange(len(p))


def still(p):
    return 0 * p


def linear(slopes=SLOPES, by=-1.0, at=lambda p: p):
    return lambda p: by * slopes[:, None, None] * (at(p)[:, None] - at(p)).abs()


def masked_late(weights):
    return weights.tril()


def by_positions(width):
    def run(q, k, v, positions):
        apart = positions[:, None] - positions
        scores = (rotate(q, positions) @ rotate(k, positions).mT * 0.25).masked_fill(
            (apart < 0) | (apart >= width), -math.inf
        )
        return scores.softmax(-1) @ v

    return run


ONE_SIDE = {"encoding": "rope", "head_dim": 16, "heads": 3, "layout": "half", "base": 50000.0}
WINDOW = {**ROPE, "causal": True, "window": 4}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
TABLE = [
    ("rope", attention(), ROPE, "pass"),
    ("another origin", attention(lambda p: p + 7, lambda p: p + 7), ROPE, "pass"),
    ("the other pairing, where none is asked", attention(layout="interleaved"), {"encoding": "rope"}, "pass"),
    ("clockwise", attention(lambda p: -p, lambda p: -p), ROPE, "equivalent"),
    ("another scale", attention(scale=1.0), ROPE, "cannot_tell"),
    ("nothing asked", attention(), {}, "cannot_tell"),
    ("index", attention(index, index), ROPE, "positions.given_ignored"),
    ("no rotation", attention(still, still), ROPE, "rope.not_applied"),
    ("pairing", attention(), {**ROPE, "layout": "interleaved"}, "rope.layout.wrong_pairing"),
    ("another base", attention(base=500000.0), {**ROPE, "base": 123456.0}, "rope.config.theta_not_read"),
    ("base of keys", attention(base=50000.0, k_base=10000.0), ONE_SIDE, "rope.side.differ"),
    ("one side backwards", attention(of_k=lambda p: -p), ROPE, "rope.sign.one_side"),
    ("queries one on", attention(lambda p: p + 1), ROPE, "rope.offset.sides_differ"),
    ("keys still", attention(of_k=still), ROPE, "rope.side.not_turned"),
    ("bfloat16", attention(lambda p: p.bfloat16(), lambda p: p.bfloat16()), ROPE, "rope.precision.positions_bf16"),
    ("a short table", attention(*[lambda p: p.clamp(max=1023)] * 2), ROPE, "rope.table.too_short"),
    ("squares", attention(lambda p: p**2, lambda p: p**2), ROPE, "rope.mismatch"),
    ("ahead", attention(causal=False), {**ROPE, "causal": True}, "attention.not_causal"),
    ("masked after the softmax", attention(causal=False, after=masked_late), ROPE, "attention.weights"),
    # xPos
    ("xpos", attention(zeta=(1, -1)), {**ROPE, "encoding": "xpos"}, "pass"),
    ("xpos without sizes", attention(), {**ROPE, "encoding": "xpos"}, "xpos.scale.missing"),
    # ALiBi
    ("alibi", attention(bias=linear()), ALIBI, "pass"),
    ("alibi upside down", attention(bias=linear(by=1.0)), ALIBI, "alibi.sign"),
    ("alibi scaled", attention(bias=linear(by=-0.25)), ALIBI, "alibi.scale.applied_to_bias"),
    ("no alibi", attention(bias=linear(by=0.0)), ALIBI, "alibi.no_effect"),
    ("alibi and another scale", attention(bias=linear(), scale=1.0), ALIBI, "attention.scale"),
    ("alibi three times", attention(bias=linear(by=-3.0)), ALIBI, "alibi.mismatch"),
    # heads in another order
    ("alibi reversed", attention(bias=linear(SLOPES.flip(0))), ALIBI, "alibi.slopes.head_order"),
    ("alibi reversed, free", attention(bias=linear(SLOPES.flip(0))), {**ALIBI, "order": "any"}, "pass"),
    # nothing can be measured
    ("values only", lambda q, k, v, p: v, ROPE, "cannot_tell"),
    ("values only, causal", lambda q, k, v, p: v, {**ROPE, "causal": True}, "attention.window"),
    # a learned sink for each head, as gpt-oss has
    ("sink", attention(sink=[0.5, 1.0, -1.0]), {**ROPE, "causal": True}, "pass"),
    ("sink and no rotation", attention(still, still, sink=[0.5, 1.0, -1.0]), ROPE, "rope.not_applied"),
    # windows
    ("window", attention(window=4), {**ROPE, "causal": True, "window": 4}, "pass"),
    ("window of both sides", attention(window=4, causal=False), {**ROPE, "causal": False, "window": 4}, "pass"),
    ("half on each side", attention(window=5, causal=False), {**ROPE, "bidirectional": True, "window": 8}, "pass"),
    ("one key more", attention(window=5), {**ROPE, "causal": True, "window": 4}, "attention.window"),
    ("narrow window", attention(window=3), {**ROPE, "causal": True, "window": 8}, "attention.window"),
    ("window ahead", attention(window=4, causal=False), {**ROPE, "causal": True, "window": 4}, "attention.not_causal"),
    ("window by positions", by_positions(4), {**ROPE, "causal": True, "window": 4}, "pass"),
    ("window by positions, far", by_positions(2), {**ROPE, "window": 2, "max_positions": 256}, "pass"),
    ("wide window by positions", by_positions(5), {**ROPE, "causal": True, "window": 4}, "attention.window"),
    ("blocks", attention(hides=lambda q, k: q // 4 != k // 4), WINDOW, "attention.hidden"),
    # masks
    ("own key", attention(hides=lambda q, k: (q == k) & (q > 0)), {**ROPE, "causal": True}, "attention.hidden"),
    ("causal, not asked", attention(), {**ROPE, "causal": False}, "attention.hidden"),
    ("causal, undeclared", attention(causal=True), ROPE, "pass"),
    # values
    ("values rotated", lambda q, k, v, p: attention()(q, k, rotate(v, p), p), ROPE, "attention.values_rotated"),
    # scaling
    ("unscaled", attention(), {**ROPE, "scaling": "linear", "factor": 4.0}, "rope.config.scaling_ignored"),
    ("linear", attention(*[lambda p: p / 4] * 2), {**ROPE, "scaling": {"type": "linear", "factor": 4.0}}, "pass"),
]  # fmt: skip


def code(subject, spec):
    found = verify.check(subject, convention="attention", spec=spec)
    return found.causes[0].code if found.causes else found.status


@pytest.mark.parametrize(("subject", "spec", "name"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_attention(subject, spec, name):
    assert code(subject, spec) == name


@pytest.mark.parametrize(
    ("subject", "spec", "says"),
    [
        (attention(sink=[0.5, 1.0, -1.0]), ROPE, "the size of each head's sink"),
        (attention(hides=lambda q, k: (q - k >= 4) & (k > 0)), WINDOW, "the first keys, of which 1"),
    ],
)  # fmt: skip
def test_a_sink_is_reported(subject, spec, says):
    found = verify.check(subject, convention="attention", spec=spec)
    assert any(said.startswith(says) for said in found.not_judged), found


@pytest.mark.parametrize(("scale", "says"), [(1.0, "4 times"), (1 / 16, "1 / head_dim"), (0.3, "by 0.3, and")])
def test_another_scale_is_measured(scale, says):
    assert says in verify.check(attention(scale=scale), convention="attention", spec=ROPE).because


def bias(heads, q, k):
    apart = torch.arange(k - q, k)[:, None] - torch.arange(k)
    return -(2.0 ** -torch.arange(1.0, heads + 1))[:, None, None] * apart.abs()


@pytest.mark.parametrize(
    ("convention", "right", "is_far", "later", "spec"),
    [
        ("attention", attention(), lambda q, k, v, p: int(p.max()) > 1500, lambda y: y.flip(1), ROPE),
        ("bias_fn", bias, lambda heads, q, k: k > 1000, lambda y: 2 * y, {"encoding": "alibi", "heads": 8}),
        ("rope_fn", rotate, lambda x, p: int(p.max()) > 3000, lambda y: 2 * y, ROPE),
    ],
)
def test_what_a_closure_keeps_of_a_far_call_is_seen(convention, right, is_far, later, spec):
    seen = []

    def subject(*args):
        found = later(right(*args)) if seen else right(*args)
        seen.extend([True] * is_far(*args))
        return found

    found = verify.check(subject, convention=convention, spec=spec)
    assert [cause.code.partition(".")[2] for cause in found.causes] == ["state_kept"]


@pytest.mark.parametrize(
    ("subject", "says"),
    [
        (attention(still, still), "expected"),
        (attention(after=lambda w: -w), "a weight is -1"),
        (attention(after=lambda w: 2 * w), "sum to 2"),
    ],
)
def test_the_message_has_numbers(subject, says):
    cause = verify.check(subject, convention="attention", spec=ROPE).causes[0]
    assert says in cause.message
    assert cause.evidence > 0.1


@pytest.mark.parametrize(("asked", "every"), [(ROPE, 9), (ALIBI, 1)])
def test_each_fault_is_told_from_all_others(asked, every):
    """Answers as a fault predicts them get its name, or that of an earlier fault with the same answers."""
    judge = family("attention", asked)
    cases = list(judge.cases())
    for case in cases:
        judge.observe(by_row(lambda i: i, causal=False), case)
    names = [fault.code for fault in judge.faults()]
    assert set(names) <= set(known())
    for fault in [*judge.faults()][::every]:
        seen = [Seen(case, _weights(judge, {**judge.truth, **fault.change}, case)) for case in cases]
        try:
            verdict = settle(judge, seen)
        except CannotTellError:  # a gain is not distinguished from a scale
            continue
        if verdict.status == "fail":  # else it changes nothing under this specification
            assert names.index(verdict.faults[0].code) <= names.index(fault.code), (fault, verdict.faults[0])


def _weights(judge, model, case):
    product, bias = judge.predict(model, case)
    return torch.from_numpy(judge.scale * product + bias).log_softmax(-1).numpy()


def by_row(which, **switches):
    """Attend row by row, each with the positions of a row of (batch, seq), if there are rows."""

    def run(q, k, v, positions):
        rows = positions if positions.ndim > 1 else positions.expand(len(q), -1)
        parts = zip(q, k, v, strict=True)
        return torch.stack(
            [attention(**switches)(*(t[None] for t in part), rows[which(i)])[0] for i, part in enumerate(parts)]
        )

    return run


def test_rows_of_a_batch_have_their_own_positions():
    def judged(subject):
        return verify.check(subject, convention="attention", spec=ROPE | {"causal": True})

    assert judged(by_row(lambda i: i)).status == "pass"
    assert judged(by_row(lambda i: 0)).causes[0].code == "attention.batch.rows_share"
    alone = judged(attention())  # takes one row of positions
    assert alone.status == "pass"
    assert any(said.startswith("rows of a batch with other positions: ") for said in alone.not_judged)
