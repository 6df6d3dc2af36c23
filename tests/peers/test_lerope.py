"""LeRoPE, learned stretches of YaRN's frequencies, against transformers' Mistral Large 4."""

import pytest
import torch

pytest.importorskip("transformers.models.mistral_large4")

from transformers.models.mistral_large4 import modeling_mistral_large4 as theirs
from transformers.models.mistral_large4.configuration_mistral_large4 import MistralLarge4TextConfig

import posenc
from posenc import frequencies, positions


def test_mistral_large_4() -> None:
    """Their rotation sorts pairs of dimensions into halves, which does not change scores."""
    torch.manual_seed(0)
    config = MistralLarge4TextConfig()
    peer = theirs.MistralLarge4TextRotaryEmbedding(config)
    start = frequencies.yarn(width=64, base=10000.0, factor=2048.0, original_max_len=512)
    ours = posenc.create("lerope", head_dim=64, pairing="interleaved", inv_freq=start)
    with torch.no_grad():
        ours.stretch.copy_(peer.alpha.copy_(torch.randn(32) * 0.3))
    q, k, pos = torch.randn(2, 3, 40, 64), torch.randn(2, 1, 40, 64), positions.arange(40, start=7)
    cos, sin = peer(q, pos.expand(2, -1))
    wanted = theirs.apply_rotary_pos_emb_interleave(q, k, cos, sin)
    got = ours.rotate(q, k, ours.place(pos))
    for mine, peers in zip(got, wanted, strict=True):
        torch.testing.assert_close(torch.cat((mine[..., ::2], mine[..., 1::2]), -1), peers, atol=2e-5, rtol=0)
    plain = posenc.RoPE(head_dim=64, pairing="interleaved", inv_freq=start)
    assert (plain.rotate(q, k, plain.place(pos))[0] - got[0]).abs().max() > 0.1  # alpha has an effect
