"""What `identify` reads off rotations without a spec, against what they were made with."""

import json
import math

import numpy as np
import pytest
import torch
import transformers
from rotary_embedding_torch import RotaryEmbedding
from torch import nn
from transformers.models.cohere import modeling_cohere
from transformers.models.gemma import modeling_gemma
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.llama import modeling_llama
from transformers.models.phi3 import modeling_phi3

import posenc
from posenc import definitions
from posenc.verify import Identification, identify
from posenc.verify.identity.rules import fit, snap

F64 = {"positions": "float32 or finer", "frequencies": "float64", "products": "float64"}
F32 = {"positions": "float32 or finer", "frequencies": "float32", "products": "float32"}
FINE = dict.fromkeys(("positions", "frequencies", "products"), "float32 or finer")


def has(found, **wanted):
    """Say what of an identification is not as it should be."""
    return {key: (getattr(found, key), want) for key, want in wanted.items() if getattr(found, key) != want}


def plain(width, base):
    return base ** (-2.0 * np.arange(width // 2) / width)


def given(inv_freq, **options):
    return posenc.RoPE(head_dim=2 * len(inv_freq), inv_freq=inv_freq.tolist(), **options)


# posenc's own

OWN = {
    "plain": ({"head_dim": 64}, {"pairing": "half", "rotary_dim": 64, "base": 10000.0}),
    "interleaved, odd base": (
        {"head_dim": 32, "base": 123456.0, "pairing": "interleaved"},
        {"pairing": "interleaved", "rotary_dim": 32, "base": 123456.0},
    ),
    "partial": ({"head_dim": 64, "rotary_dim": 16}, {"head_dim": 64, "rotary_dim": 16, "first_lane": 0}),
    "last lanes": (
        {"head_dim": 64, "rotary_dim": 32, "rotary_side": "last", "pairing": "interleaved"},
        {"pairing": "interleaved", "rotary_dim": 32, "first_lane": 32, "base": 10000.0},
    ),
    "gain": ({"head_dim": 16, "attention_factor": 1.25, "base": 5e5}, {"gain": 1.25, "base": 500000.0}),
    "slow": ({"head_dim": 64, "base": 1e9}, {"rotary_dim": 64, "base": 1e9}),
}


@pytest.mark.parametrize("name", OWN)
def test_options_of_rope_are_read(name):
    options, wanted = OWN[name]
    found = identify(posenc.RoPE(**options), "encoding")
    always = {"kind": "rotation", "scaling": "none", "direction": "counterclockwise", "first_position": 0.0}
    assert not has(found, **always, **wanted)
    assert found.precision == {"float32": F64, "bfloat16": FINE}


def test_linear_scaling():
    found = identify(given(plain(64, 10000.0) / 4), "encoding")
    assert not has(found, scaling="linear", base=10000.0, parameters={"factor": 4.0})


@pytest.mark.parametrize(
    ("width", "base", "factor", "length", "truncate"),
    [
        (64, 1e4, 8.0, 4096, True),
        (128, 1e6, 40.0, 32768, False),
        (32, 1e4, 4.0, 64, True),
        (64, 150000.0, 32.0, 4096, False),
    ],
)
def test_yarn(width, base, factor, length, truncate):
    freq = definitions.frequencies.yarn(
        width=width, base=base, factor=factor, original_max_len=length, truncate=truncate
    )
    low, high = definitions.frequencies.yarn_bounds(width=width, base=base, original_max_len=length, truncate=truncate)
    found = identify(given(freq, attention_factor=1.125), "encoding")
    assert not has(found, scaling="yarn", base=base, gain=1.125)
    assert found.parameters["truncate"] is truncate
    read = [found.parameters[key] for key in ("factor", "low", "high")]
    assert read == pytest.approx([factor, low, high], rel=2e-4)
    assert any("trained length and betas" in why for why in found.unknown)


@pytest.mark.parametrize(
    ("base", "factor", "length"), [(5e5, 8.0, 8192), (5e5, 32.0, 8192), (1e4, 8.0, 256), (777.0, 8.0, 4096)]
)
def test_llama3(base, factor, length):
    freq = definitions.frequencies.llama3(
        plain(128, base), factor=factor, low_freq_factor=1.0, high_freq_factor=4.0, original_max_len=length
    )
    found = identify(given(freq), "encoding")
    assert not has(found, scaling="llama3", base=base)
    read = [found.parameters[key] for key in ("factor", "shortest_divided", "longest_kept")]
    assert read == pytest.approx([factor, length, length / 4], rel=2e-4)


@pytest.mark.parametrize("truncate", [True, False])
def test_a_ramp_that_does_not_end_leaves_the_factor_open(truncate):
    known = {"width": 64, "base": 777.0, "original_max_len": 8192, "truncate": truncate}
    low, high = definitions.frequencies.yarn_bounds(**known)
    assert high > 32
    found = identify(given(definitions.frequencies.yarn(factor=8.0, **known)), "encoding")
    assert not has(found, scaling="yarn", base=777.0)
    assert found.parameters == {"low": pytest.approx(low, rel=1e-4), "factor": None}
    assert any(why.startswith("the factor:") for why in found.unknown)


def test_four_pairs_are_too_few_for_a_ramp():
    freq = definitions.frequencies.yarn(width=8, base=123456.0, factor=32.0, original_max_len=2048, truncate=False)
    found = identify(given(freq), "encoding")
    assert not has(found, base=None)


def test_a_paper_s_ramp_in_turns_is_no_yarn():
    freq = definitions.frequencies.by_parts(plain(128, 1e4), factor=8.0, original_max_len=4096)
    found = identify(given(freq), "encoding")
    assert found.scaling == "llama3"
    assert found.parameters["ratio"] == pytest.approx(32.0, rel=1e-3)


def test_proportional_says_what_else_it_may_be():
    freq = definitions.frequencies.proportional(head_dim=64, base=1e6, share=0.25)
    found = identify(given(freq), "encoding")
    assert not has(found, scaling="proportional", base=1e6, rotary_dim=16, pairing="half", parameters={"share": 0.25})
    assert any("narrower width" in why for why in found.unknown)


def test_static_ntk_is_told_apart_from_no_larger_base():
    base = definitions.frequencies.ntk_base(1e4, width=128, factor=8.0)
    found = identify(posenc.RoPE(head_dim=128, base=base), "encoding")
    assert found.scaling == "ntk"
    assert found.parameters == {"factor": 8.0, "plain_base": 10000.0}
    assert found.base == pytest.approx(base, rel=1e-6)
    assert any("static NTK, factor 8" in why for why in found.unknown)


def test_a_list_of_factors_leaves_the_base_open():
    factors = 1 + np.random.default_rng(3).random(32)
    found = identify(given(plain(64, 1e4) / factors), "encoding")
    assert not has(found, scaling="lists", base=None)
    assert found.parameters["factors"] == pytest.approx(factors, rel=1e-5)
    assert any(why.startswith("the base:") for why in found.unknown)


def test_xpos():
    found = identify(posenc.XPos(head_dim=64), "encoding")
    assert not has(found, scaling="xpos", base=10000.0, gain=None)
    assert found.parameters == {"gamma": 0.4, "scale_base": 512.0, "decays": True, "keys_inverse": True}


# transformers' own


def llama(parameters, head_dim=64, longest=2048):
    config = transformers.LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        num_hidden_layers=1,
        max_position_embeddings=longest,
        rope_parameters=parameters,
    )
    return modeling_llama.LlamaRotaryEmbedding(config), modeling_llama.apply_rotary_pos_emb


LLAMA = {
    "default": ({"rope_theta": 10000.0}, 64, 2048, "none", 10000.0, {}),
    "linear": ({"rope_theta": 10000.0, "factor": 4.0}, 64, 2048, "linear", 10000.0, {"factor": 4.0}),
    "dynamic": (
        {"rope_theta": 10000.0, "factor": 2.0},
        64,
        2048,
        "dynamic",
        10000.0,
        {"factor": 2.0, "original_max_len": 2048},
    ),
    "yarn": (
        {"rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 2048},
        64,
        8192,
        "yarn",
        10000.0,
        {"factor": 4.0, "low": 8.0, "high": 21.0},
    ),
    "llama3": (
        {
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        128,
        131072,
        "llama3",
        500000.0,
        {"factor": 8.0, "shortest_divided": 8192.0, "longest_kept": 2048.0},
    ),
}


@pytest.mark.parametrize("name", LLAMA)
def test_llama_of_transformers(name):
    parameters, head_dim, longest, scaling, base, wanted = LLAMA[name]
    found = identify(llama(parameters | {"rope_type": name}, head_dim, longest), "hf_rope")
    assert not has(found, head_dim=head_dim, rotary_dim=head_dim, pairing="half", scaling=scaling, base=base)
    assert {key: found.parameters[key] for key in wanted} == pytest.approx(wanted, rel=1e-5)
    assert found.gain == pytest.approx(0.1 * math.log(4) + 1 if name == "yarn" else 1.0, abs=1e-6)
    assert found.precision["float32"] | {"positions": ""} == F32 | {"positions": ""}


@pytest.mark.filterwarnings("ignore")
def test_phi3_of_transformers_switches_lists():
    short, long = [1 + 0.05 * i for i in range(24)], [1 + 0.7 * i for i in range(24)]
    config = transformers.Phi3Config(
        hidden_size=96,
        num_attention_heads=2,
        num_hidden_layers=1,
        max_position_embeddings=131072,
        original_max_position_embeddings=4096,
        pad_token_id=0,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": short,
            "long_factor": long,
            "original_max_position_embeddings": 4096,
        },
    )
    subject = modeling_phi3.Phi3RotaryEmbedding(config), modeling_phi3.apply_rotary_pos_emb
    found = identify(subject, "hf_rope")
    assert not has(found, scaling="longrope", base=None, rotary_dim=48)
    assert found.parameters["original_max_len"] == 4096
    assert found.parameters["short_factor"] == pytest.approx(short, rel=1e-4)
    assert found.parameters["long_factor"] == pytest.approx(long, rel=1e-4)
    assert found.gain == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)), rel=1e-6)


def test_gpt_neox_of_transformers_turns_a_part():
    config = transformers.GPTNeoXConfig(hidden_size=128, num_attention_heads=2, num_hidden_layers=1, rotary_pct=0.25)
    module = modeling_gpt_neox.GPTNeoXRotaryEmbedding(config)
    found = identify((module, modeling_gpt_neox.apply_rotary_pos_emb), "hf_rope")
    assert not has(found, head_dim=64, rotary_dim=16, first_lane=0, pairing="half", base=10000.0, scaling="none")


def test_cohere_and_gemma_of_transformers():
    config = transformers.CohereConfig(hidden_size=128, num_attention_heads=2, num_hidden_layers=1)
    module = modeling_cohere.CohereRotaryEmbedding(config)
    found = identify((module, modeling_cohere.apply_rotary_pos_emb), "hf_rope")
    assert not has(found, head_dim=64, pairing="interleaved", scaling="none")
    assert found.base == config.rope_parameters["rope_theta"]
    config = transformers.GemmaConfig(hidden_size=128, num_attention_heads=2, num_hidden_layers=1, head_dim=128)
    module = modeling_gemma.GemmaRotaryEmbedding(config)
    found = identify((module, modeling_gemma.apply_rotary_pos_emb), "hf_rope")
    assert not has(found, head_dim=128, pairing="half", base=10000.0, scaling="none")


def test_rotary_embedding_torch_forms_positions_in_bfloat16():
    found = identify(RotaryEmbedding(dim=32, theta=5000, interpolate_factor=2.0), "lucidrains", head_dim=32)
    assert not has(found, rotary_dim=32, pairing="interleaved", base=5000.0, parameters={"factor": 2.0})
    assert found.precision["float32"] == F32
    assert found.precision["bfloat16"]["positions"] == "bfloat16"


# made here


def turn(x, angles, clockwise=False):
    a, b = x.double().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin() * (-1 if clockwise else 1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


FREQ = torch.from_numpy(plain(32, 10000.0))


def rope_fn(where=lambda p: p.double(), freq=lambda x: FREQ, round_=lambda a, x: a, clockwise=False):
    """Return rope(x, positions) of 32 lanes, with one step of its own."""

    def rope(x, positions):
        angles = round_(where(positions)[:, None].to(freq(x).dtype) * freq(x), x)
        return turn(x, angles.double(), clockwise)

    return rope


def test_direction_and_first_position():
    found = identify(rope_fn(where=lambda p: p.double() + 1, clockwise=True), "rope_fn")
    assert not has(found, direction="clockwise", first_position=1.0, base=10000.0)
    found = identify(rope_fn(where=lambda p: p.double() - 2.5), "rope_fn")
    assert not has(found, direction="counterclockwise", first_position=-2.5)


@pytest.mark.slow
def test_sides_that_turn_apart():
    class Apart(nn.Module):
        def forward(self, q, k):
            angles = torch.arange(q.shape[1])[:, None, None] * FREQ
            return turn(q, angles), turn(k, angles, clockwise=True)

    found = identify(Apart(), "bshd_module")
    assert not has(found, direction="opposite", head_dim=32, base=10000.0)


PRECISIONS = {
    "frequencies in float32": (rope_fn(freq=lambda x: FREQ.float().double()), F32 | {"products": "float64"}, FINE),
    "products in float32": (rope_fn(round_=lambda a, x: a.float()), F64 | {"products": "float32"}, FINE),
    "frequencies in bfloat16": (
        rope_fn(freq=lambda x: FREQ.bfloat16().double()),
        F64 | {"frequencies": "bfloat16"},
        FINE | {"frequencies": "bfloat16"},
    ),
    "positions in float16": (
        rope_fn(where=lambda p: p.half().double()),
        F64 | {"positions": "float16"},
        FINE | {"positions": "float16"},
    ),
    "products as the vectors": (
        rope_fn(round_=lambda a, x: a.to(x.dtype)),
        F64 | {"products": "float32"},
        FINE | {"products": "bfloat16"},
    ),
}


@pytest.mark.parametrize("name", PRECISIONS)
def test_precisions(name):
    rope, fed32, fed16 = PRECISIONS[name]
    found = identify(rope, "rope_fn", head_dim=32)
    assert found.precision == {"float32": fed32, "bfloat16": fed16}
    assert found.base == 10000.0


def test_a_rounded_table_is_told():
    def rope(x, positions):
        angles = positions[:, None].double() * FREQ
        a, b = x.float().chunk(2, -1)
        cos, sin = (t.bfloat16().float() for t in (angles.cos(), angles.sin()))
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)

    found = identify(rope, "rope_fn", head_dim=32)
    assert found.base == 10000.0
    assert found.precision["float32"]["cosines and sines"] == "bfloat16"


def test_a_length_that_is_counted_in_tokens():
    def rope(x, positions):
        base = 10000.0 * (4.0 * max(x.shape[-2], 96) / 96 - 3.0) ** (32 / 30)
        return turn(x, positions[:, None] * torch.from_numpy(plain(32, base)))

    found = identify(rope, "rope_fn", head_dim=32)
    assert not has(found, scaling="dynamic", base=10000.0, parameters={"original_max_len": 96, "factor": 4.0})


def test_what_is_no_rotation_is_not_named():
    def mixed(x, positions):
        angles = positions[:, None].double() * FREQ
        cos, sin = (t.repeat_interleave(2, -1) for t in (angles.cos(), angles.sin()))
        a, b = x.double().chunk(2, -1)
        return (x * cos + torch.cat((-b, a), -1) * sin).to(x.dtype)

    for rope, why in (
        (mixed, "is no rotation"),
        (lambda x, positions: x * 2, "no dimension changes with the position"),
        (
            lambda x, positions: turn(x, torch.arange(x.shape[-2])[:, None] * FREQ),
            "positions that are given are not used",
        ),
        (lambda x, positions: 1 / 0, "subject.raises"),
        (lambda x, positions: x.mul_(2), "subject.writes_input"),
    ):
        found = identify(rope, "rope_fn", head_dim=32)
        assert found.base is None
        assert any(why in said for said in found.unknown), found


def test_head_dim_is_found_by_trial():
    assert identify(rope_fn(), "rope_fn").head_dim == 32
    free = identify(lambda x, p: turn(x, p[:, None] * torch.from_numpy(plain(x.shape[-1], 1e4))), "rope_fn")
    assert free.rotary_dim == free.head_dim
    assert free.unknown[0].startswith("head_dim, since others than")


# no rotations


def test_slopes_and_buckets():
    found = identify(lambda n: [2.0 ** (-8 * (h + 1) / n) for h in range(n)], "slopes_fn")
    assert not has(found, kind="slopes", scaling="geometric", parameters={"bias_max": 8.0})

    relative = transformers.models.t5.modeling_t5.T5Attention._relative_position_bucket
    for both, n, reach in ((True, 32, 128), (False, 16, 64)):
        found = identify(lambda rel, b=both, n=n, m=reach: relative(rel, b, n, m), "bucket_fn")
        assert found.parameters == {"num_buckets": n, "max_distance": reach, "bidirectional": both}


def test_tables_of_angles():
    def angles(ids):
        freq = torch.from_numpy(plain(32, 123456.0))
        axis = torch.tensor([0] * 8 + [2] * 4 + [1] * 4)
        return ids.double()[axis].T * freq

    found = identify(angles, "mrope_fn")
    assert not has(found, kind="angles", base=123456.0)
    assert "time, width, height" in found.parameters["axes"]

    def table(h, w):
        y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        freq = torch.from_numpy(100.0 ** (-np.arange(8) / 8))
        return torch.cat([t.flatten()[:, None] * freq for t in (y, x)], -1)

    found = identify(table, "rope2d_table_fn")
    assert not has(found, base=100.0)
    assert "in blocks: y, x" in found.parameters["axes"]


def test_other_conventions_are_named():
    found = identify(lambda q, k, v, positions: v, "attention")
    assert found == Identification("attention", unknown=found.unknown)
    assert "only rotations and a few tables" in found.words()


def test_wrong_use():
    with pytest.raises(ValueError, match="identify: there is no convention 'rope'"):
        identify(lambda x: x, "rope")
    with pytest.raises(ValueError, match="identify: hf_rope calls"):
        identify(3, "hf_rope")
    with pytest.raises(ValueError, match="head_dim must be an integer from 2 to 4096; got 0"):
        identify(rope_fn(), "rope_fn", head_dim=0)


def test_an_identification_is_plain_json_and_one_paragraph():
    found = identify(llama({"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}), "hf_rope")
    told = json.loads(json.dumps(found.to_dict()))
    assert told["scaling"] == "dynamic"
    assert told["schema"] == 1
    said = found.words()
    assert "\n" not in said
    for part in ("64 dimensions", "pairing half", "base 10,000", "scaling dynamic", "factor 2", "counterclockwise"):
        assert part in said


@pytest.mark.parametrize("step", [1e-3, 1e-2])
def test_a_frequency_off_the_rule_is_not_taken_for_it(step):
    freq = plain(64, 10000.0)
    freq[11] *= 1 + step
    assert fit(freq, 1e-11, 64).kind == "lists"


def test_numbers_are_rounded_only_where_they_may_be():
    assert [snap(v) for v in (9999.95, 10000.4, 82684.6233, 0.2500001)] == [10000.0, 10000.4, 82684.6233, 0.25]
