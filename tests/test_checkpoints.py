"""docs/checkpoints.md: each block loads weights of a host's own code, and each line computes what that code does."""

import copy
import math
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import posenc
from pages import DOCS
from posenc import positions

pytest.importorskip("transformers")
pytest.importorskip("x_transformers")

from transformers import (
    BertConfig,
    SamVisionConfig,
    SwinConfig,
    Swinv2Config,
    UMT5Config,
    ViTMAEConfig,
    Wav2Vec2ConformerConfig,
)
from transformers.models.bert.modeling_bert import BertEmbeddings
from transformers.models.sam.modeling_sam import SamVisionAttention
from transformers.models.sam2.configuration_sam2 import Sam2PromptEncoderConfig
from transformers.models.sam2.modeling_sam2 import Sam2PositionalEmbedding
from transformers.models.swin.modeling_swin import SwinAttention
from transformers.models.swinv2.modeling_swinv2 import Swinv2SelfAttention
from transformers.models.umt5.modeling_umt5 import UMT5Attention
from transformers.models.vit_mae.modeling_vit_mae import ViTMAEEmbeddings
from transformers.models.wav2vec2_conformer.modeling_wav2vec2_conformer import Wav2Vec2ConformerSelfAttention
from transformers.models.whisper.modeling_whisper import sinusoids
from x_transformers import x_transformers as xt

PAGE = (DOCS / "checkpoints.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"^##+ ([^\n]+)\n(?:(?!^##).*\n)*?```python\n((?:.*\n)*?)```", PAGE, re.MULTILINE))
PARTS = ("Shapes", "Where to place", "Direction", "A mask for each window", "Models of images and video")
KNOWN: dict = {}
for part in PARTS:
    exec(compile(BLOCKS[part], part, "exec"), KNOWN)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def load(host, model, state, code=None, **known):
    """Run the block of a host on its checkpoint, and return the names that it defined."""
    names = {**KNOWN, "model": model, "state": dict(state), **known}
    exec(compile(BLOCKS[host] if code is None else code, host, "exec"), names)
    return names


def module(**parts):
    """Return a module with these modules, parameters and buffers; a dotted name goes into a module within."""
    made = nn.Module()
    for name, part in parts.items():
        *path, last = name.split("__")
        where = made
        for step in path:
            if not hasattr(where, step):
                where.add_module(step, nn.Module())
            where = getattr(where, step)
        kinds = {
            nn.Module: where.add_module,
            nn.Parameter: where.register_parameter,
            torch.Tensor: where.register_buffer,
        }
        next(add for kind, add in kinds.items() if isinstance(part, kind))(last, part)
    return made


def same(ours, theirs, atol=1e-5):
    torch.testing.assert_close(torch.as_tensor(ours).float(), torch.as_tensor(theirs).float(), atol=atol, rtol=0)


def turned(x, angles, pairing):
    """Rotate (..., tokens, dim) counterclockwise: each pair is a complex number times exp(i angle)."""
    x, n = np.asarray(x, np.float64), angles.shape[-1]
    step, apart = (2, 1) if pairing == "interleaved" else (1, n)
    first = step * np.arange(n)
    z, out = (x[..., first] + 1j * x[..., first + apart]) * np.exp(1j * angles), x.copy()
    out[..., first], out[..., first + apart] = z.real, z.imag
    return out


def ladder(width, base=10000.0):
    return base ** (-np.arange(0, width, 2) / width)


def lines(heading):
    """Return the cells of the table below a heading, by its first column."""
    table = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in row.strip("|").split(" | ")] for row in re.findall(r"^\|.*\|$", table, re.MULTILINE)
    ]
    return {row[0]: row[1:] for row in rows[2:]}


def spelt(cell, **known):
    """Evaluate the first line of a cell."""
    line = re.search(r"`(\w+)(\(.*?\))`", cell)
    return eval(f"posenc.{line[1]}{line[2]}", {"posenc": posenc, "math": math, **known})


def test_every_block_of_the_page_is_run_here():
    assert PAGE.count("```python") == len(BLOCKS)
    own = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in BLOCKS if name not in PARTS and f'load("{name}"' not in own] == []


# --- lines -----------------------------------------------------------------------------------------------------------

D = 32
ROTARY = {  # pairing, rotated width, base, direction: as the hosts' code has them
    "nanochat": ("half", D, 777.0, -1),
    "litgpt": ("half", 8, 777.0, 1),
    "OLMo-core": ("half", D, 777.0, 1),
    "torchtitan, Meta's Llama": ("interleaved", D, 777.0, 1),
    "gpt-neox": ("half", 8, 10000.0, 1),
    "x-transformers": ("interleaved", D // 2, 10000.0, 1),
}
GIVEN = {"d": D, "base": 777.0, "theta": 777.0, "rope_base": 777.0, "rope_n_elem": 8, "rotary_pct": 0.25}


@pytest.mark.parametrize("host", ROTARY)
def test_the_line_of_a_rotary_host(host):
    pairing, width, base, direction = ROTARY[host]
    rope, x = spelt(lines("Hosts")[host][0], **GIVEN), torch.randn(1, 2, 9, D)
    q, _ = rope.rotate(x, x, rope.place(positions.arange(9)))
    same(q, turned(x, direction * np.outer(np.arange(9), ladder(width, base)), pairing))


def test_clockwise_is_nanochats():
    rope, x, angle = KNOWN["clockwise"](D, 777.0), torch.randn(1, 2, 9, D), np.outer(np.arange(9), ladder(D, 777.0))
    a, b = np.split(x.double().numpy(), 2, -1)
    wanted = np.concatenate((a * np.cos(angle) + b * np.sin(angle), b * np.cos(angle) - a * np.sin(angle)), -1)
    same(rope.rotate(x, x, rope.place(positions.arange(9)))[0], wanted)


def grid(*sizes):
    return np.stack(np.meshgrid(*map(np.arange, sizes), indexing="ij"), -1).reshape(-1, len(sizes)).astype(float)


def axes(pos, widths, base=10000.0):
    """Return the angles of tokens whose axes have ladders of their own, one after the other."""
    return np.concatenate([np.outer(p, ladder(w, base)) for p, w in zip(pos.T, widths, strict=True)], 1)


def qwen():
    """Return two pictures of 5 x 6 cells and three tokens: rows -3..1, columns -3..2, text from 3 on."""
    pos = grid(2, 5, 6) - [0, 3, 3]
    return np.concatenate((pos, np.repeat([[3.0], [4.0], [5.0]], 3, 1)))


def dinov3(rows=3, columns=5):
    at = (grid(rows, columns) + 0.5) / [rows, columns] * 2 - 1
    periods = 100.0 ** (np.arange(16) / 16)
    return np.concatenate((np.zeros((5, 32)), (2 * np.pi * at[:, :, None] / periods).reshape(-1, 32)))


FLUX, VIDEO, PICTURE = (16, 56, 56), grid(2, 3, 4), torch.zeros(5, 2)
IMAGES = {  # the angles of each token and pair from the published code, and positions by the page
    "FLUX.1": (axes(grid(1, 3, 4), FLUX), KNOWN["cells"](1, 3, 4), "interleaved"),
    "Wan 2.1, 2.2": (axes(VIDEO, (128 - 2 * 42, 42, 42)), KNOWN["cells"](2, 3, 4), "interleaved"),
    "HunyuanVideo": (axes(VIDEO, FLUX, 256.0), KNOWN["cells"](2, 3, 4), "interleaved"),
    "Qwen-Image": (axes(qwen(), FLUX), KNOWN["qwen_image"](2, 5, 6, 3), "interleaved"),
    "DINOv3": (dinov3(), torch.cat((PICTURE, positions.unit_grid(3, 5))), "half"),
    "EVA-02 of timm": (axes(grid(8, 8) * 2, (32, 32)), positions.grid(8, 8) * 16 / 8, "interleaved"),
    "RoPE-ViT, axial": (axes(grid(3, 5)[:, ::-1], (32, 32), 100.0), positions.grid(3, 5).flip(-1), "interleaved"),
    "SAM 2's memory": (axes(grid(3, 5)[:, ::-1], (128, 128)), positions.grid(3, 5).flip(-1), "interleaved"),
}


@pytest.mark.parametrize("model", IMAGES)
def test_the_line_of_a_model_of_images(model):
    angles, pos, pairing = IMAGES[model]
    assert set(IMAGES) == set(lines("Models of images and video"))
    rope = spelt(lines("Models of images and video")[model][0])
    x = torch.randn(1, 2, len(pos), rope.head_dim)
    same(rope.rotate(x, x, rope.place(pos))[0], turned(x, angles, pairing), 2e-5)


@pytest.mark.parametrize(
    ("name", "order"),
    [("batch_tokens_heads", (0, 2, 1, 3)), ("tokens_batch_heads", (2, 0, 1, 3)), ("tokens_heads", (2, 1, 3))],
)
def test_orders_of_dimensions(name, order):
    q, k = torch.randn(2, 8, 9, 64), torch.randn(2, 2, 9, 64)
    if len(order) == 3:
        q, k, order = q[0], k[0], (1, 0, 2)
    placed = KNOWN["rope"].place(positions.arange(9))
    ours = KNOWN[name](q.permute(order), k.permute(order), placed)
    for x, mine in zip((q, k), ours, strict=True):
        same(mine, torch.tensor(turned(x, np.outer(np.arange(9), ladder(64)), "half")).permute(order))


class OwnRotation(nn.Module):
    """A layer of a host, which owns its rotation before and reads `placed` after."""

    def __init__(self, rope=None):
        super().__init__()
        self.qk, self.rope = nn.Linear(64, 128), rope

    def forward(self, x):
        q, k = self.qk(x)[:, None].chunk(2, -1)
        if self.rope is None:
            angles = np.outer(np.arange(x.shape[1]), ladder(64))
            q, k = (torch.tensor(turned(t.detach(), angles, "half")).float() for t in (q, k))
        else:
            q, k = self.rope.rotate(q, k, self.placed)
        return F.scaled_dot_product_attention(q, k, x[:, None], is_causal=True)[:, 0]


def test_layers_that_own_their_rotation_are_placed_by_a_hook():
    rope, x = posenc.RoPE(head_dim=64), torch.randn(2, 9, 64)
    before = nn.Sequential(OwnRotation(), OwnRotation())
    after = nn.Sequential(OwnRotation(rope), OwnRotation(rope))
    after.load_state_dict(before.state_dict(), strict=True)
    hook = KNOWN["place_once"](after, rope, list(after))
    same(after(x), before(x))
    hook.remove()


OLD = ["a.rotary_emb.inv_freq", "freqs_cis", "rope_embed.periods", "h.0.attention.bias", "h.0.attention.masked_bias"]


@pytest.mark.parametrize("name", OLD)
def test_buffers_of_rotary_models_go(name):
    model = module(attention__dense=nn.Linear(3, 3), attn__c_attn=nn.Linear(3, 3), rope=posenc.RoPE(head_dim=4))
    state = {name: torch.randn(3) for name in model.state_dict()}
    state["attention.dense.weight"] = state["attn.c_attn.weight"] = torch.randn(3, 3)
    load("Rotary models", model, {**state, name: torch.ones(2)})
    assert torch.equal(model.attention.dense.bias, state["attention.dense.bias"])


def test_x_transformers_with_a_rotation():
    layers = xt.Decoder(dim=32, depth=1, heads=2, attn_dim_head=16, rotary_pos_emb=True)
    after = copy.deepcopy(layers)
    after.rotary_pos_emb = posenc.RoPE(head_dim=16, rotary_dim=8, pairing="interleaved")
    assert "rotary_pos_emb.inv_freq" in layers.state_dict()
    load("Rotary models", after, layers.state_dict())


def test_nanogpt_and_bert():
    wpe = nn.Embedding(96, 16)
    before = module(
        transformer__wpe=wpe,
        transformer__attn__c_attn=nn.Linear(3, 3),
        transformer__attn__bias=torch.ones(96, 96).tril(),
    )
    after = module(transformer__attn__c_attn=nn.Linear(3, 3))
    after.transformer.wpe = posenc.Learned(d_model=16, max_len=96)
    load("nanoGPT and BERT", after, before.state_dict())
    ours = after.transformer.wpe
    assert ours.max_len == 64
    assert torch.equal(ours.vectors(torch.arange(64)), wpe(torch.arange(64)))
    bert = BertEmbeddings(BertConfig(vocab_size=9, hidden_size=16, num_attention_heads=2, max_position_embeddings=96))
    after = copy.deepcopy(bert)
    after.position_embeddings = posenc.Learned(d_model=16, max_len=96)
    before = bert.state_dict() | {"position_ids": torch.arange(96)[None]}
    loads = "".join(BLOCKS["nanoGPT and BERT"].splitlines(keepends=True)[:2])  # the rest crops nanoGPT's
    load("BERT", after, before, loads)
    assert torch.equal(after.position_embeddings.weight, bert.position_embeddings.weight)


def test_mae_and_sams_encoder():
    peers = [ViTMAEEmbeddings(ViTMAEConfig(hidden_size=d, image_size=20, patch_size=4)) for d in (32, 16)]
    for peer in peers:
        peer.initialize_weights()
    tables = [peer.position_embeddings.detach() for peer in peers]
    sam = torch.randn(1, 4, 6, 8)
    names = ("pos_embed", "decoder_pos_embed", "image_encoder__pos_embed")
    before = module(**{name: nn.Parameter(table) for name, table in zip(names, (*tables, sam), strict=True)})
    five = {"height": 5, "width": 5, "n_prefix": 1}
    after = module(
        pos_embed=posenc.Learned2D(d_model=32, **five),
        decoder_pos_embed=posenc.Learned2D(d_model=16, **five),
        image_encoder__pos_embed=posenc.Learned2D(d_model=8, height=4, width=6),
    )
    load("MAE, ViT and SAM's image encoder", after, before.state_dict())
    same(after.pos_embed.vectors(positions.grid(5, 5, n_prefix=1)), tables[0][0])
    same(after.image_encoder.pos_embed.vectors(positions.grid(4, 6)), sam[0].flatten(0, 1))
    sines = posenc.SinusoidalND(d_model=32, order="concatenated")
    same(sines.vectors(positions.grid(5, 5).flip(-1)), tables[0][0, 1:])


def test_sams_relative_positions():
    config = SamVisionConfig(hidden_size=32, num_attention_heads=2, image_size=64, patch_size=16)
    before = module(blocks__attn=SamVisionAttention(config, 0))
    rel = before.blocks.attn
    nn.init.normal_(rel.rel_pos_h), nn.init.normal_(rel.rel_pos_w)
    after = copy.deepcopy(before)
    del after.blocks.attn.rel_pos_h, after.blocks.attn.rel_pos_w
    after.blocks.attn.encoding = ours = posenc.Decomposed2D(head_dim=16, size=(4, 4))
    load("SAM's relative positions", after, before.state_dict())
    q, placed = torch.randn(1, 2, 16, 16), ours.place(positions.grid(4, 4))
    theirs = rel.get_decomposed_rel_pos(q[0], rel.rel_pos_h, rel.rel_pos_w, (4, 4), (4, 4))
    same(ours.bias(q, q, placed, placed)[0], theirs.reshape(2, 16, 16))


def test_the_prompts_of_sam_and_sam_2():
    peer = Sam2PositionalEmbedding(Sam2PromptEncoderConfig(hidden_size=32))
    state = {"pe_layer.positional_encoding_gaussian_matrix": peer.positional_embedding, "weight": torch.ones(2, 3)}
    found, points = load("SAM's and SAM 2's prompts", nn.Linear(3, 2, bias=False), state), torch.rand(2, 5, 2)
    same(found["prompts"].vectors(2 * points - 1), peer(points))


def regions():
    """Return the region of each token in four windows of 4 x 4, which a shift by (1, 2) cuts, and the host's mask."""
    rows, columns = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2]), torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
    image = 3 * rows[:, None] + columns
    each = torch.stack([image[r : r + 4, c : c + 4].flatten() for r in (0, 4) for c in (0, 4)])
    return each, (each[:, :, None] != each[:, None]).float() * -100


class Around(KNOWN["WindowAttention"]):
    """The page's attention between the projections of a host."""

    def __init__(self, projections, encoding=None):
        super().__init__(2, (4, 4))
        for name, projection in projections.items():
            self.add_module(name, copy.deepcopy(projection))
        self.qkv, self.encoding = list(projections)[:3], self.encoding if encoding is None else encoding

    def forward(self, x, attend=None, **masks):
        q, k, v = (getattr(self, name)(x).unflatten(-1, (2, -1)).transpose(1, 2) for name in self.qkv)
        return (attend or super().forward)(q, k, v, **masks).transpose(1, 2).flatten(2)


def test_swin_with_a_shift():
    config = SwinConfig(attn_implementation="eager", qkv_bias=True)
    peer = SwinAttention(config, 16, 2, window_size=4).eval()
    nn.init.normal_(peer.relative_position_bias.relative_position_bias_table)
    state = {name.replace("relative_position_bias.", ""): t for name, t in peer.state_dict().items()}  # as the authors'
    projections = {name: getattr(peer, name) for name in ("q_proj", "k_proj", "v_proj", "o_proj")}
    (ids, mask), x, after = regions(), torch.randn(8, 16, 16), Around(projections)
    load("Swin", after, state | {"relative_position_index": torch.ones(1), "attn_mask": mask})
    same(after.o_proj(after(x)), peer(x)[0])
    same(after.o_proj(after(x, mask=mask)), peer(x, mask)[0])
    by_region = partial(posenc.attend, encoding=after.encoding, pos=positions.grid(4, 4), causal=False)
    same(after.o_proj(after(x, by_region, document_ids=ids.repeat(2, 1))), peer(x, mask)[0])


def test_swin_v2():
    peer = Swinv2SelfAttention(Swinv2Config(), 16, 2, 4).eval()
    nn.init.normal_(peer.logit_scale)
    (_, mask), x = regions(), torch.randn(8, 16, 16)
    after = Around(
        {name: getattr(peer, name) for name in ("query", "key", "value")}, posenc.SwinV2(n_heads=2, window=(4, 4))
    )
    after.logit_scale = nn.Parameter(torch.ones(2, 1, 1))
    buffers = {name: torch.ones(1) for name in ("relative_coords_table", "relative_position_index", "attn_mask")}
    state = {name.replace("continuous_position_bias_mlp", "cpb_mlp"): t for name, t in peer.state_dict().items()}
    load("Swin v2", after, state | buffers)

    def cosine(q, k, v, mask):
        scale = after.logit_scale.clamp(max=math.log(100)).exp()
        q, k, mask = F.normalize(q, dim=-1) * scale, F.normalize(k, dim=-1), mask.repeat(2, 1, 1)[:, None]
        return posenc.attend(q, k, v, after.encoding, positions.grid(4, 4), mask=mask, causal=False, scale=1.0)

    same(after(x, cosine, mask=mask), peer(x, mask)[0])


def test_whisper():
    learned = nn.Parameter(torch.randn(7, 16))
    before = module(encoder__positional_embedding=sinusoids(9, 16), decoder__positional_embedding=learned)
    row = lines("Hosts")["whisper"][0]
    after = module(
        encoder__positional_embedding=spelt(row, D=16),
        decoder__positional_embedding=posenc.Learned(d_model=16, max_len=7),
    )
    load("whisper", after, before.state_dict())
    same(after.encoder.positional_embedding.vectors(torch.arange(9)), sinusoids(9, 16))
    assert torch.equal(after.decoder.positional_embedding.vectors(torch.arange(7)), learned)


def test_identify_prints_what_the_page_shows():
    learned = nn.Parameter(torch.randn(448, 384))
    tiny = module(encoder__positional_embedding=sinusoids(1500, 384), decoder__positional_embedding=learned)
    shown = PAGE.partition(">>> print(posenc.identify(whisper).line)\n")[2].partition("\n```")[0]
    assert posenc.identify(tiny).line == shown


def test_conformer():
    """The mapping of the weights; tests/peers compares their scores with those of the same class."""
    config = Wav2Vec2ConformerConfig(hidden_size=32, num_attention_heads=4, position_embeddings_type="relative")
    before = module(self_attn=Wav2Vec2ConformerSelfAttention(config), pos_enc__pe=torch.ones(1, 9, 32))
    peer, after = before.self_attn, copy.deepcopy(before)
    nn.init.normal_(peer.pos_bias_u), nn.init.normal_(peer.pos_bias_v)
    del after.self_attn.pos_bias_u, after.self_attn.pos_bias_v, after.self_attn.linear_pos, after.pos_enc
    after.self_attn.encoding = ours = spelt(lines("Hosts")["Conformer (ESPnet, NeMo)"][0], D=32, H=4, d=8)
    load("Conformer", after, before.state_dict(), n_heads=4)
    assert ours.order == "alternating"
    assert torch.equal(ours.u, peer.pos_bias_u)
    assert torch.equal(ours.v, peer.pos_bias_v)
    assert torch.equal(ours.weight[2, 3], peer.linear_pos.weight[2 * 8 + 3])


def test_umt5_and_wan():
    config = UMT5Config(d_model=32, d_kv=8, num_heads=4, is_decoder=False)
    peer = UMT5Attention(config, has_relative_attention_bias=True)
    line = lines("Hosts")["T5, umT5, Wan's text encoder"][0]
    wan = module(blocks__0__pos_embedding__embedding=nn.Embedding(32, 4))
    wan.load_state_dict({"blocks.0.pos_embedding.embedding.weight": peer.relative_attention_bias.weight})
    for state, after in (
        (wan.state_dict(), module(blocks__0__pos_embedding=spelt(line, H=4))),
        (peer.relative_attention_bias.state_dict(), spelt(line, H=4)),
    ):
        load("T5, umT5 and Wan's text encoder", after, state)
        ours = after if isinstance(after, posenc.T5) else getattr(after.blocks, "0").pos_embedding
        same(ours.dense(positions.arange(300)), peer.compute_bias(300, 300))
        assert ours.score_scale(8) == 1.0


def test_tables_of_x_transformers():
    learned = xt.AbsolutePositionalEmbedding(16, 9)
    bias = xt.RelativePositionBias(scale=8**0.5, causal=False, heads=2)
    t5 = module(rel_pos=posenc.T5(n_heads=2, bidirectional=True))
    after = module(pos_emb=posenc.Learned(d_model=16, max_len=9), attn_layers=t5)
    state = module(pos_emb=learned, attn_layers=module(rel_pos=bias)).state_dict()
    load("Tables of x-transformers", after, state, d_model=16, head_dim=8)
    same(after.pos_emb.vectors(torch.arange(7)), learned(torch.zeros(1, 7, 16)))
    same(t5.rel_pos.dense(torch.arange(40))[0], bias(40, 40))
