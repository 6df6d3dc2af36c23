"""Inkling's bias and temperature against transformers' own modules, forwards, backwards and with a cache."""

from typing import Any

import pytest
import torch

pytest.importorskip("transformers.models.inkling")

from transformers.models.inkling import modeling_inkling as theirs
from transformers.models.inkling.configuration_inkling import InklingTextConfig

import posenc
from peers.agreement import assert_same, leaf
from posenc import positions


@pytest.mark.parametrize(("extent", "start"), [(8, 0), (8, 1000), (64, 3)])
def test_relative_logits(extent: int, start: int) -> None:
    """Theirs is handed what r_proj makes; queries are the last of a cache's keys."""
    peer = theirs.InklingRelativeLogits(d_rel=5, rel_extent=extent)
    torch.nn.init.normal_(peer.proj)
    ours = posenc.Inkling(d_model=24, n_heads=4, d_rel=5, extent=extent)
    torch.nn.init.normal_(ours.weight)
    ours.profiles = peer.proj
    x, q, pos = leaf(2, 30, 24), torch.zeros(2, 4, 11, 8), positions.arange(30, start=start)
    mixes = torch.nn.functional.linear(x, ours.weight).view(2, 30, 4, 5)
    placed = ours.place(pos, x)
    wanted = peer(mixes[:, -11:], pos[-11:], pos)
    assert_same(ours.bias(q, q, placed.last(11), placed), wanted, [x, ours.weight, ours.profiles], atol=2e-5)


@pytest.mark.parametrize(("i", "window"), [(1, None), (0, 4)])
def test_a_layer_of_a_configuration(i: int, window: int | None) -> None:
    """A layer of theirs, and its q, k, v and input in ours: all that position does there."""
    torch.manual_seed(0)
    config = InklingTextConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8, d_rel=3, rel_extent=6,
        swa_num_attention_heads=6, swa_num_key_value_heads=2, swa_head_dim=8, sliding_window_size=4,
        log_scaling_n_floor=5, log_scaling_alpha=0.7, num_hidden_layers=2, layer_types=["hybrid_sliding", "hybrid"],
    )  # fmt: skip
    config._attn_implementation = "eager"
    layer = theirs.InklingAttention(config, layer_idx=i).eval()
    for p in layer.parameters():
        torch.nn.init.normal_(p, std=0.4)
    seen = {}
    layer.o_proj = torch.nn.Identity()
    handles = [
        getattr(layer, name).register_forward_hook(lambda module, args, out, name=name: seen.update({name: out}))
        for name in ("q_norm", "k_norm", "v_sconv")
    ]
    x = torch.randn(2, 20, 32)
    unseen = torch.ones(20, 20).triu(1) + torch.ones(20, 20).tril(-(window or 20))
    wanted, _ = layer(x, torch.zeros(20, 20).masked_fill(unseen.bool(), -torch.inf)[None, None])
    for handle in handles:
        handle.remove()
    layers = posenc.PerLayer.from_config(config.to_dict())
    ours = layers.distinct[layers.index[i]]
    inkling = next(m for m in ours.modules() if isinstance(m, posenc.Inkling))
    inkling.weight, inkling.profiles = layer.r_proj.weight, layer.rel_logits_proj.proj
    q, k = (seen[name].transpose(1, 2) for name in ("q_norm", "k_norm"))
    v = seen["v_sconv"].view(2, 20, 2, 8).transpose(1, 2)
    got = posenc.attend(q, k, v, ours, ours.place(positions.arange(20), x), window=window, scale=1 / 8)
    torch.testing.assert_close(got.transpose(1, 2).flatten(2), wanted, atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize(
    "fields",
    [{}, {"local_layer_ids": [1, 2, 5]}, {"log_scaling_n_floor": 9}, {"layer_types": ["hybrid"] * 12}],
)
def test_layers_without_a_window_stand_where_theirs_do_and_grow_if_theirs_do(fields: dict[str, Any]) -> None:
    config = InklingTextConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=12, d_rel=3, **fields)
    given = {"model_type": "inkling_text", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 12}
    for source in (config.to_dict(), given | {"d_rel": 3} | fields):
        layers = posenc.PerLayer.from_config({"model_type": "inkling_mm_model", "text_config": source})
        found = [[part for part in layers.distinct[i].modules() if not part._modules] for i in layers.index]
        assert [parts[-1].extent for parts in found] == [
            512 if kind == "hybrid_sliding" else 1024 for kind in config.layer_types
        ]
        grows = [kind == "hybrid" and config.log_scaling_n_floor is not None for kind in config.layer_types]
        assert [(len(parts) == 2, parts[-1].temperature > 0) for parts in found] == [(grown, grown) for grown in grows]
