"""The configuration of every model type, as transformers' own classes and modules read it."""

import pytest
import torch

pytest.importorskip("transformers")

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from peers.config_peers import MAPPED, STILL, agree, embedding, modeling
from posenc import config, frequencies
from small_models import finite

# rotation by two axes, by learned or by continuous coordinates
UNREAD = {"efficientloftr", "eomt_dinov3", "llama4_vision_model", "musicflamingo", "gemma4_assistant"}
# default configurations with shapes that no released model has: 21 of 42 dimensions, or 73
ODD = {"glm4_moe", "glm4v_moe_text", "qwen3_omni_moe_text"}
# no module of its own; a second module first; by the axes of a grid, which for text is the same
ELSEWHERE = {"blt", "gptj", "codegen", "roformer", "granite4_vision_text", "internlm3", "iquestcoder"}
ELSEWHERE |= {"cohere_compass_text", "dots3_note_audio_encoder", "dots3_note_text", "ernie4_5_vl_moe_text", "evolla"}
# its own labels for kinds of layers; or its own list of layers
APART = {"deepseek_v4", "bamba", "falcon_h1", "granitemoehybrid", "recurrent_gemma", "zamba2"}
OF_ONE_LENGTH = {"zamba2"}  # its list does not follow the number of layers
# a function for halves stands next to the one that is used, apply_rotary_pos_emb_interleave
BOTH = {"axk1", "axk2", "deepseek_v3", "deepseek_v32", "dots3_note_text", "glm4_moe_lite", "mistral4", "youtu"}
# complex numbers, matrices of two, or no function with one of the names below
WITHOUT = {"bailing_hybrid", "deepseek_v2", "glm_moe_dsa", "gpt_oss", "llama4_text", "longcat_flash", "mistral_large4"}
WITHOUT |= {"mistral_large4_text", "openai_privacy_filter", "roformer"}
WITHOUT |= {"pe_audio_encoder", "pe_audio_video_encoder", "pe_video_encoder"}
FUNCTIONS = ("rotate_half", "rotate_every_two", "rotate_half_llm", "rotate_half_text")
HALF, PAIRS = [-2.0, -3.0, 0.0, 1.0], [-1.0, 0.0, -3.0, 2.0]


@pytest.mark.slow
def test_the_list_of_types_is_theirs():
    """Every type whose configuration has rotary parameters is known, except encoders that rotate by two axes."""
    assert len(MAPPED) > 150
    missing = set()
    for name in set(CONFIG_MAPPING_NAMES) - set(config.MODEL_TYPES):
        fields = CONFIG_MAPPING[name].__dataclass_fields__
        if "rope_parameters" in fields and CONFIG_MAPPING[name].default_rope_type != "axial":
            missing.add(name)
    assert missing <= UNREAD | {"EvollaModel"}  # a name of the same class as evolla


@pytest.mark.sample(50)
@pytest.mark.parametrize("name", MAPPED)
def test_default_configurations(name):
    theirs = CONFIG_MAPPING[name]()
    written = finite(theirs.to_dict())
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
def test_missing_sizes_bases_and_kinds_are_filled_in_as_theirs(name):
    theirs = CONFIG_MAPPING[name]()
    written = finite(theirs.to_dict())
    for key, filled in (("hidden_size", "hidden_size"), ("max_position_embeddings", "max_len")):
        value = getattr(config.models.TYPES[name], filled)
        assert value is None or getattr(theirs, key) == value
    if name not in ODD | ELSEWHERE | APART and "rope_parameters" in written:
        kinds = written.get("layer_types") or ["full_attention"] * 2
        kind = next((kind for kind in kinds if kind not in STILL), None)
        rope = written["rope_parameters"] if written["rope_parameters"] else {}
        own = rope.get(kind) if isinstance(rope.get(kind), dict) else rope
        sparse = {"model_type": name, "layer_types": written.get("layer_types"), "num_hidden_layers": None}
        if kind in config.layer_types({**written, "layer_types": kinds, "num_hidden_layers": len(kinds)}):
            assert config.rotary(sparse, kind).base == own["rope_theta"]


@pytest.mark.parametrize("name", MAPPED)
def test_missing_kinds_of_layers_are_filled_in_as_theirs(name):
    for options in ({}, *({"num_hidden_layers": n} for n in range(2, 9))):
        if options and name in OF_ONE_LENGTH:
            continue
        theirs = CONFIG_MAPPING[name](**options)
        written = finite(theirs.to_dict())
        listed = getattr(theirs, "layer_types", None)
        if not listed:
            return
        sparse = {key: value for key, value in written.items() if key not in ("layer_types", "layers_block_type")}
        filled, full = (config.model.open_model(one) for one in (sparse, {**written, "layer_types": list(listed)}))
        assert config.kinds.layers(filled) == config.kinds.layers(full)


@pytest.mark.parametrize("cls", [transformers.Llama4TextConfig, transformers.SmolLM3Config])
def test_layers_without_position_are_counted_as_theirs(cls):
    theirs = cls()
    assert config.layer_types(finite(theirs.to_dict()))["nope"] == theirs.no_rope_layers.count(0)


@pytest.mark.parametrize("name", [name for name in MAPPED if name not in ("internlm3", "iquestcoder")])
def test_pairing_is_that_of_the_module(name):
    """By where the module's functions move dimensions 0, 1, 2, 3; two types import Llama's from a file of their own."""
    known, module = config.models.TYPES[name].pairing, modeling(CONFIG_MAPPING[name])
    functions = [getattr(module, key) for key in FUNCTIONS if hasattr(module, key)]
    ways = [rotate(torch.arange(4.0).expand(1, 1, 1, 4)).flatten().tolist() for rotate in functions]
    if name == "nanochat":
        assert ways == [[2.0, 3.0, -0.0, -1.0]]  # clockwise
    elif ways and (name in BOTH or not all(way == ways[0] for way in ways)):
        assert known == "interleaved"
    elif ways:
        assert ways[0] == (HALF if known == "half" else PAIRS)
    else:
        assert name in WITHOUT
