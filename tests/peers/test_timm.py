"""Agreement with timm, read file by file: `import timm` needs torchvision, and PyPI's does not load beside a CPU torch.

The folder of its layers becomes a package of another name, whose modules import each other by relative names. The
models import `timm` itself, so that of Twins the one class is compiled that is the peer.
"""

import ast
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
from peers.agreement import assert_same, leaf
from posenc import positions

found = importlib.util.find_spec("timm")
if found is None:
    pytest.skip("timm is not installed", allow_module_level=True)
FOLDER = Path(found.origin).parent

layers = ModuleType("timm_layers")
layers.__path__ = [str(FOLDER / "layers")]
sys.modules["timm_layers"] = layers
pos_embed = importlib.import_module("timm_layers.pos_embed")
sincos = importlib.import_module("timm_layers.pos_embed_sincos")


def of_file(path, name, **names):
    """Compile one class of a file."""
    tree = ast.parse((FOLDER / path).read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if getattr(node, "name", None) == name]
    exec(compile(tree, path, "exec"), names)
    return names[name]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n_prefix", [0, 1, 5])
@pytest.mark.parametrize("size", [(9, 6), (14, 21), (3, 4), (2, 13), (7, 7)])
def test_resized_is_theirs(size, n_prefix, dtype):
    """Larger, smaller, one of each, as it was; no peer for it in transformers, whose ViT does not antialias."""
    table = posenc.Learned2D(d_model=12, height=7, width=7, n_prefix=n_prefix).to(dtype)
    theirs = pos_embed.resample_abs_pos_embed(table.weight[None].detach(), list(size), num_prefix_tokens=n_prefix)
    ours = table.resized(*size)
    assert torch.equal(ours.weight, theirs[0])
    grid = positions.grid(*size, n_prefix=n_prefix)
    assert torch.equal(ours.vectors(grid), theirs[0])  # theirs are in the order of the tokens


def test_resized_from_a_table_that_is_not_square_is_theirs():
    table = posenc.Learned2D(d_model=8, height=5, width=9, n_prefix=1)
    weight = table.weight[None].detach()
    theirs = pos_embed.resample_abs_pos_embed(weight, [8, 4], old_size=[5, 9], num_prefix_tokens=1)
    assert torch.equal(table.resized(8, 4).weight, theirs[0])


@pytest.mark.parametrize("interleaved", [True, False])
def test_sinusoidal_2d_is_theirs(interleaved):
    """Their names are of the axes: interleaved is sin, cos of the row, then of the column, each in a block, as ours
    concatenated. Not interleaved, the sines of both axes come before the cosines: the middle blocks change places."""
    theirs = sincos.build_sincos2d_pos_embed([6, 11], dim=48, interleave_sin_cos=interleaved)
    ours = posenc.SinusoidalND(d_model=48, order="concatenated").vectors(positions.grid(6, 11)).float()
    if not interleaved:
        ours = ours.unflatten(-1, (2, 2, 12)).transpose(1, 2).flatten(1)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def test_axial_rope_interleaved_is_theirs():
    """In 'language' mode: frequencies that fall geometrically and whole positions, not pixels between -1 and 1."""
    q, k = leaf(2, 3, 66, 24), leaf(2, 3, 66, 24)
    table = sincos.RotaryEmbeddingCat(24, in_pixels=False, feat_shape=[6, 11], temperature=100.0).get_embed()
    rope = posenc.AxialRoPE(head_dim=24, base=100.0, pairing="interleaved")
    for x, ours in zip((q, k), rope.rotate(q, k, rope.place(positions.grid(6, 11))), strict=True):
        assert_same(ours, sincos.apply_rot_embed_cat(x, table), [x], atol=5e-6)


@pytest.mark.parametrize("size", [(6, 11), (4, 4)])
@pytest.mark.parametrize(("theirs", "ours"), [("separate", "separate"), ("max", "longer"), ("min", "shorter")])
def test_an_axial_rotation_of_the_unit_grid_is_dinov3s(theirs, ours, size):
    """As the guide says: coordinates between -1 and 1, and 2 pi times frequencies of base 100."""
    n = size[0] * size[1]
    q, k = leaf(2, 3, n, 24), leaf(2, 3, n, 24)
    table = sincos.RotaryEmbeddingDinoV3(24, feat_shape=list(size), normalize_coords=theirs).get_embed()
    rope = posenc.AxialRoPE(head_dim=24, inv_freq=lambda k: 2 * math.pi * 100.0 ** (-4 * k / 24))
    for x, turned in zip((q, k), rope.rotate(q, k, rope.place(positions.unit_grid(*size, sides=ours))), strict=True):
        assert_same(turned, sincos.apply_rot_embed_cat(x, table, half=True), [x], atol=5e-6)


def test_nerf_features_are_theirs():
    """Their pixel bands are octaves where the resolution is a power of two; a cell has all its sines, then cosines."""
    x = leaf(1, 35, 24)
    sin, cos = sincos.build_fourier_pos_embed([5, 7], num_bands=6, max_res=2**6)
    corners = torch.cartesian_prod(torch.linspace(-1, 1, 5), torch.linspace(-1, 1, 7))
    ours = posenc.NeRFFourier(d_model=24, n_axes=2, extent=1.0, n_octaves=6)(x, corners)
    theirs = torch.stack((sin, cos), -1).flatten(2).flatten(0, 1)
    assert_same(ours, x + theirs, [x], atol=3e-5)  # up to 32 pi radians in float32


@pytest.mark.parametrize("size", [(5, 8), (1, 6), (1, 1)])
def test_cpvt_is_twins(size):
    peer = of_file("models/twins.py", "PosConv", nn=nn, Size_=tuple)(10, 10)
    ours = posenc.CPVT(d_model=10)
    weights = {"proj.0.weight": ours.weight[:, None], "proj.0.bias": ours.shift}
    x = leaf(2, size[0] * size[1], 10)
    theirs = torch.func.functional_call(peer, weights, (x, size))
    assert_same(ours(x, positions.grid(*size)), theirs, [x, ours.weight, ours.shift])
