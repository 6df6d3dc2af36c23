"""Faulty rotations as a stranger would write them: (build, convention, spec, codes that name it)."""

import math

import torch
from torch import nn

FAULTS = {}
HF = {"encoding": "rope", "head_dim": 64, "layout": "half"}
HALF = {"encoding": "rope", "head_dim": 32, "base": 10000.0, "layout": "half"}
PAIRS = HALF | {"layout": "interleaved"}


def fault(style, codes, **spec):
    def keep(build):
        assert build.__name__ not in FAULTS
        FAULTS[build.__name__] = (build, style, spec, codes)
        return build

    return keep


def inv_freq(dim, base=10000.0):
    return 1.0 / base ** (torch.arange(0, dim, 2).float() / dim)


def pair(x, cos, sin):
    """Turn neighbours."""
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)


def half(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


@fault("rope_fn", ("rope.sign.same_twice",), **HALF)
def minus_forgotten_in_rotate_half():
    def rope(x, positions):
        angle = torch.cat([positions[:, None].float() * inv_freq(32)] * 2, -1)
        a, b = x.chunk(2, -1)
        return x * angle.cos() + torch.cat((b, a), -1) * angle.sin()

    return lambda x, positions: rope(x, positions)


@fault(
    "bshd_module",
    ("rope.layout.output_not_reinterleaved",),
    encoding="rope",
    head_dim=16,
    base=10000.0,
    layout="interleaved",
)
def only_queries_are_put_back_in_order():
    class Rope(nn.Module):
        def forward(self, q, k):
            angle = (torch.arange(q.shape[1]).float()[:, None] * inv_freq(16))[:, None]
            a, b = k[..., 0::2], k[..., 1::2]
            k = torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)
            return pair(q, angle.cos(), angle.sin()), k

    return Rope()


LLAMA3 = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_attention_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 32768,
    "rope_theta": 500000.0,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    | {"original_max_position_embeddings": 4096},
}


class Tables(nn.Module):
    def __init__(self, freq, gain=1.0):
        super().__init__()
        self.register_buffer("inv_freq", freq, persistent=False)
        self.gain = gain

    def forward(self, x, position_ids):
        angle = position_ids[..., None].float() * self.inv_freq
        angle = torch.cat((angle, angle), -1)
        return (angle.cos() * self.gain).to(x.dtype), (angle.sin() * self.gain).to(x.dtype)


def apply(q, k, cos, sin):
    cos, sin = cos[:, None], sin[:, None]
    turned = [x * cos + torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), -1) * sin for x in (q, k)]
    return turned[0], turned[1]


# where low is above high no pair is between them, as where the ramp is left out
@fault("hf_rope", ("rope.llama3.bands_swapped", "rope.llama3.ramp_missing"), scaling="llama3", config=LLAMA3, **HF)
def llama3_with_high_and_low_exchanged():
    freq = inv_freq(64, 500000.0)
    low, high, old, factor = 4.0, 1.0, 4096, 8.0
    wave = 2 * math.pi / freq
    smooth = (old / wave - low) / (high - low)
    mid = (1 - smooth) * freq / factor + smooth * freq
    out = torch.where(wave > old / low, freq / factor, torch.where(wave < old / high, freq, mid))
    return Tables(out), apply


DYNAMIC = LLAMA3 | {"max_position_embeddings": 512, "rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}


@fault("hf_rope", ("rope.dynamic.by_tokens",), scaling="dynamic", config=DYNAMIC, **HF)
def dynamic_by_the_length_of_the_chunk():
    class Dynamic(Tables):
        def forward(self, x, position_ids):
            n = max(position_ids.shape[-1], 512)
            self.inv_freq = inv_freq(64, 500000.0 * (4.0 * n / 512 - 3.0) ** (64 / 62))
            return super().forward(x, position_ids)

    return Dynamic(inv_freq(64)), apply


YARN = LLAMA3 | {"rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096}}


@fault("hf_rope", ("rope.yarn.original_length_wrong",), scaling="yarn", config=YARN, **HF)
def yarn_by_the_new_length():
    freq, length = inv_freq(64, 500000.0), 32768  # and not the original 4096

    def at(turns):
        return 64 * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(500000.0))

    low, high = max(math.floor(at(32)), 0), min(math.ceil(at(1)), 63)
    ramp = ((torch.arange(32).float() - low) / (high - low)).clamp(0, 1)
    return Tables(freq / 8 * ramp + freq * (1 - ramp), 0.1 * math.log(8.0) + 1), apply


@fault("xpos_fn", ("xpos.scale.sign",), scale_base=512, gamma=0.4, **(HALF | {"encoding": "xpos"}))
def queries_and_keys_exchange_their_scales():
    def xpos(q, k):
        n, t = q.shape[-2], torch.arange(q.shape[-2]).double()
        i = torch.arange(0, 32, 2).double()
        grow = ((i + 0.4 * 32) / (1.4 * 32)) ** ((t - n // 2)[:, None] / 512)
        angle = t[:, None] * inv_freq(32).double()
        cos, sin = angle.cos(), angle.sin()
        return half(q.double(), cos / grow, sin / grow).to(q), half(k.double(), cos * grow, sin * grow).to(k)

    return xpos


@fault("meta_complex", ("rope.precision.positions_fp16",), **PAIRS)
def positions_of_a_half_table():
    def table(end):
        t = torch.arange(end, dtype=torch.float16).float()
        return torch.polar(torch.ones(end, 16), torch.outer(t, inv_freq(32)))

    def turn(q, k, table):
        def one(x):
            z = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous())
            return torch.view_as_real(z * table[: x.shape[1], None]).flatten(-2).type_as(x)

        return one(q), one(k)

    return table, turn


@fault("lucidrains", ("rope.offset.miscounted",), **PAIRS)
def the_offset_counts_twice():
    class Rotary:
        def rotate_queries_or_keys(self, x, offset=0):
            n = x.shape[-2]
            angle = (torch.arange(offset, offset + n) + offset).float()[:, None] * inv_freq(32)
            return pair(x, angle.cos(), angle.sin())

    return Rotary()


@fault("rope_offset_fn", ("rope.offset.miscounted",), **HALF)
def the_offset_counts_chunks():
    def rope(x, offset):
        n = x.shape[-2]
        angle = (torch.arange(n) + offset * n).float()[:, None] * inv_freq(32)
        return half(x, angle.cos(), angle.sin())

    return rope


@fault(
    "rope_fn", ("rope.partial.other_lanes",), encoding="rope", head_dim=64, rotary_dim=32, base=10000.0, layout="half"
)
def the_last_lanes_turn():
    def rope(x, positions):
        angle = positions[:, None].float() * inv_freq(32)
        return torch.cat((x[..., :32], half(x[..., 32:], angle.cos(), angle.sin())), -1)

    return rope


@fault("rope_fn", ("rope.aliased_write",), **HALF)
def the_second_half_sees_the_first_changed():
    def rope(x, positions):
        angle = positions[:, None].float() * inv_freq(32)
        y = x.clone()
        y[..., :16] = y[..., :16] * angle.cos() - y[..., 16:] * angle.sin()
        y[..., 16:] = y[..., 16:] * angle.cos() + y[..., :16] * angle.sin()
        return y

    return rope


@fault("rope_offset_fn", ("rope.positions.other",), **HALF)
def half_of_the_offset():
    def rope(x, offset):
        angle = (torch.arange(x.shape[-2]) + offset // 2).float()[:, None] * inv_freq(32)
        return half(x, angle.cos(), angle.sin())

    return rope


@fault("rope_fn", ("rope.positions.other",), **HALF)
def two_tokens_a_place():
    def rope(x, positions):
        angle = (positions // 2 * 2).float()[:, None] * inv_freq(32)
        return half(x, angle.cos(), angle.sin())

    return rope


@fault("xpos_fn", ("xpos.scale.mismatch",), scale_base=512, gamma=0.4, **(HALF | {"encoding": "xpos"}))
def lengths_in_steps_of_sixteen():
    def xpos(q, k):
        t, i = torch.arange(q.shape[-2]).double(), torch.arange(0, 32, 2).double()
        grow = ((i + 0.4 * 32) / (1.4 * 32)) ** ((t - len(t) // 2)[:, None] // 16 * 16 / 512)
        angle = t[:, None] * inv_freq(32).double()
        cos, sin = angle.cos(), angle.sin()
        return half(q.double(), cos * grow, sin * grow).to(q), half(k.double(), cos / grow, sin / grow).to(k)

    return xpos


@fault("rope_fn", ("rope.frequency.whole_exponents",), **HALF)
def frequencies_by_integer_division():
    def rope(x, positions):
        angle = positions[:, None].float() / 10000.0 ** (torch.arange(0, 32, 2) // 32)
        return half(x, angle.cos(), angle.sin())

    return rope


@fault("rope_offset_fn", ("rope.precision.positions_fp16",), **HALF)
def the_offset_in_float16():
    def rope(x, offset):
        begin = torch.tensor(float(offset)).half().float()
        angle = (begin + torch.arange(x.shape[-2]))[:, None] * inv_freq(32)
        return half(x, angle.cos(), angle.sin())

    return rope
