"""Single faults of a rotation that are told from their neighbours: each beside what it was taken for."""

import math

import pytest
import torch

from posenc.verify import check

SPEC = {"encoding": "rope", "head_dim": 32, "base": 10000.0, "layout": "half"}


def plain(dim=32, base=10000.0):
    return base ** (-torch.arange(0, dim, 2).double() / dim)


def turned(x, a):
    u, v = x.double().chunk(2, -1)
    return torch.cat((u * a.cos() - v * a.sin(), v * a.cos() + u * a.sin()), -1).to(x.dtype)


def of_freq(freq, gain=1.0):
    return lambda x, positions: gain * turned(x, positions.double()[:, None] * freq)


def cause_of(subject, spec=SPEC, convention="rope_fn"):
    report = check(subject, convention=convention, spec=spec)
    assert report.status == "fail", report
    return report.causes[0]


# written in place


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("first", [0, 1])
def test_a_lane_made_of_its_turned_partner(layout, first):
    lanes = (slice(0, 16), slice(16, 32)) if layout == "half" else (slice(0, None, 2), slice(1, None, 2))

    def rope(x, positions):
        a, y = positions.double()[:, None] * plain(), x.double().clone()
        for lane in (first, 1 - first):
            sign = 1 if lane else -1
            y[..., lanes[lane]] = y[..., lanes[lane]] * a.cos() + sign * y[..., lanes[1 - lane]] * a.sin()
        return y.to(x.dtype)

    cause = cause_of(rope, SPEC | {"layout": layout})
    assert cause.code == "rope.aliased_write"
    assert ("x' = x cos - y sin" in cause.message) == (first == 0)


def test_two_lanes_with_angles_of_nothing_known_are_no_mixture_of_layouts():
    def rope(x, positions):
        a, b = (positions.double()[:, None] * f for f in (plain(), plain(base=333.0)))
        u, v = x.double().chunk(2, -1)
        return torch.cat((u * a.cos() - v * a.sin(), v * b.cos() + u * b.sin()), -1).to(x.dtype)

    assert cause_of(rope).code == "rope.mismatch"


# configurations


def configured(head_dim=32, **scaling):
    told = {"head_dim": head_dim, "hidden_size": 8 * head_dim, "num_attention_heads": 8, "rope_theta": 10000.0}
    return SPEC | {"config": told | {"max_position_embeddings": 8192} | scaling}


@pytest.mark.parametrize(("low", "high"), [(4.0, 1.0), (1.0, 4.0)])
def test_the_ramp_of_llama3_with_its_ends_swapped(low, high):
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 1024}  # fmt: skip
    turns = 1024 * plain() / (2 * math.pi)
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    rope = of_freq((1 - smooth) * plain() / 8 + smooth * plain())
    spec = configured(rope_scaling=scaling)
    if low < high:
        assert check(rope, convention="rope_fn", spec=spec).status == "pass"
    else:
        cause = cause_of(rope, spec)
        assert cause.code == "rope.llama3.ramp_inverted"
        assert "fast pairs are divided" in cause.message


def test_exponents_over_the_quotient_though_head_dim_is_given():
    spec = SPEC | {"config": configured()["config"] | {"hidden_size": 40 * 8}}
    rope = of_freq(10000.0 ** (-torch.arange(0, 32, 2).double() / 40))
    cause = cause_of(rope, spec)
    assert cause.code == "rope.config.head_dim_not_read"
    assert "= 40 lanes; head_dim is 32" in cause.message
    assert cause_of(rope).code == "rope.frequency.base"  # without a configuration nothing explains it


SHORT, LONG = ([1.0 + step * i for i in range(16)] for step in (0.02, 0.4))
LONGROPE = configured(
    max_position_embeddings=8192, original_max_position_embeddings=512,
    rope_scaling={"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG,
                  "original_max_position_embeddings": 512},
)  # fmt: skip
GAIN = math.sqrt(1 + math.log(8192 / 512) / math.log(512))


def longrope(choose):
    def rope(x, positions):
        short, long = (plain() / torch.tensor(t, dtype=torch.float64) for t in (SHORT, LONG))
        freq = torch.where(choose(positions), long, short)
        return GAIN * turned(x, positions.double()[:, None] * freq)

    return rope


@pytest.mark.parametrize(
    ("code", "choose"),
    [
        *{
            "pass": lambda p: p.max() >= 512,
            "rope.longrope.lists_swapped": lambda p: p.max() < 512,
            "rope.longrope.always_long": lambda p: p.max() >= 0,
            "rope.longrope.always_short": lambda p: p.max() < 0,
            "rope.longrope.boundary": lambda p: p.max() >= 511,
            "rope.longrope.list_by_token": lambda p: (p >= 512)[:, None],
        }.items()
    ],
)
def test_which_list_of_longrope(code, choose):
    report = check(longrope(choose), convention="rope_fn", spec=LONGROPE)
    assert (report.causes[0].code if report.causes else report.status) == code, report


# calls


def test_a_table_kept_by_length_in_a_closure():
    kept = {}

    def rope(x, offset):
        n = x.shape[-2]
        if n not in kept:
            kept[n] = torch.arange(offset, offset + n).double()[:, None] * plain()
        return turned(x, kept[n])

    cause = cause_of(rope, convention="rope_offset_fn")
    assert cause.code == "rope.offset.ignored_by_cache"
    assert "kept by length" in cause.message


def test_an_offset_that_is_not_read_is_no_kept_table():
    def rope(x, offset):
        return turned(x, torch.arange(x.shape[-2]).double()[:, None] * plain())

    assert cause_of(rope, convention="rope_offset_fn").code == "rope.offset.ignored"


@pytest.mark.parametrize("cut", [0, 1, None])
def test_a_gradient_cut_off_in_some_lanes(cut):
    def rope(x, positions):
        a = positions.double()[:, None] * plain()
        u, v = (t.detach() if i == cut else t for i, t in enumerate((x[..., ::2].double(), x[..., 1::2].double())))
        return torch.stack((u * a.cos() - v * a.sin(), v * a.cos() + u * a.sin()), -1).flatten(-2).to(x.dtype)

    spec = SPEC | {"layout": "interleaved"}
    if cut is None:
        assert check(rope, convention="rope_fn", spec=spec).status == "pass"
        return
    cause = cause_of(rope, spec)
    assert cause.code == "rope.grad.severed"
    assert f"lanes {cut}, {cut + 2}, {cut + 4}, {cut + 6}, .. of q, 16 of 32" in cause.message


# several axes


@pytest.mark.parametrize("over", ["all", "own"])
def test_frequencies_that_begin_again_with_each_axis(over):
    section, n = [8, 12, 12], 32
    axis = torch.repeat_interleave(torch.arange(3), torch.tensor(section))
    number = torch.cat([torch.arange(s) for s in section]).double()
    width = n if over == "all" else torch.tensor(section).double()[axis]
    spec = {"encoding": "mrope", "head_dim": 2 * n, "base": 50000.0, "section": section, "interleaved": False}
    cause = cause_of(lambda ids: ids.double()[axis].T * 50000.0 ** (-number / width), spec, "mrope_fn")
    assert cause.code == "mrope.frequency.restart"
    assert "pair 8 turns by 1 a step" in cause.message
    right = 50000.0 ** (-torch.arange(n).double() / n)
    assert check(lambda ids: ids.double()[axis].T * right, convention="mrope_fn", spec=spec).status == "pass"
