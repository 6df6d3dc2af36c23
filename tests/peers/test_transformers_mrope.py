"""Agreement with the multimodal rotary encodings of transformers: the turn, and the numbers of text and pictures."""

from types import SimpleNamespace

import pytest
import torch

import posenc
from peers.agreement import assert_same, leaf
from posenc import positions

pytest.importorskip("transformers")

from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLTextConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import (
    Qwen2VLModel,
    Qwen2VLRotaryEmbedding,
    apply_rotary_pos_emb,
)
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding

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


@pytest.mark.parametrize("pictures", [[(1, 4, 6)], [(1, 2, 2), (1, 8, 4)], [(3, 6, 4)]])
def test_positions_of_text_and_pictures_are_qwens(pictures):
    """Their grids count patches before two by two are merged. A video goes on after its rows and columns alone there
    (transformers 5.23), and after its frames too here, as in the paper: the same while frames are the fewest."""
    texts, tokens, kinds = [3, 5, 2][: len(pictures) + 1], [], []
    for i, text in enumerate(texts):
        kinds += [0] * text
        tokens.append(text)
        if i < len(pictures):
            frames, rows, columns = pictures[i]
            kinds += [1 if frames == 1 else 2] * (frames * rows * columns // 4)
            tokens.append((frames, rows // 2, columns // 2))
    model = SimpleNamespace(
        config=SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2)),
        get_vision_position_ids=lambda *a, **k: Qwen2VLModel.get_vision_position_ids(None, *a, **k),
    )
    grids = {
        name: torch.tensor([p for p in pictures if (p[0] == 1) == (name == "image_grid_thw")])
        for name in ("image_grid_thw", "video_grid_thw")
    }
    row = torch.tensor([kinds])
    theirs, _ = Qwen2VLModel.get_rope_index(model, torch.zeros_like(row), row, **grids)
    assert torch.equal(positions.mrope(tokens)[None], positions.from_hf(theirs))
