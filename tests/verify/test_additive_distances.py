"""Tables of sinusoids of distances: faults and innocent oddities."""

import pytest
import torch
from torch import nn

from additive_subjects import D, halves, judge, omega, woven


def signed(f=lambda d: d, make=woven, w=None):
    return lambda n: make(f(n - 1 - torch.arange(2 * n - 1)), omega(D) if w is None else w, D)


class Reversed(nn.Module):
    """A table over the longest length, cut from its middle (right) or from its start (wrong)."""

    def __init__(self, right, longest=50):
        super().__init__()
        self.right, self.longest = right, longest
        self.pe = signed()(longest)

    def forward(self, n):
        at = self.longest - n if self.right else 0
        return self.pe[at : at + 2 * n - 1]


class Cached:
    pe, n = None, 0

    def __call__(self, n):
        if self.pe is None or n > self.n:
            self.pe, self.n = signed()(n), n
        return self.pe[: 2 * n - 1]


REL = {"encoding": "relative_sinusoid", "dim": D}
TABLES = {
    "plain": (signed(), REL, ("pass",)),
    "batch_of_one": (lambda n: signed()(n)[None], REL, ("pass",)),
    "half": (signed(make=halves), REL, ("equivalent",)),
    "half_declared": (signed(make=halves), {**REL, "layout": "half"}, ("pass",)),
    "from_the_middle": (Reversed(True), REL, ("pass",)),
    "any_direction": (signed(lambda d: -d), {**REL, "direction": "any"}, ("equivalent",)),
    "direction": (signed(lambda d: -d), REL, ("fail", "relative_sinusoid.direction")),
    "sign_lost": (signed(abs), REL, ("fail", "relative_sinusoid.sign_lost")),
    "absolute": (
        lambda n: woven(torch.arange(2 * n - 1), omega(D), D),
        REL,
        ("fail", "relative_sinusoid.absolute_used"),
    ),
    "one_side": (lambda n: woven(torch.arange(n), omega(D), D), REL, ("fail", "relative_sinusoid.absolute_used")),
    "clamped": (signed(lambda d: d.clamp(min=0)), REL, ("fail", "relative_sinusoid.future_clamped")),
    "off_by_one": (signed(lambda d: d + 1), REL, ("fail", "relative_sinusoid.off_by_one")),
    "from_the_start": (Reversed(False), REL, ("fail", "relative_sinusoid.slice_of_reversed_table")),
    "cached": (Cached(), REL, ("fail", "sinusoidal.state_kept")),
    "inverted": (signed(w=1 / omega(D)), REL, ("fail", "sinusoidal.frequency.inverted")),
    "sign_lost_half": (signed(abs, halves), {**REL, "layout": "half"}, ("fail", "relative_sinusoid.sign_lost")),
    "sign_lost_undeclared": (signed(abs, halves), REL, ("fail", "relative_sinusoid.sign_lost")),
    "unknown": (signed(lambda d: d * d / 3), REL, ("fail", "relative_sinusoid.mismatch")),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_distances_is_judged(name):
    subject, spec, expected = TABLES[name]
    status, code = judge(subject, "relative_table_fn", spec)
    assert status == expected[0]
    if status == "fail":
        assert code in expected[1].split("|")
