"""Inkling's bias and temperature against transformers' own modules, forwards, backwards and with a cache."""

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


def test_a_layer_with_its_temperature() -> None:
    """A layer of theirs, and its q, k, v and input in ours: all that position does there."""
    torch.manual_seed(0)
    config = InklingTextConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8, d_rel=3, rel_extent=6,
        log_scaling_n_floor=5, log_scaling_alpha=0.7, num_hidden_layers=2, layer_types=["hybrid", "hybrid"],
    )  # fmt: skip
    config._attn_implementation = "eager"
    layer = theirs.InklingAttention(config, layer_idx=0).eval()
    for p in layer.parameters():
        torch.nn.init.normal_(p, std=0.4)
    seen = {}
    layer.o_proj = torch.nn.Identity()
    handles = [
        getattr(layer, name).register_forward_hook(lambda module, args, out, name=name: seen.update({name: out}))
        for name in ("q_norm", "k_norm", "v_sconv")
    ]
    x = torch.randn(2, 20, 32)
    causal = torch.full((20, 20), -torch.inf).triu(1)
    wanted, _ = layer(x, causal[None, None])
    for handle in handles:
        handle.remove()
    ours = posenc.Compose(
        posenc.QueryTemperature(law="inkling", original_max_len=5, weight=0.7),
        posenc.Inkling(d_model=32, n_heads=4, d_rel=3, extent=6, temperature=0.7, original_max_len=5),
    )
    inkling = next(m for m in ours.modules() if isinstance(m, posenc.Inkling))
    inkling.weight, inkling.profiles = layer.r_proj.weight, layer.rel_logits_proj.proj
    q, k = (seen[name].transpose(1, 2) for name in ("q_norm", "k_norm"))
    v = seen["v_sconv"].view(2, 20, 2, 8).transpose(1, 2)
    got = posenc.attend(q, k, v, ours, ours.place(positions.arange(20), x), scale=1 / 8)
    torch.testing.assert_close(got.transpose(1, 2).flatten(2), wanted, atol=5e-6, rtol=1e-5)
