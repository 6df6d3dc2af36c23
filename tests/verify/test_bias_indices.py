"""Indices of tables of windows: faults and innocent oddities, and what is said of each."""

import pytest
import torch

from bias_subjects import index, judged


def ramps(h, w):
    """Return mmdetection's spelling."""
    one = torch.arange(0, (2 * w - 1) * h, 2 * w - 1)
    coords = (one[:, None] + torch.arange(w)[None]).reshape(1, -1)
    return (coords + coords.T.flip(0)).flip(1).contiguous()


def _x_first(h, w):
    n = torch.arange(h * w)
    y, x = n // w, n % w
    return (x[:, None] - x + w - 1) * (2 * h - 1) + y[:, None] - y + h - 1


INDICES = {
    "plain": (index, {}, "pass", ""),
    "asked": (index, {"window": (7, 7)}, "pass", ""),
    "asked_number": (index, {"window": 8}, "pass", ""),
    "int32": (lambda h, w: index(h, w).int(), {}, "pass", ""),
    "turned": (lambda h, w: index(h, w, sign=-1), {}, "equivalent", ""),
    "ramps": (ramps, {}, None, ""),
    "x_first": (lambda h, w: index(h, w).new_tensor(0) + _x_first(h, w), {}, "equivalent", ""),
    "columns_square": (lambda h, w: index(h, w, order="column"), {"window": 7}, "equivalent", ""),
    "shuffled": (
        lambda h, w: torch.randperm((2 * h - 1) * (2 * w - 1), generator=torch.Generator().manual_seed(0))[index(h, w)],
        {},
        "equivalent",
        "",
    ),
    "step_of_h": (lambda h, w: index(h, w, lambda h, w: 2 * h - 1), {"window": (3, 5)}, "fail", "swin.index.collision"),
    "step_of_h_unsaid": (lambda h, w: index(h, w, lambda h, w: 2 * h - 1), {}, "fail", "swin.index.collision"),
    "step_short": (lambda h, w: index(h, w, lambda h, w: 2 * w - 2), {}, "fail", "swin.index.collision"),
    "step_none": (lambda h, w: index(h, w, lambda h, w: 1), {}, "fail", "swin.index.collision"),
    "absolute": (lambda h, w: index(h, w, absolute=True), {}, "fail", "swin.index.collision"),
    "step_long": (lambda h, w: index(h, w, lambda h, w: 2 * w), {}, "fail", "swin.index.out_of_table"),
    "from_one": (lambda h, w: index(h, w) + 1, {}, "fail", "swin.index.out_of_table"),
    "not_shifted": (lambda h, w: index(h, w, shift=False), {}, "fail", "swin.index.out_of_table"),
    "columns": (lambda h, w: index(h, w, order="column"), {}, "fail", "swin.index.axes_swapped"),
    "each_pair": (
        lambda h, w: torch.arange(h * w * h * w).reshape(h * w, h * w) % ((2 * h - 1) * (2 * w - 1)),
        {},
        "fail",
        "swin.index.not_by_distance",
    ),
    "shape": (lambda h, w: index(h, w)[0], {}, "fail", "subject.shape"),
}


@pytest.mark.parametrize("name", INDICES)
def test_indices(name):
    subject, spec, *want = INDICES[name]
    judged(subject, "relative_index_fn", {"encoding": "swin_bias", **spec}, *want)
