"""RoPE++ against complex numbers in torch, as the paper writes its scores; forwards and backwards."""

import pytest
import torch

import posenc
from peers.agreement import assert_same, leaf
from posenc import positions


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_scores_are_both_parts_of_the_complex_product(pairing: str) -> None:
    """Query heads 2h and 2h + 1 are one projection; two of them share a head of keys."""
    torch.manual_seed(0)
    ours = posenc.RoPEPlusPlus(n_heads=8, head_dim=6, base=50.0, pairing=pairing)
    q, k, pos, k_pos = leaf(2, 4, 5, 6), leaf(2, 2, 9, 6), positions.arange(5, start=40), positions.arange(9, start=36)
    mine, keys = ours.rotate(q.repeat_interleave(2, 1), k, ours.place(pos), ours.place(k_pos))
    got = mine @ keys.repeat_interleave(4, 1).mT
    pairs = [t.unflatten(-1, (3, 2) if pairing == "interleaved" else (2, 3)) for t in (q, k.repeat_interleave(2, 1))]
    pairs = pairs if pairing == "interleaved" else [t.mT for t in pairs]
    z_q, z_k = (torch.view_as_complex(t.contiguous()) for t in pairs)
    distance = pos[:, None] - k_pos
    turn = torch.polar(torch.ones(3, 5, 9), -(50.0 ** -(torch.arange(3) / 3))[:, None, None] * distance)
    product = torch.einsum("bhic,bhjc,cij->bhij", z_q.conj(), z_k, turn)
    wanted = torch.stack((product.real, -product.imag), 2).flatten(1, 2)
    assert_same(got, wanted, [q, k], atol=2e-5)


def test_the_authors_rotation() -> None:
    """Their line is q sin - rotate_half(q) cos, at angles in float32."""
    ours = posenc.RoPEPlusPlus(n_heads=2, head_dim=8)
    q, pos = torch.randn(3, 1, 7, 8), positions.arange(7, start=90)
    angle = pos[:, None].float() * (10000.0 ** (-torch.arange(4) / 4)).repeat(2)
    halves = torch.cat((-q[..., 4:], q[..., :4]), -1)
    wanted = torch.cat((q * angle.cos() + halves * angle.sin(), q * angle.sin() - halves * angle.cos()), 1)
    torch.testing.assert_close(ours.rotate_q(q.expand(-1, 2, -1, -1), ours.place(pos)), wanted, atol=2e-5, rtol=0)


def test_turning_back_and_errors() -> None:
    ours, q, k = posenc.RoPEPlusPlus(n_heads=4, head_dim=8), torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8)
    placed = ours.place(positions.arange(5, start=3))
    back = ours.rotate(*ours.rotate(q, k, placed), placed, inverse=True)
    torch.testing.assert_close(back, (q, k), atol=1e-6, rtol=0)
    with pytest.raises(ValueError, match="RoPEPlusPlus: made for n_heads=4"):
        ours.rotate(q[:, :2], k, placed)
    with pytest.raises(ValueError, match="n_heads must be even.*got n_heads=3"):
        posenc.RoPEPlusPlus(n_heads=3, head_dim=8)
