"""A file as its publisher spells it and as transformers saves it again: both have the same encodings in each layer."""

import copy
import json

import pytest

pytest.importorskip("transformers")

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from peers.config_peers import MAPPED, agree, embedding
from peers.test_config_types import ELSEWHERE
from posenc import config, frequencies
from posenc.config import kinds, unrotated
from posenc.config.model import open_model
from posenc.config.parts import TEXT
from posenc.configured import by_layer
from small_models import finite

transformers.logging.set_verbosity_error()
pytestmark = pytest.mark.filterwarnings("ignore:`rope_scaling` is deprecated:FutureWarning")
TYPES = [*config.MODEL_TYPES, *unrotated.KINDS]
# of what a class fills in, the numbers that a published file does not have, and the lists that it has
FILLED = {"rope_theta", "partial_rotary_factor", "compress_rope_theta", "qk_head_dim", "transformers_version"}
LISTS = {"depths", "num_heads", "global_config"}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 2048}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
BASE = {"rope_theta": 12345.0}
SCALED = BASE | {"rope_scaling": YARN, "max_position_embeddings": 8192}
V4_KEYS = BASE | {"compress_ratios": [0, 0, *[4, 128] * 5], "qk_rope_head_dim": 64, "compress_rope_theta": 160000}
TURNS = ["sliding_attention", "full_attention", "full_attention"] * 4
QWEN = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 5}
NEOX = {"rotary_emb_base": 777.0, "rotary_pct": 0.5}
GEMMA = BASE | {"rope_local_base_freq": 4321.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
MODERNBERT = {"global_rope_theta": 12345.0, "local_rope_theta": 4321.0, "global_attn_every_n_layers": 2}
PATTERN = {"sliding_window_pattern": 3}
INTERVAL = {"full_attention_interval": 3}
# of single types: keys of their own in published files, each with its twelve layers
OWN = {
    "afmoe": [{"global_attn_every_n_layers": 3}],
    "axk2": [PATTERN],  # which it does not read
    "bailing_hybrid": [{"layer_group_size": 4}],
    "bamba": [{"attn_layer_indices": [2, 5]}],
    "codegen": [SCALED | {"partial_rotary_factor": 0.5}],
    "cohere2": [PATTERN],
    "cohere2_moe": [PATTERN | {"first_k_dense_replace": 3, "prefix_dense_sliding_window_pattern": 2}],
    "deepseek_ocr2_text": [{"head_dim": 32}],
    "deepseek_v3": [SCALED | {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}}],
    "deepseek_v4": [{**V4_KEYS, "rope_scaling": YARN}],
    "dory": [{"layer_types": ["sliding_attention", "mlp", "full_attention", "mlp"] * 6}],
    "dots1": [QWEN | {"use_sliding_window": False}],
    "dots3_note_text": [{"use_dsa": False}, {"use_sliding_window": False}, BASE | {"swa_rope_theta": 4321.0}, SCALED,
                        {"layer_types": TURNS}],
    "embedding_gemma2_text": [PATTERN],
    "exaone": [BASE | {"rope_scaling": LLAMA3, "max_position_embeddings": 16384}],
    "exaone4": [PATTERN],
    "falcon": [{"alibi": True}],
    "gemma3_text": [PATTERN, GEMMA, GEMMA | {"rope_scaling": {"type": "linear", "factor": 8.0}}],
    "gemma3n_text": [GEMMA],
    "gpt_neox": [NEOX, NEOX | {"rope_scaling": {"type": "linear", "factor": 2.0}}],
    "gpt_neox_japanese": [NEOX],
    "granite_swa": [BASE | {"layer_rope_theta": [0, 1e4, 1e4, 1e4] * 3}],
    "gptj": [{"rotary_dim": 32}],
    "hunyuan_v1_dense": [BASE | {"rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}}],
    "hunyuan_vl_text": [BASE | {"head_dim": 128, "rope_scaling": {"type": "xdrope", "alpha": 1000.0, "factor": 1.0,
                                                                 "xdrope_section": [16, 16, 16, 16]}}],
    "laguna": [{"layer_types": TURNS}],
    "lfm2": [{"full_attn_idxs": [1, 3]}],
    "llama": [BASE | {"rope_scaling": LLAMA3, "max_position_embeddings": 16384}],
    "llama4_text": [{"no_rope_layer_interval": 3}, {"no_rope_layers": [1, 0, 1] * 4}],
    "mellum": [{"layer_types": TURNS}, QWEN],
    "mimo_v2_flash": [{"layer_types": TURNS}, {"sliding_window_size": 100}],
    "minimax_m2": [{"rotary_dim": 32}],
    "minimax_m3_vl_text": [{"sparse_attention_config": {"sparse_attention_freq": [0, 0, 1, 1] * 3}}],
    "mistral": [{"layer_types": TURNS, "sliding_window": 64}],  # read as ministral
    "mistral_large4_text": [{"no_rope_layer_interval": 3}],
    "modernbert": [MODERNBERT],
    "modernbert-decoder": [MODERNBERT],
    "mllama_text_model": [{"cross_attention_layers": [1, 4]}],
    "molmo2_text": [SCALED | {"rope_scaling_layers": [1, 4]}],
    "moonshine_streaming": [SCALED],
    "nemotron3_5_transcribe_asr_audio": [SCALED],
    "neomme": [BASE, {"layer_types": TURNS}],
    "olmo3": [BASE, SCALED, {"layer_types": TURNS}],
    "phi3": [BASE | {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}}
             | {"original_max_position_embeddings": 2048, "max_position_embeddings": 8192}],
    "qwen2": [QWEN, QWEN | {"use_sliding_window": False}, {"layer_types": TURNS, "sliding_window": 64}],
    "qwen2_moe": [QWEN],
    "qwen2_vl_text": [QWEN, {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}],
    "qwen3": [QWEN],
    "qwen3_5_text": [INTERVAL, {"partial_rotary_factor": 0.5}],
    "qwen3_next": [INTERVAL],
    "qwen3_omni_moe_talker_code_predictor": [QWEN | {"use_sliding_window": False}],
    "qwen4_exp_text": [INTERVAL, {"layer_types": ["linear_attention", "full_attention"] * 6}],
    "recurrent_gemma": [{"block_types": ["recurrent", "attention"]}],
    "sarvam_mla": [SCALED | {"rope_scaling": YARN | {"type": "deepseek_yarn", "mscale": 1.0, "mscale_all_dim": 1.0}},
                   {"head_dim": 576, "q_head_dim": 192}],
    "sarvam_moe": [{"partial_rotary_factor": 0.5}],
    "smollm3": [{"no_rope_layer_interval": 3}, {"no_rope_layers": [1, 0, 1] * 4}],
    "t5gemma2_text": [PATTERN, GEMMA],
    "step3p5": [{"layer_types": TURNS, "rope_theta": [1e4, 5e6, 5e6] * 4, "partial_rotary_factors": [1.0, 0.5, 0.5] * 4,
                 "rope_scaling": LLAMA3, "max_position_embeddings": 16384, "sliding_window": 64}],
    "ultrabert": [{"attention_windows": [64, 0, 0] * 4, "rope_theta": [1e4, 5e5, 5e5] * 4},
                  {"rope_theta": [1e4, 1e4, 5e5] * 4}],
}  # fmt: skip
# for types whose default head has 42 or 73 dimensions, or that want other keys to agree
SIZES = {name: {"head_dim": 128} for name in ("glm4_moe", "glm4v_moe_text", "hunyuan_v1_dense", "qwen3_omni_moe_text")}
SIZES["dory"] = {"num_hidden_layers": 24, "n_input_layers": 8, "n_recurrent_layers": 8, "n_output_layers": 8}
SIZES["esm"] = {"position_embedding_type": "rotary"}
SIZES["gpt_neo"] = {"num_layers": 24}
# the keys of sizes that a class also reads under a name of all types
OF_SIZES = {
    *("n_layer", "n_layers", "num_layers", "decoder_num_hidden_layers", "n_head", "n_heads", "num_heads", "n_embd"),
    *("d_model", "dim", "decoder_num_attention_heads", "n_positions", "max_seq_len", "model_max_length"),
    *("kv_channels", "head_dim", "attention_window_size", "sliding_window_size"),
}
# types that run the code of another, and types that build a table for each layer
BORROWED = {"exaone": "llama", "sarvam_mla": "deepseek_v3", "sarvam_moe": "glm4_moe"}
BY_LAYER = {"granite_swa", "granitemoe_swa", "molmo2_text"}
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_num_hidden_layers")
# types without a reader, and types that are read only with a list of their layers
UNREAD = {"clvp_encoder", "inkling2_text", "inkling2_loop_text", "wav2vec2-conformer", "whisper"}
UNREAD |= {"nemotron_h", "zamba2"}


def known(name):
    if name not in CONFIG_MAPPING_NAMES:
        pytest.skip(f"transformers {transformers.__version__} has no type {name}")


def load(fields):
    """The configuration by the class that AutoConfig takes for the file."""
    own = copy.deepcopy(fields)
    if own["model_type"] == "mistral" and "layer_types" in own:
        own["model_type"] = "ministral"
    return CONFIG_MAPPING[own["model_type"]].from_dict(own)


def saved(theirs):
    return finite(json.loads(theirs.to_json_string()))


def published(name, keys):
    """The sizes of a type's default configuration, with twelve layers, and keys as a publisher spells them."""
    sizes = {key: value for key, value in saved(CONFIG_MAPPING[name]()).items() if key not in FILLED}
    sizes = {key: value for key, value in sizes.items() if key in LISTS or not isinstance(value, list | dict)}
    return {**sizes, **{key: 12 for key in LAYERS if key in sizes}, **SIZES.get(name, {}), **keys}


def layers(fields):
    found = by_layer(fields, pairing=None, seq_len=20000)
    return [[(part.name, repr(part.options())) for part in parts] for parts in found]


def same(fields):
    theirs = load(fields)
    assert layers(fields) == layers(saved(theirs))
    return theirs


@pytest.mark.sample(60)
@pytest.mark.parametrize("name", [name for name in TYPES if name not in UNREAD])
def test_both_spellings_of_a_base_and_a_scaling(name):
    known(name)
    for keys in ({}, BASE, SCALED):
        fields = published(name, keys)
        try:
            load(fields)
        except Exception:  # of a type without this scaling
            continue
        same(fields)


@pytest.mark.parametrize(("name", "keys"), [(name, keys) for name, rows in OWN.items() for keys in rows])
def test_both_spellings_of_the_keys_of_a_type(name, keys):
    known(name)
    fields = published(name, keys)
    theirs, model = same(fields), open_model(fields)
    order = getattr(theirs, "layer_types", None)
    if order and name not in unrotated.KINDS:
        assert [kind for kind in kinds.layers(model) if kind != "nope"] == [
            kind for kind, own in zip(order, kinds.layers(model), strict=True) if own != "nope"
        ]


@pytest.mark.sample(40)
@pytest.mark.parametrize("name", [name for name in MAPPED if name not in ELSEWHERE | UNREAD | BY_LAYER])
def test_frequencies_of_a_published_file_are_those_of_the_module(name):
    """By the rotary module that transformers builds for it."""
    for keys in (BASE, *OWN.get(name, ())):
        fields = published(name, {} if name == "ultrabert" and keys is BASE else keys)
        theirs, model = load(fields), open_model(fields)
        if name in BORROWED:
            theirs = load(saved(theirs) | {"model_type": BORROWED[name]})
        for kind in filter(kinds.rotates, dict.fromkeys(kinds.layers(model))):
            label = config.models.LABELS.get(name, {}).get(kind, kind)
            agree(frequencies.from_config(fields, kind, seq_len=1024), *embedding(theirs, label))


@pytest.mark.parametrize("whole", TEXT)
def test_a_part_without_a_type_has_that_of_its_whole(whole):
    known(whole)
    fields = saved(CONFIG_MAPPING[whole]())
    key = next(key for key in ("text_config", "global_config") if isinstance(fields.get(key), dict))
    named = fields[key].pop("model_type")
    assert open_model(fields).model_type == named == getattr(load(fields), key).model_type


def test_the_keys_of_a_text_model_at_the_top_level():
    same({"model_type": "fuyu", "hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 2, **BASE})


@pytest.mark.parametrize("name", [name for name in TYPES if name in CONFIG_MAPPING_NAMES and name not in UNREAD])
def test_other_names_of_a_size(name):
    """By the attribute_map of a class, under which it reads both names."""
    for other, own in CONFIG_MAPPING[name].attribute_map.items():
        if own in OF_SIZES:
            fields = published(name, {})
            fields[other] = fields.pop(own)
            same(fields)
