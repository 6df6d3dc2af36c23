"""Scaled frequencies, xPos, and how a specification says them; no fault is taken for another."""

import math
from functools import cache

import numpy as np
import pytest
import torch

from posenc.verify import check
from posenc.verify.engine import Seen
from posenc.verify.engine.judge import explains, settle
from posenc.verify.families.rotation import family
from rotation_subjects import DIM, FREQ, SPEC, code, rope, rotate

LENGTH = "original_max_position_embeddings"
CONFIG = {"head_dim": DIM, "hidden_size": 8 * DIM, "num_attention_heads": 8, "rope_theta": 10000.0}
SHORT, LONG = (torch.tensor([1.0 + step * i for i in range(16)], dtype=torch.float64) for step in (0.02, 0.4))


def configured(scaling, **more):
    return {**SPEC, "config": {**CONFIG, "max_position_embeddings": 8192, "rope_scaling": scaling, **more}}


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, LENGTH: 1024}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, LENGTH: 2048}
LONGROPE = configured(
    {"rope_type": "longrope", "short_factor": SHORT.tolist(), "long_factor": LONG.tolist(), LENGTH: 512},
    **{LENGTH: 512},
)


def llama3(low=1.0, high=4.0, factor=8.0):
    turns = 1024 * FREQ / (2 * math.pi)
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return rope(freq=(1 - smooth) * FREQ / factor + smooth * FREQ)


def stretched(times):
    return (10000.0 * times) ** (-torch.arange(16).double() / 16)


HUNYUAN = {**SPEC, "scaling": {"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0, LENGTH: 4096}}


def yarn(length=2048, gain=0.1 * 1.3862944 + 1, fast=32.0, factor=4.0):
    def at(turns):
        return DIM * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(10000.0))

    low, high = max(math.floor(at(fast)), 0), min(math.ceil(at(1.0)), DIM - 1)
    ramp = ((torch.arange(16).double() - low) / (high - low)).clamp(0, 1)
    return rope(freq=FREQ / factor * ramp + FREQ * (1 - ramp), gain=gain)


def longrope(chooses_long, gain=lambda n: math.sqrt(1 + math.log(8192 / 512) / math.log(512))):
    def freq(positions):
        return FREQ / torch.where(chooses_long(positions), LONG, SHORT)

    return lambda x, positions: rope(freq=freq, gain=gain(int(positions.max()) + 1))(x, positions)


def dynamic(trained=256, factor=4.0, of=lambda p: int(p.max()) + 1, less=3.0, base=10000.0):
    def freq(positions):
        growth = factor * of(positions) / trained - less if of(positions) > trained else 1.0
        return (base * growth ** (DIM / (DIM - 2))) ** (-torch.arange(0, DIM, 2).double() / DIM)

    return rope(freq=freq)


SCALED = {  # subject, spec, code or status, words
    "llama3": (llama3(), configured(LLAMA3), "pass", ""),
    "llama3, ends swapped": (llama3(4.0, 1.0), configured(LLAMA3), "rope.llama3.ramp_inverted", "fast pairs are"),
    "llama3, left out": (rope(), configured(LLAMA3), "rope.config.scaling_ignored", "'llama3'"),
    "llama3, another band": (llama3(high=2.0), configured(LLAMA3), "rope.llama3.bands_not_read", "high_freq_factor 2"),
    "yarn": (yarn(), configured(YARN), "pass", ""),
    "yarn, no gain": (yarn(gain=1.0), configured(YARN), "rope.yarn.gain_lost", "should be 1.1386"),
    "yarn, odd gain": (yarn(gain=1.2), configured(YARN), "rope.yarn.attention_factor", "1.2"),
    "yarn, both": (yarn(8192, gain=1.0), configured(YARN), "rope.yarn.gain_lost", ""),
    "head_dim of the quotient": (
        rope(freq=10000.0 ** (-torch.arange(0, DIM, 2).double() / 40)), configured(None, hidden_size=320),
        "rope.config.head_dim_not_read", "= 40 dimensions, but head_dim is 32",
    ),
    "another base": (rope(freq=1234.0 ** (-torch.arange(16).double() / 16)), SPEC, "rope.frequency.base", "1,234"),
    "longrope": (longrope(lambda p: p.max() >= 512), LONGROPE, "pass", ""),
    "longrope, swapped": (longrope(lambda p: p.max() < 512), LONGROPE, "rope.longrope.lists_swapped", ""),
    "longrope, by token": (longrope(lambda p: (p >= 512)[:, None]), LONGROPE, "rope.longrope.list_by_token", ""),
    "longrope, by offset": (longrope(lambda p: p.min() >= 512), LONGROPE, "rope.longrope.by_offset", ""),
    "a base close to the asked one": (rope(freq=10007.0 ** (-torch.arange(16).double() / 16)), SPEC,
                                      "rope.frequency.base", "is 10,007; it should be 10,000"),
    "yarn, cubed gain": (yarn(gain=1.1386294**3), configured(YARN), "rope.yarn.attention_factor", "the cube of"),
    "yarn, root of the gain": (yarn(gain=1.1386294**0.5), configured(YARN), "rope.yarn.attention_factor", "root of"),
    "a gain of the scores": (rope(gain=32**-0.5), SPEC, "rope.gain", "0.17678"),
    "i for 2i": (rope(freq=FREQ**0.5), SPEC, "rope.frequency.exponents", "half as large"),
    "neighbours alike": (rope(freq=FREQ[:8].repeat_interleave(2)), SPEC, "rope.frequency.exponents", "rotate alike"),
    "neighbours alike, over pairs": (
        rope(freq=FREQ[::2].repeat_interleave(2)), SPEC, "rope.frequency.exponents", "2 (i // 2) / (d/2)",
    ),
    "a pair too few": (rope(freq=FREQ * (torch.arange(16) < 15)), SPEC, "rope.partial.width", "pair 15 is left"),
    "half of the pairs": (rope(freq=FREQ * (torch.arange(16) < 8)), SPEC, "rope.partial.width", "pairs 8 to 15 are"),
    "linear, of a quarter": (
        rope(freq=FREQ / 4 * (torch.arange(16) > 3)), {**SPEC, "scaling": "linear", "factor": 4.0},
        "rope.partial.width", "0 to 3",
    ),
    "yarn, the factor squared": (
        yarn(factor=16.0), configured(YARN), "rope.scaling.factor_twice", "the factor 4 is applied twice",
    ),
    "yarn, 2 pi missing": (
        yarn(length=2048 * 2 * math.pi), configured(YARN), "rope.yarn.two_pi_missing", "without 2 pi",
    ),
    "longrope, the gain of the text": (
        longrope(lambda p: p.max() >= 512, lambda n: math.log(max(n, 512), 512) ** 0.5), LONGROPE,
        "rope.scaling.gain", "of the length of the text",
    ),
    "alpha": (rope(freq=stretched(1000.0 ** (DIM / (DIM - 2)))), HUNYUAN, "pass", ""),
    "alpha alone": (rope(freq=stretched(1000.0)), HUNYUAN, "rope.scaling.alpha", "without the exponent"),
    "log2 in exp": (rope(freq=FREQ ** (1 / math.log(2))), SPEC, "rope.frequency.exponents", "log2(base)"),
    "degrees": (rope(freq=FREQ * math.pi / 180), SPEC, "rope.frequency.unit", "pi / 180"),
    "twice": (rope(freq=2 * FREQ), SPEC, "rope.applied_twice", "angles are doubled"),
    "from the first of a call": (rope(place=lambda p: p - p[0]), SPEC, "positions.given_ignored", "of each call"),
    "longrope, late": (longrope(lambda p: p.max() >= 513), LONGROPE, "rope.longrope.boundary", "too late"),
    "a factor": (rope(freq=FREQ * 1.5), SPEC, "rope.frequency.mismatch", "no known rule"),
    "nothing that is known": (rope(freq=FREQ * torch.linspace(1, 2, 16)), SPEC, "rope.frequency.mismatch", "pair 15"),
}  # fmt: skip
BARE = {name: value for name, value in SPEC.items() if name != "base"}
OF_256 = {**DYNAMIC, LENGTH: 256}
SPELLINGS = {
    "words": {**SPEC, "scaling": "dynamic", "factor": 4.0, LENGTH: 256},
    "rope_type": {**SPEC, "rope_type": "dynamic", "factor": 4.0, LENGTH: 256},
    "scaling": {**SPEC, "scaling": OF_256},
    "rope_scaling": {**SPEC, "rope_scaling": {"type": "dynamic", "factor": 4.0}, "max_position_embeddings": 256},
    "rope_parameters": {**BARE, "rope_parameters": {**OF_256, "rope_theta": 10000.0}},
    "config": {**BARE, "config": {**CONFIG, "max_position_embeddings": 256, "rope_scaling": DYNAMIC}},
}


SCALED |= {
    "dynamic, another factor": (dynamic(factor=2.0, less=1.0), SPELLINGS["words"], "rope.dynamic.factor_not_read", ""),
    "dynamic, 1 subtracted": (dynamic(less=1.0), SPELLINGS["words"], "rope.dynamic.formula", "(factor n / L - 1)"),
    "dynamic, n / L": (dynamic(less=0.0), SPELLINGS["words"], "rope.dynamic.formula", "(factor n / L)"),
    "dynamic, trained on more": (
        dynamic(1024), SPELLINGS["words"], "rope.dynamic.original_length_wrong", "1,024; it should be 256",
    ),
    "alpha of the head": (
        lambda x, p: torch.cat((rope(freq=stretched(8.0 ** (64 / 62)))(x[..., :32], p), x[..., 32:]), -1),
        {**SPEC, "head_dim": 64, "rotary_dim": 32, "scaling": {"rope_type": "ntk_alpha", "alpha": 8.0}},
        "rope.scaling.alpha", "of d = 64 instead of 32",
    ),
    "dynamic, by offset": (dynamic(of=lambda p: int(p.min()) + 1), SPELLINGS["words"], "rope.dynamic.by_offset", ""),
}  # fmt: skip


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", SCALED)
def test_scalings(name):
    subject, spec, expected, words = SCALED[name]
    report = check(subject, convention="rope_fn", spec=spec)
    assert code(report) == expected, report
    assert words in (report.causes[0].message if report.causes else "")


@pytest.mark.parametrize(
    ("of", "expected"), [(lambda ids: ids.max(), "pass"), (lambda ids: ids[0].max(), "rope.batch.first_length")]
)
def test_the_length_is_that_of_all_rows(of, expected):
    def rotary(x, ids):
        growth = max(4.0 * (int(of(ids)) + 1) / 256 - 3.0, 1.0)
        angle = ids[..., None].double() * stretched(growth ** (DIM / (DIM - 2)))
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)

    def apply(q, k, cos, sin):
        cos, sin, sides = cos[:, None], sin[:, None], [x.chunk(2, -1) for x in (q, k)]
        return tuple(torch.cat((a * cos - b * sin, b * cos + a * sin), -1) for a, b in sides)

    assert code(check((rotary, apply), convention="hf_rope", spec=SPELLINGS["words"])) == expected


@pytest.mark.parametrize("name", SPELLINGS)
def test_dynamic_scaling_in_every_spelling(name):
    spec = SPELLINGS[name]
    right = check(dynamic(), convention="rope_fn", spec=spec)
    assert (right.status, right.definitions) == ("pass", ("dynamic@transformers-5",))
    assert code(check(rope(), convention="rope_fn", spec=spec)) == "rope.config.scaling_ignored"


@pytest.mark.parametrize("key", ["scaling", "rope_scaling", "rope_parameters"])
def test_a_mapping_of_plain_rope_has_a_base(key):
    spec = {**BARE, key: {"rope_type": "default", "rope_theta": 500000.0}}
    million = rope(freq=500000.0 ** (-torch.arange(16).double() / 16))
    assert check(million, convention="rope_fn", spec=spec).status == "pass"
    assert code(check(rope(), convention="rope_fn", spec=spec)) == "rope.config.theta_not_read"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({**SPEC, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, "10000, but rope_theta 500000"),
        ({**SPEC, "scaling": {"rope_type": "dinamic", "factor": 4.0}}, "Did you mean 'dynamic'"),
        ({**SPEC, "scaling": "dynamic", "factor": 4.0}, "max_position_embeddings is missing"),
        ({**SPEC, "scaling": "linear"}, "factor is missing"),
        ({**SPEC, "scaling": "ntk", "factor": 4.0}, '"ntk_alpha", "alpha": 8.0'),
        ({**SPEC, "scaling": {"rope_type": "ntk", "factor": 4.0}}, 'for the other one "dynamic"'),
        ({**configured(YARN), "scaling": "linear", "factor": 2.0}, "scaling is 'linear', but the config's is 'yarn'"),
        ({"encoding": "rope", "base": 10000.0}, "needs head_dim"),
    ],
)
def test_what_a_specification_cannot_say(spec, message):
    with pytest.raises(ValueError, match=message):
        check(rope(), convention="rope_fn", spec=spec)


XPOS = {"encoding": "xpos", "head_dim": DIM, "base": 10000.0, "layout": "half", "scale_base": 100.0, "gamma": 0.4}


def xpos(
    power=lambda t: t / 100.0,
    sides=(1.0, -1.0),
    gamma=0.4,
    centred=True,
    first=0,
    tiled=True,
    dtype=torch.float64,
    over=1.4,
):
    """Return xpos(q, k) with a power of positions, on the sides to the power of `sides`."""

    def call(q, k):
        t = torch.arange(q.shape[-2]).to(dtype).double()
        zeta = (torch.arange(0, DIM, 2).double() / DIM + gamma) / (over if gamma == 0.4 else 1 + gamma)
        log = power(t - len(t) // 2 * centred)[:, None] * zeta.log()
        log = torch.cat((log, log), -1) if tiled else log.repeat_interleave(2, -1)
        angle = (t + first)[:, None] * FREQ
        return tuple(
            (rotate(x.double(), angle) * (side * log).exp()).to(x) for x, side in zip((q, k), sides, strict=True)
        )

    return call


@pytest.mark.parametrize(
    ("switches", "expected"),
    [
        ({}, "pass"),
        ({"centred": False}, "pass"),
        ({"first": 5}, "equivalent"),
        ({"sides": (1.0, 0.0)}, "xpos.scale.key_missing"),
        ({"sides": (0.0, -1.0), "centred": False}, "xpos.scale.query_missing"),
        ({"sides": (0.0, 0.0)}, "xpos.scale.missing"),
        ({"sides": (1.0, 1.0)}, "xpos.scale.not_inverted"),
        ({"sides": (-1.0, 1.0)}, "xpos.scale.sign"),
        ({"gamma": 1.0}, "xpos.gamma.not_read"),
        ({"power": lambda t: t / 512}, "xpos.scale_base.too_large"),
        ({"power": lambda t: t}, "xpos.power.precedence"),
        ({"power": lambda t: t // 100}, "xpos.power.stepped"),
        ({"tiled": False}, "rope.layout.mixed"),
        ({"over": 1.0}, "xpos.scale.over_pairs"),
        ({"dtype": torch.bfloat16}, "rope.precision.positions_bf16"),
        ({"power": lambda t: t // 16 * 16 / 100}, "xpos.scale.mismatch"),
    ],
)
def test_xpos(switches, expected):
    report = check(xpos(**switches), convention="xpos_fn", spec=XPOS)
    assert code(report) == expected, report


FAMILIES = {
    "plain": ("rope_fn", {"encoding": "rope", "head_dim": 16, "rotary_dim": 8, "base": 20000.0, "layout": "half"}),
    "offsets": ("rope_offset_fn", {**SPEC, "head_dim": 16, "layout": "interleaved", "scaling": "linear", "factor": 3}),
    "yarn": ("rope_fn", {**configured({**YARN, "beta_fast": 16.0, "attention_factor": 1.3})}),
    "llama3": ("rope_fn", configured(LLAMA3)),
    "dynamic": ("hf_rope", SPELLINGS["words"]),
    "longrope": ("hf_rope", LONGROPE),
    "xpos": ("xpos_fn", {**XPOS, "head_dim": 16}),
}


@cache
def asked(name):
    """Return a family, its cases and its faults."""
    convention, spec = FAMILIES[name]
    found = family(convention, spec)
    found.reached = 1023
    return found, list(found.cases()), list(found.faults())


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", FAMILIES)
def test_no_fault_is_taken_for_another(name):
    found, cases, faults = asked(name)
    cases = [case for case in cases if case.kind in ("short", "near", "far", "wide", "tail")]
    for number, fault in enumerate(faults):
        if "why" in fault.values:
            continue  # one of the others, on one side
        seen = [Seen(case, found.predict({**found.truth, **fault.change}, case)) for case in cases]
        seen = [s for s in seen if np.isfinite(s.value).all()]
        verdict = settle(found, seen)
        if verdict.status == "fail":
            name = verdict.faults[0].code
            alike = [other.change for other in faults[:number] if other.code == name]
        else:
            name, alike = "", [{}, *(choice.change for choice in found.free())]
        assert name == fault.code or any(explains(found, {**found.truth, **change}, seen) for change in alike), fault
