"""Before a cause is named: the same call gives the same, and lanes are linear in x."""

import itertools

import pytest
import torch

from posenc.verify import check, identify

DIM = 32
SPEC = {"encoding": "rope", "head_dim": DIM, "base": 10000.0, "layout": "half"}
FREQ = 10000.0 ** (-torch.arange(0, DIM, 2).double() / DIM)


def turned(x, positions):
    a = positions.double()[:, None] * FREQ
    u, v = x.double().chunk(2, -1)
    return torch.cat((u * a.cos() - v * a.sin(), v * a.cos() + u * a.sin()), -1).to(x.dtype)


def code_of(rope):
    report = check(rope, convention="rope_fn", spec=SPEC)
    assert report.status == "fail", report
    return report.causes[0]


RANDOM = {
    "noise": lambda x, p: turned(x, p) + 1e-2 * torch.randn_like(x),
    "dropout": lambda x, p: torch.nn.functional.dropout(turned(x, p), 0.1),
    "random positions": lambda x, p: turned(x, p + torch.randint(0, 50, p.shape)),
    "a random gain": lambda x, p: turned(x, p) * (1 + torch.rand(())),
}
NOT_LINEAR = {
    "relu": lambda x, p: turned(x, p).relu(),
    "plus one": lambda x, p: turned(x, p) + 1,
    "a norm": lambda x, p: turned(x / x.norm(dim=-1, keepdim=True).clamp(min=1e-6), p),
    "a bound": lambda x, p: turned(x, p).clamp(-10, 10),
    "tanh": lambda x, p: turned(x, p).tanh(),
    "squares": lambda x, p: turned(x * x.abs(), p),
}


@pytest.mark.parametrize("name", RANDOM)
def test_what_is_random_is_called_so(name):
    assert code_of(RANDOM[name]).code == "rope.not_deterministic"


@pytest.mark.parametrize("name", NOT_LINEAR)
def test_what_is_not_linear_is_called_so(name):
    cause = code_of(NOT_LINEAR[name])
    assert cause.code == "rope.not_linear"
    assert ("something is added" in cause.message) == (name == "plus one")


def test_what_counts_its_calls_is_no_axis_of_heads():
    calls = itertools.count()
    assert code_of(lambda x, p: turned(x, p + next(calls))).code == "rope.not_deterministic"


def test_an_object_that_counts_its_calls_keeps_a_state():
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, q, k):
            p = torch.arange(q.shape[1]) * (1 + self.calls)
            self.calls += 1
            return tuple(turned(x.transpose(1, 2), p).transpose(1, 2) for x in (q, k))

    report = check(Counting(), convention="bshd_module", spec=SPEC)
    assert report.causes[0].code == "rope.state_kept"


def test_rounding_of_x_is_no_lack_of_linearity_nor_another_path_of_single_tokens():
    def rope(x, positions):
        return turned(x.bfloat16().float(), positions)

    assert code_of(rope).code == "rope.precision.x_bf16"


def test_heads_with_frequencies_of_their_own_are_no_axis_of_heads():
    def over_all_lanes(x, positions):
        h, n, d = x.shape[1:]
        freq = 10000.0 ** (-torch.arange(0, h * d, 2).double() / (h * d))
        a = (positions.double()[:, None] * freq).view(n, h, d // 2).transpose(0, 1)
        u, v = x.double().chunk(2, -1)
        return torch.cat((u * a.cos() - v * a.sin(), v * a.cos() + u * a.sin()), -1).to(x.dtype)

    cause = code_of(over_all_lanes)
    assert cause.code == "rope.heads.differ"
    assert "axis" not in cause.message


def test_positions_along_heads_are_the_axis_of_heads():
    assert code_of(lambda x, p: turned(x.transpose(1, 2), torch.arange(x.shape[1])).transpose(1, 2)).code == (
        "rope.axis.heads"
    )


@pytest.mark.parametrize(("name", "code"), [("noise", "rope.not_deterministic"), ("plus one", "rope.not_linear")])
def test_identify_says_so_as_well(name, code):
    found = identify({**RANDOM, **NOT_LINEAR}[name], "rope_fn", head_dim=DIM)
    assert found.kind == "unknown"
    assert code in found.unknown[0]
