"""Frequencies from configurations as transformers' own functions and modules compute them."""

import copy
import importlib
import inspect
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from posenc import config, frequencies
from strategies import check

pytest.importorskip("transformers")

import transformers
from transformers import modeling_rope_utils
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Attention
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention
from transformers.models.gptj.modeling_gptj import create_sinusoidal_positions
from transformers.models.phimoe.modeling_phimoe import PhimoeRotaryEmbedding

ROWS = json.loads((Path(__file__).parents[1] / "data" / "rope_configs.json").read_text(encoding="utf-8"))["models"]
INIT = modeling_rope_utils.ROPE_INIT_FUNCTIONS
RTOL = 3e-6  # theirs are float32

CLASSES = {
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
STILL = {"nope", "linear_attention", "cross_attention", "conv", "moe"}


@pytest.fixture(autouse=True)
def _quiet():
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)


def plain(values):
    """What a file holds: `to_dict` may hold an infinity."""
    if isinstance(values, dict):
        return {str(key): plain(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [plain(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


def embedding(theirs, kind):
    """Their own module's frequencies and gain, or those of the function for the type."""
    name = type(theirs).__module__.replace("configuration_", "modeling_")
    classes = [
        cls
        for key, cls in vars(importlib.import_module(name)).items()
        if inspect.isclass(cls) and key.endswith("RotaryEmbedding") and cls.__module__ == name and "Vision" not in key
    ]
    module = classes[0](theirs)
    inv_freq = getattr(module, f"{kind}_inv_freq", None)
    inv_freq = module.inv_freq if inv_freq is None else inv_freq
    return inv_freq, getattr(module, f"{kind}_attention_scaling", getattr(module, "attention_scaling", 1.0))


def agree(ours, inv_freq, gain, rtol=RTOL):
    assert ours.inv_freq.dtype == np.float64
    np.testing.assert_allclose(ours.inv_freq, inv_freq.double().numpy(), rtol=rtol)
    assert ours.gain == pytest.approx(gain, rel=1e-12)


def of_row(row):
    """A real configuration with the row's numbers."""
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
def test_rows_of_the_reference(row, tmp_path):
    theirs = of_row(row)
    theirs.save_pretrained(tmp_path)
    kind = "full_attention" if row["name"].startswith("gemma") else None
    rotary, ours = config.rotary(tmp_path, kind), frequencies.from_config(tmp_path, kind)
    assert (rotary.head_dim, rotary.rotary_dim, rotary.pairing) == (row["head_dim"], row["rotary_dim"], row["pairing"])
    assert rotary.max_len == row["max_position_embeddings"]
    assert rotary.rotary_side == ("last" if row["name"] in ("deepseek-v3", "mistral-4") else "first")
    if rotary.rope_type in ("yarn", "llama3"):
        assert rotary.original_max_len == row["original_max_len"]
    if row["name"].startswith("gpt-j"):
        sines = create_sinusoidal_positions(2, row["rotary_dim"])[1, : row["rotary_dim"] // 2]
        np.testing.assert_allclose(np.sin(ours.inv_freq), sines.double().numpy(), rtol=RTOL)
        return
    agree(ours, *embedding(theirs, kind))
    if rotary.rope_type != "default":
        agree(ours, *INIT[rotary.rope_type](theirs, "cpu", layer_type=kind))


class Float64:
    """torch as their functions use it, computing in float64."""

    float = float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@st.composite
def scalings(draw):
    """A configuration of Llama or StableLM, which reads the part that turns, over all types; and a length."""
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
    """The same as files of transformers 4 have it."""
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
    ours = frequencies.from_config(written, seq_len=seq_len)
    kept = frequencies.from_config(plain(theirs.to_dict()), seq_len=seq_len)
    np.testing.assert_array_equal(ours.inv_freq, kept.inv_freq)
    assert (ours.gain, ours.rotary_dim) == (kept.gain, kept.rotary_dim)
    name = fields["rope_parameters"]["rope_type"]
    if name == "default":
        agree(ours, *embedding(theirs, None))
        return
    inv_freq, _ = INIT[name](theirs, "cpu", seq_len=seq_len)
    plainly = frequencies.geometric(len(inv_freq), base=fields["rope_parameters"]["rope_theta"], width=ours.rotary_dim)
    # a ramp's difference in float32 is as good as the frequency that it starts from, not as the quotient
    np.testing.assert_allclose(ours.inv_freq / plainly, inv_freq.double().numpy() / plainly, rtol=RTOL, atol=RTOL)
    if name != "longrope":  # whose function makes float32 whatever the default
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(modeling_rope_utils, "torch", Float64())
            agree(ours, *INIT[name](theirs, "cpu", seq_len=seq_len), rtol=1e-9)
    if nested:
        both = {"full_attention": fields["rope_parameters"], "sliding_attention": {"rope_theta": 123.0}}
        several = {**written, "rope_parameters": both, "layer_types": ["full_attention", "sliding_attention"]}
        several |= {"rope_scaling": None, "num_hidden_layers": 2}
        if "truncate" not in fields["rope_parameters"]:
            again = frequencies.from_config(several, "full_attention", seq_len=seq_len)
            np.testing.assert_array_equal(ours.inv_freq, again.inv_freq)


MAPPED = [name for name in config.MODEL_TYPES if name in CONFIG_MAPPING_NAMES]
# shapes of a default configuration that no released model has: 21 of 42 lanes, or 73
ODD = {"glm4_moe", "glm4v_moe_text", "qwen3_omni_moe_text"}
# no module of its own; a second module first; by the axes of a grid, which for text is the same
ELSEWHERE = {"blt", "gptj", "codegen", "roformer", "granite4_vision_text", "internlm3", "iquestcoder"}
ELSEWHERE |= {"cohere_compass_text", "dots3_note_audio_encoder", "dots3_note_text", "ernie4_5_vl_moe_text", "evolla"}


@pytest.mark.slow
def test_the_list_of_types_is_theirs():
    """Every type whose configuration has rotary parameters is known, but for towers that turn by two axes."""
    assert len(MAPPED) > 150
    missing = set()
    for name in set(CONFIG_MAPPING_NAMES) - set(config.MODEL_TYPES):
        fields = CONFIG_MAPPING[name].__dataclass_fields__
        if "rope_parameters" in fields and CONFIG_MAPPING[name].default_rope_type != "axial":
            missing.add(name)
    assert missing <= SEEING | {"EvollaModel"}  # a name of the same class as evolla


# rotation by two axes, by learned or by continuous coordinates
SEEING = {"efficientloftr", "eomt_dinov3", "llama4_vision_model", "musicflamingo", "gemma4_assistant"}


@pytest.mark.sample(50)
@pytest.mark.parametrize("name", MAPPED)
def test_every_type_as_it_is_by_default(name):
    theirs = CONFIG_MAPPING[name]()
    written = plain(theirs.to_dict())
    if name in ODD:
        with pytest.raises(ValueError, match="because they rotate in pairs"):
            frequencies.from_config(written)
        return
    if name in ELSEWHERE:
        return
    for kind in set(config.layer_types(written)) - STILL:
        label = kind if name != "deepseek_v4" else "compress"
        agree(frequencies.from_config(written, kind), *embedding(theirs, label))


@pytest.mark.sample(50)
@pytest.mark.parametrize("name", MAPPED)
def test_what_is_left_out_is_filled_in_as_theirs(name):
    """A file without sizes, bases and kinds of layers means the same as a default configuration of theirs."""
    theirs = CONFIG_MAPPING[name]()
    written = plain(theirs.to_dict())
    for key, ours in (("hidden_size", "hidden_size"), ("max_position_embeddings", "max_len")):
        value = getattr(config.models.TYPES[name], ours)
        assert value is None or getattr(theirs, key) == value
    if name not in ODD | ELSEWHERE | APART | config.models.OWN_SCALING and "rope_parameters" in written:
        kinds = written.get("layer_types") or ["full_attention"] * 2
        kind = next((kind for kind in kinds if kind not in STILL), None)
        rope = written["rope_parameters"] if written["rope_parameters"] else {}
        own = rope.get(kind) if isinstance(rope.get(kind), dict) else rope
        sparse = {"model_type": name, "layer_types": written.get("layer_types"), "num_hidden_layers": None}
        if kind in config.layer_types({**written, "layer_types": kinds, "num_hidden_layers": len(kinds)}):
            assert config.rotary(sparse, kind).base == own["rope_theta"]


# with a base of its own for the first kind of layer, in the new spelling only; or with layers listed in their own way
APART = {"deepseek_v4", "laguna", "mellum", "mimo_v2_flash", "neomme", "ultrabert", "zaya"}
APART |= {"bamba", "falcon_h1", "granitemoehybrid", "recurrent_gemma", "zamba2"}


OF_ONE_LENGTH = {"zamba2"}  # whose list does not follow the number of layers


@pytest.mark.parametrize("name", MAPPED)
def test_kinds_of_layers_that_are_left_out_are_filled_in_as_theirs(name):
    for options in ({}, *({"num_hidden_layers": n} for n in range(2, 9))):
        if options and name in OF_ONE_LENGTH:
            continue
        theirs = CONFIG_MAPPING[name](**options)
        written = plain(theirs.to_dict())
        listed = getattr(theirs, "layer_types", None)
        if not listed:
            return
        sparse = {key: value for key, value in written.items() if key not in ("layer_types", "layers_block_type")}
        if name in config.kinds.UNLISTED:
            with pytest.raises(ValueError, match="layer_types is missing"):
                config.layer_types(sparse)
            return
        filled, full = (config.model.open_model(one) for one in (sparse, {**written, "layer_types": list(listed)}))
        assert config.kinds.layers(filled) == config.kinds.layers(full)


def rotated(name):
    """How the functions of a type's module swap lanes 0 1 2 3."""
    module = importlib.import_module(CONFIG_MAPPING[name].__module__.replace("configuration_", "modeling_"))
    names = ("rotate_half", "rotate_every_two", "rotate_half_llm", "rotate_half_text")
    for key in names:
        if hasattr(module, key):
            yield getattr(module, key)(torch.arange(4.0).expand(1, 1, 1, 4)).flatten().tolist()


HALF, PAIRS = [-2.0, -3.0, 0.0, 1.0], [-1.0, 0.0, -3.0, 2.0]


@pytest.mark.parametrize("name", MAPPED)
def test_pairing_is_that_of_the_module(name):
    known = config.models.TYPES[name].pairing
    if name in ("internlm3", "iquestcoder"):
        return  # Llama's, in a file of their own that is not written out
    ways = list(rotated(name))
    if name == "nanochat":
        assert ways == [[2.0, 3.0, -0.0, -1.0]]  # clockwise
    elif ways and (name in BOTH or not all(way == ways[0] for way in ways)):
        assert known == "interleaved"
    elif ways:
        assert ways[0] == (HALF if known == "half" else PAIRS)
    else:
        assert name in WITHOUT


# a function for halves stands beside the one that is used, apply_rotary_pos_emb_interleave
BOTH = {"axk1", "axk2", "deepseek_v3", "deepseek_v32", "dots3_note_text", "glm4_moe_lite", "mistral4", "youtu"}
# complex numbers, matrices of two, or no function of a name that is looked for
WITHOUT = {"bailing_hybrid", "deepseek_v2", "glm_moe_dsa", "gpt_oss", "internlm3", "iquestcoder", "llama4_text"}
WITHOUT |= {"longcat_flash", "mistral_large4", "mistral_large4_text", "openai_privacy_filter", "roformer"}
WITHOUT |= {"pe_audio_encoder", "pe_audio_video_encoder", "pe_video_encoder"}


@pytest.mark.parametrize(("attention", "cls"), [(DeepseekV2Attention, "V2"), (DeepseekV3Attention, "V3")])
@pytest.mark.parametrize("all_dim", [None, 0.0, 0.707, 1.0])
def test_the_factor_of_all_scores_is_that_of_their_attention(attention, cls, all_dim):
    rope = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "rope_theta": 1e4}
    rope |= {"mscale": 0.707} | ({} if all_dim is None else {"mscale_all_dim": all_dim})
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "kv_lora_rank": 8, "q_lora_rank": 8, "v_head_dim": 8}
    sizes |= {"num_key_value_heads": 2, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "num_hidden_layers": 1}
    theirs = getattr(transformers, f"Deepseek{cls}Config")(**sizes, rope_parameters=rope)
    ours = frequencies.from_config(plain(theirs.to_dict()))
    assert ours.score_factor == pytest.approx(attention(theirs, 0).scaling * 16**0.5, rel=1e-12)


def test_truncate_inside_a_kind_is_not_read_by_theirs():
    rope = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096, "rope_theta": 1e4}
    nested = {"full_attention": {**rope, "truncate": False}, "sliding_attention": {"rope_theta": 1e4}}
    theirs = transformers.Gemma3TextConfig(rope_parameters=copy.deepcopy(nested))
    inv_freq, gain = INIT["yarn"](theirs, "cpu", layer_type="full_attention")
    agree(frequencies.from_config(plain(theirs.to_dict()), "full_attention"), inv_freq, gain)
    codes = {one.code for one in config.rotary(plain(theirs.to_dict()), "full_attention").warnings}
    assert "nested_truncate" in codes


def test_a_ramp_without_width_or_reversed_is_theirs():
    for low, high in ((2.0, 2.0), (4.0, 1.0)):
        rope = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "original_max_position_embeddings": 8192}
        rope |= {"low_freq_factor": low, "high_freq_factor": high}
        theirs = transformers.LlamaConfig(hidden_size=256, num_attention_heads=2, rope_parameters=rope)
        agree(frequencies.from_config(plain(theirs.to_dict())), *INIT["llama3"](theirs, "cpu"))


def test_phimoe_takes_its_short_list_at_every_length():
    """A peer's slip: its forward asks for frequencies without a length. Ours follow the file."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    rope |= {"short_mscale": 1.25, "long_mscale": 1.5, "original_max_position_embeddings": 8, "factor": 4.0}
    theirs = transformers.PhimoeConfig(
        hidden_size=16, num_attention_heads=2, max_position_embeddings=32, rope_parameters=rope
    )
    cos, _ = PhimoeRotaryEmbedding(theirs)(torch.zeros(1, 20, 16), torch.arange(20)[None])
    written = plain(theirs.to_dict())
    short, long = (frequencies.from_config(written, seq_len=n) for n in (8, 20))
    angle = torch.arange(20)[:, None] * torch.from_numpy(short.inv_freq)
    torch.testing.assert_close(cos[0, :, :4].double(), angle.cos() * 1.5, atol=1e-5, rtol=0)
    assert (short.gain, long.gain) == (1.25, 1.5)
    np.testing.assert_array_equal(long.inv_freq, short.inv_freq / 2)


OLD = [
    (
        "Gemma3TextConfig",
        {
            "rope_theta": 1e6,
            "rope_local_base_freq": 2e4,
            "sliding_window": 1024,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
    ),
    ("ModernBertConfig", {"global_rope_theta": 2e5, "local_rope_theta": 3e4, "local_attention": 64}),
    ("GPTNeoXConfig", {"rotary_pct": 0.5, "rotary_emb_base": 5000}),
    ("GlmConfig", {"rope_theta": 2e4, "partial_rotary_factor": 0.75}),
    ("CohereConfig", {"rope_theta": 8e6}),
    ("LlamaConfig", {"rope_theta": 5e5, "rope_scaling": {"type": "dynamic", "factor": 2.0}}),
    ("MiniMaxM2Config", {"rotary_dim": 64, "rope_theta": 5e6}),
    ("Phi3Config", {"rope_scaling": {"type": "longrope", "short_factor": [1.5] * 48, "long_factor": [4.0] * 48}}),
    ("DeepseekV2Config", {"rope_theta": 3e4}),
    ("Llama4TextConfig", {"rope_theta": 4e5, "attention_chunk_size": 64}),
    ("SmolLM3Config", {"rope_theta": 3e6}),
    ("Qwen2Config", {"use_sliding_window": True, "max_window_layers": 10, "sliding_window": 256, "rope_theta": 7e5}),
    ("FalconConfig", {"rope_theta": 2e4}),
    ("EsmConfig", {"position_embedding_type": "rotary", "rope_theta": 2e4, "vocab_size": 33}),
]


@pytest.mark.parametrize(("cls", "fields"), OLD, ids=[cls for cls, _ in OLD])
def test_files_of_transformers_4_mean_what_theirs_make_of_them(cls, fields):
    if cls == "Phi3Config":
        fields = {**fields, "max_position_embeddings": 131072, "original_max_position_embeddings": 4096}
    theirs = getattr(transformers, cls)(**copy.deepcopy(fields))
    written = {"model_type": theirs.model_type, "num_hidden_layers": theirs.num_hidden_layers, **fields}
    kept = plain(theirs.to_dict())
    assert config.layer_types(written) == config.layer_types(kept)
    for kind in set(config.layer_types(written)) - STILL:
        agree(frequencies.from_config(written, kind), *embedding(theirs, kind))
        before, after = (config.rotary(source, kind) for source in (written, kept))
        assert (before.window, before.rope_type, before.pairing) == (after.window, after.rope_type, after.pairing)


def test_the_first_name_of_longrope_is_read_here_and_refused_by_theirs():
    """Their own old files of Phi-3 say su; transformers 5.23 renames it after it has filled in the trained length."""
    rope = {"short_factor": [1.5] * 48, "long_factor": [4.0] * 48}
    lengths = {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096}
    with pytest.raises(KeyError, match="original_max_position_embeddings"):
        transformers.Phi3Config(**lengths, rope_scaling={"type": "su", **rope})
    su, longrope = (
        frequencies.from_config({"model_type": "phi3", **lengths, "rope_scaling": {"type": name, **rope}})
        for name in ("su", "longrope")
    )
    np.testing.assert_array_equal(su.inv_freq, longrope.inv_freq)
    assert su.gain == longrope.gain > 1


def test_the_base_of_an_old_file_of_olmo_3_is_for_all_layers_here():
    """A peer's slip: it takes rope_theta out of the file for full attention, and finds none for the windows."""
    theirs = transformers.Olmo3Config(rope_theta=1e6, num_hidden_layers=4).rope_parameters
    assert [theirs[kind]["rope_theta"] for kind in ("full_attention", "sliding_attention")] == [1e6, 5e5]
    written = {"model_type": "olmo3", "rope_theta": 1e6, "num_hidden_layers": 4}
    assert [config.rotary(written, kind).base for kind in theirs] == [1e6, 1e6]


def test_llama_4_and_smollm3_say_where_there_is_no_position():
    for cls in (transformers.Llama4TextConfig, transformers.SmolLM3Config):
        theirs = cls()
        written = plain(theirs.to_dict())
        assert config.layer_types(written)["nope"] == theirs.no_rope_layers.count(0)


def test_the_axes_of_ernie_come_back_in_the_order_of_text():
    from transformers.models.ernie4_5_vl_moe import configuration_ernie4_5_vl_moe as configuration
    from transformers.models.ernie4_5_vl_moe import modeling_ernie4_5_vl_moe as modeling

    theirs = next(cls for name, cls in vars(configuration).items() if name.endswith("TextConfig"))()
    pos = torch.arange(5)
    cos, _ = modeling.Ernie4_5_VLMoeTextRotaryEmbedding(theirs)(torch.zeros(1), pos.expand(3, 1, 5))
    ours = frequencies.from_config(plain(theirs.to_dict()))
    wanted = (pos[:, None] * torch.from_numpy(ours.inv_freq)).cos().repeat_interleave(2, -1)
    torch.testing.assert_close(cos[0].double(), wanted, atol=1e-6, rtol=0)


def test_a_fixed_stretch_of_hunyuan():
    rope = {"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0, "rope_theta": 1e4}
    theirs = transformers.HunYuanDenseV1Config(head_dim=128, rope_parameters=rope)
    agree(frequencies.from_config(plain(theirs.to_dict())), *embedding(theirs, None))


def test_a_model_with_vision_counts_as_its_text(tmp_path):
    theirs = transformers.Qwen2VLConfig()
    theirs.text_config.rope_parameters = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
    theirs.save_pretrained(tmp_path)
    rotary = config.rotary(tmp_path)
    assert (rotary.model_type, rotary.base) == ("qwen2_vl_text", 1e6)
    assert (rotary.sections, rotary.layout) == ((16, 24, 24), "blocks")


def test_the_function_of_a_length_is_theirs():
    fields = SimpleNamespace(short=[1.0] * 32, long=[3.0] * 32)
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": fields.short, "long_factor": fields.long}
    theirs = transformers.Phi3Config(
        hidden_size=128,
        num_attention_heads=2,
        max_position_embeddings=4096,
        original_max_position_embeddings=1024,
        rope_parameters=rope,
    )
    for seq_len in (None, 1024, 1025):
        ours = frequencies.from_config(plain(theirs.to_dict()), seq_len=seq_len)
        agree(ours, *INIT["longrope"](theirs, "cpu", seq_len=seq_len))
