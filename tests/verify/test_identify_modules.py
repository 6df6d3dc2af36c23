"""The line that `identify` names for the old modules of other projects."""

import math

import pytest
import torch
from torch import nn

import posenc
from posenc import positions

pytest.importorskip("transformers")
pytest.importorskip("x_transformers")

import transformers as hf
from rotary_embedding_torch import RotaryEmbedding
from transformers.models.cohere.modeling_cohere import CohereRotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel as Qwen2VLVision
from transformers.models.sam2.configuration_sam2 import Sam2PromptEncoderConfig
from transformers.models.sam2.modeling_sam2 import Sam2PositionalEmbedding
from transformers.models.vit_mae.modeling_vit_mae import ViTMAEEmbeddings
from transformers.models.whisper.modeling_whisper import sinusoids
from x_transformers import x_transformers as xt

SMALL = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 32}
TEXT = SMALL | {"vocab_size": 9, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
T5 = {"d_model": 32, "d_kv": 8, "num_heads": 4, "num_layers": 2, "vocab_size": 9, "d_ff": 32}
VISION = SMALL | {"image_size": 32, "patch_size": 8}
EXPERTS = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
STAGES = {"image_size": 56, "embed_dim": 24, "depths": [1, 1], "num_heads": [2, 4]}


def of(name, **options):
    """Return a small model of transformers without weights of its own."""
    config = getattr(hf, f"{name}Config")(**options)
    return hf.AutoModel.from_config(config)


def llama(**rope):
    parameters = {"rope_type": "default", "rope_theta": 500000.0} | rope
    return LlamaRotaryEmbedding(hf.LlamaConfig(hidden_size=128, num_attention_heads=2, rope_parameters=parameters))


def mae():
    peer = ViTMAEEmbeddings(hf.ViTMAEConfig(hidden_size=32, image_size=20, patch_size=4))
    peer.initialize_weights()
    return peer


def ladder(width, base=10000.0):
    return base ** (-torch.arange(0, width, 2) / width)


def apply_rotary_emb(x, cos, sin):
    """Rotate (batch, tokens, heads, dim) clockwise, as nanochat does."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos + b * sin, b * cos - a * sin), -1)


class Tables(nn.Module):
    """Tables by name, as buffers."""

    def __init__(self, **tables):
        super().__init__()
        for name, table in tables.items():
            self.register_buffer(name, table)


class Table(nn.Module):
    """A learned table by its name."""

    def __init__(self, **tables):
        super().__init__()
        for name, table in tables.items():
            setattr(self, name, nn.Parameter(table))


class Sines(nn.Module):
    def __init__(self, angles):
        super().__init__()
        self.register_buffer("pe", torch.stack((angles.sin(), angles.cos()), -1).flatten(1)[:, None])


class Axes(nn.Module):
    """The widths and the base of a diffusion model's axes."""

    def __init__(self, name, widths, theta):
        super().__init__()
        setattr(self, name, widths)
        self.theta = theta


class Turning(nn.Module):
    """A rotation without a buffer, as a method."""

    def apply_rope(self, x, positions):
        cos, sin = (f(positions[:, None] * ladder(x.shape[-1])) for f in (torch.cos, torch.sin))
        return torch.stack(
            (x[..., ::2] * cos - x[..., 1::2] * sin, x[..., 1::2] * cos + x[..., ::2] * sin), -1
        ).flatten(-2)


class HeadsFirst(nn.Module):
    """A rotation of (batch, heads, tokens, dim), as OLMo-core's, which keeps no buffer."""

    def forward(self, q, k):
        angles = (torch.arange(q.shape[2])[:, None] * ladder(q.shape[-1], 500000.0)).repeat(1, 2)
        halves = (torch.cat((-b, a), -1) for a, b in (x.chunk(2, -1) for x in (q, k)))
        return tuple(x * angles.cos() + half * angles.sin() for x, half in zip((q, k), halves, strict=True))


def circles(*widths, rows=40, base=10000.0):
    each = [torch.arange(rows)[:, None] * ladder(width, base) for width in widths]
    return torch.polar(torch.ones(rows, sum(widths) // 2), torch.cat(each, 1))


WAN = circles(44, 42, 42)
ANGLES, CELL = torch.arange(300)[:, None] * ladder(64), torch.arange(40)
PLAIN = "RoPE(head_dim=64, base=500000.0)"
MODULES = {
    "llama": (llama, PLAIN),
    "a linear factor": (
        lambda: llama(rope_type="linear", factor=4.0),
        "RoPE(head_dim=64, inv_freq=lambda k: 500000.0 ** (-2 * k / 64) / 4.0)",
    ),
    "cohere": (
        lambda: CohereRotaryEmbedding(hf.CohereConfig(hidden_size=128, num_attention_heads=2)),
        "RoPE(head_dim=64, base=500000.0, pairing='interleaved')",
    ),
    "gpt-neox": (
        lambda: of("GPTNeoX", **TEXT | {"hidden_size": 128}, rotary_pct=0.25),
        "RoPE(head_dim=64, base=10000.0, rotary_dim=16)",
    ),
    "gpt-j": (
        lambda: hf.GPTJModel(hf.GPTJConfig(n_embd=64, n_head=2, n_layer=1, rotary_dim=16, vocab_size=9)),
        "RoPE(head_dim=32, rotary_dim=16, pairing='interleaved')",
    ),
    "lucidrains": (
        lambda: nn.ModuleDict({"layer": RotaryEmbedding(dim=64)}),
        "RoPE(head_dim=64, base=10000.0, pairing='interleaved')  # counterclockwise is assumed",
    ),
    "a method": (Turning, "RoPE(head_dim=64, base=10000.0, pairing='interleaved')"),
    "olmo-core": (HeadsFirst, PLAIN),
    "torchtitan": (
        lambda: Tables(freqs_cis=circles(64, base=5e5)),
        "RoPE(head_dim=64, base=500000.0, pairing='interleaved')",
    ),
    "nanochat": (
        lambda: Tables(cos=ANGLES.cos().bfloat16()[None, :, None], sin=ANGLES.sin().bfloat16()[None, :, None]),
        "RoPE(head_dim=64, inv_freq=lambda k: -(10000.0 ** (-2 * k / 64)))",
    ),
    "wan": (
        lambda: Tables(freqs=WAN),
        "AxialRoPE(head_dim=128, widths=(44, 42, 42), base=10000.0, pairing='interleaved')",
    ),
    "wan of diffusers": (
        lambda: Tables(freqs_cos=WAN.real.repeat_interleave(2, 1), freqs_sin=WAN.imag.repeat_interleave(2, 1)),
        "AxialRoPE(head_dim=128, widths=(44, 42, 42), base=10000.0, pairing='interleaved')"
        "  # counterclockwise is assumed",
    ),
    "flux": (
        lambda: Axes("axes_dim", [16, 56, 56], 10_000),
        "AxialRoPE(head_dim=128, widths=(16, 56, 56), base=10000.0, pairing='interleaved')",
    ),
    "hunyuan video": (
        lambda: nn.Sequential(Axes("rope_dim", (16, 56, 56), 256.0)),
        "AxialRoPE(head_dim=128, widths=(16, 56, 56), base=256.0, pairing='interleaved')",
    ),
    "sam 2, memory": (
        lambda: Tables(freqs_cis=torch.cat((circles(32)[CELL % 5], circles(32)[CELL // 5]), 1)),
        "AxialRoPE(head_dim=64, base=10000.0, pairing='interleaved')  # at positions.grid(8, 5).flip(-1)",
    ),
    "dinov3": (
        lambda: Tables(periods=100.0 ** (torch.arange(16) / 16)),
        "AxialRoPE(head_dim=64, inv_freq=lambda k: 2 * math.pi * 100.0 ** (-4 * k / 64))"
        "  # at positions.unit_grid(rows, columns)",
    ),
    "dinov3 of transformers": (
        lambda: of("DINOv3ViT", **SMALL | {"hidden_size": 128}),
        "AxialRoPE(head_dim=64, inv_freq=lambda k: 2 * math.pi * 100.0 ** (-4 * k / 64))"
        "  # half and counterclockwise are assumed",
    ),
    "t5, encoder": (lambda: of("T5", **T5).encoder, "T5(n_heads=4, bidirectional=True, score_scale=1.0)"),
    "t5, decoder": (lambda: of("T5", **T5).decoder, "T5(n_heads=4, score_scale=1.0)"),
    "umt5": (lambda: of("UMT5", **T5).encoder, "T5(n_heads=4, bidirectional=True, score_scale=1.0)"),
    "swin": (lambda: of("Swin", **STAGES, window_size=7).encoder.layers[1], "Swin(n_heads=4, window=(7, 7))"),
    "swin v2": (
        lambda: of("Swinv2", **STAGES | {"image_size": 64}, window_size=8).encoder.layers[0],
        "SwinV2(n_heads=2, window=(8, 8))  # attend(scale=1.0)",
    ),
    "sam, prompts": (
        lambda: Sam2PositionalEmbedding(Sam2PromptEncoderConfig(hidden_size=32)),
        "GaussianFourier(d_model=32, n_axes=2, extent=1.0, matrix=old.positional_embedding)",
    ),
    "vit": (lambda: of("ViT", **SMALL), "Learned2D(d_model=32, height=14, width=14, n_prefix=1)"),
    "mae": (mae, "SinusoidalND(d_model=32, order='concatenated')  # at positions.grid(5, 5).flip(-1)"),
    "sam, prompts of the authors": (
        lambda: Tables(positional_encoding_gaussian_matrix=torch.randn(2, 16)),
        "GaussianFourier(d_model=32, n_axes=2, extent=1.0, matrix=old.positional_encoding_gaussian_matrix)",
    ),
    "whisper, encoder": (
        lambda: Tables(positional_embedding=sinusoids(50, 16)),
        "Sinusoidal(d_model=16, order='concatenated', exponent='tensor2tensor')",
    ),
    "bert": (lambda: of("Bert", **TEXT), "Learned(d_model=32, max_len=512)"),
    "gpt-2": (
        lambda: hf.GPT2Model(hf.GPT2Config(n_embd=32, n_head=2, n_layer=1, vocab_size=9)),
        "Learned(d_model=32, max_len=1024)",
    ),
    "deit": (
        lambda: of("DeiT", **VISION),
        "Learned2D(d_model=32, height=4, width=4, n_prefix=2)",
    ),
    "four rows more than a square": (
        lambda: nn.ModuleDict({"vision": Table(pos_embed=torch.randn(40, 8))}),
        "Learned(d_model=8, max_len=40)",
    ),
    "a context of images": (
        lambda: nn.ModuleDict({"context_vision": Table(pos_embed=torch.randn(16, 8))}),
        "Learned2D(d_model=8, height=4, width=4)",
    ),
    "three rows": (lambda: nn.Embedding(3, 16), "Learned(d_model=16, max_len=3)"),
    "two rows": (lambda: Table(pos_embed=torch.randn(1, 2, 64)), "Learned(d_model=64, max_len=2)"),
    "roberta": (
        lambda: of("Roberta", **TEXT | {"pad_token_id": 1}, max_position_embeddings=38),
        "Learned(d_model=32, max_len=36, offset=2)",
    ),
    "roformer": (
        lambda: of("RoFormer", **TEXT, embedding_size=32, max_position_embeddings=64),
        "RoPE(head_dim=16, pairing='interleaved')  # interleaved and counterclockwise are assumed",
    ),
    "qwen2-vl, images": (
        lambda: Qwen2VLVision(Qwen2VLVisionConfig(depth=1, embed_dim=160, hidden_size=448, num_heads=2)),
        "AxialRoPE(head_dim=80, base=10000.0)",
    ),
    "an embedding": (lambda: nn.Embedding(64, 8), "Learned(d_model=8, max_len=64)"),
    "textbooks": (lambda: Sines(torch.arange(50)[:, None] * ladder(16)), "Sinusoidal(d_model=16)"),
    "x-transformers, t5": (
        lambda: xt.Decoder(dim=32, depth=1, heads=2, attn_dim_head=16, rel_pos_bias=True),
        "T5(n_heads=2)  # with weight * 4",
    ),
    "x-transformers, alibi": (
        lambda: xt.Decoder(dim=48, depth=1, heads=6, attn_dim_head=8, alibi_pos_bias=True, alibi_num_heads=6),
        "ALiBi(n_heads=6)",
    ),
    "conformer": (
        lambda: of(*("Wav2Vec2Conformer",), **SMALL, conv_dim=[8] * 7, position_embeddings_type="relative").encoder,
        "TransformerXL(d_model=32, n_heads=2, head_dim=16, order='alternating')",
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODULES)
def test_the_line_of_an_old_module(name):
    make, line = MODULES[name]
    module = make()
    found = posenc.identify(module, head_dim=64 if name in ("a method", "lucidrains", "olmo-core") else None)
    assert found.line == f"posenc.{line}"
    assert found.is_known
    assert isinstance(eval(found.line, {"posenc": posenc, "math": math, "old": module}), posenc.Encoding)


SEQ2SEQ = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in
           (("layers", 1), ("attention_heads", 2), ("ffn_dim", 32))}  # fmt: skip
MODELS = {
    "whisper": (
        lambda: of("Whisper", d_model=64, **SEQ2SEQ),
        {
            "encoder.embed_positions.weight": "Sinusoidal(d_model=64, order='concatenated', exponent='tensor2tensor')",
            "decoder.embed_positions.weight": "Learned(d_model=64, max_len=448)",
        },
    ),
    "sam": (
        lambda: of("SamVision", **SMALL, image_size=128, window_size=4, global_attn_indexes=[1], mlp_dim=32),
        {
            "vision_encoder.pos_embed": "Learned2D(d_model=32, height=8, width=8)",
            "vision_encoder.layers.*.attn.rel_pos_h": "Decomposed2D(head_dim=16, size=(4, 4))",
            "vision_encoder.layers.1.attn.rel_pos_h": "Decomposed2D(head_dim=16, size=(8, 8))",
        },
    ),
    "siglip": (
        lambda: of("Siglip", text_config=SMALL | {"max_position_embeddings": 64}, vision_config=VISION),
        {
            "text_model.embeddings.position_embedding.weight": "Learned(d_model=32, max_len=64)",
            "vision_model.embeddings.position_embedding.weight": "Learned2D(d_model=32, height=4, width=4)",
        },
    ),
    "git": (
        lambda: of("Git", **TEXT, vision_config=VISION),
        {
            "embeddings.position_embeddings.weight": "Learned(d_model=32, max_len=1024)",
            "image_encoder.vision_model.embeddings.position_embedding.weight": (
                "Learned2D(d_model=32, height=4, width=4, n_prefix=1)"
            ),
        },
    ),
    "vilt": (
        lambda: of("Vilt", **TEXT | VISION, max_position_embeddings=40),
        {
            "embeddings.position_embeddings": "Learned2D(d_model=32, height=4, width=4, n_prefix=1)",
            "embeddings.text_embeddings.position_embeddings.weight": "Learned(d_model=32, max_len=40)",
        },
    ),
    "gemma 3": (
        lambda: of("Gemma3Text", **TEXT, head_dim=16, layer_types=["full_attention", "sliding_attention"]),
        {
            "rotary_emb.full_attention_inv_freq": "RoPE(head_dim=16, base=1000000.0)",
            "rotary_emb.sliding_attention_inv_freq": "RoPE(head_dim=16, base=10000.0)",
        },
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_a_line_for_each_kind_of_module(name):
    make, lines = MODELS[name]
    assert posenc.identify(make()).line.splitlines() == [f"{path}: posenc.{line}" for path, line in lines.items()]


class Neighbours(Tables):
    """A rotation of neighbours, from position 0 on."""

    def forward(self, x):
        turned = torch.polar(torch.ones(()), torch.arange(x.shape[-2])[:, None] * self.inv_freq)
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turned).flatten(-2)


@pytest.mark.parametrize("made", [Tables, Neighbours])
def test_a_buffer_alone_shows_neither_pairing_nor_direction(made):
    found = posenc.identify(made(inv_freq=ladder(64)))
    assert found.line == "posenc.RoPE(head_dim=64, base=10000.0)  # half and counterclockwise are assumed"
    turns, width = found.unknown
    assert turns.startswith("pairing and direction, which a buffer does not show")
    assert width.startswith("head_dim, which no module shows")


NO_LINE = {
    "two rotations in a layer": (
        lambda: of(
            "DeepseekV32", **TEXT, **EXPERTS, num_key_value_heads=2, n_routed_experts=4, n_group=1, topk_group=1
        ),
        "which rotation is applied: several in its file fit, and differ",
    ),
    "pixels as text": (
        lambda: of("ImageGPT", n_embd=32, n_layer=1, n_head=2, vocab_size=9),
        "whether its rows are cells of an image or places of a text",
    ),
    "sines that are not those of cells": (
        lambda: nn.ModuleDict({"patch_embed": nn.Linear(3, 4), "rope": Tables(pos_embed=torch.rand(64, 32).sin())}),
        "positions: no tensor has a name and a shape of known position code",
    ),
    "another name": (
        lambda: of("XGLM", d_model=32, attention_heads=2, num_layers=1, ffn_dim=32, vocab_size=9),
        "positions: no tensor has a name and a shape of known position code",
    ),
}


@pytest.mark.parametrize("name", NO_LINE)
def test_a_doubt_is_a_reason_and_no_line(name):
    make, why = NO_LINE[name]
    found = posenc.identify(make())
    assert (found.line, found.is_known) == (None, False)
    assert [one for one in found.unknown if one.startswith(why)]


class Mixed(Tables):
    """A rotation whose two steps do not pair the same dimensions."""

    def forward(self, x, positions):
        angles = positions[:, None] * self.inv_freq
        cos, sin = (f(angles).repeat_interleave(2, -1) for f in (torch.cos, torch.sin))
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin


def test_a_wrong_rotation_gets_no_line():
    found = posenc.identify(Mixed(inv_freq=ladder(32)), head_dim=32)
    assert (found.line, found.pairing) == (None, None)
    assert any("pairs are not only rotated" in why for why in found.unknown)


def test_a_module_without_positions_is_not_named():
    found = posenc.identify(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    assert (found.is_known, found.line) == (False, None)
    assert found.unknown


def test_the_lines_of_functions():
    x = torch.randn(1, 2, 9, 32)
    rope = posenc.RoPE(head_dim=32, rotary_dim=16, rotary_side="last", base=777.0, attention_factor=1.25)
    found = posenc.identify(rope)
    assert (
        found.line == "posenc.RoPE(head_dim=32, base=777.0, rotary_dim=16, rotary_side='last', attention_factor=1.25)"
    )
    for own in (
        rope,
        posenc.ProportionalRoPE(head_dim=32, share=0.25),
        posenc.RoPE(head_dim=32, inv_freq=[1 / (k + 1) for k in range(16)]),
    ):
        found = posenc.identify(own)
        ours, place = eval(found.line, {"posenc": posenc, "found": found}), positions.arange(9)
        torch.testing.assert_close(*(e.rotate(x, x, e.place(place))[0] for e in (ours, own)), atol=1e-5, rtol=0)
    assert posenc.identify(lambda n: [2 ** (-8 * (h + 1) / n) for h in range(n)], "slopes_fn").line == (
        "posenc.ALiBi(n_heads=n_heads, slopes='geometric')"
    )
    bucket = posenc.T5(n_heads=1, bidirectional=True, max_distance=256).bucket
    assert posenc.identify(lambda distance: bucket(-distance), "bucket_fn").line == (
        "posenc.T5(n_heads=n_heads, n_buckets=32, max_distance=256, bidirectional=True)"
    )


AXES = {  # what computes angles or rotates over several axes, and the line
    "flux": {"head_dim": 128, "widths": (16, 56, 56), "pairing": "interleaved"},
    "hunyuan video": {"head_dim": 128, "widths": (16, 56, 56), "base": 256.0},
    "even axes": {"head_dim": 48, "n_axes": 3},
    "dealt": {"head_dim": 32, "spectrum": "dealt", "pairing": "interleaved"},
}


@pytest.mark.parametrize("name", AXES)
def test_the_line_of_a_rotation_over_several_axes(name):
    own = posenc.AxialRoPE(**AXES[name])
    pos, x = torch.randint(20, (9, own.n_axes)), torch.randn(1, 2, 9, own.head_dim)
    turns = posenc.identify(lambda x, at: own.rotate(x, x, own.place(at))[0], "rope_axes_fn", head_dim=own.head_dim)
    ours = eval(turns.line, {"posenc": posenc})
    torch.testing.assert_close(*(e.rotate(x, x, e.place(pos))[0] for e in (ours, own)))
    if own.n_axes == 3:
        angles = posenc.identify(lambda position_ids: position_ids.T.double() @ own.frequencies(), "mrope_fn")
        torch.testing.assert_close(eval(angles.line, {"posenc": posenc}).frequencies(), own.frequencies())


def test_the_line_of_axes_that_alternate():
    own = posenc.MRoPE(head_dim=128, sections=(24, 20, 20), layout="interleaved")
    found = posenc.identify(lambda position_ids: position_ids.T.double() @ own.frequencies(), "mrope_fn")
    assert torch.equal(eval(found.line, {"posenc": posenc, "found": found}).frequencies(), own.frequencies())
    clockwise = posenc.identify(lambda x, at: own.rotate(x, x, own.place(-at))[0], "rope_axes_fn", head_dim=128)
    assert clockwise.line is None


def test_axes_that_pair_within_their_own_dimensions_are_not_named():
    rope = posenc.RoPE(head_dim=16)

    def each(x, at):
        parts = zip(x.chunk(2, -1), at.unbind(-1), strict=True)
        return torch.cat([rope.rotate(part, part, rope.place(pos))[0] for part, pos in parts], -1)

    found = posenc.identify(each, "rope_axes_fn", head_dim=32)
    assert (found.line, found.is_known) == (None, False)
