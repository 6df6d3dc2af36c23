"""What `identify` reads off position code without a specification, against what the code was made with."""

import json

import numpy as np
import pytest
import torch
import transformers
from rotary_embedding_torch import RotaryEmbedding
from transformers.models.cohere import modeling_cohere
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.llama import modeling_llama
from transformers.models.phi3 import modeling_phi3

import posenc
from posenc.definitions import frequencies
from posenc.verify import Identification, identify
from posenc.verify.identity.rules import fit

FACTORS = (1 + np.random.default_rng(3).random(32)).tolist()
SHORT, LONG = [1 + 0.05 * i for i in range(32)], [1 + 0.7 * i for i in range(32)]


def read(found, wanted):
    """Return what was read of each thing that is wanted, a field or a parameter."""
    return {key: found.parameters[key] if key in found.parameters else getattr(found, key, None) for key in wanted}


def near(wanted):
    return {key: v if v is None or isinstance(v, str) else pytest.approx(v, rel=1e-4) for key, v in wanted.items()}


def plain(width, base):
    return base ** (-2.0 * np.arange(width // 2) / width)


def given(inv_freq, **options):
    return posenc.RoPE(head_dim=2 * len(inv_freq), inv_freq=inv_freq.tolist(), **options)


def yarn(base, factor, length, truncate, width=64):
    known = {"width": width, "base": base, "original_max_len": length, "truncate": truncate}
    wanted = {"scaling": "yarn", "base": base, "low": frequencies.yarn_bounds(**known)[0]}
    return given(frequencies.yarn(factor=factor, **known), attention_factor=1.125), wanted | {"gain": 1.125}


def llama3(base, factor, length):
    options = {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_len": length}
    wanted = {"scaling": "llama3", "base": base, "factor": factor, "longest_kept": length / 4}
    return given(frequencies.llama3(plain(128, base), **options)), wanted | {"shortest_divided": length}


def rope(wanted, head_dim=64, **options):
    always = {"scaling": "none", "direction": "counterclockwise", "first_position": 0.0, "head_dim": head_dim}
    return posenc.RoPE(head_dim=head_dim, **options), always | wanted


NTK = frequencies.ntk_base(1e4, width=128, factor=8.0)
LAST = {"rotary_side": "last", "pairing": "interleaved"}
XPOS = {"gamma": 0.4, "scale_base": 512.0, "decays": True, "keys_inverse": True, "gain": None}
OWN = {
    "plain": (*rope({"base": 1e4, "pairing": "half", "rotary_dim": 64}), ""),
    "odd base": (*rope({"base": 123456.0, "pairing": "interleaved"}, base=123456.0, pairing="interleaved"), "NTK"),
    "partial": (*rope({"base": 1e4, "rotary_dim": 16, "first_lane": 0}, rotary_dim=16), ""),
    "last": (*rope({"base": 1e4, "first_lane": 32, "pairing": "interleaved"}, rotary_dim=32, **LAST), ""),
    "gain": (*rope({"base": 5e5, "gain": 1.25}, head_dim=16, attention_factor=1.25, base=5e5), "softmax scale 1.5625"),
    "slow": (*rope({"base": 1e9, "rotary_dim": 64}, base=1e9), ""),
    "linear": (given(plain(64, 1e4) / 4), {"scaling": "linear", "base": 1e4, "factor": 4.0}, ""),
    "static NTK": (*rope({"scaling": "ntk", "base": NTK, "factor": 8.0}, 128, base=NTK), "static NTK, factor 8"),
    "yarn": (*yarn(1e4, 8.0, 4096, True), "trained length and betas"),
    "yarn, wide": (*yarn(1e6, 40.0, 32768, False, 128), "trained length and betas"),
    "yarn, narrow": (*yarn(1e4, 4.0, 64, True, 32), "trained length and betas"),
    "yarn, open": (*yarn(777.0, 8.0, 8192, False), "the factor:"),
    "llama3": (*llama3(5e5, 8.0, 8192), "trained length"),
    "llama3, one pair divided": (*llama3(777.0, 8.0, 4096), "trained length"),
    "proportional": (
        given(frequencies.proportional(head_dim=64, base=1e6, share=0.25)),
        {"scaling": "proportional", "base": 1e6, "rotary_dim": 16, "pairing": "half", "share": 0.25},
        "narrower width",
    ),
    "exponents of all": (*rope({"scaling": "proportional", "base": 1e4}, rotary_dim=16, base=10.0), "narrower width"),
    "a list": (given(plain(64, 1e4) / FACTORS), {"scaling": "lists", "base": None, "factors": FACTORS}, "the base:"),
    "too few for a ramp": (yarn(123456.0, 32.0, 2048, False, 8)[0], {"base": None}, "the base:"),
    "xpos": (posenc.XPos(head_dim=64), {"scaling": "xpos", "base": 1e4} | XPOS, ""),
}


@pytest.mark.parametrize("name", OWN)
def test_encodings_of_posenc(name):
    subject, wanted, why = OWN[name]
    found = identify(subject, "encoding")
    assert read(found, wanted) == near(wanted)
    assert any(why in said for said in (*found.unknown, ""))


def of_transformers(name, module, **options):
    config = getattr(transformers, f"{name}Config")
    made = config(hidden_size=128, num_attention_heads=2, num_hidden_layers=1, **options)
    return getattr(module, f"{name}RotaryEmbedding")(made), module.apply_rotary_pos_emb


def llama(name, longest=2048, **parameters):
    rope = {"rope_type": name, "rope_theta": 10000.0, **parameters}
    return of_transformers("Llama", modeling_llama, max_position_embeddings=longest, rope_parameters=rope)


def phi3():
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": SHORT, "long_factor": LONG}
    options = {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "pad_token_id": 0}
    rope["original_max_position_embeddings"] = 4096
    return of_transformers("Phi3", modeling_phi3, rope_parameters=rope, **options)


BANDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
TRAINED = {"original_max_position_embeddings": 2048}
THEIRS = {
    "default": (llama("default"), {"base": 1e4}),
    "linear": (llama("linear", factor=4.0), {"base": 1e4, "factor": 4.0}),
    "dynamic": (llama("dynamic", factor=2.0), {"base": 1e4, "factor": 2.0, "original_max_len": 2048}),
    "yarn": (llama("yarn", 8192, factor=4.0, **TRAINED), {"base": 1e4, "low": 8, "high": 21, "gain": 1.138629}),
    "llama3": (llama("llama3", 131072, factor=8.0, **BANDS), {"base": 1e4, "factor": 8.0, "shortest_divided": 8192}),
    "longrope": (phi3(), {"original_max_len": 4096, "short_factor": SHORT, "long_factor": LONG, "gain": 1.190238}),
    "a part": (of_transformers("GPTNeoX", modeling_gpt_neox, rotary_pct=0.25), {"rotary_dim": 16, "base": 1e4}),
    "neighbours": (of_transformers("Cohere", modeling_cohere), {"pairing": "interleaved"}),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", THEIRS)
def test_rotations_of_transformers(name):
    subject, wanted = THEIRS[name]
    scaling = {"default": "none", "a part": "none", "neighbours": "none"}.get(name, name)
    wanted = {"pairing": "half", "head_dim": 64, "scaling": scaling} | wanted
    found = identify(subject, "hf_rope")
    assert read(found, wanted) == near(wanted)
    assert found.precision["float32"]["frequencies"] == "float32" or name == "longrope"


def test_rotary_embedding_torch_forms_positions_in_bfloat16():
    found = identify(RotaryEmbedding(dim=32, theta=5000, interpolate_factor=2.0), "lucidrains", head_dim=32)
    assert (found.rotary_dim, found.pairing, found.base, found.parameters) == (32, "interleaved", 5000.0, {"factor": 2})
    assert found.precision["bfloat16"]["positions"] == "bfloat16"


def rotate(x, angles, sign=1):
    a, b = x.double().chunk(2, -1)
    cos, sin = angles.cos(), sign * angles.sin()
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


FREQ = torch.from_numpy(plain(32, 10000.0))


def counted_length(x, positions):
    base = 10000.0 * (4.0 * max(x.shape[-2], 96) / 96 - 3.0) ** (32 / 30)
    return rotate(x, positions[:, None] * torch.from_numpy(plain(32, base)))


def test_direction_first_position_and_a_length_in_tokens():
    found = identify(lambda x, p: rotate(x, (p[:, None] + 1) * FREQ, -1), "rope_fn", head_dim=32)
    assert (found.direction, found.first_position, found.base) == ("clockwise", 1.0, 10000.0)
    assert identify(lambda x, p: rotate(x, (p[:, None] - 2.5) * FREQ), "rope_fn", head_dim=32).first_position == -2.5
    found = identify(counted_length, "rope_fn", head_dim=32)
    assert (found.scaling, found.base) == ("dynamic", 10000.0)
    assert found.parameters == {"original_max_len": 96, "factor": 4.0}


def test_sides_that_rotate_apart():
    class Apart(torch.nn.Module):
        def forward(self, q, k):
            angles = torch.arange(q.shape[1])[:, None, None] * FREQ
            return rotate(q, angles), rotate(k, angles, -1)

    found = identify(Apart(), "bshd_module", head_dim=32)
    assert (found.direction, found.base) == ("opposite", 10000.0)


def mixed(x, positions):
    angles = positions[:, None].double() * FREQ
    cos, sin = (t.repeat_interleave(2, -1) for t in (angles.cos(), angles.sin()))
    a, b = x.double().chunk(2, -1)
    return (x * cos + torch.cat((-b, a), -1) * sin).to(x.dtype)


NONE = {
    "pairs are not only rotated": mixed,
    "no dimension rotates with the position": lambda x, positions: x * 2,
    "given positions are ignored": lambda x, positions: rotate(x, torch.arange(x.shape[-2])[:, None] * FREQ),
    "subject.raises": lambda x, positions: 1 / 0,
    "subject.writes_input": lambda x, positions: x.mul_(2),
}


@pytest.mark.parametrize("why", NONE)
def test_what_is_no_rotation_is_not_named(why):
    found = identify(NONE[why], "rope_fn")
    assert found.base is None
    assert not found.is_known
    assert any(why in said for said in found.unknown), found


def test_head_dim_is_found_by_trial():
    assert identify(lambda x, p: rotate(x, p[:, None] * FREQ), "rope_fn").head_dim == 32
    free = identify(lambda x, p: rotate(x, p[:, None] * torch.from_numpy(plain(x.shape[-1], 1e4))), "rope_fn")
    assert free.rotary_dim == free.head_dim
    assert free.unknown[0].startswith("head_dim, since other values than")


def mrope_angles(ids):
    axis = torch.tensor([0] * 8 + [2] * 4 + [1] * 4)
    return ids.double()[axis].T * torch.from_numpy(plain(32, 123456.0))


def rope2d_table(h, w):
    y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    freq = torch.from_numpy(100.0 ** (-np.arange(8) / 8))
    return torch.cat([t.flatten()[:, None] * freq for t in (y, x)], -1)


def test_slopes_buckets_and_tables():
    found = identify(lambda n: [2.0 ** (-8 * (h + 1) / n) for h in range(n)], "slopes_fn")
    assert (found.kind, found.scaling, found.parameters) == ("slopes", "geometric", {"bias_max": 8.0})
    relative = transformers.models.t5.modeling_t5.T5Attention._relative_position_bucket
    for both, n, reach in ((True, 32, 128), (False, 16, 64)):
        found = identify(lambda rel, b=both, n=n, m=reach: relative(rel, b, n, m), "bucket_fn")
        assert found.parameters == {"num_buckets": n, "max_distance": reach, "bidirectional": both}
    found = identify(mrope_angles, "mrope_fn")
    assert (found.kind, found.base, found.parameters["section"]) == ("angles", 123456.0, [8, 4, 4])
    assert "in blocks: time, width, height" in found.parameters["axes"]
    wan = [1e4 ** (-torch.arange(0, width, 2).double() / width) for width in (44, 42, 42)]
    for n, freq in ((3, wan), (4, [wan[1]] * 4)):
        found = identify(
            lambda ids, n=n, f=freq: torch.cat([ids[a, :, None] * f[a] for a in range(n)], 1) % 6.283185307179586,
            "mrope_fn",
        )
        assert (found.base, found.parameters["ladder"], found.unknown) == (1e4, "axis", ())
        assert found.parameters["section"] == [len(part) for part in freq]
    found = identify(rope2d_table, "rope2d_table_fn")
    assert (found.base, found.parameters["section"]) == (100.0, [8, 8])
    assert "in blocks: y, x" in found.parameters["axes"]


@pytest.mark.parametrize("convention", ["slopes_fn", "bucket_fn", "mrope_fn"])
def test_rubbish_is_reported(convention):
    assert "subject.result" in identify(lambda _: None, convention).unknown[0]


def test_wrong_use():
    with pytest.raises(ValueError, match="identify: unknown convention 'rope'"):
        identify(lambda x: x, "rope")
    with pytest.raises(ValueError, match="identify: hf_rope calls"):
        identify(3, "hf_rope")
    with pytest.raises(ValueError, match="head_dim must be an integer from 2 to 4096; got 0"):
        identify(lambda x, p: x, "rope_fn", head_dim=0)


def test_an_identification_is_plain_json():
    found = identify(llama("dynamic", factor=2.0), "hf_rope")
    plain_json = json.loads(json.dumps(found.to_dict()))
    assert (plain_json["scaling"], plain_json["schema"]) == ("dynamic", 1)
    wanted = {"rotated width": "64 of 64 dimensions, from 0 on", "base": "10,000", "factor": "2"}
    assert {name: found.lines()[name] for name in wanted} == wanted
    other = identify(lambda q, k, v, positions: v, "attention")
    assert other == Identification("attention", unknown=other.unknown)
    assert "only rotations and a few tables" in other.unknown[0]


@pytest.mark.parametrize("step", [1e-3, 1e-2])
def test_a_frequency_off_the_rule_is_not_taken_for_it(step):
    freq = plain(64, 10000.0)
    freq[11] *= 1 + step
    assert fit(freq, 1e-11, 64).kind == "lists"
