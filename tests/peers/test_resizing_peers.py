"""Tables for another size by the rules of programs: transformers' own code, and the arguments that others publish."""

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("transformers")

from transformers import Dinov2Config, ViTConfig
from transformers.models.dinov2.modeling_dinov2 import Dinov2Embeddings
from transformers.models.vit.modeling_vit import ViTEmbeddings

import posenc
from strategies import refuses

SIZES = [(20, 44), (44, 60), (3, 5), (8, 8)]
SMALL = {"hidden_size": 6, "patch_size": 2, "image_size": 16}


def table():
    torch.manual_seed(0)
    return posenc.Learned2D(d_model=6, height=8, width=8, n_prefix=1)


def patches(of, size, **arguments):
    """Interpolate by torch's own function, as a program's published line does."""
    image = of.weight.detach()[of.n_prefix :].T.reshape(1, -1, 8, 8)
    scaled = F.interpolate(image, size=size, **arguments) if size else F.interpolate(image, **arguments)
    return scaled.flatten(2)[0].T


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("config", "cls"), [(Dinov2Config, Dinov2Embeddings), (ViTConfig, ViTEmbeddings)])
def test_the_rule_transformers_is_that_of_its_models(config, cls, size):
    peer, ours = cls(config(**SMALL)), table()
    peer.position_embeddings.data = ours.weight.detach()[None]
    theirs = peer.interpolate_pos_encoding(torch.zeros(1, 1 + size[0] * size[1], 6), size[0] * 2, size[1] * 2)
    torch.testing.assert_close(ours.resized(*size, rule="transformers").weight, theirs[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", SIZES)
def test_other_rules_are_the_arguments_that_their_programs_publish(size):
    """torchvision, models/vision_transformer.py, interpolate_embeddings; DINOv2, models/vision_transformer.py,
    interpolate_pos_encoding with its default interpolate_offset of 0.1; timm, layers/pos_embed.py; transformers,
    models/siglip2 and qwen3_vl (fast_pos_embed_interpolate: four corners)."""
    ours = table()
    scale = ((size[0] + 0.1) / 8, (size[1] + 0.1) / 8)
    published = {
        "torchvision": patches(ours, size, mode="bicubic", align_corners=True),
        "timm": patches(ours, size, mode="bicubic", antialias=True),
        "siglip2": patches(ours, size, mode="bilinear", antialias=True),
        "qwen3_vl": patches(ours, size, mode="bilinear", align_corners=True),
        "bilinear": patches(ours, size, mode="bilinear"),
    }
    if size != (8, 8):  # where DINOv2 leaves its table as it is
        published["dinov2"] = patches(ours, None, mode="bicubic", scale_factor=scale)
    for rule, theirs in published.items():
        torch.testing.assert_close(ours.resized(*size, rule=rule).weight[1:], theirs, rtol=0, atol=1e-6)
        assert torch.equal(ours.resized(*size, rule=rule).weight[0], ours.weight[0])
    own = ours.resized(*size, rule={"mode": "bilinear", "antialias": True}).weight
    assert torch.equal(own, ours.resized(*size, rule="siglip2").weight)


def test_tables_of_differences_take_the_same_rules():
    torch.manual_seed(0)
    for encoding, default in ((posenc.Swin(n_heads=2, window=(3, 4)), {"mode": "bicubic"}),
                              (posenc.BEiT(n_heads=2, window=(3, 4)), {"mode": "bilinear"})):  # fmt: skip
        image = encoding.weight.detach()[:35].T.reshape(1, 2, 5, 7)
        for rule, arguments in ((None, default), ("timm", {"mode": "bicubic", "antialias": True})):
            ours = encoding.resized((6, 2), **({"rule": rule} if rule else {})).weight[:33]
            theirs = F.interpolate(image, size=(11, 3), **arguments).flatten(2)[0].T
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


# ---- tables of one axis


def clip(rows=77, offset=0):
    torch.manual_seed(0)
    return posenc.Learned(d_model=4, max_len=rows, offset=offset)


@pytest.mark.parametrize("offset", [0, 2])
def test_long_clip_keeps_twenty_rows_and_stretches_the_others_four_times(offset):
    """Zhang 2024 (2403.15378), section 3.1; the rows between two old ones, and those behind the last, as its code
    weighs them."""
    short = clip(offset=offset)
    old = short.weight.detach()[offset:]
    between = [((4 - j) * old[i] + j * old[i + 1]) / 4 for i in range(20, 76) for j in range(4)]
    behind = [old[76] + j * (old[76] - old[75]) / 4 for j in range(4)]
    longer = short.resized(248, keep=20, rule="steps")
    assert (longer.max_len, longer.offset) == (248, offset)
    torch.testing.assert_close(longer.weight[offset:], torch.stack([*old[:20], *between, *behind]), rtol=0, atol=1e-6)
    assert torch.equal(longer.weight[:offset], short.weight[:offset])


@pytest.mark.parametrize(("rule", "corners"), [("ends", True), ("cells", False)])
def test_rows_behind_those_kept_are_torchs(rule, corners):
    short, kept = clip(), clip().weight.detach()[20:].T[None]
    theirs = F.interpolate(kept, size=228, mode="linear", align_corners=corners)[0].T
    longer = short.resized(248, keep=20, rule=rule).weight
    torch.testing.assert_close(longer[20:], theirs, rtol=0, atol=1e-6)
    assert torch.equal(longer[:20], short.weight[:20])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: table().resized(3, 3, rule="nearest"),
            "Learned2D: rule must be 'timm', 'transformers', 'torchvision'",
        ),
        (lambda: table().resized(3, 3, rule={"mode": "cubic"}), "whose mode is one of bicubic, bilinear"),
        (lambda: table().resized(3, 3, rule={"mode": "bicubic", "corners": True}), "a mapping of mode, antialias"),
        (
            lambda: table().resized(3, 3, rule={"mode": "bicubic", "offset": 1.0}),
            "an offset must keep the size (3, 3)",
        ),
        (lambda: clip().resized(9, rule="timm"), "Learned: rule must be 'ends', 'cells', 'steps'"),
        (lambda: clip().resized(248, keep=77), "keep must leave rows to stretch, both of the 77 old rows"),
        (lambda: clip().resized(20, keep=20), "of the 20 new ones; got keep=20"),
    ],
)
def test_unknown_rules_name_the_others(call, words):
    with refuses(ValueError, words):
        call()
