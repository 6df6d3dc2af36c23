"""Functions of positions and of table rows: each fault planted by itself, next to what is right and merely unusual."""

import pytest
import torch
import torch.nn.functional as F

from posenc import verify
from posenc.verify.engine import Seen
from posenc.verify.engine.judge import explains, settle
from posenc.verify.families.counts import family
from posenc.verify.rules import known

OPT = {"encoding": "learned", "offset": 2, "table_rows": 130, "max_positions": 128}
OPEN = {"encoding": "learned"}


def count(m, q):
    return (m.cumsum(-1) - 1)[:, -q:]


def columns(m, q):
    return torch.arange(m.shape[1])[-q:].expand(len(m), -1)


def filled(m, fill):
    return (m.cumsum(-1) - 1).masked_fill(m == 0, fill)


def past(m, q):
    return m[:, : m.shape[1] - q].sum(-1, keepdim=True) + torch.arange(q)


def calls(prefill=count, decode=None, chunk=None):
    """Return a function that counts in its own way in each kind of call; decode and chunk are right if not given."""

    def positions(attention_mask, q_len):
        if q_len == attention_mask.shape[1]:
            return prefill(attention_mask, q_len)
        return ((decode if q_len == 1 else chunk) or count)(attention_mask, q_len)

    return positions


class Stateful:
    """Counts on by itself after a prefill: padded slots get a number, and a decode step goes so far.

    Masks of `least` columns begin a text.
    """

    def __init__(self, pads=-1, step=1, least=1):
        self.pads, self.step, self.least, self.now = pads, step, least, torch.zeros(0)

    def __call__(self, m, q):
        decodes = q == 1 and m.shape[1] > self.least and len(self.now) == len(m)
        self.now = self.now[:, -1:] + self.step if decodes else filled(m, self.pads)[:, -q:]
        return self.now + 1 - self.step if decodes else self.now


class Unending:
    """Counts the columns that it was given, and never begins anew."""

    def __init__(self):
        self.seen = 0

    def __call__(self, m, q):
        self.seen += q
        return torch.arange(self.seen - q, self.seen).expand(len(m), -1)


def keyword_only(attention_mask, *, q_len):
    return count(attention_mask, q_len)


def ends(at):
    def positions(m, q):
        if m.shape[1] > at:
            raise IndexError(f"the table ends at {at}")
        return count(m, q)

    return positions


def minus_padding(m, q):
    return (torch.arange(m.shape[1]) - (1 - m).sum(-1, keepdim=True))[:, -q:]


def newest_for_all(m, q):
    return count(m, q)[:, -1:].expand(-1, q)


def newest(m, q):
    return count(m, q) + 1 - m.sum(-1, keepdim=True)


# (words of the specification, status or code: subjects); what is right is merely unusual
LEFT, RIGHT, ANY = {"padding": "left"}, {"padding": "right"}, {"padding": "left", "origin": "any"}
DOWN = {"positions.reversed": [lambda m, q: (m.cumsum(-1) - 1).flip(-1)[:, -q:], lambda m, q: -count(m, q)]}
POSITIONS = [
    (LEFT, {
        "pass": [
            *(count, keyword_only, Stateful(), Stateful(pads=1), minus_padding, ends(600), ends(8192)),
            lambda m, q: count(m, q).T.contiguous().T.float().clamp(min=0),
            *(lambda m, q: count(m, q).int().tolist(), lambda m, q: count(m, q)[:, None]),
            lambda m, q: count(m, q) if m.dtype is torch.bool else 1 / 0,
        ],
        "equivalent": [lambda m, q: count(m, q) + 1],
        "subject.shape": [lambda m, q: count(m, m.shape[1])],
        "positions.left_padding": [columns, past, lambda m, q: columns(m, q) + (m.shape[1] > 4000) * 7],
        "positions.left_padding.decode_lost": [
            *(calls(decode=columns, chunk=columns), calls(decode=columns)),
            calls(decode=columns, chunk=lambda m, q: count(m, q) * 3),  # a second wrong branch hides nothing
        ],
        "positions.padded_width_in_decode": [calls(decode=lambda m, q: m.sum(-1).max().expand(len(m), 1) - 1)],
        "positions.past_ignored": [calls(decode=lambda m, q: 0 * count(m, q)), lambda m, q: filled(m, 1)[:, :q]],
        "positions.chunked_prefill": [calls(chunk=way) for way in (columns, past, lambda m, q: count(m[:, -q:], q))],
        "positions.chunked_prefill.double_counted": [lambda m, q: count(m, q) + m.shape[1] - q],
        "positions.constant_in_chunk": [
            *(newest_for_all, calls(chunk=newest_for_all), lambda m, q: 0 * count(m, q)),
        ],
        "positions.shortest_row_for_all": [lambda m, q: columns(m, q) - (1 - m).sum(-1).max()],
        "positions.mask_inverted": [lambda m, q: ((1 - m).cumsum(-1) - 1)[:, -q:]],
        "positions.first_row_for_all": [lambda m, q: count(m, q)[:1].expand(len(m), -1)],
        "positions.axis.batch": [lambda m, q: (m.cumsum(0) - 1)[:, -q:]],
        "positions.off_by_one": [calls(decode=lambda m, q: count(m, q) + 1), Stateful(step=0)],
        "positions.precision": [lambda m, q: (m.bfloat16().cumsum(-1) - 1)[:, -q:], lambda m, q: count(m, q).half()],
        "positions.clamped": [lambda m, q: count(m, q).clamp(max=2047)],
        "positions.wrapped": [lambda m, q: count(m, q).short(), lambda m, q: count(m, q) % 1024],
        "positions.origin_moves": [newest],
        "positions.state_kept": [Stateful(least=0)],  # a prompt of one token goes on from another text
        "positions.mismatch": [lambda m, q: count(m, q) ** 2],
        **DOWN,
    }),
    (RIGHT, {
        "pass": [count],
        "positions.right_padding.increment": [Stateful(pads=1), columns],
        "positions.padding_twice": [minus_padding],
        "positions.origin_moves": [newest],
        **DOWN,
    }),
    ({"padding": "both"}, {
        "positions.right_padding.increment": [lambda m, q: columns(m, q) - m.argmax(-1, keepdim=True)],
    }),
    (ANY, {
        "equivalent": [newest, columns],
        "positions.left_padding.decode_lost": [calls(decode=columns, chunk=columns)],
        "positions.past_ignored": [calls(decode=lambda m, q: 0 * count(m, q))],
    }),
    ({**RIGHT, "origin": "any"}, {"equivalent": [newest]}),
    ({}, {"pass": [minus_padding]}),
    ({"padding": "both"}, {"pass": [count], "positions.padded_width_in_decode": [calls(count, columns, columns)]}),
    ({"padding": "none"}, {"pass": [columns], "positions.state_kept": [Unending()]}),
    ({**LEFT, "start": 1}, {"pass": [lambda m, q: count(m, q) + 1]}),
    ({**LEFT, "start": 2}, {"positions.off_by_one": [count, lambda m, q: columns(m, q)]}),
    ({**LEFT, "encoding": "learned"}, {"positions.off_by_one": [lambda m, q: count(m, q) + 1]}),
    ({**LEFT, "max_positions": 131_072}, {"positions.precision": [lambda m, q: count(m, q).half()]}),  # infinite ones
    ({**LEFT, "max_positions": 32_000}, {"pass": [lambda m, q: count(m, q).clamp(max=32_000)]}),
    ({**LEFT, "max_positions": 501}, {"subject.raises": [ends(500)]}),
    *(({**LEFT, "max_positions": at}, {"pass": [ends(at)]}) for at in (1, 3, 9, 500)),
]  # fmt: skip


def restarted(cu):
    return torch.cat([torch.arange(n) for n in cu.diff().tolist()])


def index(cu):
    return torch.arange(int(cu[-1]))


def searched(cu, right=True):
    at = index(cu).to(cu.dtype)
    return at - cu[(torch.searchsorted(cu, at, right=right) - 1).clamp(min=0)]


def scattered(cu):
    step = torch.ones(int(cu[-1]), dtype=torch.long)
    step[0] = 0
    step[cu[1:-1].long()] = 1 - cu.diff()[:-1].long()
    return step.cumsum(0)


def numbers(cu):
    return torch.repeat_interleave(torch.arange(1, len(cu)), cu.diff())


PACKED = {"packed": True}
DOCUMENTS = [
    (PACKED, {
        "pass": [
            *(restarted, searched, lambda cu: searched(cu)[None], lambda cu: restarted(cu).float().tolist()),
            lambda cu: restarted(cu) if cu.dtype is torch.int64 else 1 / 0,
        ],
        "equivalent": [lambda cu: restarted(cu) + 1],
        "positions.packed_not_reset": [
            index,
            lambda cu: restarted(cu) + F.pad(cu.diff(), (1, 0))[numbers(cu) - 1],  # each goes on from the one before
            lambda cu: restarted(torch.cat((cu[: max(len(cu) - 2, 1)], cu[-1:]))),  # the last one goes on
        ],
        "positions.packed.own_length": [lambda cu: index(cu) - cu.diff()[numbers(cu) - 1]],
        "positions.packed.modulo_wrap": [lambda cu, n=n: index(cu) % n for n in (4, 512)],
        "positions.packed.previous_length": [lambda cu: index(cu) - F.pad(cu.diff(), (1, 0))[numbers(cu) - 1]],
        "positions.packed.boundary": [
            lambda cu: searched(cu, right=False),
            lambda cu: F.pad(restarted(cu)[:-1], (1, 0)),  # documents begin one token late
        ],
        "positions.packed.off_by_one": [lambda cu, n=n: restarted(cu) + n * (numbers(cu) > 1) for n in (1, -1)],
        "positions.packed.document_index": [
            lambda cu: numbers(cu) - 1,
            lambda cu: index(cu) - numbers(cu) + 1,
        ],
        "positions.reversed": [lambda cu: cu[numbers(cu)] - 1 - index(cu), lambda cu: cu[-1] - index(cu)],
        "positions.packed.empty_document": [scattered],
        "positions.precision": [lambda cu: index(cu).bfloat16() - cu[numbers(cu) - 1].bfloat16()],
        "positions.clamped": [lambda cu: restarted(cu).clamp(max=511)],
        "positions.wrapped": [lambda cu: restarted(cu).short()],
        "positions.mismatch": [lambda cu: restarted(cu) ** 2],
        "positions.packed.first_only": [
            lambda cu, rest=rest: torch.where(numbers(cu) == 1, restarted(cu), rest) for rest in (1, 0)
        ],  # LlamaFactory#7754
    }),
    ({**PACKED, "start": 2}, {
        "pass": [lambda cu: restarted(cu) + 2],
        "positions.off_by_one": [restarted],  # UKPLab/sentence-transformers#3879
        "positions.packed.first_only": [lambda cu: torch.where(numbers(cu) == 1, restarted(cu), 1) + 2],
    }),
    ({**PACKED, "origin": "any"}, {"equivalent": [lambda cu: index(cu) - cu[numbers(cu)]]}),
    ({**PACKED, "encoding": "learned"}, {"positions.off_by_one": [lambda cu: restarted(cu) + 1]}),
    ({**PACKED, "max_positions": 131_072}, {"positions.wrapped": [lambda cu: restarted(cu).short()]}),
]  # fmt: skip


def in_masks(counts):
    """Return a function of masks with the numbers of documents, which counts the bounds of each row."""

    def positions(attention_mask, q_len):
        out = torch.zeros_like(attention_mask)
        for row, mask in zip(out, attention_mask, strict=True):
            lengths = mask[mask > 0].unique_consecutive(return_counts=True)[1]
            row[mask > 0] = counts(torch.cat((lengths.new_zeros(1), lengths.cumsum(0))))
        return out[:, -q_len:]

    return positions


def compared_with_one(attention_mask, q_len):
    out = torch.ones_like(attention_mask)
    for row, mask in zip(out, attention_mask, strict=True):
        row[mask == 1] = torch.arange(int((mask == 1).sum()))
    return out[:, -q_len:]


MASKS = [
    ({**PACKED, "padding": side}, {
        "pass": [in_masks(restarted)],
        "positions.packed.first_only": [compared_with_one],
        "positions.packed_not_reset": [in_masks(index), *([columns] if side == "none" else [])],
        "positions.left_padding": [columns] if side == "left" else [],
    })
    for side in ("left", "none")
]  # fmt: skip


def roberta(m, idx=1):
    return m.cumsum(-1) * m + idx


def wide(m):
    return torch.arange(m.shape[1]).expand(m.shape)


ROWS = [
    (OPT, {
        "pass": [roberta],
        "learned.offset_missing": [lambda m: m.cumsum(-1) * m - 1, wide],  # the second counts padding, too
        "learned.start": [lambda m: roberta(m, 0), lambda m: roberta(m, 3)],
        "learned.cls_row": [lambda m: (m.cumsum(-1) - 2).clamp(min=0) + 2],
        "learned.padding_not_masked": [lambda m: wide(m) + 2],
        "learned.table_too_short": [lambda m: roberta(m).clamp(max=127)],
        "learned.axis.batch": [lambda m: m.cumsum(0) + 1],
        "learned.mismatch": [lambda m: roberta(m) ** 2],
    }),
    ({**OPT, "padding": "right"}, {"pass": [lambda m: wide(m) + 2]}),
    ({**OPT, "max_positions": 140}, {"learned.wrapped": [lambda m: roberta(m) % 130]}),
    ({**OPT, "table_rows": 128}, {"learned.table_too_short": [roberta]}),
    ({**OPT, "table_rows": 8002, "max_positions": 8000}, {
        "positions.precision": [lambda m: m.half().cumsum(-1) + 1, lambda m: m.cumsum(-1).bfloat16().long() + 1],
    }),
    ({**OPEN, "offset": 2, "max_positions": 40_000}, {"learned.wrapped": [lambda m: roberta(m).short()]}),
    ({**OPEN, "offset": 1}, {"pass": [lambda m: roberta(m, 0)]}),
    ({**OPEN, "offset": 0}, {"learned.padding_idx_as_offset": [lambda m: roberta(m, 0), lambda m: roberta(m, 3)]}),
    ({**OPEN, "offset": 0, "padding_idx": 1}, {"learned.padding_idx_as_offset": [roberta]}),
    ({**OPEN, "padding": 1}, {"pass": [roberta], "learned.padding_not_masked": [lambda m: m.cumsum(-1) + 1]}),
    ({**OPEN, "origin": "any"}, {"pass": [roberta]}),
    (OPEN, {"pass": [lambda m: filled(m, 1), lambda m: filled(m, 1) if m.shape[1] < 600 else 1 / 0],
            "learned.offset_hardwired": [roberta]}),
]  # fmt: skip
TABLES = {"position_fn": [*POSITIONS, *MASKS], "packed_position_fn": DOCUMENTS, "learned_rows_fn": ROWS}
CASES = [
    (convention, spec, right, subject)
    for convention, table in TABLES.items()
    for spec, found in table
    for right, subjects in found.items()
    for subject in subjects
]


def named(value):
    """Return a name that is the same in each process: no address of an object."""
    return getattr(value, "__name__", str(value) if isinstance(value, str | dict) else type(value).__name__)[:40]


@pytest.mark.parametrize(("convention", "spec", "right", "subject"), CASES, ids=named)
def test_a_way_to_count_is_judged(convention, spec, right, subject):
    report = verify.check(subject, convention=convention, spec=spec)
    assert (report.causes[0].code if report.causes else report.status) == right
    assert all(cause.code in known() and "{" not in cause.message for cause in report.causes)


@pytest.mark.parametrize(
    ("convention", "spec"),
    [
        ("position_fn", {"padding": "both", "start": 0}),
        ("position_fn", {"packed": True, "padding": "left", "start": 0}),
        ("packed_position_fn", {"start": 2}),
        ("learned_rows_fn", {**OPT, "padding_idx": 1}),
    ],
)
def test_what_a_fault_gives_is_named_so_or_as_a_fault_that_gives_the_same(convention, spec):
    asked = family(convention, spec)
    cases = [case for case in asked.cases() if case.kind != "again" and case.args[0].total < 10_000]
    for fault in asked.faults():
        judge = family(convention, spec)
        given = [Seen(case, asked.predict({**asked.truth, **fault.change}, case), 0.0) for case in cases]
        verdict = settle(judge, given)
        if explains(judge, judge.truth, given):
            assert verdict.status == "pass"
        elif verdict.faults[0].code != fault.code:
            alike = [other for other in judge.faults() if explains(judge, {**judge.truth, **other.change}, given)]
            assert verdict.faults[0].code == alike[0].code, fault


def test_the_smallest_case_is_small_and_true():
    cause = verify.check(columns, convention="position_fn", spec=LEFT).causes[0]
    mask, q_len = torch.tensor(cause.smallest_case["attention_mask"]), cause.smallest_case["q_len"]
    assert mask.tolist() == [[0, 1]]
    assert columns(mask, q_len)[0, cause.smallest_case["column"]] == cause.smallest_case["found"] == 1
    assert cause.smallest_case["expected"] == 0
    assert cause.evidence == 4


@pytest.mark.parametrize(
    ("subject", "spec", "said"),
    [
        (in_masks(restarted), PACKED, "decode steps"),
        (count, {}, "padding on the right"),
        (Stateful(), LEFT, "several texts in turn"),
    ],
)
def test_a_pass_says_what_was_not_judged(subject, spec, said):
    report = verify.check(subject, convention="position_fn", spec=spec)
    assert report.status == "pass"
    assert any(line.startswith(said) for line in report.not_judged)
