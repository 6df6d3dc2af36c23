"""The line that `identify` names computes what the host's own code computes."""

import importlib
import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import posenc
from posenc import positions

pytest.importorskip("transformers")
pytest.importorskip("x_transformers")

import transformers as hf
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from x_transformers import x_transformers as xt

SMALL = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 32}
TEXT = SMALL | {"vocab_size": 9, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
EXPERTS = LATENT | {"num_key_value_heads": 2, "n_routed_experts": 4, "n_group": 1, "topk_group": 1}
TYPES = ["sliding_attention", "full_attention"]
GEMMA = {"head_dim": 16, "num_key_value_heads": 1, "layer_types": TYPES}
GEMMA_4 = GEMMA | {"global_head_dim": 32, "vocab_size_per_layer_input": 9, "hidden_size_per_layer_input": 8}
ROWS, COLUMNS = 4, 6
IDS = torch.arange(11)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def made(line, **names):
    """Construct the encoding of a line, and evaluate the positions that follow it, if any."""
    names |= {"posenc": posenc, "positions": positions, "math": math, "torch": torch}
    code, _, words = line.partition("  # at ")
    return eval(code, names), eval(words.split(";")[0] or "None", names)


def timm():
    """Import timm's file of rotations; tests/peers/test_timm.py says why not timm itself."""
    found = importlib.util.find_spec("timm")
    if found is None:
        pytest.skip("timm is not installed")
    if "timm_layers" not in sys.modules:
        sys.modules["timm_layers"] = layers = ModuleType("timm_layers")
        layers.__path__ = [str(Path(found.origin).parent / "layers")]
    return importlib.import_module("timm_layers.pos_embed_sincos")


CAT = {"dim": 32, "in_pixels": False, "feat_shape": [ROWS, COLUMNS]}
TIMM = {
    "eva-02": ("RotaryEmbeddingCat", CAT),
    "eva-02, finer": ("RotaryEmbeddingCat", CAT | {"ref_feat_shape": [2, 3]}),
    "eva-02, stretched": ("RotaryEmbeddingCat", CAT | {"ref_feat_shape": [5, 4]}),
    "rope-vit": ("RotaryEmbeddingCat", CAT | {"temperature": 100.0, "grid_indexing": "xy"}),
    "perception encoder": ("RotaryEmbeddingCat", CAT | {"grid_offset": 1.0, "grid_indexing": "xy"}),
    "halves": ("RotaryEmbeddingCat", CAT | {"rotate_half": True}),
    "a square": ("RotaryEmbeddingCat", CAT | {"feat_shape": [5, 5], "rotate_half": True}),
    "pixels": ("RotaryEmbeddingCat", CAT | {"in_pixels": True}),
    "linear bands": ("RotaryEmbeddingCat", CAT | {"in_pixels": True, "linear_bands": True}),
    "two tables": ("RotaryEmbedding", CAT),
    "dinov3": ("RotaryEmbeddingDinoV3", {"dim": 32}),
    "dinov3, neighbours": ("RotaryEmbeddingDinoV3", {"dim": 32, "rotate_half": False, "grid_indexing": "xy"}),
    "dinov3, longer side": ("RotaryEmbeddingDinoV3", {"dim": 32, "normalize_coords": "max"}),
    "dinov3, shorter side": ("RotaryEmbeddingDinoV3", {"dim": 32, "normalize_coords": "min"}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", TIMM)
def test_timms_rotation_of_cells(name, dtype):
    sincos, (kind, options) = timm(), TIMM[name]
    old = getattr(sincos, kind)(**options).to(dtype)
    rows, columns = options.get("feat_shape", (ROWS, COLUMNS))
    found = posenc.identify(nn.ModuleDict({"rope": old}))
    encoding, pos = made(found.line, old=nn.ModuleDict({"rope": old}), rows=rows, columns=columns)
    assert found.unknown == ()
    tables = old.get_embed([rows, columns])
    tables = torch.cat(tables, -1) if isinstance(tables, tuple) else tables
    q, k = torch.randn(2, 1, 3, rows * columns, 32)
    ours = encoding.rotate(q, k, encoding.place(pos))
    near = 1e-4 if dtype == torch.float32 else 0.05
    for mine, x in zip(ours, (q, k), strict=True):
        theirs = sincos.apply_rot_embed_cat(x, tables.float(), half=getattr(old, "rotate_half", False))
        torch.testing.assert_close(mine, theirs, atol=near, rtol=0)


@pytest.mark.parametrize("indexing", ["xy", "ij"])
def test_timms_mixed_rotation(indexing):
    sincos = timm()
    rope = sincos.RotaryEmbeddingMixed(32, depth=2, num_heads=4, feat_shape=[ROWS, COLUMNS], grid_indexing=indexing)
    old = nn.ModuleDict({"rope": rope})
    line = posenc.identify(old).line
    encoding, pos = made(line)
    q, k = torch.randn(2, 1, 4, ROWS * COLUMNS, 8)
    for layer, tables in enumerate(rope.get_embed()):
        numbers = eval(line.partition("inv_freq = ")[2], {"old": old, "i": layer})
        encoding.load_state_dict({"inv_freq": numbers.detach()})
        mine = encoding.rotate(q, k, encoding.place(pos))[0]
        torch.testing.assert_close(mine, sincos.apply_rot_embed_cat(q, tables), atol=1e-5, rtol=0)


def test_timms_rotation_of_three_axes():
    sincos = timm()
    old = sincos.RotaryEmbeddingMRope(24, mrope_section=(4, 4, 4))
    encoding, _ = made(posenc.identify(old).line.partition("  # ")[0], old=old)
    pos = nn.functional.pad(positions.grid(ROWS, COLUMNS), (1, 0))
    q = torch.randn(1, 2, len(pos), 24)
    theirs = sincos.apply_rot_embed_cat(q, old.get_embed([ROWS, COLUMNS]), half=True)
    torch.testing.assert_close(encoding.rotate(q, q, encoding.place(pos))[0], theirs, atol=1e-5, rtol=0)


def of(name, **options):
    return hf.AutoModel.from_config(getattr(hf, f"{name}Config")(**options))


def rotated(model, q, k, layer_type=None):
    """Rotate by the functions in the file of a model of transformers, as its attention does."""
    host = sys.modules[type(model).__module__]
    tables = model.rotary_emb(q, IDS[None], *([layer_type] if layer_type else []))
    if not isinstance(tables, tuple):
        return host.apply_rotary_emb(q, k, tables)
    if layer_type and "Gemma4" in type(model).__name__:
        return tuple(host.apply_rotary_pos_emb(x, *tables) for x in (q, k))
    together = getattr(model.config, "rope_interleave", False)
    return (host.apply_rotary_pos_emb_interleave if together else host.apply_rotary_pos_emb)(q, k, *tables)


LLMS = {
    "deepseek v2": ("DeepseekV2", TEXT | EXPERTS, None),
    "deepseek v3": ("DeepseekV3", TEXT | EXPERTS, None),
    "deepseek v3, halves": ("DeepseekV3", TEXT | EXPERTS | {"rope_interleave": False}, None),
    "mistral 4": ("Mistral4", TEXT | EXPERTS, None),
    "gemma 3, global": ("Gemma3Text", TEXT | GEMMA, "full_attention"),
    "gemma 4, global": ("Gemma4Text", TEXT | GEMMA_4, "full_attention"),
    "gemma 4, local": ("Gemma4Text", TEXT | GEMMA_4, "sliding_attention"),
}


@pytest.mark.parametrize("name", LLMS)
def test_scores_of_the_rotation_of_transformers(name):
    kind, options, layer_type = LLMS[name]
    model = of(kind, **options)
    found = posenc.identify(model)
    lines = dict(line.split(": ", 1) for line in found.line.splitlines()) if layer_type else {None: found.line}
    (line,) = [line for path, line in lines.items() if not layer_type or layer_type in path]
    encoding, _ = made(line, found=found)
    q, k = torch.randn(2, 1, 2, len(IDS), encoding.head_dim)
    ours, theirs = encoding.rotate(q, k, encoding.place(IDS)), rotated(model, q, k, layer_type)
    torch.testing.assert_close(*(q @ k.mT for q, k in (ours, theirs)), atol=1e-4, rtol=0)


def test_axes_that_pair_their_own_dimensions_get_no_line():
    found = posenc.identify(of("Gemma4Vision", **SMALL, head_dim=16).encoder.rotary_emb)
    assert (found.line, found.unknown) == (None, ("the pairing: each axis pairs its own dimensions",))


def test_x_transformers_rotates_a_part_of_a_head():
    model = xt.Decoder(dim=64, depth=1, heads=2, attn_dim_head=32, rotary_pos_emb=True)
    encoding, _ = made(posenc.identify(model).line)
    q = torch.randn(1, 2, len(IDS), 32)
    theirs = xt.apply_rotary_pos_emb(q, model.rotary_pos_emb(IDS)[0])
    torch.testing.assert_close(encoding.rotate(q, q, encoding.place(IDS))[0], theirs, atol=1e-5, rtol=0)
    alone = posenc.identify(model.rotary_pos_emb)
    assert any(why.startswith("head_dim, which no module shows") for why in alone.unknown)


@pytest.mark.parametrize("trained", [0, 8])
def test_swin_v2_shows_its_trained_window_by_its_coordinates(trained):
    options = {"image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [1], "num_heads": [2]}
    model = of("Swinv2", **options, window_size=16, pretrained_window_sizes=[trained])
    (old,) = [m for m in model.modules() if hasattr(m, "relative_coords_table")]
    old.pretrained_window_size = (0, 0)  # timm does not keep it
    encoding, _ = made(posenc.identify(old).line.partition("  # ")[0])
    numbers = old.continuous_position_bias_mlp
    tables = {"w1": numbers[0].weight, "b1": numbers[0].bias, "w2": numbers[2].weight}
    encoding.load_state_dict({name: table.detach() for name, table in tables.items()})
    rows = numbers(old.relative_coords_table).view(-1, 2)[old.relative_position_index.flatten()]
    theirs = 16 * rows.view(256, 256, 2).permute(2, 0, 1).sigmoid()
    torch.testing.assert_close(encoding.dense(positions.grid(16, 16))[0], theirs, atol=1e-5, rtol=0)


ALIBI = {
    "mpt": lambda: build_mpt_alibi_tensor(8, 32),
    "mpt, a batch": lambda: build_mpt_alibi_tensor(8, 32)[None],
    "mpt, 12 heads": lambda: build_mpt_alibi_tensor(12, 32),
    "bloom": lambda: build_alibi_tensor(torch.ones(1, 32), 8, torch.float32),
    "bloom, half precision": lambda: build_alibi_tensor(torch.ones(1, 32), 8, torch.bfloat16),
}


@pytest.mark.parametrize("name", ALIBI)
def test_alibi_by_its_bias(name):
    old = nn.Module()
    old.register_buffer("alibi", ALIBI[name]())
    encoding, _ = made(posenc.identify(old).line, old=old)
    ours, theirs = encoding.dense(torch.arange(32))[0, :, -1], old.alibi.flatten(0, -3)[:, -1].float()
    shifts = [row - row[:, -1:] for row in (ours, theirs)]  # the softmax ignores a constant
    torch.testing.assert_close(*shifts, atol=1e-5 if old.alibi.dtype == torch.float32 else 0.1, rtol=0)


def test_a_bias_that_is_no_line_is_not_named():
    old = nn.Module()
    old.register_buffer("attn_bias", torch.randn(1, 8, 1, 32))
    assert posenc.identify(old).line is None


def test_lists_of_a_model_are_found_by_the_path_of_the_line():
    lists = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 32}
    model = nn.ModuleDict({"text": of("Phi3", **TEXT, rope_parameters=rope | lists), "wpe": nn.Embedding(9, 8)})
    found = posenc.identify(model)
    (line,) = [line for line in found.line.splitlines() if "LongRoPE" in line]
    encoding, _ = made(line.split(": ", 1)[1], found=found)
    torch.testing.assert_close(torch.tensor(encoding.options()["long_factors"]), torch.full((8,), 2.0))
