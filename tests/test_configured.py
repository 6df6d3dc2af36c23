"""Every type of model: what its layers do to queries and keys, against whole small models of transformers."""

from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

import posenc
from posenc import PerLayer, config
from posenc.config import kinds
from small_models import PLAIN, N, Seen, build, finite, scores, seen, small
from strategies import refuses


@pytest.fixture(autouse=True)
def _quiet():
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)


WIDE = {"head_dim": 128, "hidden_size": 512}  # sections of 64 pairs
EQUAL = {"num_key_value_heads": 4}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 64}
INDEXER = {f"indexer_{key}": n for key, n in (("n_heads", 2), ("kv_heads", 1), ("head_dim", 16), ("budget", 4))}


def taking_turns(*types: str) -> dict[str, Any]:
    return {"layer_types": [types[i % len(types)] for i in range(7)], "sliding_window": 4}


BOTH = taking_turns("sliding_attention", "full_attention")
# what a type wants beside small sizes, or what shows more of it than its defaults
SECTIONS = {"head_dim": 128, "rope_parameters": PLAIN | {"mrope_section": [16, 24, 24]}}
OPTIONS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [3, 5], "mamba_n_heads": 8},
    "cohere_compass_text": WIDE | BOTH | {"rope_parameters": {"sliding_attention": PLAIN, "full_attention": None}},
    "cosmos3_edge_text": WIDE,
    "dots3_note_text": EQUAL,
    "ernie4_5_vl_moe_text": WIDE | {"moe_intermediate_size": [16, 16]},
    "esm": {"position_embedding_type": "rotary"},
    "esmc": EQUAL,
    "glm4v_moe_text": WIDE,
    "glm4v_text": WIDE | SECTIONS,
    "glm_image_text": SECTIONS,
    "glm_ocr_text": SECTIONS,
    "granite_swa": {"layer_rope_theta": [0, 1e4, 5e5, 0, 1e4, 100, 1e4]},
    "granitemoehybrid": {
        "position_embedding_type": "rope",
        "mamba_n_heads": 8,
        "layer_types": taking_turns("linear_attention", "full_attention")["layer_types"],
    },
    "hunyuan_vl_text": SECTIONS,
    "laguna": BOTH,
    "lfm2": {"full_attn_idxs": [1, 4]},
    "lfm2_moe": {"layer_types": taking_turns("conv", "full_attention")["layer_types"]},
    "longcat_flash": {"head_dim": 8, "num_layers": 3},
    "mellum": BOTH,
    "mimo_v2_flash": {"head_dim": 24},
    "ministral": BOTH,
    "molmo2_text": {"rope_parameters": YARN, "rope_scaling_layers": [1, 2, 5]},
    "paddleocr_vl_text": WIDE,
    "qwen2_5_omni_talker": WIDE | {"embedding_size": 512},
    **dict.fromkeys(("qwen2_5_omni_text", "qwen2_5_vl_text", "qwen2_vl_text"), WIDE),
    "qwen4_exp_text": INDEXER | {"indexer_compress_ratio": 2},
    "step3p5": BOTH,
    "zaya": {"num_experts_per_tok": 1} | taking_turns("hybrid", "hybrid_sliding"),
}
# multi-head latent attention that sorts the lanes that turn into even ones and odd ones, and then turns halves
SORTS = {"axk1", "axk2", "bailing_hybrid", "deepseek_v3", "deepseek_v32", "dots3_note_text", "glm4_moe_lite"}
SORTS |= {"glm_moe_dsa", "longcat_flash", "mistral4", "mistral_large4_text", "youtu"}


def differences(model: Any, sizes: dict[str, Any], pos: Any, pairing: Any = None, **inputs: Any) -> dict[int, float]:
    """By layer, how far the model's scores are from those of our encodings, over the largest score.

    Queries and keys before they are turned are those of the same tokens at position 0, where angles are 0.
    """
    layers = PerLayer.from_config(sizes, pairing=pairing)
    start = torch.zeros_like(pos)
    at, origin = (layers.place(posenc.positions.on_each_axis(p, layers.n_axes)) for p in (pos, start))
    out: dict[int, float] = {}
    before: list[Seen] = seen(model, start, **inputs)
    after = seen(model, pos, **inputs)
    assert after
    for one, other in zip(before, after, strict=True):
        assert one.layer == other.layer
        encoding, part = layers.layer(one.layer, at)
        plain = encoding.rotate(one.q, one.k, layers.layer(one.layer, origin)[1], inverse=True)  # without the gain
        ours, theirs = scores(*encoding.rotate(*plain, part)), scores(other.q, other.k)
        assert theirs.abs().max() > 1e-3
        out[one.layer] = max(out.get(one.layer, 0.0), float((ours - theirs).abs().max() / theirs.abs().max()))
    if config.model.open_model(sizes).name == "hrm_text":
        return out  # which runs the same layers again and again
    still = {i for i, kind in enumerate(kinds.layers(config.model.open_model(sizes))) if not kinds.rotates(kind)}
    assert set(range(len(layers))) - set(out) <= still  # those that have no attention have no position either
    return out


def positions() -> Any:
    return torch.randint(1, 300, (2, N), generator=torch.Generator().manual_seed(0))


# seconds of making large tensors that have no size in the configuration
LARGE = {"csm", "evolla", "falcon_h1", "phi4_multimodal"}
# which a test here does not run: they want pictures, sounds or codes; parts of others that do not run by themselves;
# attention that is not handed out, or is in their own code; compressed keys. All have one kind of layer that turns,
# but for DeepSeek V4's (which turn by two bases), Recurrent Gemma's and Zamba 2's (attention that turns, or none)
NOT_RUN = {
    *("blt", "blt_global_transformer", "blt_local_decoder", "blt_local_encoder", "blt_patcher", "chameleon", "codegen"),
    *("csm_depth_decoder_model", "dbrx", "deepseek_ocr2_encoder", "deepseek_ocr2_text", "deepseek_v4", "dia_decoder"),
    *("dia_encoder", "dots3_note_audio_encoder", "falcon", "glmasr_encoder", "gpt_neox_japanese", "gptj"),
    *("gradium_phonon_tts", "idefics", "internlm3", "iquestcoder", "kyutai_speech_to_text", "lasr_encoder", "mimi"),
    *("mimi_decoder", "mimi_encoder", "moonshine", "moonshine_streaming", "muse_glimmer_assistant"),
    *("nemotron3_5_transcribe_asr_audio", "nemotron3_5_transcribe_word_timestamp", "nemotron3_diarization_audio"),
    *("neucodec", "pe_audio_encoder", "pe_audio_video_encoder", "pe_video_encoder", "pocket_tts"),
    *("pocket_tts_audio_tokenizer", "pocket_tts_audio_tokenizer_decoder", "pocket_tts_audio_tokenizer_encoder"),
    *("qwen2_5_omni_dit", "qwen3_omni_moe_talker_code_predictor", "qwen3_omni_moe_talker_text", "recurrent_gemma"),
    *("roformer", "t5_gemma_module", "t5gemma2_decoder", "t5gemma2_text", "timesfm2_5", "voxtral_realtime_encoder"),
    *("voxtral_realtime_text", "xcodec2", "zamba2"),
}
RUN = [name for name in config.MODEL_TYPES if name in CONFIG_MAPPING_NAMES and name not in NOT_RUN]


@pytest.mark.sample(20)
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LARGE else n for n in RUN])
def test_every_type_turns_as_we_say(name):
    theirs = small(name, **OPTIONS.get(name, {}))
    model = build(theirs)
    for key, tensor in model.state_dict().items():
        if "softmax_scaling" in key:  # Mistral Large 4's queries grow by what it learned: here by nothing
            tensor.fill_(float(key.endswith("bias")))
    pairing = "half" if name in SORTS else None
    found = differences(model, finite(theirs.to_dict()), positions(), pairing)
    assert max(found.values()) < 1e-4, found


# ---- what single types do, beside their defaults


def turning(name: str, **options: Any) -> tuple[list[bool], list[bool]]:
    """Which layers turn in a model of theirs whose masks are given, and which we say do."""
    theirs = small(name, **{"num_hidden_layers": 6} | options)
    masks = dict.fromkeys(("full_attention", "sliding_attention"), torch.zeros(2, 1, N, N))
    model, pos = build(theirs), positions()
    before, after = (seen(model, at, attention_mask=masks) for at in (torch.zeros_like(pos), pos))
    moved = [not torch.equal(one.k, other.k) for one, other in zip(before, after, strict=True)]
    return moved, [kinds.rotates(kind) for kind in kinds.layers(config.model.open_model(finite(theirs.to_dict())))]


MIXED = ["sliding_attention", "full_attention", "full_attention"] * 2
FULL = ["full_attention"] * 6
DENSE = ["dense", "sparse", "dense"] * 2


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("flint", {}, [0, 0, 1, 1, 1, 0]),
        ("flint", {"layer_types": FULL}, [0] * 6),
        ("cohere2", {"layer_types": FULL}, [0] * 6),
        ("cohere2", {"sliding_window": None}, [0] * 6),
        ("cohere2", {"sliding_window": None, "layer_types": FULL}, [0] * 6),
        ("cohere2_moe", {"sliding_window": None}, [0] * 6),
        ("cohere2_moe", {"sliding_window": None, "mlp_layer_types": DENSE}, [1, 0, 1] * 2),
        ("cohere2_moe", {"layer_types": MIXED, "mlp_layer_types": DENSE}, [1, 0, 1] * 2),
        (
            "cohere2_moe",
            {"layer_types": MIXED, "mlp_layer_types": DENSE, "prefix_dense_sliding_window_pattern": 2},
            [1, 0, 0] * 2,
        ),
        ("cohere2_moe", {"first_k_dense_replace": 2}, [1, 1, 1, 1, 1, 0]),
        ("cohere2_moe", {"first_k_dense_replace": 2, "sliding_window_pattern": 2}, [1, 1, 1, 0, 1, 0]),
        ("cohere2_moe", {"first_k_dense_replace": 3, "prefix_dense_sliding_window_pattern": 2}, [1, 0, 1, 1, 1, 1]),
        ("afmoe", {"layer_types": MIXED}, [1, 0, 0] * 2),
        ("afmoe", {"layer_types": MIXED, "sliding_window": None}, [1, 0, 0] * 2),
        ("afmoe", {"layer_types": FULL, "sliding_window": None}, [0] * 6),
        ("exaone4", {"layer_types": FULL}, [0] * 6),
        ("exaone4", {"layer_types": MIXED, "sliding_window": None}, [1] * 6),
        ("exaone4", {"layer_types": FULL, "sliding_window": None}, [1] * 6),
        ("exaone_moe", {"layer_types": FULL}, [0] * 6),
        ("kolibri1", {"layer_types": MIXED}, [1, 0, 0] * 2),
        ("kolibri1", {"layer_types": FULL, "sliding_window": None}, [1] * 6),
        ("beam", {}, [1, 1, 1, 1, 1, 0]),
        ("beam", {"rope_parameters": {"sliding_attention": None, "full_attention": PLAIN}}, [0, 0, 0, 0, 0, 1]),
    ],
)
def test_layers_that_turn_where_a_window_decides(name, options, expected):
    theirs, ours = turning(name, **options)
    assert theirs == ours == [bool(turns) for turns in expected]


def test_what_transformers_refuses_of_a_window_turns_by_the_rule_of_its_code():
    """EXAONE-MoE without a window: its configuration wants a number, and its attention turns where there is none."""
    fields = {"model_type": "exaone_moe", "num_hidden_layers": 4, "sliding_window": None}
    assert config.layer_types(fields) == {"full_attention": 4}
    assert config.layer_types(fields | {"layer_types": MIXED[:4]}) == {"sliding_attention": 2, "full_attention": 2}


def test_a_first_dense_layer_of_cohere_without_lists():
    """As a file of its first spelling has it, against the lists that transformers makes of it."""
    for options in ({}, {"first_k_dense_replace": 2}, {"first_k_dense_replace": 3, "sliding_window_pattern": 3}):
        theirs = transformers.Cohere2MoeConfig(num_hidden_layers=9, **options)
        written = {"model_type": "cohere2_moe", "num_hidden_layers": 9, **options}
        ours, full = (kinds.layers(config.model.open_model(one)) for one in (written, finite(theirs.to_dict())))
        assert ours == full


def test_beam_without_parameters_is_beam_by_default():
    theirs = small("beam", num_hidden_layers=12).to_dict()
    assert theirs["rope_parameters"]["full_attention"] is None
    layers = PerLayer.from_config({**finite(theirs), "rope_parameters": None})
    assert layers.index == PerLayer.from_config(finite(theirs)).index == ((0,) * 5 + (1,)) * 2
    rope, grows = layers.distinct
    assert (type(rope), rope.base) == (posenc.RoPE, 1e4)
    assert grows.options() == {"law": "beam", "original_max_len": 2048, "weight": 0.1}


def test_the_queries_of_beam_far_away():
    theirs = small("beam", num_hidden_layers=6)
    pos = torch.randint(100_000, (2, N), generator=torch.Generator().manual_seed(1))
    found = differences(build(theirs), finite(theirs.to_dict()), pos)
    assert found[5] < 1e-6
    assert PerLayer.from_config(finite(theirs.to_dict())).index[5] == 1


@pytest.mark.parametrize("given", [None, [1, 4], []])
def test_layers_that_look_at_pictures_do_not_turn(given):
    """Llama 3.2 Vision, whose layers of cross attention are among the counted ones."""
    theirs = small("mllama_text_model", cross_attention_layers=given)
    picture = torch.randn(2, N, 64, generator=torch.Generator().manual_seed(2))
    found = differences(build(theirs), finite(theirs.to_dict()), positions(), cross_attention_states=picture)
    assert max(found.values()) < 1e-4
    assert set(found) == set(range(7))
    cross = {i for i in ([3] if given is None else given) if i < 7}
    layers = PerLayer.from_config(finite(theirs.to_dict()))
    assert {i for i, which in enumerate(layers.index) if type(layers.distinct[which]) is posenc.NoPE} == cross
    written = {"model_type": "mllama_text_model", "num_hidden_layers": 40}
    assert config.layer_types(written) == {"full_attention": 32, "cross_attention": 8}
    assert len(transformers.MllamaConfig().text_config.cross_attention_layers) == 8


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"num_layers": 3},
        {"num_hidden_layers": 6},
        {"num_layers": 28, "num_hidden_layers": 56},
        {"num_layers": 28, "num_hidden_layers": 28},
    ],
)
def test_two_attentions_a_layer_are_two_entries(given):
    theirs = transformers.LongcatFlashConfig(**given)
    written = given or {"num_layers": 28}
    for source in (finite(theirs.to_dict()), {"model_type": "longcat_flash", **written}):
        assert config.layer_types(source) == {"full_attention": theirs.num_hidden_layers}
        assert len(PerLayer.from_config(source)) == theirs.num_hidden_layers


def test_half_a_layer_is_refused():
    with refuses(ValueError, "num_hidden_layers of longcat_flash counts two attentions for each layer", "got 7"):
        config.layer_types({"model_type": "longcat_flash", "num_hidden_layers": 7})


@pytest.mark.parametrize("given", [{}, {"H_cycles": 1, "L_cycles": 4}, {"num_hidden_layers": 3}])
def test_layers_that_are_run_again_are_counted_as_in_their_cache(given):
    theirs = transformers.HrmTextConfig(**given)
    for source in (finite(theirs.to_dict()), {"model_type": "hrm_text", "num_hidden_layers": 16, **given}):
        assert config.layer_types(source) == {"full_attention": theirs.num_hidden_layers}


@pytest.mark.parametrize("theta", [None, 1e4])
def test_a_model_without_a_base_does_not_turn(theta):
    """OLMo Hybrid, whose file says by null that there is no RoPE."""
    theirs = small("olmo_hybrid", rope_parameters={"rope_type": "default", "rope_theta": theta})
    written = finite(theirs.to_dict())
    assert max(differences(build(theirs), written, positions()).values()) < 1e-4
    kind = "nope" if theta is None else "full_attention"
    assert config.layer_types(written) == {"linear_attention": 6, kind: 1}
    old = {"model_type": "olmo_hybrid", "num_hidden_layers": 7, "rope_theta": theta}
    assert config.layer_types(old) == config.layer_types(written)


def test_layers_that_are_not_scaled():
    """Molmo 2 stretches some layers by YaRN, and leaves the others at the same base."""
    written = finite(small("molmo2_text", **OPTIONS["molmo2_text"]).to_dict())
    layers = PerLayer.from_config(written)
    assert layers.index == (0, 1, 1, 0, 0, 1, 0)
    assert [encoding.gain() for encoding in layers.distinct] == [1.0, pytest.approx(1.2079441541679836, rel=1e-12)]
    found = config.rotary(written, "unscaled_attention")
    assert (found.rope_type, found.factor, found.base) == ("default", None, 1e4)
    with refuses(ValueError, "layer_type must be given", "'unscaled_attention', 'full_attention'"):
        config.rotary(written)


def test_widths_of_single_layers():
    """Dots 3's layers with a window have wider heads, by a list or by keys of its first files."""
    options = {"swa_head_dim": 96, "swa_qk_nope_head_dim": 64, "swa_rope_theta": 3e4, "rope_theta": 2e6}
    for given in ({}, options):
        theirs = transformers.models.dots3_note.Dots3NoteTextConfig(num_hidden_layers=6, **given)
        sparse = {"model_type": "dots3_note_text", "layer_types": theirs.layer_types, **given}
        for source in (finite(theirs.to_dict()), sparse):
            for kind, parameters in theirs.rope_parameters.items():
                found, wanted = config.rotary(source, kind), theirs.per_layer_config[kind]
                assert found.head_dim == wanted.qk_nope_head_dim + wanted.qk_rope_head_dim
                assert (found.rotary_dim, found.rotary_side) == (wanted.qk_rope_head_dim, "last")
                assert found.base == parameters["rope_theta"]


# ---- many kinds

MANY = {"model_type": "llama", "head_dim": 8, "layer_types": [f"kind_{i}" for i in range(64)]}
READERS = {"PerLayer": PerLayer.from_config, "inspect": posenc.inspection.inspect, "layer_types": config.layer_types}


@pytest.mark.parametrize("name", READERS)
def test_a_limit_to_the_kinds(name):
    READERS[name](MANY)
    over = {**MANY, "layer_types": [*MANY["layer_types"], "one_more"]}
    with refuses(ValueError, "config: a model has at most 64 kinds of layers; got 65. Correct the file."):
        READERS[name](over)


@pytest.mark.parametrize("name", READERS)
def test_a_file_is_read_once(name, tmp_path, monkeypatch):
    small("gemma3_text", rope_parameters={"full_attention": YARN, "sliding_attention": PLAIN}).save_pretrained(tmp_path)
    passed, before = [], config.reading._plain
    monkeypatch.setattr(config.reading, "_plain", lambda source: passed.append(source) or before(source))
    READERS[name](tmp_path)
    assert len(passed) == 1
