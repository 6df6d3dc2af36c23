"""Rotations of models in transformers: latent attention with one shared slice of keys, and frequencies by length."""

import json

import pytest
import torch

import posenc
from peers.agreement import assert_same
from posenc import positions, rephase
from strategies import normal

pytest.importorskip("transformers")

import transformers
from transformers.cache_utils import DynamicCache
from transformers.models.deepseek_v2 import modeling_deepseek_v2 as v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding
from transformers.models.phimoe.modeling_phimoe import PhimoeRotaryEmbedding

from interop.hf_models import cached


@pytest.fixture(autouse=True)
def _quiet():
    torch.manual_seed(0)
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)


def written(theirs):
    """What a file of the configuration holds."""
    return json.loads(theirs.to_json_string(use_diff=False))


YARN = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 32, "rope_theta": 1e4}
SCALINGS = {
    "default": {"rope_type": "default", "rope_theta": 1e4},
    "yarn": YARN | {"mscale": 0.707, "mscale_all_dim": 1.0, "beta_fast": 4.0, "beta_slow": 1.0},
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
}
SIZES = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 1,
    "max_position_embeddings": 1280,
    "kv_lora_rank": 12,
    "q_lora_rank": 10,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 8,
    "v_head_dim": 5,
}
MODELS = {
    "V2": (v2, {}),
    "V3 in pairs": (v3, {"rope_interleave": True}),
    "V3 in halves": (v3, {"rope_interleave": False}),
}
STILL = SIZES["qk_nope_head_dim"]


def latent(model, scaling, monkeypatch):
    """Their attention, their angles, ours of the same file, and what reaches attention proper, call by call."""
    modeling, extra = MODELS[model]
    name = modeling.__name__.rsplit("_", 1)[1].upper()
    theirs = getattr(transformers, f"Deepseek{name}Config")(**SIZES, **extra, rope_parameters=dict(SCALINGS[scaling]))
    theirs._attn_implementation = "eager"
    seen, eager = [], modeling.eager_attention_forward

    def spy(module, query, key, value, *rest, **options):
        out, weights = eager(module, query, key, value, *rest, **options)
        seen.append((query, key, value, out))
        return out, weights

    monkeypatch.setattr(modeling, "eager_attention_forward", spy)
    attention = getattr(modeling, f"Deepseek{name}Attention")(theirs, 0)
    angles = getattr(modeling, f"Deepseek{name}RotaryEmbedding")(theirs)
    return attention, angles, posenc.RoPE.from_config(written(theirs)), seen


def unturned(attention, x):
    """Their own projections, before anything turns: queries, the latent, and the slice that all heads share."""
    q = attention.q_b_proj(attention.q_a_layernorm(attention.q_a_proj(x))).unflatten(-1, (4, -1)).transpose(1, 2)
    latent, shared = attention.kv_a_proj_with_mqa(x).split([SIZES["kv_lora_rank"], SIZES["qk_rope_head_dim"]], -1)
    return q, attention.kv_a_layernorm(latent)[:, None], shared[:, None]


def as_theirs(model, x, side=0):
    """V3 lays turned pairs out as halves, in queries and keys alike, which no score can tell."""
    if model != "V3 in pairs":
        return x
    still, turned = x.split([side, x.shape[-1] - side], -1)
    return torch.cat((still, turned.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)), -1)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("model", MODELS)
def test_queries_and_the_shared_slice_are_turned_as_in_deepseek(model, scaling, monkeypatch):
    attention, angles, rope, seen = latent(model, scaling, monkeypatch)
    x, pos = torch.randn(2, 9, 32, requires_grad=True), positions.arange(9, start=40)
    attention(x, position_embeddings=angles(x, pos[None]), attention_mask=None)
    query, key, value, out = seen[0]
    q, compressed, shared = unturned(attention, x)
    slice_of_keys, placed = rope.of_slice(), rope.place(pos)
    assert (rope.head_dim, rope.rotary_dim, rope.rotary_side) == (14, 8, "last")
    assert rope.pairing == ("half" if model == "V3 in halves" else "interleaved")
    assert (slice_of_keys.head_dim, slice_of_keys.rotary_dim) == (8, 8)
    turned = slice_of_keys.rotate_k(shared, slice_of_keys.place(pos))
    assert_same(as_theirs(model, rope.rotate_q(q, placed), STILL), query, [x], atol=2e-5)
    assert_same(as_theirs(model, turned).expand(-1, 4, -1, -1), key[..., STILL:], [x], atol=2e-5)
    still = attention.kv_b_proj(compressed[:, 0]).unflatten(-1, (4, -1)).transpose(1, 2)[..., :STILL]
    whole = torch.cat((still, turned.expand(-1, 4, -1, -1)), -1)
    wanted = rope.rotate_k(torch.cat((still, shared.expand(-1, 4, -1, -1)), -1), placed)
    torch.testing.assert_close(whole, wanted, atol=0, rtol=0)  # the slice of a head is a head's slice
    turned_q = rope.rotate_q(q, placed)
    got = posenc.attend(turned_q, whole, value, rope, placed, rotated=True, causal=False)
    assert_same(got.transpose(1, 2), out, [x], atol=2e-5)
    assert rope.score_scale(14) == pytest.approx(attention.scaling, rel=1e-12)


@pytest.mark.parametrize("model", MODELS)
def test_a_latent_cache_holds_the_rotated_slice_once(model, monkeypatch):
    """Each token's slice is rotated once; the outputs equal theirs with their cache."""
    attention, angles, rope, seen = latent(model, "yarn", monkeypatch)
    shared_rope, cache, mine = rope.of_slice(), DynamicCache(), []
    x, begin = torch.randn(2, 10, 32), 0
    for n in (5, 1, 4):
        part, pos, begin = x[:, begin : begin + n], positions.arange(n, start=begin), begin + n
        mask = torch.zeros(n, begin).masked_fill(torch.ones(n, begin).triu(begin - n + 1).bool(), -torch.inf)
        given = {"position_embeddings": angles(part, pos[None]), "attention_mask": mask[None, None]}
        attention(part, **given, **cached(attention, cache))
        q, compressed, shared = unturned(attention, part)
        mine.append((compressed, shared_rope.rotate_k(shared, shared_rope.place(pos))))
        latents, slices = (torch.cat(parts, 2) for parts in zip(*mine, strict=True))
        assert slices.shape == (2, 1, begin, 8)
        torch.testing.assert_close(latents, cache.layers[0].keys)
        torch.testing.assert_close(as_theirs(model, slices), cache.layers[0].values, atol=2e-5, rtol=0)
        still, v = attention.kv_b_proj(latents[:, 0]).unflatten(-1, (4, -1)).transpose(1, 2).split([STILL, 5], -1)
        k = torch.cat((still, slices.expand(-1, 4, -1, -1)), -1)
        got = posenc.attend(rope.rotate_q(q, rope.place(pos)), k, v, rope, pos, positions.arange(begin), rotated=True)
        torch.testing.assert_close(got.transpose(1, 2), seen[-1][3], atol=2e-5, rtol=0)


L = 64
SHAPE = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1, "original_max_position_embeddings": L}


def dynamic(factor=4.0):
    rope = {"rope_type": "dynamic", "factor": factor, "rope_theta": 1e4}
    shape = SHAPE | {"max_position_embeddings": L}
    return transformers.LlamaConfig(**shape, rope_parameters=rope), LlamaRotaryEmbedding


def longrope(**gain):
    lists = {"short_factor": [1.0 + 0.1 * k for k in range(16)], "long_factor": [1.5 + k for k in range(16)]}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, **lists, **gain}
    shape = SHAPE | {"max_position_embeddings": 16 * L}
    return transformers.Phi3Config(**shape, rope_parameters=rope), Phi3RotaryEmbedding


FILES = {
    "dynamic": dynamic,
    "dynamic by 1": lambda: dynamic(1.0),
    "longrope": longrope,
    "longrope with a gain": lambda: longrope(attention_factor=1.75),
}


def theirs_at(file, n):
    """Cosines and sines of a module that has seen no other text."""
    config, cls = FILES[file]()
    return cls(config)(torch.zeros(1, n, 64), torch.arange(n)[None])


@pytest.mark.parametrize("n", [1, L - 1, L, L + 1, L + 2, 5 * L, 16 * L])
@pytest.mark.parametrize("file", FILES)
def test_frequencies_by_length_are_those_of_their_modules(file, n):
    """Short of the trained length, at it and beyond; the gain is in the tables."""
    config, _ = FILES[file]()
    open_ = posenc.RoPE.from_config(written(config))
    assert type(open_) is (posenc.LongRoPE if "longrope" in file else posenc.DynamicNTK)
    assert (open_.length, open_.original_max_len) == (None, L)
    wanted = [table[0, :, :16] for table in theirs_at(file, n)]
    given = posenc.RoPE.from_config(written(config), seq_len=n)
    for ours in (open_.resolve(n), given):
        for table, peer in zip(ours.place(positions.arange(n)).parts, wanted, strict=True):
            torch.testing.assert_close(table, peer, atol=2e-4, rtol=0)  # their angles are float32
    if n > L and file != "dynamic by 1":
        other = open_.resolve(L).place(positions.arange(n)).parts
        assert not torch.allclose(other[0], wanted[0], atol=0.05)


def test_gains_of_their_own_for_short_and_long_texts_are_phimoes():
    """With equal lists, since its module takes the short one at every length."""
    lists = {"short_factor": [1.0] * 16, "long_factor": [1.0] * 16}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, **lists, "short_mscale": 1.25, "long_mscale": 1.5}
    rope |= {"original_max_position_embeddings": L}
    config = transformers.PhimoeConfig(**SHAPE, max_position_embeddings=4 * L, rope_parameters=rope)
    ours = posenc.RoPE.from_config(written(config))
    for n, gain in ((L, 1.25), (L + 1, 1.5)):
        cos, _ = PhimoeRotaryEmbedding(config)(torch.zeros(1, n, 64), torch.arange(n)[None])
        table = ours.resolve(n).place(positions.arange(n)).parts[0]
        torch.testing.assert_close(table, cos[0, :, :16], atol=2e-4, rtol=0)
        assert table[0, 0] == gain


def test_their_dynamic_module_remembers_the_longest_text_and_ours_does_not():
    """A text of 2 L after one of 5 L is turned by the base of 5 L there."""
    config, cls = dynamic()
    module, ours = cls(config), posenc.RoPE.from_config(written(config))
    fresh = theirs_at("dynamic", 2 * L)[0][0, :, :16]
    module(torch.zeros(1), torch.arange(5 * L)[None])
    after, _ = module(torch.zeros(1), torch.arange(2 * L)[None])
    ours.resolve(5 * L).place(positions.arange(5 * L))
    again = ours.resolve(2 * L).place(positions.arange(2 * L)).parts[0]
    torch.testing.assert_close(again, fresh, atol=2e-4, rtol=0)
    assert not torch.allclose(after[0, :, :16], fresh, atol=0.05)
    stuck = ours.resolve(5 * L).place(positions.arange(2 * L)).parts[0]
    torch.testing.assert_close(stuck, after[0, :, :16], atol=2e-4, rtol=0)


@pytest.mark.parametrize("file", FILES)
def test_cached_keys_that_are_rephased_are_those_that_their_module_turns_anew(file):
    """A text outgrows the trained length: keys were cached for it, and its last token needs the others."""
    config, _ = FILES[file]()
    open_ = posenc.RoPE.from_config(written(config))
    k, pos = normal(2, 2, L, 32).float(), positions.arange(L)
    tables = ([table[:, :L] for table in theirs_at(file, n)] for n in (L, 2 * L))
    cached, wanted = (apply_rotary_pos_emb(k, k, *both)[1] for both in tables)
    got = rephase(cached, pos, open_.resolve(L), open_.resolve(2 * L))
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=0)
    assert file == "dynamic by 1" or not torch.allclose(cached, wanted, atol=0.05)
