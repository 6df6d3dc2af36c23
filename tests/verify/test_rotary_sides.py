"""Queries and keys are looked at apart: which side is wrong is said, and why."""

import pytest
import torch

from posenc.verify import check

SPEC = {"encoding": "rope", "head_dim": 32, "base": 77000.0, "layout": "half"}


def angles(n, base=77000.0, dim=32):
    return torch.arange(n).double()[:, None] * base ** (-torch.arange(0, dim, 2).double() / dim)


def half(x, a):
    u, v = x.double().chunk(2, -1)
    return torch.cat((u * a.cos() - v * a.sin(), v * a.cos() + u * a.sin()), -1).to(x.dtype)


def interleaved(x, a):
    u, v = x.double()[..., ::2], x.double()[..., 1::2]
    return torch.stack((u * a.cos() - v * a.sin(), v * a.cos() + u * a.sin()), -1).flatten(-2).to(x.dtype)


class Turned(torch.nn.Module):
    """forward(q, k) that turns each side in a way of its own."""

    def __init__(self, of_q, of_k):
        super().__init__()
        self.ways = of_q, of_k

    def forward(self, q, k):
        turned = (way(x.transpose(1, 2), x.shape[1]) for way, x in zip(self.ways, (q, k), strict=True))
        return tuple(x.transpose(1, 2) for x in turned)


def cause_of(of_q, of_k, **more):
    report = check(Turned(of_q, of_k), convention="bshd_module", spec=SPEC | more)
    assert report.status == "fail", report
    return report.causes[0]


def right(x, n):
    return half(x, angles(n))


def other_layout(x, n):
    return interleaved(x, angles(n))


@pytest.mark.parametrize(("layout", "wrong"), [("half", "keys"), ("interleaved", "queries")])
def test_one_side_is_paired_otherwise(layout, wrong):
    cause = cause_of(right, other_layout, layout=layout)
    assert cause.code == "rope.layout.mixed"
    assert "queries turn the first 32 lanes, paired half (0 with 16), and keys" in cause.message
    assert f"so {wrong} are wrong" in cause.message


def test_both_sides_in_the_other_layout_are_no_mixture():
    assert cause_of(other_layout, other_layout).code == "rope.layout.wrong_pairing"


@pytest.mark.parametrize("wrong", ["keys", "queries"])
def test_the_base_of_one_side(wrong):
    def other_base(x, n):
        return half(x, angles(n, 10000.0))

    sides = (right, other_base) if wrong == "keys" else (other_base, right)
    cause = cause_of(*sides)
    assert cause.code == "rope.side.differ"
    assert f"{wrong} are not: the base is 10,000 whatever is asked for; it should be 77,000" in cause.message


def test_lanes_of_keys_alone():
    def fewer(x, n):
        return torch.cat((half(x[..., :16], angles(n, dim=16)), x[..., 16:]), -1)

    cause = cause_of(right, fewer)
    assert cause.message.startswith("of keys turned are the first 16 lanes"), cause
    assert cause_of(fewer, fewer).message.startswith("turned are the first 16 lanes")


def test_positions_of_keys_alone():
    def late(x, n):
        return half(x, angles(n)[torch.arange(n) // 2])

    cause = cause_of(right, late)
    assert cause.code == "rope.side.differ"
    assert "queries are right, keys are not" in cause.message
