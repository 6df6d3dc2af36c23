"""Rotations written here, by another hand than the family's: each fault is named, and what is right passes."""

import math
import warnings

import pytest
import torch

from posenc.verify import check
from rotation_subjects import BF16, FP16, FREQ, SPEC, by_offset, code, rope, rotate


class Sides(torch.nn.Module):
    """forward(q, k) on (batch, seq, heads, dim), with a way for each side."""

    def __init__(self, *ways):
        super().__init__()
        self.ways = ways

    def forward(self, q, k):
        turned = (way(x.transpose(1, 2), torch.arange(x.shape[1])) for way, x in zip(self.ways, (q, k), strict=True))
        return tuple(x.transpose(1, 2) for x in turned)


def judged(subject, convention="rope_fn", **more):
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        return check(subject, convention=convention, spec={**SPEC, **more})


def lost(value, end):
    return rope(after=lambda out, p: torch.where((p > end)[:, None], value, out).to(out.dtype))


def refuses(end, **switches):
    turn = rope(**switches)

    def call(x, positions):
        if int(positions.max()) >= end:
            raise IndexError("index out of range")
        return turn(x, positions)

    return call


def only_from_0(p):
    if int(p.min()) < 0:
        raise IndexError("no row")
    return p


CUT = {"table": True, "dtype": BF16}


def at_start(x):
    return rope()(x.transpose(1, 2), torch.arange(x.shape[1])).transpose(1, 2)


def viewed(x, positions):
    """As packages do that take contiguous memory for granted."""
    x.view(-1, x.shape[-2], x.shape[-1])
    return rope()(x, positions)


def contiguous(x, positions):
    """Refuses other views, as kernels do."""
    if not x.is_contiguous():
        raise ValueError("x must be contiguous")
    return rope()(x, positions)


def blind_to_strides(x, positions):
    flat = torch.as_strided(x, x.shape, torch.empty(x.shape, device="meta").stride())
    return rope()(flat, positions)


def one_new_token(x, positions):
    """Right but for single tokens, with a base that is not read as well."""
    p = positions if len(positions) > 1 else positions * 0
    return rotate(x, p.double()[:, None] * 500000.0 ** (-torch.arange(16).double() / 16))


class FewKeys(Sides):
    """Right if queries and keys have equally many heads; else keys rotate the other way round."""

    def forward(self, q, k):
        turned, keys = super().forward(q, k)
        return turned, keys if q.shape == k.shape else super().forward(q, k.flip(1))[1].flip(1)


class Counting:
    calls = 0

    def __call__(self, x, positions):
        self.calls += 1
        return rope()(x, positions * self.calls)


def over_all_heads(x, positions):
    h, n, d = x.shape[1:]
    freq = 10000.0 ** (-torch.arange(0, h * d, 2).double() / (h * d))
    return rotate(x, (positions.double()[:, None] * freq).view(n, h, d // 2).transpose(0, 1))


FAR = {  # name: subject, more of the spec, code or status, what its message says
    "honest float64": (rope(), {"max_positions": 10**7}, "pass", ""),
    **{
        f"{value} behind {end}, {more}": (lost(value, end), more, "subject.not_finite", "")
        for value in (math.nan, math.inf)
        for end in (100, 5000)
        for more in ({}, {"max_positions": 32768})
    },
    "a refusal": (refuses(5000), {}, "pass", ""),
    "a refusal of what is declared": (refuses(5000), {"max_positions": 32768}, "rope.table.too_short", "32,768"),
    "wrong before a refusal": (refuses(40000, place=lambda p: p % 20000), {}, "rope.table.wraps", "20,000"),
    "zeros": (lost(0.0, 7), {}, "rope.table.too_short", "at position 8 is returned as zeros"),
    "far zeros": (lost(0.0, 5000), {}, "rope.table.too_short", "at position 8,192 is returned as zeros"),
    **{
        f"begins restart at {end}": (
            rope(place=lambda p, end=end: p % end), {"max_positions": 131072}, "rope.table.wraps", f"restart at {end:,}"
        )
        for end in (100, 4500, 65536)
    },
    **{
        f"stays at {end}": (
            rope(place=lambda p, end=end: p.clamp(max=end - 1)), {}, "rope.table.too_short", f"{end:,} on use"
        )
        for end in (777, 20000)
    },
    "int16": (rope(place=lambda p: p.to(torch.int16)), {"max_positions": 131072}, "rope.table.wraps", "int16"),
    "float16 positions": (rope(steps=("positions",), dtype=FP16), {}, "rope.precision.positions_fp16", ""),
    "two tokens a place": (rope(place=lambda p: p // 2 * 2), {}, "rope.positions.other", "at position 1 "),
}  # fmt: skip
BF16_DECLARED = {"activation_dtype": "bfloat16"}
PRECISION = {
    "bf16 tables where x is float32": (rope(**CUT), {}, "rope.precision.table_bf16", "bfloat16"),
    "bf16 tables where x is declared bf16": (rope(**CUT), BF16_DECLARED, "pass", ""),
    "bf16 tables and x where that is declared": (
        rope(**CUT, before=lambda x: x.to(BF16).to(x.dtype)), BF16_DECLARED, "pass", "",
    ),
    "fp16 tables where bf16 is declared": (
        rope(table=True, dtype=FP16), BF16_DECLARED, "rope.precision.table_fp16", "float16"
    ),
    "frequencies of the dtype of x": (
        lambda x, p: rope(steps=("frequencies",), dtype=x.dtype)(x, p), BF16_DECLARED,
        "rope.precision.frequencies_bf16", "Keep inv_freq in float32",
    ),
    "x in bf16": (rope(before=lambda x: x.bfloat16().float()), {}, "rope.precision.x_bf16", ""),
    "a gain is no rounding": (rope(gain=1.1), {}, "rope.gain", "1.1"),
    **{
        f"{' and '.join(steps)} in {dtype}, {spec}": (
            rope(steps=steps, dtype=dtype, table=bool(spec)), spec, f"rope.precision.{word}_{short}", steps[0]
        )
        for (dtype, short), (steps, word), spec in (
            ((BF16, "bf16"), (("positions",), "positions"), BF16_DECLARED),
            ((BF16, "bf16"), (("products",), "product"), BF16_DECLARED),
            ((BF16, "bf16"), (("frequencies",), "frequencies"), {}),
            ((FP16, "fp16"), (("positions", "frequencies", "products"), "product"), {}),
        )
    },
}  # fmt: skip
LINEAR = {"scaling": "linear", "factor": 4.0}
CALLS = {  # convention, subject, more of the spec, code or status, words
    "offset not read": ("rope_offset_fn", by_offset(lambda o, n: torch.arange(n)), {}, "rope.offset.ignored", ""),
    "offset counted twice": (
        "rope_offset_fn", by_offset(lambda o, n: torch.arange(n) + 2 * o), {}, "rope.offset.miscounted", "twice"
    ),
    "divided, then moved": (
        "rope_offset_fn", by_offset(lambda o, n: torch.arange(n) / 4 + o), LINEAR,
        "rope.offset.miscounted", "after the division",
    ),
    "moved, then divided": ("rope_offset_fn", by_offset(lambda o, n: (torch.arange(n) + o) / 4), LINEAR, "pass", ""),
    "linear from the first": ("rope_fn", rope(freq=FREQ / 4), LINEAR, "pass", ""),
    "linear, twice": ("rope_fn", rope(freq=FREQ / 16), LINEAR, "rope.scaling.factor_twice", "4"),
    "exchanged": ("bshd_module", lambda q, k: (at_start(k), at_start(q)), {}, "rope.side.exchanged", ""),
    "a copied line": (
        "bshd_module", lambda q, k: (at_start(q), at_start(k) + at_start(q) - q), {}, "rope.side.mixed", "keys"
    ),
    "along the batch": (
        "bshd_module", lambda *sides: [rope()(x.transpose(0, 2), torch.arange(len(x))).transpose(0, 2) for x in sides],
        {}, "rope.axis.batch", "by itself",
    ),
    "contiguous memory": ("rope_fn", viewed, {}, "rope.input.strides", "not contiguous raise an error"),
    "contiguous memory, asked for": ("rope_fn", contiguous, {}, "pass", ""),
    "heads and tokens mixed": (
        "rope_fn", lambda x, p: rope()(x.transpose(1, 2).reshape(x.shape), p), {}, "rope.heads.mixed", "other heads"
    ),
    "key heads in another order": (
        "bshd_module", lambda q, k: (at_start(q), at_start(k).roll(1, 2)), {}, "rope.heads.mixed", ""
    ),
    "both sides wrong, in two ways": (
        "bshd_module", Sides(rope(freq=FREQ**1.03), rope(freq=FREQ**1.07)), {}, "rope.side.differ", "both are wrong"
    ),
    "strides not read": ("rope_fn", blind_to_strides, {}, "rope.input.strides", ""),
    "a second wrong branch": ("rope_fn", one_new_token, {}, "rope.config.theta_not_read", "500,000"),
    "clockwise": ("rope_fn", rope(freq=-FREQ), {}, "equivalent", "clockwise"),
    "from seven": ("rope_fn", rope(place=lambda p: p + 7), {}, "equivalent", "position 0 is rotated as well"),
    "permuted": ("rope_fn", rope(after=lambda out, p: out.roll(1, -1)), {}, "equivalent", "another order"),
    "pairing open": ("rope_fn", rope(layout="interleaved"), {"layout": None}, "pass", ""),
    "noise": ("rope_fn", rope(after=lambda o, p: o + 1e-2 * torch.randn_like(o)), {}, "rope.not_deterministic", ""),
    "keys that share heads": ("bshd_module", FewKeys(rope(), rope()), {}, "rope.heads.grouped", "one key head"),
    "sorted": ("rope_fn", rope(place=lambda p: p.sort().values), {}, "rope.positions.restart", "do not ascend"),
    "counting object": ("rope_fn", Counting(), {}, "rope.state_kept", ""),
    "plus one": ("rope_fn", rope(after=lambda o, p: o + 1), {}, "rope.not_linear", "a term is added"),
    "a bound": ("rope_fn", rope(after=lambda o, p: o.clamp(-10, 10)), {}, "rope.not_linear", ""),
    "all heads": ("rope_fn", over_all_heads, {}, "rope.heads.differ", ""),
    "keys in the other layout": (
        "bshd_module", Sides(rope(), rope(layout="interleaved")), {}, "rope.layout.mixed", "keys"
    ),
    "base of keys": (
        "bshd_module", Sides(rope(), rope(freq=500000.0 ** (-torch.arange(16).double() / 16))), {}, "rope.side.differ",
        "keys are rotated wrongly, but the other side is right (on both sides this would be rope.config.theta",
    ),
    "products of keys in bf16": (
        "bshd_module", Sides(rope(), rope(steps=("products",))), {}, "rope.precision.product_bf16", "of keys only"
    ),
    "keys half as fast": ("bshd_module", Sides(rope(), rope(place=lambda p: p // 2)), {}, "rope.side.differ", "keys"),
}  # fmt: skip


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", [*FAR, *PRECISION])
def test_positions_and_precision(name):
    subject, more, expected, words = {**FAR, **PRECISION}[name]
    report = judged(subject, **more)
    assert code(report) == expected, report
    said = report.causes[0].message + report.causes[0].fix if report.causes else report.because
    assert words in said


@pytest.mark.sample(14)
@pytest.mark.parametrize("name", CALLS)
def test_calls(name):
    convention, subject, more, expected, words = CALLS[name]
    report = judged(subject, convention, **more)
    assert code(report) == expected, report
    assert words in (report.causes[0].message if report.causes else report.because)


def test_what_is_not_judged_is_said():
    assert judged(rope()).not_judged == ("half precision: no activation_dtype is declared",)
    assert any(
        said.startswith("positions from 8,192 on, where the code raises IndexError")
        for said in judged(refuses(5000)).not_judged
    )
    assert judged(rope(), activation_dtype="bfloat16", max_positions=4096).not_judged == ()


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (torch.abs, "the code does not rotate position -1 back by the angles of position 1"),
        (lambda p: p.clamp(min=-3), "the code does not rotate position -7 back"),
        (lambda p: torch.arange(70_000)[p], "the code does not rotate position -1 back"),
        (only_from_0, "raised IndexError: no row"),
        (lambda p: p, ""),
        (lambda p: p + 5, ""),  # positions that start elsewhere
    ],
)
@pytest.mark.parametrize("convention", ["rope_fn", "rope_offset_fn"])
def test_negative_positions_are_judged_only_where_they_rotate_back(convention, place, words):
    subject = rope(place=place) if convention == "rope_fn" else by_offset(lambda o, n: place(torch.arange(o, o + n)))
    report = judged(subject, convention)
    left = [said for said in report.not_judged if said.startswith("negative positions: ")]
    assert report.status in ("pass", "equivalent")
    assert (len(left), words in "".join(left)) == (bool(words), True)
