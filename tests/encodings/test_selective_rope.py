"""Selective RoPE against a second form, made of torch's parts: a past, packed texts, padding, long texts, gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import posenc
from posenc import positions
from strategies import normal, refuses

D_MODEL, KV_HEADS, HEAD_DIM = 12, 3, 8


def selective(**options: Any) -> Any:
    """An encoding whose tokens rotate pairs by radians, not by hundredths."""
    given = {"d_model": D_MODEL, "n_kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "rank": 4, "base": 10.0}
    encoding = posenc.SelectiveRoPE(**given | options).double()
    for i, p in enumerate(encoding.parameters()):
        p.data = normal(*p.shape, seed=i)
    return encoding


def angles(encoding: Any, x: Tensor) -> Tensor:
    """The summed angles (batch, seq, n_kv_heads, n_pairs) of whole texts, by a convolution of torch."""
    shares = x.unflatten(-1, (KV_HEADS, -1))
    unit = (shares / torch.sqrt(shares.norm(dim=-1, keepdim=True) ** 2 + 1e-6)).flatten(-2)
    padded = F.pad(F.linear(F.linear(unit, encoding.w_in), encoding.w_out).transpose(1, 2), (3, 0))
    advance = F.conv1d(padded, encoding.conv[:, None], groups=len(encoding.conv)).transpose(1, 2)
    speed = encoding.base ** -torch.linspace(0, 1, HEAD_DIM // 2 + 1, dtype=torch.float64)[:-1]
    return advance.unflatten(-1, (KV_HEADS, -1)).cumsum(1) * speed


def rotated(x: Tensor, angle: Tensor) -> Tensor:
    """Heads (batch, n_heads, seq, head_dim) as complex numbers, times those of the angles of their group."""
    pairs = torch.complex(*x.chunk(2, -1))
    each = angle.transpose(1, 2).repeat_interleave(x.shape[1] // KV_HEADS, 1)
    turned = pairs * torch.polar(torch.ones_like(each), each)
    return torch.cat((turned.real, turned.imag), -1)


def contents(n: int, batch: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    x = normal(batch, n, D_MODEL, seed=5)
    return x, normal(batch, 2 * KV_HEADS, n, HEAD_DIM, seed=6), normal(batch, KV_HEADS, n, HEAD_DIM, seed=7)


def test_it_is_a_convolution_a_sum_and_a_complex_product_backwards_too() -> None:
    encoding, (x, q, k) = selective(), contents(9)
    x.requires_grad_()
    got = encoding.rotate(q, k, encoding.place(torch.arange(9), x, dtype=torch.float64))
    wanted = [rotated(t, angles(encoding, x)) for t in (q, k)]
    learned = [x, *encoding.parameters()]
    slopes = [torch.autograd.grad(sum((t**3).sum() for t in both), learned) for both in (got, wanted)]
    for a, b in zip((*got, *slopes[0]), (*wanted, *slopes[1]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_scores_see_what_tokens_between_key_and_query_say() -> None:
    """Other tokens before the key change nothing, from the fourth before it on, which its convolution does not see."""
    encoding, (x, q, k) = selective(), contents(12)
    other = torch.cat((normal(2, 5, D_MODEL, seed=9), x[:, 5:]), 1)
    found = []
    for text in (x, other):
        rotations = encoding.rotate(q[:, ::2], k, encoding.place(torch.arange(12), text, dtype=torch.float64))
        found.append(torch.einsum("bhid,bhjd->bhij", *rotations))
    torch.testing.assert_close(found[0][..., 8:, 8:], found[1][..., 8:, 8:], rtol=0, atol=1e-12)
    assert (found[0] - found[1])[..., 8:, 6].abs().min(0).values.max() > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_goes_on_from_a_past(dtype: torch.dtype) -> None:
    """Steps of one, two and more tokens: the convolution reaches over each of their ends."""
    encoding, (x, _, _) = selective(), contents(14)
    whole = encoding.place(torch.arange(14), x, dtype=dtype)
    past = encoding.place(torch.arange(0), x[:, :0], dtype=dtype)
    for begin, end in ((0, 1), (1, 3), (3, 4), (4, 9), (9, 10), (10, 14)):
        new = encoding.place(torch.arange(begin, end), x[:, begin:end], past=past, dtype=dtype)
        past = past.cat(new)
    for got, wanted in zip(past.parts, whole.parts, strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got, wanted, rtol=0, atol=2e-6 if dtype == torch.float32 else 1e-13)


def test_a_past_of_one_row_serves_a_batch() -> None:
    encoding, (x, _, _) = selective(), contents(6, batch=1)
    past = encoding.place(torch.arange(4), x[:, :4], dtype=torch.float64)
    new = encoding.place(torch.arange(4, 6), x[:, 4:].expand(3, -1, -1), past=past, dtype=torch.float64)
    wanted = encoding.place(torch.arange(6), x, dtype=torch.float64)
    torch.testing.assert_close(past.cat(new).parts[0], wanted.parts[0].expand(3, -1, -1, -1), rtol=0, atol=1e-13)


def test_rotated_keys_can_be_cached() -> None:
    encoding, (x, q, k) = selective(), contents(7)
    whole = encoding.place(torch.arange(7), x, dtype=torch.float64)
    wanted = posenc.attend(q, k, k, encoding, whole)
    past = encoding.place(torch.arange(6), x[:, :6], dtype=torch.float64)
    new = encoding.place(torch.arange(6, 7), x[:, 6:], past=past, dtype=torch.float64)
    cached = encoding.rotate_k(k[:, :, :6], past)
    last, key = encoding.rotate(q[:, :, 6:], k[:, :, 6:], new)
    keys = torch.cat((cached, key), 2)
    got = posenc.attend(last, keys, k, encoding, new, past.cat(new), rotated=True)
    torch.testing.assert_close(got, wanted[:, :, 6:], rtol=0, atol=1e-12)


def test_texts_of_one_row_do_not_see_each_other() -> None:
    """Angles differ by a constant, which a text's scores do not see; one of a single token ends where it begins."""
    encoding, (x, _, _) = selective(), contents(9, batch=1)
    ids = torch.tensor([0, 0, 0, 0, 1, 2, 2, 2, 2])
    packed = encoding.place(positions.packed(ids), x, dtype=torch.float64)
    for begin, end in ((0, 4), (4, 5), (5, 9)):
        alone = angles(encoding, x[:, begin:end])
        angle = torch.atan2(packed.parts[1], packed.parts[0])[:, begin:end]
        off = angle - angle[:, :1] - (alone - alone[:, :1])
        torch.testing.assert_close(off.cos(), torch.ones_like(off), rtol=0, atol=1e-9)


def test_padding_on_the_left_is_not_seen_and_padding_within_parts_the_convolution() -> None:
    encoding, (x, _, _) = selective(), contents(8, batch=1)
    padded = F.pad(x, (0, 0, 3, 0), value=7.0)
    mask = torch.tensor([[0] * 3 + [1] * 8])
    got = encoding.place(positions.left_padded(mask), padded, dtype=torch.float64)
    off = torch.atan2(got.parts[1], got.parts[0])[:, 3:] - angles(encoding, x)
    torch.testing.assert_close((off - off[:, :1]).cos(), torch.ones_like(off), rtol=0, atol=1e-9)
    gap = torch.cat((x[:, :4], torch.full((1, 2, D_MODEL), torch.nan, dtype=torch.float64), x[:, 4:]), 1)
    mask = torch.tensor([[1] * 4 + [0] * 2 + [1] * 4])
    found = encoding.place(positions.left_padded(mask), gap, dtype=torch.float64)
    whole = torch.cat((angles(encoding, x[:, :4]), angles(encoding, x[:, :4])[:, -1:] + angles(encoding, x[:, 4:])), 1)
    kept = mask[0].bool()
    torch.testing.assert_close(found.parts[0][:, kept], whole.cos(), rtol=0, atol=1e-12)


def test_the_order_of_the_tokens_counts_and_not_the_distance_of_positions() -> None:
    encoding, (x, _, _) = selective(), contents(5)
    near, far = (encoding.place(p, x, dtype=torch.float64) for p in (torch.arange(5), torch.arange(5) * 7 - 900))
    assert torch.equal(near.parts[0], far.parts[0])
    back = encoding.place(torch.arange(5).flip(0), x, dtype=torch.float64)  # five texts of one token
    assert not torch.allclose(near.parts[0], back.parts[0])


def test_a_bfloat16_model_is_right_at_the_end_of_a_long_text() -> None:
    """100,000 tokens, in two parts, have the angles of a sum in float64 of the same tokens and weights."""
    encoding, n = selective().float(), 100_000
    x, encoding = normal(1, n, D_MODEL, seed=3).bfloat16(), encoding.bfloat16()
    assert all(p.dtype == torch.float32 for p in encoding.parameters())
    past = encoding.place(torch.arange(60_000), x[:, :60_000])
    placed = encoding.place(torch.arange(60_000, n), x[:, 60_000:], past=past)
    with torch.no_grad():
        angle = angles(encoding.double(), x.double())[:, -200:]
    assert float(angle.abs().max()) > 100
    off = torch.complex(*(t.detach()[:, -200:].double() for t in placed.parts[:2])) * torch.exp(-1j * angle)
    assert float((off.angle()).abs().max()) < 1e-3
    between = off * off[:, :1].conj()  # of near tokens, where rounded sums of thousands would show
    assert float(between.angle().abs().max()) < 3e-5


def test_what_is_not_finite_counts_as_zero() -> None:
    encoding, (x, _, _) = selective(), contents(6, batch=1)
    x[:, 2, 0] = torch.inf
    zeros = x.clone()
    zeros[:, 2] = 0.0
    got, wanted = (encoding.place(torch.arange(6), t, dtype=torch.float64) for t in (x.requires_grad_(), zeros))
    assert torch.equal(got.parts[0], wanted.parts[0])
    assert bool(torch.autograd.grad(got.parts[0].sum(), x)[0].isfinite().all())


def test_errors() -> None:
    with refuses(ValueError, "head_dim must be even, because pairs rotate; got head_dim=7"):
        selective(head_dim=7)
    with refuses(ValueError, "d_model must be a multiple of n_kv_heads", "got d_model=12 and n_kv_heads=5"):
        selective(n_kv_heads=5)
    with refuses(ValueError, "rank must be at least 1; got rank=0"):
        selective(rank=0)
    encoding, (x, q, k) = selective(), contents(4)
    with refuses(TypeError, "reads the tokens", "got x=None"):
        encoding.place(torch.arange(4))
    placed = encoding.place(torch.arange(4), x)
    with refuses(ValueError, "must have head_dim=8 dimensions"):
        encoding.rotate(q[..., :6], k, placed)
    with refuses(ValueError, "a multiple of that many heads"):
        encoding.rotate(q[:, :4], k, placed)
    with refuses(ValueError, "a token for each of their positions"):
        encoding.rotate(q[:, :, :3], k, placed)
