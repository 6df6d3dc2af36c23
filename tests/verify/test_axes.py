"""Rotations over several axes: faults and correct variants of tables, of functions, and of M-RoPE's sections."""

import math

import numpy as np
import pytest
import torch

from posenc.verify import check, family_of
from posenc.verify.engine import Seen
from posenc.verify.engine.judge import settle

SECTION = [8, 12, 12]


def of_pairs(order="xy", alternate=False, ladder="axis", n=16, base=10000.0):
    """Return angles(row, column): each pair of dimensions reads one of them at a frequency of its own."""
    pair = torch.arange(n).double()
    first = pair % 2 == 0 if alternate else pair < n // 2
    number = pair // 2 if alternate else pair % (n // 2)
    exponents = {"axis": 2 * number, "shared": pair, "dealt": 2 * number + (pair >= n // 2), "width": number}
    freq = base ** (-exponents[ladder] / n)

    def angles(row, column):
        one, other = (row, column) if order == "yx" else (column, row)
        return torch.where(first, one[..., None].double(), other[..., None].double()) * freq

    return angles


def table(*switches, place=lambda t, h, w: (t // w, t % w), **more):
    """Return table(h, w), the angles of all patches."""
    angles = of_pairs(*switches, **more)
    return lambda h, w: angles(*place(torch.arange(h * w), h, w))


def rotate(order="yx", base=100.0, pairing="block", graded=True, clockwise=False):
    """Return rope(x, positions) on rows and columns, as vision towers write it."""
    angles = of_pairs(order=order, base=base)

    def rope(x, positions):
        angle = angles(positions[..., 0], positions[..., 1])[:, None].to(x.dtype) * (-1 if clockwise else 1)
        cos, sin = angle.cos(), angle.sin()
        x = x if graded else x.detach()
        if pairing == "head":
            u, v = x.chunk(2, -1)
            return torch.cat((u * cos - v * sin, v * cos + u * sin), -1)
        if pairing == "interleaved":
            u, v = x[..., ::2], x[..., 1::2]
            return torch.stack((u * cos - v * sin, v * cos + u * sin), -1).flatten(-2)
        parts = []
        for part, c, s in zip(x.chunk(2, -1), cos.chunk(2, -1), sin.chunk(2, -1), strict=True):
            u, v = part.chunk(2, -1)
            parts.append(torch.cat((u * c - v * s, v * c + u * s), -1))
        return torch.cat(parts, -1)

    return rope


def refusing(subject, size=None):
    """Return a table that refuses images of another size, or that are not square."""

    def of(h, w):
        assert (h, w) == (size or (h, h)), "another size"
        return subject(h, w)

    return of


class Keeps:
    """A subject that keeps its first result of each size."""

    def __init__(self, subject, size=lambda *args: args[-1].shape):
        self.subject, self.size, self.kept = subject, size, {}

    def __call__(self, *args):
        return self.kept.setdefault(self.size(*args), self.subject(*args))


def dealt_backwards(h, w):
    f, at = 10000.0 ** (-torch.arange(16).double() / 16), torch.arange(h * w)[:, None]
    return torch.cat((at // w * f[1::2], at % w * f[::2]), 1)


def in_blocks(t, h, w):
    """Return the places of patches in blocks of 2 x 2, which Qwen2-VL merges; odd sides have none."""
    if h % 2 or w % 2:
        return t // w, t % w
    return tuple(side.view(h // 2, 2, w // 2, 2).transpose(1, 2).flatten() for side in (t // w, t % w))


def unit(span=None, order="yx"):
    """Return DINOv3's angles: the centres of patches between -1 and 1, times 2 pi, base 100."""

    def angles(h, w):
        sides = (h, w) if span is None else (span(h, w),) * 2
        y, x = ((2 * torch.arange(n).double() + 1) / side - 1 for n, side in zip((h, w), sides, strict=True))
        both = torch.stack(torch.meshgrid(y, x, indexing="ij"), -1).flatten(0, 1)
        both = both if order == "yx" else both.flip(1)
        return (2 * math.pi * both[:, :, None] / 100.0 ** (torch.arange(8) / 8)).flatten(1)

    return angles


KEPT = {}


def kept_by_count(h, w):
    return KEPT.setdefault(h * w, table()(h, w))


UNIT = {"encoding": "rope2d", "head_dim": 32, "base": 100.0, "order": "yx", "coordinates": "unit"}
ROPE2D = {"encoding": "rope2d", "head_dim": 32, "base": 10000.0}
ROWS, WOVEN = ROPE2D | {"order": "yx"}, ROPE2D | {"order": "yx", "interleaved": True}
TABLES = {
    "columns first": (table(), ROPE2D, "pass"),
    "rows first": (table("yx"), ROWS, "pass"),
    "alternating": (table("yx", True), WOVEN, "pass"),
    "alternating, one series": (table("yx", True, "shared"), WOVEN, "pass"),
    "one series in blocks": (table("yx", False, "shared"), ROWS | {"ladder": "shared"}, "pass"),
    "dealt": (table("yx", False, "dealt"), ROWS | {"ladder": "dealt"}, "pass"),
    "from 1": (table(place=lambda t, h, w: (t // w + 1, t % w + 1)), ROPE2D, "equivalent"),
    "square": (refusing(table()), ROPE2D, "pass"),
    "of one size": (refusing(table(), (14, 14)), ROPE2D, "pass"),
    "square, rows first": (refusing(table("yx")), ROPE2D, "rope2d.axes_swapped"),
    "of one size, base": (refusing(table(base=500000.0), (14, 14)), ROPE2D, "rope2d.config.theta_not_read"),
    "rows first, not asked": (table("yx"), ROPE2D, "rope2d.axes_swapped"),
    "blocks for alternating": (table("yx", False, "shared"), WOVEN, "rope2d.interleaved_axes"),
    "alternating for blocks": (table("yx", True), ROWS, "rope2d.interleaved_axes"),
    "one series, not asked": (table("yx", False, "shared"), ROWS, "rope2d.frequency.shared"),
    "down columns": (table(place=lambda t, h, w: (t % h, t // h)), ROPE2D, "rope2d.grid_transposed"),
    "flat": (table(place=lambda t, h, w: (t, t)), ROPE2D, "rope2d.flat_index"),
    "whole rotations off": (lambda h, w: table()(h, w) % (2 * np.pi), ROPE2D, "pass"),
    "halved": (table(place=lambda t, h, w: (t // w / 2, t % w / 2)), ROPE2D, "rope2d.coordinates_wrong"),
    "base": (table(base=500000.0), ROPE2D, "rope2d.config.theta_not_read"),
    "odd base": (table(base=777.0), ROPE2D, "rope2d.frequency.mismatch"),
    "over all pairs": (table(ladder="width"), ROPE2D, "rope2d.frequency.width"),
    "kept": (Keeps(table(), lambda h, w: h * w), ROPE2D, "rope.state_kept"),
    "dealt backwards": (dealt_backwards, ROPE2D | {"ladder": "dealt", "order": "yx"}, "rope2d.frequency.shared"),
    "kept by closures": (kept_by_count, ROPE2D, "rope.state_kept"),
    "columns lost": (table(place=lambda t, h, w: (t // w, 0 * t)), ROPE2D, "rope.partial.width"),
    "slow half lost": (lambda h, w: table()(h, w) * (torch.arange(16) % 8 < 4), ROPE2D, "rope.partial.width"),
    "in blocks": (table("yx", place=in_blocks), ROWS, "rope2d.patch_order"),
    "back and forth": (
        table(place=lambda t, h, w: (t // w, (t % w - (w - 1) * (t // w % 2)).abs())),
        ROPE2D,
        "rope2d.patch_order",
    ),
    "a class token": (lambda h, w: table()(h, w)[[0, *range(h * w - 1)]], ROPE2D, "rope2d.patch_order"),
    "rows of a wider image": (table(place=lambda t, h, w: (t // 96, t % 96)), ROPE2D, "rope2d.patch_order"),
    "a table's end": (
        table(place=lambda t, h, w: ((t // w).clamp(max=23), (t % w).clamp(max=23))),
        ROPE2D,
        "rope2d.table.wraps",
    ),
    "rounded down": (table(place=lambda t, h, w: (t // w // 2, t % w // 2)), ROPE2D, "rope2d.table.wraps"),
    "angles rounded": (lambda h, w: table()(h, w).half(), ROPE2D, "rope2d.precision.product_fp16"),
    "unit coordinates": (unit(), UNIT, "pass"),
    "unit coordinates, shorter side": (unit(min), UNIT | {"coordinates": "unit_shorter"}, "pass"),
    "unit coordinates, not asked": (unit(), UNIT | {"coordinates": "cells"}, "rope2d.coordinates_wrong"),
    "cells, not asked": (table("yx", base=100.0), UNIT, "rope2d.coordinates_wrong"),
    "unit coordinates without 2 pi": (lambda h, w: unit()(h, w) / (2 * np.pi), UNIT, "rope2d.coordinates_wrong"),
    "unit coordinates of the height": (unit(lambda h, w: h), UNIT, "rope2d.coordinates_wrong"),
    "unit coordinates, columns first": (unit(order="xy"), UNIT, "rope2d.axes_swapped"),
    "raises": (lambda h, w: torch.zeros(h, 3) @ torch.zeros(w, 2), ROPE2D, "subject.raises"),
}
SAID = {  # what a message contains
    "columns lost": "pairs 0 to 7 are left unrotated",
    "rows of a wider image": "in rows of 96",
    "unit coordinates, not asked": "declare coordinates: unit",
    "unit coordinates of the height": "over the height",
    "rows counted from the first": "from the first of each call",
    "wider axes": "[22, 21, 21] pairs",
    "scaled in time only": "not applied to height, width",
}
PLACED = ROPE2D | {"base": 100.0, "order": "yx"}
FUNCTIONS = {
    "blocks": (rotate(), PLACED, "pass"),
    "pairs over the head": (rotate(pairing="head"), PLACED, "pass"),
    "interleaved": (rotate(pairing="interleaved"), PLACED | {"layout": "interleaved"}, "pass"),
    "clockwise": (rotate(clockwise=True), PLACED, "equivalent"),
    "places from 1": (lambda x, p: rotate()(x, p + 1), PLACED, "equivalent"),
    "columns first": (rotate("xy"), PLACED, "rope2d.axes_swapped"),
    "exponents": (rotate(base=0.01), PLACED, "rope2d.frequency.exponents"),
    "base": (rotate(base=1e4), PLACED, "rope2d.config.theta_not_read"),
    "one axis": (lambda x, p: rotate()(x, p[..., :1].expand_as(p)), PLACED, "rope2d.axis_repeated"),
    "kept": (Keeps(rotate()), PLACED, "rope.state_kept"),
    "rotated twice": (lambda x, p: rotate()(rotate()(x, p), p), PLACED, "rope.applied_twice"),
    "three steps over the head": (lambda x, p: rotate(pairing="head")(x, p * 3), PLACED, "rope2d.coordinates_wrong"),
    "counted": (lambda x, p: rotate()(x, 0 * p + torch.arange(p.shape[1])[:, None]), PLACED, "positions.given_ignored"),
    "rows counted from the first": (lambda x, p: rotate()(x, p - p[:, :1]), PLACED, "positions.given_ignored"),
    "a gain": (lambda x, p: 0.7 * rotate()(x, p), PLACED, "rope.gain"),
    "a sign": (lambda x, p: mixed(x, p, "same"), PLACED | {"layout": "interleaved"}, "rope.sign.same_twice"),
    "in place": (lambda x, p: mixed(x, p, "first"), PLACED | {"layout": "interleaved"}, "rope.aliased_write"),
    "tables of halves": (lambda x, p: mixed(x, p, "tables"), PLACED | {"layout": "interleaved"}, "rope.layout.mixed"),
    "rows share": (lambda x, p: rotate()(x, p[:1].expand_as(p)), PLACED, "rope.batch.rows_share"),
    "over the head": (rotate(pairing="head"), PLACED | {"layout": "interleaved"}, "rope2d.layout.wrong_pairing"),
    "rows first, not asked": (rotate(), {n: v for n, v in PLACED.items() if n != "order"}, "pass"),
    "columns first, not asked": (rotate("xy"), {n: v for n, v in PLACED.items() if n != "order"}, "pass"),
    "other pairs": (rotate(pairing="interleaved"), PLACED, "rope2d.layout.wrong_pairing"),
    "no gradient": (rotate(graded=False), PLACED, "rope2d.grad.severed"),
}


def mixed(x, positions, fault):
    """Return rows and columns in neighbouring dimensions, with a fault of the rotation of each pair."""
    angle = of_pairs(order="yx", base=100.0)(positions[..., 0], positions[..., 1])[:, None]
    first = angle.repeat_interleave(2, -1) if fault != "tables" else torch.cat((angle, angle), -1)
    cos, sin, u, v = first.cos(), first.sin(), x[..., ::2], x[..., 1::2]
    one = u * cos[..., ::2] + v * sin[..., ::2] * (1 if fault == "same" else -1)
    other = v * cos[..., 1::2] + (one if fault == "first" else u) * sin[..., 1::2]
    return torch.stack((one, other), -1).flatten(-2).to(x.dtype)


def mrope(axis, freq=None, base=50000.0):
    n = len(axis)
    freq = base ** (-torch.arange(n).double() / n) if freq is None else freq
    return lambda ids: ids.double()[torch.as_tensor(axis)].T * freq


BLOCKS = np.repeat(range(3), SECTION)
WEAVE = np.array([i % 3 if i < 3 * SECTION[i % 3] else 0 for i in range(32)])
NUMBER = torch.cat([torch.arange(s) for s in SECTION]).double()
MROPE = {"encoding": "mrope", "head_dim": 64, "base": 50000.0, "section": SECTION}
SCALED = {"encoding": "mrope", "head_dim": 64, "base": 50000.0}
PARAMETERS = {"mrope_interleaved": True, "mrope_section": SECTION}
SECTIONS = {
    "blocks": (mrope(BLOCKS), MROPE, "pass"),
    "interleaved": (mrope(WEAVE), MROPE | {"mrope_interleaved": True}, "pass"),
    "whole rotations off": (lambda ids: mrope(BLOCKS)(ids) % (2 * np.pi), MROPE, "pass"),
    "rope_scaling": (mrope(BLOCKS), SCALED | {"rope_scaling": {"type": "mrope", "mrope_section": SECTION}}, "pass"),
    "rope_parameters": (mrope(WEAVE), SCALED | {"config": {"rope_parameters": PARAMETERS}}, "pass"),
    "interleaved for blocks": (mrope(WEAVE), MROPE, "mrope.interleaved_where_blocked"),
    "blocks for interleaved": (mrope(BLOCKS), MROPE | {"interleaved": True}, "mrope.interleaving_ignored"),
    "kept": (Keeps(mrope(BLOCKS)), MROPE, "rope.state_kept"),
    "one axis": (mrope(BLOCKS * 0 + 1), MROPE, "mrope.axes_collapsed"),
    "columns before rows": (mrope(np.array([0, 2, 1])[BLOCKS]), MROPE, "mrope.section_order"),
    "restart": (mrope(BLOCKS, 50000.0 ** (-NUMBER / 32)), MROPE, "mrope.frequency.restart"),
    "base": (mrope(BLOCKS, base=1e6), MROPE, "mrope.config.theta_not_read"),
    "exponents": (mrope(BLOCKS, base=50000.0**0.5), MROPE, "mrope.frequency.exponents"),
    "odd base": (mrope(BLOCKS, base=777.0), MROPE, "mrope.config.theta_not_read"),
    "one pair": (mrope(np.where(np.arange(32) == 9, 2, BLOCKS)), MROPE, "mrope.mismatch"),
    "half lost": (
        mrope(BLOCKS, 5e4 ** (-torch.arange(32) / 32) * (torch.arange(32) < 16)),
        MROPE,
        "rope.partial.width",
    ),
    "the last pair lost": (
        mrope(BLOCKS, 5e4 ** (-torch.arange(32) / 32) * (torch.arange(32) < 31)),
        MROPE,
        "rope.partial.width",
    ),
    "rows counted from the first": (lambda ids: mrope(BLOCKS)(ids - ids[:, :1]), MROPE, "positions.given_ignored"),
    "a table of the image's axes": (
        lambda ids: mrope(BLOCKS)(torch.cat((ids[:1], ids[1:].clamp(max=1023)))),
        MROPE,
        "mrope.table.wraps",
    ),
    "angles rounded": (lambda ids: mrope(BLOCKS)(ids).bfloat16(), MROPE, "mrope.precision.product_bf16"),
    "rounded, in two ways": (lambda i: mrope(BLOCKS, None, 1e4)(i.bfloat16()), MROPE, "mrope.precision.positions_bf16"),
    "rounded": (lambda ids: mrope(BLOCKS)(ids.bfloat16()), MROPE, "mrope.precision.positions_bf16"),
}


def full_tables(widths, cuts, rows):
    """Return rope(x, positions) with a cosine and a sine for each dimension, cut by axis: as Wan, or as CogVideoX."""
    freq = ladder(widths).repeat_interleave(2)
    axis = torch.repeat_interleave(torch.arange(len(cuts)), torch.tensor(cuts))

    def rope(x, positions):
        angle = (positions.double()[..., axis] * freq)[:, None]
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        if rows == "Wan":
            u, v, cos, sin = x[..., 0::2], x[..., 1::2], cos[..., 0::2], sin[..., 1::2]
            return torch.stack((u * cos - v * sin, u * sin + v * cos), -1).flatten(-2)
        return x * cos + torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2) * sin

    return rope


CUT, ORDER = "mrope.section_cut", "mrope.section_order"


def ladder(widths, base=10000.0, over=None, start=0):
    """Return base^(-2k / width) of each axis, pair by pair, as diffusion models compute them."""
    bases = base if isinstance(base, tuple) else (base,) * len(widths)
    return torch.cat(
        [b ** (-(torch.arange(0, w, 2).double() + start) / (over or w)) for w, b in zip(widths, bases, strict=True)]
    )


def follow(widths):
    return torch.repeat_interleave(torch.arange(len(widths)), torch.tensor(widths) // 2)


def axial(widths, freq=None, axes=None, **more):
    """Return angles(position_ids): each axis has its own frequencies, and its own pairs."""
    freq, axes = ladder(widths, **more) if freq is None else freq, follow(widths) if axes is None else axes
    return lambda ids: ids.double()[axes].T * freq


def columns(widths, cuts):
    """Return angles as Wan's tables give them: neighbouring columns of cosines and sines, cut by axis."""
    freq = ladder(widths).repeat_interleave(2)
    axis = torch.repeat_interleave(torch.arange(len(cuts)), torch.tensor(cuts))

    def angles(ids):
        columns = ids.double()[axis].T * freq
        return torch.atan2(columns[:, 1::2].sin(), columns[:, 0::2].cos())

    return angles


def turn(angles, pairing="interleaved", gain=1.0, cut=None):
    """Return rope(x, positions) on any number of axes, by the angles of one row of positions."""

    def rope(x, positions):
        angle = torch.stack([angles(row.T) for row in positions])[:, None].to(x.dtype)
        n = 2 * angle.shape[-1]
        x, rest = x[..., :n], x[..., n:]
        u, v = (x[..., ::2], x[..., 1::2]) if pairing == "interleaved" else x.chunk(2, -1)
        y = u * angle.cos() - v * angle.sin(), v * angle.cos() + u * angle.sin()
        y = torch.stack(y, -1).flatten(-2) if pairing == "interleaved" else torch.cat(y, -1)
        return torch.cat((y * gain, rest), -1)

    return rope


WAN, FLUX, COG = (44, 42, 42), (16, 56, 56), (16, 24, 24)
WAN_SPEC = {"encoding": "axial_rope", "head_dim": 128, "widths": [44, 42, 42]}
FLUX_SPEC = {"encoding": "rope", "ladder": "axis", "head_dim": 128, "axes_dim": [16, 56, 56]}
COG_SPEC = {"encoding": "axial_rope", "head_dim": 64, "section": [8, 12, 12]}
COSMOS = (10000.0, 20000.0, 40000.0)
FOUR_SPEC = {"encoding": "axial_rope", "head_dim": 128, "base": 2000.0, "n_axes": 4}
HALF_WAY = torch.cat((ladder((64,))[:32], ladder((64,))[:32]))
AXIAL = {
    "Wan": (axial(WAN), WAN_SPEC, "pass"),
    "FLUX": (axial(FLUX), FLUX_SPEC, "pass"),
    "a model's name leaves the ladder open": (
        axial(COG),
        {"encoding": "cogvideox", "head_dim": 64, "section": [8, 12, 12]},
        "pass",
    ),
    "CogVideoX": (axial(COG), COG_SPEC, "pass"),
    "FLUX.2": (axial((32,) * 4, base=2000.0), FOUR_SPEC, "pass"),
    "Cosmos": (axial(WAN, base=COSMOS), WAN_SPEC | {"base": list(COSMOS)}, "pass"),
    "Cosmos, one base": (axial(WAN), WAN_SPEC | {"base": list(COSMOS)}, "mrope.config.theta_not_read"),
    "M-RoPE with a series for each axis": (axial(COG), COG_SPEC | {"encoding": "mrope", "ladder": "axis"}, "pass"),
    "clockwise": (lambda ids: -axial(WAN)(ids), WAN_SPEC, "pass"),
    "from 1": (lambda ids: axial(WAN)(ids + 1), WAN_SPEC, "equivalent"),
    "float32": (lambda ids: axial(WAN)(ids).float(), WAN_SPEC, "pass"),
    "one series": (axial(WAN, ladder((128,))), WAN_SPEC, "mrope.frequency.one_series"),
    "a series for each, not asked": (
        axial(WAN),
        {"encoding": "mrope", "head_dim": 128, "section": [22, 21, 21]},
        "mrope.frequency.restart",
    ),
    "over the head": (axial(WAN, over=128), WAN_SPEC, "mrope.frequency.width"),
    "over a third": (axial(WAN, over=128 / 3), WAN_SPEC, "mrope.frequency.width"),
    "over the width of time": (axial(FLUX, over=16), FLUX_SPEC, "mrope.frequency.width"),
    "columns cut by thirds": (columns((24, 20, 20), (22, 21, 21)), COG_SPEC | {"section": [12, 10, 10]}, CUT),
    "cut by thirds": (axial(COG, axes=follow((22, 22, 20))), COG_SPEC, CUT),
    "cut as FLUX": (axial(WAN, axes=follow(FLUX)), WAN_SPEC, CUT),
    "cut where others end": (axial(WAN, axes=follow((42, 42, 44))), WAN_SPEC, CUT),
    "sections in dimensions": (axial(COG, axes=follow((32, 48, 48))[:32]), COG_SPEC, "mrope.section_scale"),
    "rows and columns exchanged": (axial(WAN, axes=torch.tensor([0, 2, 1])[follow(WAN)]), WAN_SPEC, ORDER),
    "width first": (axial(WAN, axes=torch.tensor([2, 1, 0])[follow(WAN)]), WAN_SPEC, ORDER),
    "time last": (axial((56, 56, 16)), FLUX_SPEC, ORDER),
    "time last, all of it": (
        axial((56, 56, 16), axes=torch.tensor([1, 2, 0])[follow((56, 56, 16))]),
        FLUX_SPEC,
        ORDER,
    ),
    "two axes of four exchanged": (
        axial((32,) * 4, base=2000.0, axes=torch.tensor([0, 1, 3, 2])[follow((32,) * 4)]),
        FOUR_SPEC,
        ORDER,
    ),
    "one axis": (axial(FLUX, axes=follow(FLUX) * 0), FLUX_SPEC, "mrope.axes_collapsed"),
    "wider axes": (axial(WAN), FLUX_SPEC, ORDER),
    "thirds and a rest": (lambda ids: torch.nn.functional.pad(axial((42, 42, 42))(ids), (0, 1)), WAN_SPEC, ORDER),
    "slow pairs lost": (axial(COG, ladder(COG) * (ladder(COG) > 0.01)), COG_SPEC, "rope.partial.width"),
    "backwards": (axial(COG, torch.cat([ladder((w,)).flip(0) for w in COG])), COG_SPEC, "mrope.frequency.exponents"),
    "alternating": (
        axial(COG, freq=ladder((22, 22, 20))[[0, 11, 22, 1, 12, 23, 2, 13, 24] + [*range(3, 11)] * 2 + [3] * 7]),
        COG_SPEC,
        "mrope.frequency.mismatch",
    ),
    "base": (axial(WAN, base=1e6), WAN_SPEC, "mrope.config.theta_not_read"),
    "base of FLUX.2": (axial((32,) * 4), FOUR_SPEC, "mrope.config.theta_not_read"),
    "rounded": (lambda ids: axial(WAN)(ids.bfloat16()), WAN_SPEC, "mrope.precision.positions_bf16"),
    "time counts double": (
        lambda ids: axial(WAN)(ids * torch.tensor([[2], [1], [1]])),
        WAN_SPEC,
        "mrope.coordinates_wrong",
    ),
    "mirrored": (lambda ids: axial(WAN)(ids * torch.tensor([[1], [-1], [1]])), WAN_SPEC, "mrope.coordinates_wrong"),
    "time ignored": (
        lambda ids: axial(WAN)(ids * torch.tensor([[0], [1], [1]])),
        WAN_SPEC,
        "mrope.coordinates_wrong",
    ),
    "height twice": (axial(WAN, axes=torch.tensor([0, 1, 1])[follow(WAN)]), WAN_SPEC, "mrope.axis_repeated"),
    "summed": (lambda ids: axial(WAN)(ids.sum(0).expand(3, -1)), WAN_SPEC, "mrope.mismatch"),
    "frequencies rounded": (
        axial(WAN, ladder(WAN).bfloat16().double()),
        WAN_SPEC,
        "mrope.precision.frequencies_bf16",
    ),
    "from the second exponent": (axial(WAN, ladder(WAN, start=2)), WAN_SPEC, "mrope.frequency.exponents"),
    "last pair at the base": (
        axial(WAN, torch.cat([1e4 ** -torch.linspace(0, 1, w // 2).double() for w in WAN])),
        WAN_SPEC,
        "mrope.frequency.exponents",
    ),
    "base of HunyuanVideo": (axial(FLUX, base=256.0), FLUX_SPEC, "mrope.config.theta_not_read"),
    "other bases of rows and columns": (axial(WAN, base=(1e4, 777.0, 777.0)), WAN_SPEC, "mrope.config.theta_not_read"),
    "a byte": (lambda ids: axial(WAN)(ids % 256), WAN_SPEC, "mrope.table.wraps"),
    "a table's end": (lambda ids: axial(WAN)(ids.clamp(max=1023)), WAN_SPEC, "mrope.table.wraps"),
    "halved": (lambda ids: axial(WAN)(ids // 2), WAN_SPEC, "mrope.table.wraps"),
    "one pair": (axial(WAN, axes=torch.where(torch.arange(64) == 9, 2, follow(WAN))), WAN_SPEC, "mrope.mismatch"),
}
INTERLEAVED = WAN_SPEC | {"layout": "interleaved"}
COG64 = {"encoding": "axial_rope", "head_dim": 64, "section": [12, 10, 10], "layout": "interleaved"}
LINEAR = {"encoding": "axial_rope", "head_dim": 64, "scaling": "linear", "factor": 4.0, "layout": "interleaved"}
TURNED = {
    "two axes, scaled": (turn(axial((32, 32), ladder((32, 32)) / 4)), LINEAR, "pass"),
    "two axes, not scaled": (turn(axial((32, 32))), LINEAR, "rope.config.scaling_ignored"),
    "three axes, scaled": (turn(axial(COG, ladder(COG) / 4)), LINEAR | {"widths": list(COG)}, "pass"),
    "two axes of M-RoPE": (
        turn(axial((24, 40), ladder((64,)))),
        {"encoding": "mrope", "head_dim": 64, "section": [12, 20], "order": "yx", "layout": "interleaved"},
        "pass",
    ),
    "tables cut as Wan's were": (full_tables((24, 20, 20), (22, 21, 21), "Wan"), COG64, CUT),
    "tables cut, rows of two angles": (full_tables((24, 20, 20), (22, 21, 21), "Cog"), COG64, CUT),
    "tables cut as made": (full_tables((24, 20, 20), (24, 20, 20), "Cog"), COG64, "pass"),
    "positions exchanged": (lambda x, p: turn(axial(WAN))(x, p[..., [0, 2, 1]]), INTERLEAVED, ORDER),
    "rows share": (lambda x, p: turn(axial(WAN))(x, p[:1].expand_as(p)), INTERLEAVED, "rope.batch.rows_share"),
    "mirrored": (
        lambda x, p: turn(axial(WAN))(x, p * torch.tensor([1, -1, 1])),
        INTERLEAVED,
        "mrope.coordinates_wrong",
    ),
    "no gradient": (lambda x, p: turn(axial(WAN))(x.detach(), p), INTERLEAVED, "rope2d.grad.severed"),
    "Wan": (turn(axial(WAN)), INTERLEAVED, "pass"),
    "Cosmos, half": (turn(axial(WAN), "half"), WAN_SPEC, "pass"),
    "FLUX.2": (turn(axial((32,) * 4, base=2000.0)), FOUR_SPEC | {"layout": "interleaved"}, "pass"),
    "two uneven axes": (
        turn(axial((40, 24))),
        {"encoding": "axial_rope", "head_dim": 64, "widths": [40, 24], "order": "yx", "layout": "interleaved"},
        "pass",
    ),
    "two uneven axes, exchanged": (
        turn(axial((40, 24), axes=1 - follow((40, 24)))),
        {"encoding": "axial_rope", "head_dim": 64, "widths": [40, 24], "order": "yx", "layout": "interleaved"},
        "rope2d.axes_swapped",
    ),
    "clockwise": (turn(lambda ids: -axial(WAN)(ids)), INTERLEAVED, "equivalent"),
    "half for interleaved": (
        turn(axial(WAN), "half"),
        INTERLEAVED,
        "rope2d.layout.wrong_pairing",
    ),
    "one series": (
        turn(axial(WAN, ladder((128,)))),
        INTERLEAVED,
        "mrope.frequency.one_series",
    ),
    "cut as FLUX": (turn(axial(WAN, axes=follow(FLUX))), INTERLEAVED, CUT),
    "rows and columns": (
        turn(axial(WAN, axes=torch.tensor([0, 2, 1])[follow(WAN)])),
        INTERLEAVED,
        ORDER,
    ),
    "base": (turn(axial(WAN, base=1e6)), INTERLEAVED, "mrope.config.theta_not_read"),
}


def yarn(width, base=1e7, factor=4.0, original=262144, over=None):
    """Return YaRN's frequencies in the words of the paper, section 3.2, with whole ends of the ramp."""
    i, d = torch.arange(width // 2).double(), over or width
    plain = base ** (-2 * i / width)
    low = math.floor(d * math.log(original / (32 * 2 * math.pi)) / (2 * math.log(base)))
    high = math.ceil(d * math.log(original / (1 * 2 * math.pi)) / (2 * math.log(base)))
    ramp = ((i - low) / (high - low)).clamp(0, 1)
    return plain * (1 - ramp) + plain / factor * ramp


QUARTER = {  # of Qwen3.5: a quarter of heads of 256, interleaved
    "model_type": "qwen3_5_text",
    "head_dim": 256,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1e7,
        "factor": 4.0,
        "original_max_position_embeddings": 262144,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
}
TURNS = np.array([0, 1, 2] * 10 + [0, 1])
BY_WORDS = {
    "encoding": "mrope",
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "base": 1e7,
    "section": [11, 11, 10],
    "interleaved": True,
    "scaling": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 262144,
}
GAIN = 0.1 * math.log(4.0) + 1
STRETCHED = {
    "YaRN by config": (mrope(TURNS, yarn(64)), {"config": QUARTER}, "pass"),
    "YaRN by words": (mrope(TURNS, yarn(64)), BY_WORDS, "pass"),
    "not scaled": (mrope(TURNS, base=1e7), BY_WORDS, "rope.config.scaling_ignored"),
    "linear": (mrope(TURNS, 1e7 ** (-torch.arange(32).double() / 32) / 4), BY_WORDS, "rope.scaling.as_linear"),
    "over the head": (mrope(TURNS, yarn(256)[:32]), BY_WORDS, "mrope.frequency.width"),
    "the ramp over the head": (
        mrope(TURNS, yarn(64, original=4096, over=256)),
        BY_WORDS | {"original_max_position_embeddings": 4096},
        "rope.yarn.range_in_dimensions",
    ),
    "blocks": (mrope(np.repeat(range(3), [11, 11, 10]), yarn(64)), BY_WORDS, "mrope.interleaving_ignored"),
    "scaled in time only": (
        mrope(TURNS, torch.where(torch.as_tensor(TURNS) == 0, yarn(64), yarn(64, factor=1.0))),
        BY_WORDS,
        "rope.config.scaling_ignored",
    ),
    "plain, over the head": (
        mrope(TURNS, 1e7 ** (-torch.arange(32).double() / 128)),
        {
            name: value
            for name, value in BY_WORDS.items()
            if name not in ("scaling", "factor", "original_max_position_embeddings")
        },
        "mrope.frequency.width",
    ),
}
PLANS = {
    "time last": (
        mrope(np.array([1, 2] * 12 + [0] * 8), base=1e4),
        {"encoding": "videorope", "head_dim": 64, "section": [8, 12, 12]},
        "pass",
    ),
    "a list": (
        mrope(np.array([0, 0, 1, 2, 1, 2, 1, 2] * 4), base=1e4),
        {"head_dim": 64, "axes": [0, 0, 1, 2, 1, 2, 1, 2]},
        "pass",
    ),
    "blocks for time last": (
        mrope(np.repeat(range(3), [8, 12, 12]), base=1e4),
        {"head_dim": 64, "axes": "time_last", "section": [8, 12, 12]},
        "mrope.interleaving_ignored",
    ),
    "time does not rotate": (
        mrope(np.array([1, 2] * 12 + [0] * 8), torch.where(torch.arange(32) < 24, 1e4 ** (-torch.arange(32) / 32), 0)),
        {"encoding": "hope_video", "head_dim": 64, "section": [8, 12, 12]},
        "pass",
    ),
}
CASES = [
    pytest.param(convention, *case, id=f"{convention}: {name}")
    for convention, cases in (
        ("rope2d_table_fn", TABLES),
        ("rope_axes_fn", FUNCTIONS),
        ("mrope_fn", SECTIONS),
        ("mrope_fn", AXIAL),
        ("mrope_fn", STRETCHED),
        ("mrope_fn", PLANS),
        ("rope_axes_fn", TURNED),
        (
            "rope_axes_fn",
            {
                name: (turn(subject, "half", gain=GAIN), spec, want)
                for name, (subject, spec, want) in STRETCHED.items()
                if name.startswith(("YaRN", "not"))
            }
            | {
                "no gain": (turn(mrope(TURNS, yarn(64)), "half"), BY_WORDS, "rope.yarn.gain_lost"),
                "gain squared": (turn(mrope(TURNS, yarn(64)), "half", GAIN**2), BY_WORDS, "rope.yarn.gain_squared"),
            },
        ),
    )
    for name, case in cases.items()
]


@pytest.mark.parametrize(("convention", "subject", "spec", "want"), CASES)
def test_axes(convention, subject, spec, want, request):
    report = check(subject, convention=convention, spec=spec)
    assert (report.causes[0].code if report.causes else report.status) == want, report
    assert not report.causes or "{" not in report.causes[0].message
    words = SAID.get(request.node.callspec.id.partition(": ")[2], "")
    assert words in (report.causes[0].message if report.causes else "")


def test_what_is_not_asked_for_is_not_judged():
    report = check(rotate(), convention="rope_axes_fn", spec={**ROPE2D, "base": 100.0})
    assert any("declare order" in line for line in report.not_judged)
    report = check(table("yx", True, "shared"), convention="rope2d_table_fn", spec=WOVEN)
    assert any("ladder" in line for line in report.not_judged)
    assert report.measured["ladder"] == "shared"
    assert report.measured["frequencies"]["0"][:2] == pytest.approx([1.0, 10000.0 ** (-2 / 16)], rel=1e-5)


@pytest.mark.parametrize(
    ("convention", "spec"),
    [
        *[("rope2d_table_fn", ROWS), ("rope_axes_fn", PLACED), ("mrope_fn", MROPE), ("mrope_positions_fn", {})],
        *[("mrope_fn", WAN_SPEC), ("mrope_fn", BY_WORDS), ("rope_axes_fn", INTERLEAVED)],
    ],
)
def test_every_fault_is_named_or_an_earlier_one_predicts_the_same(convention, spec):
    family = family_of(convention, spec)
    cases, named = [c for c in family.cases() if c.kind != "grad"], []
    for fault in family.faults():
        seen = [Seen(c, family.predict({**family.truth, **fault.change}, c)) for c in cases]
        verdict = settle(family, seen)
        if verdict.status != "fail":
            continue  # it changes nothing with these numbers
        first = verdict.faults[0]
        same = all(np.allclose(family.predict({**family.truth, **first.change}, s.case), s.value) for s in seen)
        assert first.code == fault.code or same, (fault.code, first)
        named.append(first.code)
    assert len(set(named)) > 3


REFUSED = [
    ("rope2d_table_fn", ROPE2D | {"order": "rows"}, "order must be"),
    ("rope2d_table_fn", ROPE2D | {"ladder": "both"}, "ladder must be one of axis, shared, dealt"),
    ("rope2d_table_fn", ROPE2D | {"padding": "left"}, "does not read 'padding'"),
    ("rope2d_table_fn", ROPE2D | {"section": [4, 4, 8]}, "has two axes with 16 pairs"),
    ("rope2d_table_fn", WOVEN | {"widths": [12, 20]}, "axes that alternate have equally many pairs"),
    ("mrope_fn", MROPE | {"section": [1, 2, 3]}, "need section .* with sum 32"),
    ("mrope_fn", MROPE | {"section": [16, 24, 24]}, "section counts pairs: write widths for dimensions"),
    ("mrope_fn", WAN_SPEC | {"widths": [44, 42, 40]}, "widths must be even numbers of dimensions with sum 128"),
    ("mrope_fn", WAN_SPEC | {"section": [20, 22, 22]}, "contradict section"),
    ("mrope_fn", WAN_SPEC | {"n_axes": 2}, "n_axes is 2, but 3 axes"),
    ("mrope_fn", {"head_dim": 64, "n_axes": 3}, "3 axes cannot share 32 pairs evenly"),
    ("mrope_fn", WAN_SPEC | {"base": [1e4, 1e4]}, "a list of bases has one for each axis"),
    ("mrope_fn", MROPE | {"base": [1e4] * 3}, "a list of bases has one for each axis"),
    ("mrope_fn", MROPE | {"axes": "rows"}, "axes must be blocks, interleaved"),
    ("mrope_fn", MROPE | {"axes": [0, 1, 2]}, "Leave section out"),
    ("mrope_fn", MROPE | {"rotary_side": "last"}, "mrope_fn does not read 'rotary_side'"),
    ("mrope_fn", MROPE | {"scaling": "dynamic", "factor": 2.0, "max_positions": 2048}, "do not depend on the length"),
    ("rope_axes_fn", WAN_SPEC | {"order": "yx"}, "order names two unscaled axes"),
]


@pytest.mark.parametrize(("convention", "spec", "words"), REFUSED)
def test_a_specification_that_says_something_impossible_is_refused(convention, spec, words):
    with pytest.raises(ValueError, match=words):
        check(table(), convention=convention, spec=spec)


def test_a_pass_says_what_was_not_asked():
    report = check(mrope(TURNS, yarn(64)), convention="mrope_fn", spec=BY_WORDS)
    assert "the gain 1.13863, which angles do not show" in report.not_judged
    assert "negative positions, and positions that are not whole numbers" in report.not_judged


def test_a_message_of_a_list_of_bases_names_all():
    report = check(axial(WAN), convention="mrope_fn", spec=WAN_SPEC | {"base": list(COSMOS)})
    said = "all axes have the base 10,000; those of the axes should be 10,000, 20,000, 40,000"
    assert report.causes[0].message == said
