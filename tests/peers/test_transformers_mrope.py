"""Agreement with the multimodal rotary encodings of transformers: the turn, and the numbers of text and pictures."""

import importlib
from types import SimpleNamespace

import pytest
import torch

import posenc
from peers.agreement import assert_same, leaf
from posenc import config, positions
from posenc.config.models import SECTIONS
from posenc.definitions.positions import mrope_positions
from strategies import refuses

pytest.importorskip("transformers")

from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLTextConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding

from small_models import PLAIN, finite, small

SHAPE = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}
PEERS = {
    "blocks": (Qwen2VLTextConfig, Qwen2VLRotaryEmbedding),
    "interleaved": (Qwen3VLTextConfig, Qwen3VLTextRotaryEmbedding),
}


@pytest.mark.parametrize(
    ("layout", "sections"),
    [("blocks", (6, 5, 5)), ("blocks", (4, 6, 6)), ("interleaved", (6, 5, 5)), ("interleaved", (12, 2, 2))],
)
def test_mrope_is_qwens(layout, sections):
    configuration, peer = PEERS[layout]
    rotary = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": list(sections)}
    theirs = peer(configuration(**SHAPE, rope_parameters=rotary))
    ids, q, k = torch.randint(200, (3, 2, 9)), leaf(2, 2, 9, 32), leaf(2, 2, 9, 32)
    turned = apply_rotary_pos_emb(q, k, *theirs(q, ids))
    ours = posenc.MRoPE(head_dim=32, sections=sections, layout=layout, base=1e6)
    mine = ours.rotate(q, k, ours.place(positions.from_hf(ids)))
    for a, b, source in zip(mine, turned, (q, k), strict=True):
        assert_same(a, b, [source], atol=1e-4)  # their angles are float32


# ---- the numbers of text, and of pictures and videos in patches, of which two by two become one token

MIXTURES = [
    [3, (1, 4, 6), 5],
    [3, (1, 2, 2), 5, (1, 8, 4), 2],
    [3, (8, 4, 2), 1, (1, 6, 2), 2],
    [(6, 2, 2), 4, (10, 4, 4)],
]
TIMES = {"ernie4_5_vl_moe": {"temporal_merge_size": 2}, "qwen2_5_vl": {"tokens_per_second": 2}}


def in_tokens(parts, frames=1):
    """Merge patches, and `frames` frames of a video."""
    return [p if isinstance(p, int) else (p[0] if p[0] == 1 else p[0] // frames, p[1] // 2, p[2] // 2) for p in parts]


def theirs_of(name, parts, **more):
    """Run the function of a model's file; its kinds of tokens are 0 of text, 1 of a picture, 2 of a video."""
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    cls = next(c for key, c in vars(module).items() if key.endswith("Model") and hasattr(c, "get_rope_index"))
    vision = SimpleNamespace(spatial_merge_size=2, **TIMES.get(name, {}))
    model = SimpleNamespace(
        config=SimpleNamespace(vision_config=vision),
        get_vision_position_ids=lambda *a, **k: cls.get_vision_position_ids(None, *a, **k),
    )
    kinds, grids = [], {"image_grid_thw": [], "video_grid_thw": []}
    for part in parts:
        if isinstance(part, int):
            kinds += [0] * part
            continue
        video = part[0] > 1
        grids["video_grid_thw" if video else "image_grid_thw"].append(part)
        ((frames, rows, columns),) = in_tokens([part], TIMES.get(name, {}).get("temporal_merge_size", 1))
        if name in ("qwen3_vl", "glm4v") and video:
            kinds += ([0] + [2] * (rows * columns)) * frames  # a time stamp before each frame
        else:
            kinds += [2 if video else 1] * (frames * rows * columns)
    row = torch.tensor([kinds])
    given = {key: torch.tensor(some) for key, some in grids.items() if some}
    return positions.from_hf(cls.get_rope_index(model, torch.zeros_like(row), row, **given, **more)[0])[0]


@pytest.mark.parametrize("parts", MIXTURES)
@pytest.mark.parametrize("name", ["qwen2_vl", "paddleocr_vl", "ernie4_5_vl_moe", "qwen3_vl", "glm4v"])
def test_positions_of_text_and_pictures_are_those_of_transformers_5(name, parts):
    tokens = in_tokens(parts, TIMES.get(name, {}).get("temporal_merge_size", 1))
    if name in ("qwen3_vl", "glm4v"):
        tokens = [q for p in tokens for q in ([p] if isinstance(p, int) or p[0] == 1 else [1, (1, *p[1:])] * p[0])]
    theirs = theirs_of(name, parts)
    assert torch.equal(positions.mrope(tokens, next_after="sides"), theirs)
    defined = mrope_positions(tokens, next_after="sides")
    assert defined.T.tolist() == theirs.tolist()


@pytest.mark.parametrize("seconds", [[0.75, 2.0], [0.25, 7 / 6], [0.145, 12.5], [1 / 3, 0.7]])
@pytest.mark.parametrize("parts", MIXTURES[2:])
def test_steps_of_videos_are_those_of_qwen2_5_vl(parts, seconds):
    """Two tokens a second: steps of 1.5, 0.5, 0.29 and more; a picture has none."""
    videos = [p for p in parts if not isinstance(p, int) and p[0] > 1]
    seconds = dict(zip(videos, seconds, strict=False))
    steps = [2 * seconds.get(p, 1.0) for p in parts if not isinstance(p, int)]
    theirs = theirs_of("qwen2_5_vl", parts, second_per_grid_ts=torch.tensor([*seconds.values()]))
    mine = positions.mrope(in_tokens(parts), time_step=steps, next_after="sides")
    assert torch.equal(mine, theirs)
    assert mrope_positions(in_tokens(parts), steps, next_after="sides").T.tolist() == theirs.tolist()


@pytest.mark.parametrize("seconds", [0.06, 0.1, 1.0])
def test_what_follows_a_video_in_qwen2_5_omni_begins_after_its_last_frame(seconds):
    """25 numbers a second; their code counts the marks around a video, tokens 1 and 2, as text."""
    omni = importlib.import_module("transformers.models.qwen2_5_omni.modeling_qwen2_5_omni")
    cls = omni.Qwen2_5OmniPreTrainedModelForConditionalGeneration
    ids = {"vision_start": 1, "video": 5, "image": 6, "audio": 7, "audio_start": 8}
    numbers = {"position_id_per_seconds": 25, "seconds_per_chunk": 2.0}
    model = SimpleNamespace(
        spatial_merge_size=2,
        config=SimpleNamespace(**{f"{key}_token_id": value for key, value in ids.items()}, **numbers),
        get_llm_pos_ids_for_vision=lambda *a: cls.get_llm_pos_ids_for_vision(None, *a),
    )
    row = torch.tensor([[9, 9, 1, *[5] * 12, 2, 9, 9]])
    grid, mask = torch.tensor([[6, 2, 4]]), torch.ones_like(row)
    theirs, _ = cls.get_rope_index(
        model, row, None, grid, mask, use_audio_in_video=False, second_per_grids=torch.tensor([seconds])
    )
    mine = positions.mrope([3, (6, 1, 2), 3], time_step=25 * seconds)
    assert torch.equal(mine[None], positions.from_hf(theirs))


# ---- every type, from its configuration

SIZED = {"head_dim": 64, "hidden_size": 256}
LISTED = {"rope_parameters": PLAIN | {"mrope_section": [8, 12, 12]}}
HALF = {"rope_parameters": PLAIN | {"mrope_section": [4, 5, 7], "partial_rotary_factor": 0.5}}
TURNS = {"rope_parameters": PLAIN | {"mrope_section": [12, 10, 10], "mrope_interleaved": True}}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 64}
QUARTER = {"rope_parameters": PLAIN | {"mrope_section": [4, 2, 2], "partial_rotary_factor": 0.25}}
DENSE = {"moe_intermediate_size": [16, 16]}
BOTH = {"layer_types": ["sliding_attention", "full_attention"] * 2, "num_hidden_layers": 4, "sliding_window": 8}
COMPASS = BOTH | {"rope_parameters": {"sliding_attention": TURNS["rope_parameters"], "full_attention": None}}
# model type -> the class of its rotary module, and options of its configuration; nothing listed: as its code has it
TYPES = [
    ("qwen2_vl_text", "Qwen2VLRotaryEmbedding", LISTED),
    ("qwen2_vl_text", "Qwen2VLRotaryEmbedding", {"head_dim": 128}),
    ("qwen2_vl_text", "Qwen2VLRotaryEmbedding", {"rope_parameters": YARN | {"mrope_section": [8, 12, 12]}}),
    ("qwen2_vl_text", "Qwen2VLRotaryEmbedding", TURNS),  # whose flag its code does not read
    ("qwen2_5_vl_text", "Qwen2_5_VLRotaryEmbedding", LISTED),
    ("paddleocr_vl_text", "PaddleOCRRotaryEmbedding", {"head_dim": 128}),
    ("qwen2_5_omni_text", "Qwen2_5OmniRotaryEmbedding", LISTED),
    ("qwen2_5_omni_talker", "Qwen2_5OmniRotaryEmbedding", {"head_dim": 128}),
    ("glm4v_text", "Glm4vTextRotaryEmbedding", HALF),
    ("glm4v_text", "Glm4vTextRotaryEmbedding", {"rope_parameters": YARN | {"mrope_section": [8, 12, 12]}}),
    ("glm4v_moe_text", "Glm4vMoeTextRotaryEmbedding", HALF),
    ("glm4v_moe_text", "Glm4vMoeTextRotaryEmbedding", {"head_dim": 128}),
    ("glm_image_text", "GlmImageTextRotaryEmbedding", {}),
    ("glm_ocr_text", "GlmOcrTextRotaryEmbedding", HALF),
    ("qwen3_vl_text", "Qwen3VLTextRotaryEmbedding", TURNS),
    ("qwen3_vl_text", "Qwen3VLTextRotaryEmbedding", {}),  # 24, 20, 20 in 32 pairs: all take turns to the end
    ("qwen3_vl_text", "Qwen3VLTextRotaryEmbedding", LISTED),  # where the column has no room for its 12
    ("qwen3_vl_moe_text", "Qwen3VLMoeTextRotaryEmbedding", {"rope_parameters": YARN | {"mrope_section": [12, 10, 10]}}),
    ("qwen3_omni_moe_text", "Qwen3OmniMoeThinkerTextRotaryEmbedding", TURNS),
    ("qwen3_omni_moe_talker_text", "Qwen3OmniMoeTalkerRotaryEmbedding", {"head_dim": 128}),
    ("cohere_compass_text", "CohereCompassRotaryEmbedding", COMPASS),
    ("cosmos3_edge_text", "Cosmos3EdgeTextRotaryEmbedding", TURNS),
    ("qwen3_5_text", "Qwen3_5TextRotaryEmbedding", {"head_dim": 256}),
    ("qwen3_5_moe_text", "Qwen3_5MoeTextRotaryEmbedding", QUARTER),
    ("qwen4_exp_text", "Qwen4ExpTextRotaryEmbedding", QUARTER),
    ("neomme", "NeoMMERotaryEmbedding", BOTH),
    ("ernie4_5_vl_moe_text", "Ernie4_5_VLMoeTextRotaryEmbedding", DENSE | {"head_dim": 128}),
    (
        "ernie4_5_vl_moe_text",
        "Ernie4_5_VLMoeTextRotaryEmbedding",
        DENSE | {"rope_parameters": PLAIN | {"mrope_section": [13, 13, 6]}},
    ),
]


@pytest.mark.parametrize(("name", "peer", "options"), TYPES)
def test_layers_of_every_type_turn_pictures_as_transformers_does(name, peer, options):
    theirs = small(name, **SIZED | options)
    module = importlib.import_module(type(theirs).__module__.replace("configuration_", "modeling_"))
    rotary, layers = getattr(module, peer)(theirs), posenc.PerLayer.from_config(finite(theirs.to_dict()))
    mine = [i for i, which in enumerate(layers.index) if isinstance(layers.distinct[which], posenc.MRoPE)]
    assert mine
    ids = torch.randint(60, (layers.n_axes, 2, 9))
    for i in mine:
        kind = (theirs.layer_types[i],) if hasattr(rotary, "layer_types") else ()
        encoding, placed = layers.layer(i, layers.place(positions.from_hf(ids)))
        q, k = leaf(2, 4, 9, theirs.head_dim), leaf(2, 2, 9, theirs.head_dim)
        turned = module.apply_rotary_pos_emb(q, k, *rotary(q, ids, *kind))
        for ours, other, source in zip(encoding.rotate(q, k, placed), turned, (q, k), strict=True):
            assert_same(ours, other, [source], atol=1e-4)
        text = torch.arange(9)
        rope = posenc.RoPE.from_config(finite(theirs.to_dict()), *kind)
        same = encoding.rotate(q, k, encoding.place(positions.on_each_axis(text, layers.n_axes)))
        for ours, plain in zip(same, rope.rotate(q, k, rope.place(text)), strict=True):
            assert torch.equal(ours, plain)


def test_every_type_that_has_axes_is_tried():
    assert {name for name, *_ in TYPES} == set(SECTIONS) - {"hunyuan_vl_text", "hy_v4_vl_text"}


def test_hunyuan_vl_parts_the_lanes_of_a_pair():
    """Sections of the doubled table: lane k of its cosines reads another axis than lane k + 32."""
    from transformers.models.hunyuan_vl.modeling_hunyuan_vl import HunYuanVLRotaryEmbedding

    theirs = small("hunyuan_vl_text", **SIZED, rope_parameters=PLAIN | {"mrope_section": [8, 8, 8, 8]})
    cos, _ = HunYuanVLRotaryEmbedding(theirs)(torch.zeros(1), torch.tensor([0, 0, 1, 0])[:, None, None])
    assert (cos[0, 0] != 1).nonzero().flatten().tolist() == list(range(32, 48))
    written = finite(theirs.to_dict())
    found = config.rotary(written)
    assert (found.sections, found.layout) == ((8, 8, 8, 8), "doubled")
    with refuses(ValueError, "MRoPE: ", "its two dimensions read different axes", "hunyuan_vl_text"):
        posenc.MRoPE.from_config(written)
    assert posenc.PerLayer.from_config(written).n_axes == 1


def test_a_model_whose_default_sections_do_not_fit_does_not_run():
    theirs = small("glm4v_text", **SIZED, partial_rotary_factor=0.5)
    theirs.rope_parameters["partial_rotary_factor"] = 0.5
    from transformers.models.glm4v.modeling_glm4v import Glm4vTextRotaryEmbedding

    with pytest.raises(RuntimeError, match="split_with_sizes"):
        Glm4vTextRotaryEmbedding(theirs)(torch.zeros(1), torch.zeros(3, 1, 4))
    found = config.rotary(finite(theirs.to_dict()))
    assert (found.sections, [one.code for one in found.warnings]) == (None, ["sections_misfit"])
