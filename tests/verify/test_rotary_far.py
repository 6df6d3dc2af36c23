"""Positions far out: right, or refused. NaN, infinity, zeros and positions that begin again are found."""

import warnings

import pytest
import torch

from posenc.verify import check

DIM = 32
SPEC = {"encoding": "rope", "head_dim": DIM, "base": 10000.0, "layout": "half"}
FREQ = 10000.0 ** (-torch.arange(0, DIM, 2).double() / DIM)


def turned(x, positions):
    a = positions.double()[:, None] * FREQ
    u, v = x.double().chunk(2, -1)
    return torch.cat((u * a.cos() - v * a.sin(), v * a.cos() + u * a.sin()), -1).to(x.dtype)


def with_lost(value, end):
    def rope(x, positions):
        return torch.where((positions > end)[:, None], value, turned(x, positions)).to(x.dtype)

    return rope


def judged(rope, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        return check(rope, convention="rope_fn", spec=SPEC | more)


@pytest.mark.parametrize("more", [{}, {"max_positions": 32768}])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("end", [100, 5000, 20000])
def test_what_is_not_finite_is_no_refusal(value, end, more):
    report = judged(with_lost(value, end), **more)
    assert report.status == "fail", report
    assert report.causes[0].code == "subject.not_finite"
    if end > 4096:
        first = {5000: "8,192", 20000: "32,766" if more else "32,768"}[end]
        assert f"position {first} gives NaN or infinity" in report.causes[0].message


def test_wrong_turns_before_nan_come_first():
    def lost(x, positions):
        return torch.where((positions > 10000)[:, None], float("nan"), turned(x, positions % 6000)).to(x.dtype)

    assert judged(lost).causes[0].code == "rope.table.wraps"


def test_half_positions_are_named_though_far_ones_are_infinite():
    def rope(x, positions):
        return turned(x, positions.to(torch.float16))

    assert judged(rope).causes[0].code == "rope.precision.positions_fp16"
    assert judged(rope, max_positions=131072).causes[0].code == "rope.precision.positions_fp16"


@pytest.mark.parametrize("end", [5000, 9000])
def test_an_error_may_be_a_refusal(end):
    def rope(x, positions):
        if int(positions.max()) > end:
            raise IndexError("index out of range")
        return turned(x, positions)

    assert judged(rope).status == "pass"
    assert judged(rope, max_positions=32768).causes[0].code == "rope.table.too_short"


def test_wrong_turns_before_a_refusal():
    def rope(x, positions):
        if int(positions.max()) >= 40000:
            raise IndexError("index out of range")
        return turned(x, positions % 20000)

    assert judged(rope).causes[0].code == "rope.table.wraps"


@pytest.mark.parametrize("end", [7, 5000])
def test_zeros(end):
    cause = judged(with_lost(0.0, end)).causes[0]
    assert cause.code == "rope.table.zeros"
    assert f"as zeros from position {8 if end == 7 else 8192:,} on" in cause.message


@pytest.mark.parametrize("modulus", [100, 1000, 4096, 4500, 5000, 8191, 8192, 12345, 30000, 65536])
def test_positions_that_begin_again_anywhere(modulus):
    cause = judged(lambda x, p: turned(x, p % modulus), max_positions=131072).causes[0]
    assert cause.code == "rope.table.wraps"
    assert f"begin again at {modulus:,}" in cause.message


@pytest.mark.parametrize("end", [100, 777, 4096, 5001, 20000])
def test_positions_that_stay_behind_some_length(end):
    cause = judged(lambda x, p: turned(x, p.clamp(max=end - 1))).causes[0]
    assert cause.code == "rope.table.too_short"
    assert f"positions from {end:,} on are those of {end - 1:,}" in cause.message


@pytest.mark.parametrize(("dtype", "said"), [(torch.int16, "int16"), (torch.int8, "int8")])
@pytest.mark.parametrize("more", [{}, {"max_positions": 131072}])
def test_positions_of_few_bits(dtype, said, more):
    cause = judged(lambda x, p: turned(x, p.to(dtype)), **more).causes[0]
    assert cause.code == "rope.table.wraps"
    assert f"kept in {said}" in cause.message


def test_far_positions_of_honest_code_pass():
    def float32(x, positions):
        return turned(x, positions.float())

    for more in ({}, {"max_positions": 131072}, {"max_positions": 10**7}):
        assert judged(float32, **more).status == "pass"
        assert judged(turned, **more).status == "pass"
