"""Tables and networks of images' rows and columns, as transformers and timm compute them, forwards and backwards."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.nn import functional as F

import posenc
from peers.agreement import assert_same, leaf
from posenc import positions

pytest.importorskip("transformers")

from transformers import BeitConfig, SamVisionConfig, SwinConfig, Swinv2Config
from transformers.models.beit.modeling_beit import BeitAttention, BeitRelativePositionBias
from transformers.models.sam.modeling_sam import SamVisionAttention
from transformers.models.swin.modeling_swin import SwinAttention
from transformers.models.swinv2.modeling_swinv2 import Swinv2SelfAttention

SIZES = [(7, 7), (3, 5), (6, 1)]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def timm_layers(name):
    """Import one file of timm's layers; test_timm.py says why not timm itself."""
    found = importlib.util.find_spec("timm")
    if found is None:
        pytest.skip("timm is not installed")
    if "timm_layers" not in sys.modules:
        layers = ModuleType("timm_layers")
        layers.__path__ = [str(Path(found.origin).parent / "layers")]
        sys.modules["timm_layers"] = layers
    return importlib.import_module(f"timm_layers.{name}")


def split(x, n_heads):
    """(batch, seq, heads · d) to (batch, heads, seq, d)."""
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def attend(q, k, v, encoding, pos, **options):
    """Attention of an image through the reference backend, heads side by side."""
    out = posenc.attend(q, k, v, encoding, pos, causal=False, backend="reference", **options)
    return out.transpose(1, 2).flatten(2)


def swin_of(table, window):
    ours = posenc.Swin(n_heads=table.shape[1], window=window)
    ours.weight = table
    return ours


def beit_of(table, window):
    ours = posenc.BEiT(n_heads=table.shape[1], window=window)
    ours.weight = table
    return ours


def swin_v2_of(mlp, **options):
    first, last = mlp[0], mlp[2]
    ours = posenc.SwinV2(n_heads=last.weight.shape[0], width=first.weight.shape[0], **options)
    ours.w1, ours.b1, ours.w2 = first.weight, first.bias, last.weight
    return ours


def test_swin_is_transformers():
    theirs = SwinAttention(SwinConfig(attn_implementation="eager"), 24, 3, 5)
    torch.nn.init.normal_(theirs.relative_position_bias.relative_position_bias_table)
    table = theirs.relative_position_bias.relative_position_bias_table
    ours, pos, x = swin_of(table, (5, 5)), positions.grid(5, 5), leaf(2, 25, 24)
    torch.testing.assert_close(ours.dense(pos), theirs.relative_position_bias(), rtol=0, atol=0)
    q, k, v = (split(project(x), 3) for project in (theirs.q_proj, theirs.k_proj, theirs.v_proj))
    assert_same(theirs.o_proj(attend(q, k, v, ours, pos)), theirs(x)[0], [x, table])


def test_shifted_windows_are_masks():
    """Swin's mask of the cyclic shift is a float mask of ours; windows are rows of the batch."""
    theirs = SwinAttention(SwinConfig(attn_implementation="eager"), 24, 3, 2)
    table = theirs.relative_position_bias.relative_position_bias_table
    torch.nn.init.normal_(table)
    mask = torch.zeros(2, 4, 4).masked_fill(torch.randn(2, 4, 4) > 1, -100.0)
    x, pos = leaf(4, 4, 24), positions.grid(2, 2)
    q, k, v = (split(project(x), 3) for project in (theirs.q_proj, theirs.k_proj, theirs.v_proj))
    out = attend(q, k, v, swin_of(table, (2, 2)), pos, mask=mask.repeat(2, 1, 1)[:, None])
    assert_same(theirs.o_proj(out), theirs(x, mask)[0], [x, table])


@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize("window", SIZES)
def test_swin_and_beit_are_timms(window, prefix):
    theirs = timm_layers("pos_embed_rel").RelPosBias(window, 3, prefix_tokens=prefix)
    table = theirs.relative_position_bias_table
    ours = (beit_of if prefix else swin_of)(table, window)
    assert_same(ours.dense(positions.grid(*window, n_prefix=prefix)), theirs.get_bias(), [table], atol=0)


@pytest.mark.parametrize("window", [(9, 9), (4, 6), (7, 7)])
def test_swin_resizes_as_timm(window):
    ours = posenc.Swin(n_heads=3, window=(7, 7))
    shape = (2 * window[0] - 1) * (2 * window[1] - 1), 3
    resize = timm_layers("pos_embed_rel").resize_rel_pos_bias_table_simple
    torch.testing.assert_close(ours.resized(window).weight, resize(ours.weight.detach(), window, shape), rtol=0, atol=0)


def test_beit_is_transformers():
    config = BeitConfig(image_size=48, patch_size=8, hidden_size=24, num_attention_heads=3, attn_implementation="eager")
    theirs, bias = BeitAttention(config), BeitRelativePositionBias(config)
    table = bias.relative_position_bias_table
    torch.nn.init.normal_(table)
    ours, pos, x = beit_of(table, (6, 6)), positions.grid(6, 6, n_prefix=1), leaf(2, 37, 24)
    torch.testing.assert_close(ours.dense(pos), bias((6, 6)), rtol=0, atol=0)
    q, k, v = (split(project(x), 3) for project in (theirs.q_proj, theirs.k_proj, theirs.v_proj))
    assert_same(theirs.o_proj(attend(q, k, v, ours, pos)), theirs(x, bias((6, 6)))[0], [x, table])


@pytest.mark.parametrize("window", [(9, 9), (4, 7), (6, 6)])
def test_beit_resizes_as_transformers(window):
    """Of square windows: of others theirs reads rows as columns."""
    config = BeitConfig(image_size=48, patch_size=8, hidden_size=24, num_attention_heads=3)
    bias = BeitRelativePositionBias(config)
    torch.nn.init.normal_(bias.relative_position_bias_table)
    ours = beit_of(bias.relative_position_bias_table, (6, 6)).resized(window)
    got = ours.dense(positions.grid(*window, n_prefix=1))
    torch.testing.assert_close(got, bias(window), rtol=0, atol=1e-6)


@pytest.mark.parametrize("pretrained", [None, (4, 4)])
def test_swin_v2_is_transformers(pretrained):
    theirs = Swinv2SelfAttention(Swinv2Config(), 24, 3, 6, pretrained or [0, 0]).eval()
    mlp = theirs.continuous_position_bias_mlp
    for parameter in mlp.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    learned = list(mlp.parameters())
    ours = swin_v2_of(mlp, window=(6, 6), pretrained_window=pretrained)
    x, pos = leaf(2, 36, 24), positions.grid(6, 6)
    q, k, v = (split(project(x), 3) for project in (theirs.query, theirs.key, theirs.value))
    scale = theirs.logit_scale.clamp(max=torch.tensor(100.0).log()).exp()
    out = attend(F.normalize(q, dim=-1) * scale, F.normalize(k, dim=-1), v, ours, pos, scale=1.0)
    assert_same(out, theirs(x)[0], [x, *learned], atol=2e-5)  # sums of 512 numbers in another order


@pytest.mark.parametrize("pretrained", [(0, 0), (4, 3)])
@pytest.mark.parametrize("window", SIZES[:2])
def test_swin_v2_is_timms(window, pretrained):
    theirs = timm_layers("pos_embed_rel").RelPosMlp(
        window, 3, hidden_dim=32, mode="swin", pretrained_window_size=pretrained
    )
    theirs.eval()
    mlp = [theirs.mlp.fc1, None, theirs.mlp.fc2]
    learned = [theirs.mlp.fc1.weight, theirs.mlp.fc1.bias, theirs.mlp.fc2.weight]
    for parameter in learned:
        torch.nn.init.normal_(parameter)
    ours = swin_v2_of(mlp, window=window, pretrained_window=pretrained if pretrained[0] else None)
    assert_same(ours.dense(positions.grid(*window)), theirs.get_bias(), learned, atol=1e-4)


def decomposed_of(rel_h, rel_w):
    size = tuple((len(table) + 1) // 2 for table in (rel_h, rel_w))
    ours = posenc.Decomposed2D(head_dim=rel_h.shape[1], size=size)
    ours.rel_h, ours.rel_w = rel_h, rel_w
    return ours


def test_decomposed_is_sam():
    config = SamVisionConfig(hidden_size=24, num_attention_heads=3, use_rel_pos=True)
    theirs = SamVisionAttention(config, 5).eval()
    for table in (theirs.rel_pos_h, theirs.rel_pos_w):
        torch.nn.init.normal_(table)
    ours = decomposed_of(theirs.rel_pos_h, theirs.rel_pos_w)
    x, pos = leaf(2, 5, 5, 24), positions.grid(5, 5)
    q, k, v = (split(t, 3) for t in theirs.qkv(x).flatten(1, 2).chunk(3, -1))
    out = theirs.proj(attend(q, k, v, ours, pos)).unflatten(1, (5, 5))
    assert_same(out, theirs(x)[0], [x, ours.rel_h, ours.rel_w])


@pytest.mark.parametrize(("q_size", "k_size"), [((4, 6), (4, 6)), ((8, 6), (4, 3)), ((3, 2), (9, 2))])
def test_decomposed_with_pooled_keys_or_queries_is_sams(q_size, k_size):
    """Their function of two sizes is MViTv2's; a grid of one patch in s stands at s·i + s - 1, and pooled queries at
    s·i."""
    theirs = SamVisionAttention(SamVisionConfig(hidden_size=8, num_attention_heads=1), 2)
    tables = [leaf(2 * max(a, b) - 1, 8) for a, b in zip(q_size, k_size, strict=True)]
    q = leaf(2, q_size[0] * q_size[1], 8)
    wanted = theirs.get_decomposed_rel_pos(q, *tables, q_size, k_size).flatten(3).flatten(1, 2)
    ours = decomposed_of(*(torch.nn.Parameter(t.detach()) for t in tables))
    pos, k_pos = positions.grid(*q_size), positions.grid(*k_size)
    q_step = torch.tensor([max(b // a, 1) for a, b in zip(q_size, k_size, strict=True)])
    k_step = torch.tensor([max(a // b, 1) for a, b in zip(q_size, k_size, strict=True)])
    placed, k_placed = ours.place(pos * q_step), ours.place(k_pos * k_step + k_step - 1)
    got = torch.func.functional_call(
        Through(ours), {"encoding.rel_h": tables[0], "encoding.rel_w": tables[1]}, (q[:, None], placed, k_placed)
    )
    assert_same(got[:, 0], wanted, [q, *tables])


class Through(torch.nn.Module):
    """The bias as a module, so that its tables can be given."""

    def __init__(self, encoding):
        super().__init__()
        self.encoding = encoding

    def forward(self, q, placed, k_placed):
        return self.encoding.bias(q, q[:, :, :1], placed, k_placed)


def test_decomposed_resizes_as_sam():
    theirs = SamVisionAttention(SamVisionConfig(hidden_size=8, num_attention_heads=1), 2)
    ours = posenc.Decomposed2D(head_dim=8, size=(4, 6))
    larger = ours.resized((7, 3))
    for table, given, n in ((larger.rel_h, ours.rel_h, 7), (larger.rel_w, ours.rel_w, 3)):
        rows = theirs.get_rel_pos(n, n, given)  # (q, k, lanes): the first row of queries and the first of keys
        wanted = torch.cat((rows[0].flip(0), rows[1:, 0]))
        torch.testing.assert_close(table, wanted, rtol=0, atol=1e-6)
