"""Ways to count tokens that were reported as unknown: each is named, however padded slots are filled."""

from itertools import pairwise

import pytest
import torch

from posenc.verify.codes import rules
from posenc.verify.tokens import check as tokens


def told(subject, convention="position_fn", padding="left", **words):
    spec = {"kind": "positions", "padding": padding, **words}
    report = tokens.check(subject, convention, spec).report(convention)
    assert report.status == "fail", report
    assert all(cause.code in rules() for cause in report.causes)
    return report.causes[0]


def table(m, fill=None):
    """Return the count of each row; padded slots get -1 as it comes, or a number."""
    count = m.cumsum(-1) - 1
    return count if fill is None else count.masked_fill(m == 0, fill)


def down(m):
    return m.sum(-1, keepdim=True) - 1 - table(m)


@pytest.mark.parametrize("fill", [None, 0, 1])
def test_the_first_columns_and_the_first_row_are_named_whatever_padding_gets(fill):
    first_columns = told(lambda m, q: table(m, fill)[:, :q])
    assert first_columns.code == "positions.past_ignored"
    assert "the first q_len columns" in first_columns.message
    first_row = told(lambda m, q: table(m, fill)[:1, -q:].expand(len(m), -1))
    assert first_row.code == "positions.first_row_for_all"


WAYS = {
    "positions.mask_inverted": (
        lambda m, q: table(m).masked_fill(m == 1, 1)[:, -q:],
        lambda m, q: table(m).masked_fill(m == 1, 0)[:, -q:],
        lambda m, q: ((1 - m).cumsum(-1) - 1)[:, -q:],
        lambda m, q: ((1 - m).cumsum(-1) - 1).clamp(min=0)[:, -q:],
        lambda m, q: (1 - m).cumsum(-1)[:, -q:],
    ),
    "positions.reversed": (
        lambda m, q: down(m)[:, -q:],
        lambda m, q: down(m)[:, -q:] + 1,
        lambda m, q: table(m).flip(-1)[:, -q:],
        lambda m, q: (m.shape[1] - 1 - torch.arange(m.shape[1]))[-q:].expand(len(m), -1),
        lambda m, q: (m.shape[1] - torch.arange(m.shape[1]))[-q:].expand(len(m), -1),
        lambda m, q: q - 1 - table(m)[:, -q:],
        lambda m, q: m.shape[1] - 1 - table(m)[:, -q:],
        lambda m, q: m.shape[1] - table(m)[:, -q:],
    ),
    "positions.negated": (lambda m, q: -table(m)[:, -q:],),
}


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize(("code", "way"), [(code, i) for code, ways in WAYS.items() for i in range(len(ways))])
def test_positions_that_are_turned_round_are_named(code, way, padding):
    assert told(WAYS[code][way], padding=padding).code == code


def test_what_is_nearly_so_is_not_named_so():
    def nearly(m, q):
        return (-table(m) + (table(m) > 5).long())[:, -q:]

    assert told(nearly).code == "positions.mismatch"


def of_documents(rule):
    return lambda cu: torch.cat([rule(int(a), int(b), int(cu[-1])) for a, b in pairwise(cu)])


PACKED = {
    "from the end of everything": (lambda a, b, n: n - 1 - torch.arange(a, b), "positions.packed.from_the_end"),
    "from the end of everything, 1": (lambda a, b, n: n - torch.arange(a, b), "positions.packed.from_the_end"),
    "from the end of each": (lambda a, b, n: b - 1 - torch.arange(a, b), "positions.packed.reversed"),
    "from the end of each, 1": (lambda a, b, n: b - torch.arange(a, b), "positions.packed.reversed"),
    "squares": (lambda a, b, n: torch.arange(b - a) ** 2, "positions.mismatch"),
}


@pytest.mark.parametrize("name", PACKED)
def test_packed_positions_that_are_counted_down(name):
    rule, code = PACKED[name]
    assert told(of_documents(rule), "packed_position_fn").code == code


def short(t):
    return t.to(torch.int16).long()


def index_of(cu):
    return torch.arange(int(cu[-1])), torch.repeat_interleave(cu[:-1].long(), cu.diff().long())


@pytest.mark.parametrize("words", [{}, {"max_positions": 131072}])
def test_positions_in_int16_are_found_out(words):
    assert told(lambda m, q: short(table(m))[:, -q:], **words).code == "positions.wrapped"

    def late(cu):
        index, starts = index_of(cu)
        return short(index) - short(starts)

    def whole(cu):
        index, starts = index_of(cu)
        return short(index - starts)

    assert told(late, "packed_position_fn", **words).code == "positions.wrapped"
    assert told(whole, "packed_position_fn", **words).code == "positions.wrapped"


def test_rows_in_int16_are_found_out_where_the_table_is_so_long():
    words = {"encoding": "learned", "offset": 2, "max_positions": 40_000}
    assert told(lambda m: short((table(m) + 1) * m + 1), "learned_rows_fn", **words).code == "learned.wrapped"


def test_what_ends_where_it_says_so_is_asked_no_further():
    def ends(m, q):
        if m.shape[1] > 8192:
            raise IndexError("the table ends at 8192")
        return table(m)[:, -q:]

    spec = {"kind": "positions", "padding": "left"}
    assert tokens.check(ends, "position_fn", spec).report("position_fn").status == "pass"
    clamped = lambda m, q: table(m).clamp(max=32_000)[:, -q:]  # noqa: E731
    assert tokens.check(clamped, "position_fn", {**spec, "max_positions": 32_000}).report("").status == "pass"


@pytest.mark.parametrize("end", [1, 2, 3, 4])
def test_a_text_that_may_hardly_have_tokens_is_no_error(end):
    def positions(attention_mask, q_len):
        return (attention_mask.cumsum(-1) - 1).clamp(min=0)[:, -q_len:]

    assert tokens.check(positions, "position_fn", {"max_positions": end}).report("position_fn").status == "pass"
