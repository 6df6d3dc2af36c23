"""Angles formed in half precision whatever x is: which steps were rounded is named, by what they predict."""

import itertools

import pytest
import torch

from posenc.verify import check

SPEC = {"encoding": "rope", "head_dim": 32, "base": 10000.0, "layout": "half"}
SHORT = {"bf16": torch.bfloat16, "fp16": torch.float16}
STEPS = {  # which of positions, frequencies, products are rounded: the word of the code
    (True, False, False): "positions",
    (False, True, False): "frequencies",
    (False, False, True): "product",
    (True, True, False): "positions",
    (False, True, True): "product",
    (True, False, True): "product",
    (True, True, True): "product",
}


def rope_of(dtype, steps=(False, False, False), *, table=False, honest=torch.float64, gain=1.0):
    """Return rope(x, positions) with some steps rounded to a half precision, and the others formed in `honest`."""

    def rope(x, positions):
        half = x.shape[-1] // 2
        freq = (10000.0 ** (-torch.arange(half).double() / half)).to(honest)
        place = positions.to(honest)
        place, freq = (t.to(dtype).to(honest) if cut else t for t, cut in zip((place, freq), steps, strict=False))
        angles = place[:, None] * freq
        angles = (angles.to(dtype) if steps[2] else angles).double()
        cos, sin = (gain * t.to(dtype).double() if table else gain * t for t in (angles.cos(), angles.sin()))
        a, b = x.double().chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)

    return rope


def code_of(rope, **more):
    report = check(rope, convention="rope_fn", spec=SPEC | more)
    assert report.status == "fail", report
    return report.causes[0]


@pytest.mark.sample(10)
@pytest.mark.parametrize(("name", "steps", "table"), [*itertools.product(SHORT, STEPS, (False, True))])
def test_each_step_by_itself_and_with_others(name, steps, table):
    cause = code_of(rope_of(SHORT[name], steps, table=table))
    first = (steps[0] and name == "bf16", *steps[1:])  # float16 holds all positions that are near
    if any(first) or not table:
        assert cause.code == f"rope.precision.{STEPS[first if any(first) else steps]}_{name}", cause
        assert ("cosines and sines are rounded as well" in cause.message) == table
    else:
        assert cause.code == f"rope.precision.table_{name}", cause
    assert str(SHORT[name])[6:] in cause.message


@pytest.mark.parametrize("honest", [torch.float32, torch.float64])
@pytest.mark.parametrize("declared", [{}, {"activation_dtype": "bfloat16"}, {"activation_dtype": "float32"}])
def test_products_with_and_without_a_declared_type(honest, declared):
    cause = code_of(rope_of(torch.bfloat16, (False, False, True), honest=honest), **declared)
    assert cause.code == "rope.precision.product_bf16"
    assert "float32 from integer or float32 positions" in cause.help


def test_frequencies_are_to_be_kept_in_float32():
    def cast_with_x(x, positions):
        half = x.shape[-1] // 2
        angles = positions.double()[:, None] * (10000.0 ** (-torch.arange(half).double() / half)).to(x.dtype).double()
        a, b = x.double().chunk(2, -1)
        return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1).to(x.dtype)

    cause = code_of(cast_with_x, activation_dtype="bfloat16")
    assert cause.code == "rope.precision.frequencies_bf16"
    assert "Keep inv_freq in float32" in cause.help


@pytest.mark.parametrize("side", [0, 1])
def test_one_side_alone(side):
    good, bad = rope_of(torch.bfloat16), rope_of(torch.bfloat16, (False, False, True))

    class Turned(torch.nn.Module):
        def forward(self, q, k):
            ways = (bad, good) if side == 0 else (good, bad)
            t = (way(x.transpose(1, 2), torch.arange(x.shape[1])) for way, x in zip(ways, (q, k), strict=True))
            return tuple(x.transpose(1, 2) for x in t)

    report = check(Turned(), convention="bshd_module", spec=SPEC)
    assert report.causes[0].code == "rope.precision.product_bf16"
    assert f"of {('queries', 'keys')[side]} alone" in report.causes[0].message


@pytest.mark.parametrize("gain", [1.1, 0.9])
def test_a_gain_is_not_taken_for_rounding(gain):
    assert code_of(rope_of(torch.bfloat16, gain=gain)).code == "rope.gain"


@pytest.mark.parametrize("honest", [torch.float32, torch.float64])
def test_honest_angles_pass(honest):
    for declared in ({}, {"activation_dtype": "bfloat16"}, {"max_positions": 131072}):
        assert (
            check(rope_of(torch.bfloat16, honest=honest), convention="rope_fn", spec=SPEC | declared).status == "pass"
        )
