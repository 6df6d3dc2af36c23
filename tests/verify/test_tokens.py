"""Functions of positions and of table rows: each fault planted alone, beside what is right and merely unusual."""

import pytest
import torch

from posenc.verify.codes import rules
from posenc.verify.tokens import check as tokens

LEFT = {"kind": "positions", "padding": "left"}
RIGHT = {"kind": "positions", "padding": "right"}
OPT = {"encoding": "learned", "offset": 2, "table_rows": 130, "max_positions": 128}


def report(subject, convention="position_fn", spec=LEFT):
    found = tokens.check(subject, convention, spec).report(convention)
    assert all(cause.code in rules() for cause in found.causes)
    return found


def code(subject, convention="position_fn", spec=LEFT):
    found = report(subject, convention, spec)
    return found.causes[0].code if found.causes else found.status


def right(m, q):
    return (m.cumsum(-1) - 1)[:, -q:]


def shared(m, q):
    return torch.arange(m.shape[1])[-q:].expand(len(m), -1)


class Counter:
    """Counts on by itself from the prefill: right as long as generation goes in order."""

    def __call__(self, m, q):
        if q > 1 or m.shape[1] == 1:
            self.last = (m.cumsum(-1) - 1)[:, -q:]
        else:
            self.last = self.last[:, -1:] + 1
        return self.last


class Growing:
    def __init__(self):
        self.seen = 0

    def __call__(self, m, q):
        kept, self.seen = self.seen, max(self.seen, m.shape[1])
        return right(m, q) + 5 * (kept > 4000 > m.shape[1])


class Summed:
    """Counts the columns that it was given, and begins anew only if it is told to."""

    def __init__(self, resets):
        self.resets, self.n = resets, 0

    def __call__(self, m, q):
        self.n = q + (0 if self.resets and q == m.shape[1] else self.n)
        return torch.arange(self.n - q, self.n).expand(len(m), -1)


class Continued:
    """Goes on from the last column of the prefill, in which a pad has `pads`; or stands still there."""

    def __init__(self, pads=None, step=1):
        self.pads, self.step = pads, step

    def __call__(self, m, q):
        if q == 1 < m.shape[1]:
            self.now = self.now + self.step
            return self.now + 1 - self.step
        whole = right(m, q)
        whole = whole if self.pads is None else whole.masked_fill(m[:, -q:] == 0, self.pads)
        self.now = whole[:, -1:]
        return whole


def from_the_end(m, q):
    return 1 - m.flip(1).cumsum(1).flip(1)[:, -q:]


def keyword_only(attention_mask, *, q_len):
    return right(attention_mask, q_len)


INNOCENT = {
    "count": right,
    "clamped at 0": lambda m, q: right(m, q).clamp(min=0),
    "pads 1": lambda m, q: (m.cumsum(-1) - 1).masked_fill(m == 0, 1)[:, -q:],
    "negative pads": lambda m, q: (torch.arange(m.shape[1]) - (1 - m).sum(-1, keepdim=True))[:, -q:],
    "float": lambda m, q: right(m, q).float(),
    "int32": lambda m, q: right(m, q).int(),
    "view": lambda m, q: right(m, q).T.contiguous().T,
    "list": lambda m, q: right(m, q).tolist(),
    "extra dimension": lambda m, q: right(m, q)[:, None],
    "counts on": Counter(),
    "keyword": keyword_only,
    "bool": lambda m, q: (m.bool().cumsum(-1) - 1)[:, -q:],
}
FAULTY = {
    "positions.left_padding": shared,
    "positions.left_padding.decode_lost": lambda m, q: right(m, q) if q == m.shape[1] else shared(m, q),
    "positions.padded_width_in_decode": lambda m, q: right(m, q) if q > 1 else (m.sum(-1).max() - 1).expand(len(m), 1),
    "positions.past_ignored": lambda m, q: torch.arange(q).expand(len(m), -1) if q < m.shape[1] else right(m, q),
    "positions.chunked_prefill": lambda m, q: right(m[:, -q:], q) if q > 1 else right(m, q),
    "positions.chunked_prefill.double_counted": lambda m, q: right(m, q) + m.shape[1] - q,
    "positions.constant_in_chunk": lambda m, q: right(m, q)[:, -1:].expand(-1, q),
    "positions.first_row_for_all": lambda m, q: right(m, q)[:1].expand(len(m), -1),
    "positions.axis.batch": lambda m, q: (m.cumsum(0) - 1)[:, -q:],
    "positions.mask_inverted": lambda m, q: ((1 - m).cumsum(-1) - 1)[:, -q:],
    "positions.off_by_one": lambda m, q: right(m, q) + (q == 1),
    "positions.precision": lambda m, q: (m.bfloat16().cumsum(-1) - 1)[:, -q:],
    "positions.clamped": lambda m, q: right(m, q).clamp(max=2047),
    "positions.wrapped": lambda m, q: right(m, q) % 1024,
    "positions.state_kept": Growing(),
    "positions.reversed": lambda m, q: (m.flip(-1).cumsum(-1) - 1).flip(-1)[:, -q:],
    "positions.mismatch": lambda m, q: right(m, q) ** 2,
    "subject.shape": lambda m, q: right(m, m.shape[1]),
}


@pytest.mark.parametrize("name", INNOCENT)
def test_innocent_positions_pass(name):
    assert code(INNOCENT[name]) == "pass"


@pytest.mark.parametrize("name", [n for n in FAULTY if not n.startswith("subject")])
def test_a_planted_fault_is_named(name):
    assert code(FAULTY[name]) == name


def test_a_wrong_shape_is_a_finding_of_the_guard():
    with pytest.raises(Exception, match="must return a tensor of shape"):
        tokens.check(FAULTY["subject.shape"], "position_fn", LEFT)


def test_a_constant_is_equivalent_unless_a_table_is_read():
    from_one = lambda m, q: right(m, q) + 1  # noqa: E731
    assert report(from_one).status == "equivalent"
    assert report(from_one, spec={**LEFT, "start": 1}).status == "pass"
    assert code(from_one, spec={**LEFT, "encoding": "learned"}) == "positions.off_by_one"


def test_an_origin_that_moves_is_free_only_where_it_is_said():
    for padding in (LEFT, RIGHT):
        assert report(from_the_end, spec={**padding, "origin": "any"}).status == "equivalent"
        assert code(from_the_end, spec=padding) == "positions.origin_moves"
    assert report(shared, spec={**LEFT, "origin": "any"}).status == "equivalent"


@pytest.mark.parametrize(
    "name", ["positions.past_ignored", "positions.left_padding.decode_lost", "positions.chunked_prefill"]
)
def test_a_free_origin_frees_no_distance(name):
    assert code(FAULTY[name], spec={**LEFT, "origin": "any"}) == name
    assert code(lambda m, q: right(m, q) * (q > 1), spec={**LEFT, "origin": "any"}) == "positions.past_ignored"


def test_what_goes_on_from_earlier_calls():
    bare = {"kind": "positions", "padding": "none"}
    assert code(Summed(True), spec=bare) == "pass"
    assert code(Summed(False), spec=bare) == "positions.state_kept"
    assert code(Continued(pads=1)) == "pass"
    assert code(Continued(pads=1), spec=RIGHT) == "positions.right_padding.increment"
    assert code(Continued(step=0)) == "positions.decode.not_advanced"


def test_right_padding():
    assert code(right, spec=RIGHT) == "pass"
    assert code(shared, spec=RIGHT) == "positions.right_padding.increment"
    assert code(INNOCENT["negative pads"], spec=RIGHT) == "positions.right_padding"
    assert code(INNOCENT["negative pads"], spec={"kind": "positions"}) == "pass"


def test_the_smallest_case_is_small_and_true():
    cause = report(shared).causes[0]
    m, q = torch.tensor(cause.smallest_case["attention_mask"]), cause.smallest_case["q_len"]
    assert m.shape == (1, 2)
    assert shared(m, q)[0].tolist() == cause.smallest_case["got"]
    assert cause.evidence == 4


def by_document(cu):
    return torch.cat([torch.arange(n) for n in cu.diff().tolist()])


def scattered(cu):
    out = torch.ones(int(cu[-1]), dtype=torch.long)
    out[0] = 0
    out[cu[1:-1].long()] = 1 - cu.diff()[:-1].long()
    return out.cumsum(0)


def searched(cu, right=True):
    index = torch.arange(int(cu[-1]), dtype=cu.dtype)
    return index - cu[(torch.searchsorted(cu, index, right=right) - 1).clamp(min=0)]


def previous(cu):
    n = cu.diff().long()
    return torch.arange(int(cu[-1])) - torch.repeat_interleave(torch.cat((n.new_zeros(1), n[:-1])), n)


def index(cu):
    return torch.arange(int(cu[-1]))


PACKED = {
    "positions.packed_not_reset": index,
    "positions.packed.modulo_wrap": lambda cu: index(cu) % 4,
    "positions.packed.previous_length": previous,
    "positions.packed.boundary": lambda cu: searched(cu, right=False),
    "positions.packed.off_by_one": lambda cu: by_document(cu) + (index(cu) >= cu[1]),
    "positions.packed.document_index": lambda cu: torch.repeat_interleave(torch.arange(len(cu) - 1), cu.diff()),
    "positions.packed.reversed": lambda cu: torch.cat([torch.arange(n).flip(0) for n in cu.diff().tolist()]),
    "positions.packed.empty_document": scattered,
    "positions.precision": lambda cu: by_document(cu).bfloat16(),
    "positions.clamped": lambda cu: by_document(cu).clamp(max=511),
    "positions.mismatch": lambda cu: by_document(cu) * 2,
}


@pytest.mark.parametrize("name", PACKED)
def test_a_planted_fault_of_packing_is_named(name):
    assert code(PACKED[name], "packed_position_fn", {"kind": "positions", "packed": True}) == name


@pytest.mark.parametrize(
    "subject", [by_document, searched, lambda cu: searched(cu)[None], lambda cu: by_document(cu).float()]
)
def test_innocent_packing_passes(subject):
    assert code(subject, "packed_position_fn", {"kind": "positions", "packed": True}) == "pass"


@pytest.mark.parametrize("length", [64, 512, 4096])
def test_a_modulo_by_any_length_is_found(length):
    for fn in (lambda cu: index(cu) % length, lambda cu: by_document(cu) % length):
        assert code(fn, "packed_position_fn", {}) == "positions.packed.modulo_wrap"


def test_counting_from_one_in_every_document_is_equivalent():
    assert report(lambda cu: by_document(cu) + 1, "packed_position_fn", {}).status == "equivalent"


def test_documents_may_have_origins_of_their_own_where_it_is_said():
    ends = lambda cu: by_document(cu) - torch.repeat_interleave(cu.diff().long(), cu.diff().long()) + 1  # noqa: E731
    assert report(ends, "packed_position_fn", {"packed": True, "origin": "any"}).status == "equivalent"
    assert report(ends, "packed_position_fn", {"packed": True}).status == "fail"


def test_chunks_and_batches_that_count_padding():
    def past(m, q):
        return m[:, : m.shape[1] - q].sum(-1, keepdim=True) + torch.arange(q)

    assert code(past) == "positions.left_padding"
    assert code(lambda m, q: past(m, q) if q < m.shape[1] else right(m, q)) == "positions.chunked_prefill"
    both = {"kind": "positions", "padding": "both"}
    assert code(FAULTY["positions.left_padding.decode_lost"], spec=both) == "positions.padded_width_in_decode"
    aligned = lambda m, q: (torch.arange(m.shape[1]) - m.shape[1] + m.sum(-1).max())[-q:].expand(len(m), -1)  # noqa: E731
    assert code(aligned) == "positions.left_padding"
    assert code(lambda m, q: right(m, q).to(torch.int8)) == "positions.wrapped"


def roberta(m, idx=1):
    return m.cumsum(-1) * m + idx


@pytest.mark.parametrize(
    ("subject", "spec"),
    [
        (roberta, OPT),
        (lambda m: (m.cumsum(-1) * m - 1) + 2, OPT),
        (roberta, {"encoding": "learned", "padding": 1}),
        (lambda m: torch.arange(m.shape[1]).expand(m.shape) + 2, {**OPT, "padding": "right"}),
        (lambda m: (m.cumsum(-1) - 1).masked_fill(m == 0, 1), {"encoding": "learned"}),
        (lambda m: roberta(m, 0), {"encoding": "learned", "offset": 1}),
        (roberta, {"encoding": "learned", "origin": "any"}),
    ],
)
def test_innocent_rows_pass(subject, spec):
    assert code(subject, "learned_rows_fn", spec) == "pass"


@pytest.mark.parametrize(
    ("subject", "spec", "name"),
    [
        (lambda m: m.cumsum(-1) * m - 1, OPT, "learned.offset_missing"),
        (lambda m: roberta(m, 3), OPT, "learned.offset_twice"),
        (lambda m: roberta(m, 0), OPT, "learned.start"),
        (roberta, {"encoding": "learned"}, "learned.offset_hardwired"),
        (lambda m: roberta(m, 0), {"encoding": "learned", "offset": 0}, "learned.padding_idx_as_offset"),
        (lambda m: roberta(m, 3), {"encoding": "learned", "offset": 0}, "learned.padding_idx_as_offset"),
        (roberta, {"encoding": "learned", "offset": 0, "padding_idx": 1}, "learned.padding_idx_as_offset"),
        (lambda m: (m.cumsum(-1) - 2).clamp(min=0) + 2, OPT, "learned.cls_row"),
        (lambda m: roberta(m) % 130, {**OPT, "max_positions": 140}, "learned.wrapped"),
        (lambda m: torch.arange(m.shape[1]).expand(m.shape) + 2, OPT, "learned.padding_not_masked"),
        (lambda m: m.cumsum(-1) + 1, {"encoding": "learned", "padding": 1}, "learned.padding_not_masked"),
        (roberta, {**OPT, "table_rows": 128}, "learned.table_too_short"),
        (lambda m: roberta(m).clamp(max=127), OPT, "learned.table_too_short"),
        (lambda m: m.cumsum(0) + 1, OPT, "learned.axis.batch"),
        (lambda m: roberta(m) ** 2, OPT, "learned.mismatch"),
        (lambda m: m.half().cumsum(-1) + 1, {**OPT, "table_rows": 8002, "max_positions": 8000}, "learned.precision"),
    ],
)
def test_a_planted_fault_of_rows_is_named(subject, spec, name):
    assert code(subject, "learned_rows_fn", spec) == name


def test_a_missing_offset_goes_before_unmasked_padding():
    cause = report(lambda m: torch.arange(m.shape[1]).expand(m.shape), "learned_rows_fn", OPT).causes[0]
    assert (cause.code, cause.consequences) == ("learned.offset_missing", ("learned.padding_not_masked",))
