"""Frequencies from configurations as transformers' own functions and modules compute them."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

pytest.importorskip("transformers")

import transformers
from transformers import modeling_rope_utils
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Attention
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention
from transformers.models.gptj.modeling_gptj import create_sinusoidal_positions
from transformers.models.phimoe.modeling_phimoe import PhimoeRotaryEmbedding

from config_sources import LLAMA3, LONG, YARN
from peers.config_peers import INIT, RTOL, STILL, agree, embedding, modeling, ours
from posenc import config, frequencies
from small_models import finite
from strategies import check

ROWS = json.loads((Path(__file__).parents[1] / "data" / "rope_configs.json").read_text(encoding="utf-8"))["models"]
CLASSES = {  # by the start of a model's name
    "gpt-j": "GPTJConfig",
    "pythia": "GPTNeoXConfig",
    "gpt-neox": "GPTNeoXConfig",
    "mistral-7b": "MistralConfig",
    "mistral-4": "Mistral4Config",
    "qwen2.5": "Qwen2Config",
    "qwen3-8b": "Qwen3Config",
    "qwen3-235b": "Qwen3MoeConfig",
    "gemma-2": "Gemma2Config",
    "gemma-3": "Gemma3TextConfig",
    "deepseek-v3": "DeepseekV3Config",
    "minimax-m2": "MiniMaxM2Config",
    "phi-4": "Phi3Config",
}


def of_row(row):
    """A configuration of the model's own class with the row's numbers."""
    name = next((name for start, name in CLASSES.items() if row["name"].startswith(start)), "LlamaConfig")
    sizes = {"hidden_size": 2 * row["head_dim"], "num_attention_heads": 2, "num_hidden_layers": 6}
    rope, width = copy.deepcopy(row["rope_parameters"]), row["head_dim"]
    if name == "GPTJConfig":
        return transformers.GPTJConfig(n_embd=2 * width, n_head=2, rotary_dim=row["rotary_dim"])
    if name in ("DeepseekV3Config", "Mistral4Config"):
        sizes |= {"qk_nope_head_dim": width - row["rotary_dim"], "qk_rope_head_dim": row["rotary_dim"]}
    elif name not in ("GPTNeoXConfig", "Phi3Config", "Qwen2Config"):
        sizes["head_dim"] = width
    if name == "Gemma3TextConfig":
        rope = {"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    if name == "Phi3Config":
        sizes["original_max_position_embeddings"] = row["original_max_len"]
    lengths = {"max_position_embeddings": row["max_position_embeddings"]}
    return getattr(transformers, name)(**sizes, **lengths, rope_parameters=rope)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_models_of_the_table(row, tmp_path):
    theirs = of_row(row)
    theirs.save_pretrained(tmp_path)
    kind = "full_attention" if row["name"].startswith("gemma") else None
    rotary, found = config.rotary(tmp_path, kind), frequencies.from_config(tmp_path, kind)
    assert (rotary.head_dim, rotary.rotary_dim, rotary.pairing) == (row["head_dim"], row["rotary_dim"], row["pairing"])
    assert rotary.max_len == row["max_position_embeddings"]
    assert rotary.rotary_side == ("last" if row["name"] in ("deepseek-v3", "mistral-4") else "first")
    if rotary.rope_type in ("yarn", "llama3"):
        assert rotary.original_max_len == row["original_max_len"]
    if row["name"].startswith("gpt-j"):
        sines = create_sinusoidal_positions(2, row["rotary_dim"])[1, : row["rotary_dim"] // 2]
        np.testing.assert_allclose(np.sin(found.inv_freq), sines.double().numpy(), rtol=RTOL)
        return
    agree(found, *embedding(theirs, kind))
    if rotary.rope_type != "default":
        agree(found, *INIT[rotary.rope_type](theirs, "cpu", layer_type=kind))


class Float64:
    """torch as their functions use it, computing in float64."""

    float = float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@st.composite
def scalings(draw):
    """A configuration of StableLM, which can rotate a part of each head, over all types; and a length."""
    head_dim, n_heads = 2 * draw(st.integers(2, 128)), draw(st.integers(1, 8))
    original = draw(st.integers(64, 300_000))
    name = draw(st.sampled_from(["default", *INIT]))
    rope = {"rope_type": name, "rope_theta": draw(st.floats(2.0, 1e12))}
    fields = {"hidden_size": head_dim * n_heads, "num_attention_heads": n_heads}
    fields["max_position_embeddings"] = original * draw(st.integers(1, 64))
    width, rope["partial_rotary_factor"] = head_dim, 1.0
    if draw(st.booleans()):
        rope["partial_rotary_factor"] = 2 * draw(st.integers(2, head_dim // 2)) / head_dim
        width = int(head_dim * rope["partial_rotary_factor"])
        assume(width % 2 == 0 and width >= 4)
    if name != "default":
        rope["factor"] = draw(st.floats(1.0, 1e4) | st.integers(1, 64))
    if name in ("yarn", "llama3", "longrope"):
        rope["original_max_position_embeddings"] = original
    if name == "llama3":
        low = draw(st.floats(0.25, 4.0))
        rope |= {"low_freq_factor": low, "high_freq_factor": low + draw(st.floats(0.25, 16.0))}
    if name == "longrope":
        for key in ("short_factor", "long_factor"):
            rope[key] = draw(st.lists(st.floats(0.5, 1e3), min_size=width // 2, max_size=width // 2))
        if draw(st.booleans()):
            del rope["factor"]
    if name == "yarn":
        optional = {
            "beta_fast": st.floats(4.0, 64.0),
            "beta_slow": st.floats(0.25, 64.0),
            "mscale": st.floats(0.0, 2.0),
            "mscale_all_dim": st.floats(0.0, 2.0),
            "truncate": st.booleans(),
        }
        rope |= {key: draw(value) for key, value in optional.items() if draw(st.booleans())}
    if name in ("yarn", "longrope") and draw(st.booleans()):
        rope["attention_factor"] = draw(st.floats(0.5, 4.0))
    return {**fields, "rope_parameters": rope}, draw(st.none() | st.integers(1, 2_000_000))


def old_spelling(fields):
    """The same as in a file of transformers 4."""
    rope = dict(fields["rope_parameters"])
    top = {key: rope.pop(key) for key in ("rope_theta", "partial_rotary_factor") if key in rope}
    name = rope.pop("rope_type")
    rest = {key: value for key, value in fields.items() if key != "rope_parameters"}
    return {**rest, **top, "rope_scaling": None if name == "default" else {"type": name, **rope}}


@given(drawn=scalings(), old=st.booleans(), nested=st.booleans())
@check(200)
def test_random_configurations(drawn, old, nested):
    fields, seq_len = drawn
    theirs = transformers.StableLmConfig(**copy.deepcopy(fields))
    written = {"model_type": "stablelm", **(old_spelling(fields) if old else fields)}
    found, kept = frequencies.from_config(written, seq_len=seq_len), ours(theirs, seq_len=seq_len)
    np.testing.assert_array_equal(found.inv_freq, kept.inv_freq)
    assert (found.gain, found.rotary_dim) == (kept.gain, kept.rotary_dim)
    rope = fields["rope_parameters"]
    name = rope["rope_type"]
    if name == "default":
        agree(found, *embedding(theirs))
        return
    inv_freq, _ = INIT[name](theirs, "cpu", seq_len=seq_len)
    unscaled = frequencies.geometric(len(inv_freq), base=rope["rope_theta"], width=found.rotary_dim)
    # a ramp's difference in float32 is as exact as the frequency that it starts from, not as the quotient
    np.testing.assert_allclose(found.inv_freq / unscaled, inv_freq.double().numpy() / unscaled, rtol=RTOL, atol=RTOL)
    if name != "longrope":  # its function computes in float32 whatever the default
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(modeling_rope_utils, "torch", Float64())
            agree(found, *INIT[name](theirs, "cpu", seq_len=seq_len), rtol=1e-9)
    if nested and "truncate" not in rope:
        both = {"full_attention": rope, "sliding_attention": {"rope_theta": 123.0}}
        several = {**written, "rope_parameters": both, "layer_types": ["full_attention", "sliding_attention"]}
        several |= {"rope_scaling": None, "num_hidden_layers": 2}
        again = frequencies.from_config(several, "full_attention", seq_len=seq_len)
        np.testing.assert_array_equal(found.inv_freq, again.inv_freq)


@pytest.mark.parametrize(("attention", "cls"), [(DeepseekV2Attention, "V2"), (DeepseekV3Attention, "V3")])
@pytest.mark.parametrize("all_dim", [None, 0.0, 0.707, 1.0])
def test_the_factor_of_all_scores_is_that_of_their_attention(attention, cls, all_dim):
    rope = {**YARN, "factor": 40.0, "mscale": 0.707} | ({} if all_dim is None else {"mscale_all_dim": all_dim})
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "kv_lora_rank": 8, "q_lora_rank": 8, "v_head_dim": 8}
    sizes |= {"num_key_value_heads": 2, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "num_hidden_layers": 1}
    theirs = getattr(transformers, f"Deepseek{cls}Config")(**sizes, rope_parameters=rope)
    assert ours(theirs).score_factor == pytest.approx(attention(theirs, 0).scaling * 16**0.5, rel=1e-12)


def test_truncate_inside_a_kind_is_not_read_by_theirs():
    nested = {"full_attention": {**YARN, "truncate": False}, "sliding_attention": {"rope_theta": 1e4}}
    theirs = transformers.Gemma3TextConfig(rope_parameters=copy.deepcopy(nested))
    agree(ours(theirs, "full_attention"), *INIT["yarn"](theirs, "cpu", layer_type="full_attention"))
    warnings = config.rotary(finite(theirs.to_dict()), "full_attention").warnings
    assert "nested_truncate" in {warning.code for warning in warnings}


@pytest.mark.parametrize(("low", "high"), [(2.0, 2.0), (4.0, 1.0)])
def test_an_empty_or_reversed_ramp_of_llama3(low, high):
    rope = {**LLAMA3, "low_freq_factor": low, "high_freq_factor": high}
    theirs = transformers.LlamaConfig(hidden_size=256, num_attention_heads=2, rope_parameters=rope)
    agree(ours(theirs), *INIT["llama3"](theirs, "cpu"))


@pytest.mark.parametrize("seq_len", [None, 1024, 1025])
def test_the_list_of_longrope_for_a_length(seq_len):
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "max_position_embeddings": 4096}
    theirs = transformers.Phi3Config(**sizes, original_max_position_embeddings=1024, rope_parameters=dict(LONG))
    agree(ours(theirs, seq_len=seq_len), *INIT["longrope"](theirs, "cpu", seq_len=seq_len))


def test_phimoe_takes_its_short_list_at_every_length():
    """A peer's slip: its forward asks for frequencies without a length. The library follows the file."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    rope |= {"short_mscale": 1.25, "long_mscale": 1.5, "original_max_position_embeddings": 8, "factor": 4.0}
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "max_position_embeddings": 32}
    theirs = transformers.PhimoeConfig(**sizes, rope_parameters=rope)
    cos, _ = PhimoeRotaryEmbedding(theirs)(torch.zeros(1, 20, 16), torch.arange(20)[None])
    short, long = (ours(theirs, seq_len=n) for n in (8, 20))
    angle = torch.arange(20)[:, None] * torch.from_numpy(short.inv_freq)
    torch.testing.assert_close(cos[0, :, :4].double(), angle.cos() * 1.5, atol=1e-5, rtol=0)
    assert (short.gain, long.gain) == (1.25, 1.5)
    np.testing.assert_array_equal(long.inv_freq, short.inv_freq / 2)


def test_the_fixed_scaling_of_hunyuan():
    rope = {"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0, "rope_theta": 1e4}
    theirs = transformers.HunYuanDenseV1Config(head_dim=128, rope_parameters=rope)
    agree(ours(theirs), *embedding(theirs))


PHI_3 = {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096}
PHI_3_LISTS = {"short_factor": [1.5] * 48, "long_factor": [4.0] * 48}
LINEAR = {"rope_type": "linear", "factor": 8.0}
OLD = {
    "Gemma3TextConfig": {
        "rope_theta": 1e6,
        "rope_local_base_freq": 2e4,
        "sliding_window": 1024,
        "rope_scaling": LINEAR,
    },
    "ModernBertConfig": {"global_rope_theta": 2e5, "local_rope_theta": 3e4, "local_attention": 64},
    "GPTNeoXConfig": {"rotary_pct": 0.5, "rotary_emb_base": 5000},
    "GlmConfig": {"rope_theta": 2e4, "partial_rotary_factor": 0.75},
    "CohereConfig": {"rope_theta": 8e6},
    "LlamaConfig": {"rope_theta": 5e5, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "MiniMaxM2Config": {"rotary_dim": 64, "rope_theta": 5e6},
    "Phi3Config": {**PHI_3, "rope_scaling": {"type": "longrope", **PHI_3_LISTS}},
    "DeepseekV2Config": {"rope_theta": 3e4},
    "Llama4TextConfig": {"rope_theta": 4e5, "attention_chunk_size": 64},
    "SmolLM3Config": {"rope_theta": 3e6},
    "Qwen2Config": {"use_sliding_window": True, "max_window_layers": 10, "sliding_window": 256, "rope_theta": 7e5},
    "FalconConfig": {"rope_theta": 2e4},
    "EsmConfig": {"position_embedding_type": "rotary", "rope_theta": 2e4, "vocab_size": 33},
}


@pytest.mark.parametrize("cls", OLD)
def test_files_of_transformers_4_are_read_as_theirs_reads_them(cls):
    theirs = getattr(transformers, cls)(**copy.deepcopy(OLD[cls]))
    written = {"model_type": theirs.model_type, "num_hidden_layers": theirs.num_hidden_layers, **OLD[cls]}
    kept = finite(theirs.to_dict())
    assert config.layer_types(written) == config.layer_types(kept)
    for kind in set(config.layer_types(written)) - STILL:
        agree(frequencies.from_config(written, kind), *embedding(theirs, kind))
        before, after = (config.rotary(source, kind) for source in (written, kept))
        assert (before.window, before.rope_type, before.pairing) == (after.window, after.rope_type, after.pairing)


def test_the_first_name_of_longrope_is_read_here_and_refused_by_theirs():
    """Old files of Phi-3 have "su"; transformers 5.23 renames it after it has filled in the trained length."""
    with pytest.raises(KeyError, match="original_max_position_embeddings"):
        transformers.Phi3Config(**PHI_3, rope_scaling={"type": "su", **PHI_3_LISTS})
    su, longrope = (
        frequencies.from_config({"model_type": "phi3", **PHI_3, "rope_scaling": {"type": name, **PHI_3_LISTS}})
        for name in ("su", "longrope")
    )
    np.testing.assert_array_equal(su.inv_freq, longrope.inv_freq)
    assert su.gain == longrope.gain > 1


def test_the_base_of_an_old_file_of_olmo_3_is_for_full_attention_only():
    """Transformers takes rope_theta out of the file for full attention, and has its default for the windows."""
    theirs = transformers.Olmo3Config(rope_theta=1e6, num_hidden_layers=4).rope_parameters
    assert [theirs[kind]["rope_theta"] for kind in ("full_attention", "sliding_attention")] == [1e6, 5e5]
    written = {"model_type": "olmo3", "rope_theta": 1e6, "num_hidden_layers": 4}
    assert [config.rotary(written, kind).base for kind in theirs] == [own["rope_theta"] for own in theirs.values()]


def test_ernies_axes_are_in_the_order_of_text():
    from transformers.models.ernie4_5_vl_moe import configuration_ernie4_5_vl_moe as configuration

    cls = next(cls for name, cls in vars(configuration).items() if name.endswith("TextConfig"))
    theirs, pos = cls(), torch.arange(5)
    cos, _ = modeling(cls).Ernie4_5_VLMoeTextRotaryEmbedding(theirs)(torch.zeros(1), pos.expand(3, 1, 5))
    wanted = (pos[:, None] * torch.from_numpy(ours(theirs).inv_freq)).cos().repeat_interleave(2, -1)
    torch.testing.assert_close(cos[0].double(), wanted, atol=1e-6, rtol=0)


def test_the_text_of_a_model_with_vision_is_read(tmp_path):
    theirs = transformers.Qwen2VLConfig()
    theirs.text_config.rope_parameters = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
    theirs.save_pretrained(tmp_path)
    rotary = config.rotary(tmp_path)
    assert (rotary.model_type, rotary.base) == ("qwen2_vl_text", 1e6)
    assert (rotary.sections, rotary.layout) == ((16, 24, 24), "blocks")
