"""The implementations against the papers' own numbers and the formulations of others, typed out here.

No line of this file calls a definition of ours: what is compared is written in another way (complex
numbers, the relative shift, a floating logarithm) or is a number printed elsewhere.
"""

import math

import pytest
import torch
from torch import Tensor

import posenc
from posenc import positions
from strategies import normal, randomise


def test_rope_as_complex_numbers() -> None:
    """RoFormer, section 3.2.1, as Meta's Llama computes it: lanes 2k and 2k + 1 are one complex number."""
    q, k = normal(2, 4, 6, 8, seed=1), normal(2, 2, 6, 8, seed=2)
    angle = torch.outer(torch.arange(6, dtype=torch.float64), 10000.0 ** -(torch.arange(0, 8, 2) / 8).double())
    turn = torch.polar(torch.ones_like(angle), angle)
    rope = posenc.RoPE(head_dim=8, pairing="interleaved")
    for got, x in zip(rope.rotate(q, k, rope.place(positions.arange(6), dtype=torch.float64)), (q, k), strict=True):
        wanted = torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turn).flatten(-2)
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-14)


def test_rope_by_rotate_half() -> None:
    """GPT-NeoX: x cos + rotate_half(x) sin, with the table of angles written twice."""
    q, pos = normal(1, 1, 3, 6), torch.tensor([7, 0, 12_345])
    angle = pos[:, None].double() / 10000.0 ** (torch.arange(0, 6, 2).double() / 6)
    angle = torch.cat((angle, angle), -1)
    swapped = torch.cat((-q[..., 3:], q[..., :3]), -1)
    rope = posenc.RoPE(head_dim=6)
    got = rope.rotate_q(q, rope.place(pos, dtype=torch.float64))
    torch.testing.assert_close(got, q * angle.cos() + swapped * angle.sin(), rtol=0, atol=1e-11)


def test_sinusoidal_numbers() -> None:
    """Vaswani 2017, section 3.5, for d_model = 4 at positions 1 and 3; sines and cosines from a table."""
    wanted = [[0.8414709848, 0.5403023059, 0.0099998333, 0.9999500004],
              [0.1411200081, -0.9899924966, 0.0299955002, 0.9995500337]]  # fmt: skip
    got = posenc.Sinusoidal(d_model=4).vectors(torch.tensor([1, 3]))
    torch.testing.assert_close(got, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-10)


def test_sinusoidal_as_whisper_and_tensor2tensor_write_it() -> None:
    n = 5
    step = math.log(10000) / (n - 1)
    angle = torch.arange(40)[:, None].double() * torch.exp(-step * torch.arange(n).double())
    sines = posenc.Sinusoidal(d_model=10, order="concatenated", exponent="tensor2tensor")
    wanted = torch.cat((angle.sin(), angle.cos()), 1)
    torch.testing.assert_close(sines.vectors(torch.arange(40)), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("n_heads", "slopes"),
    [
        (8, [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]),  # the paper's figure 3
        (3, [0.0625, 0.00390625, 0.25]),
        (12, [2.0**-i for i in range(1, 9)] + [2.0**-0.5, 2.0**-1.5, 2.0**-2.5, 2.0**-3.5]),
    ],
)
def test_alibi_slopes(n_heads: int, slopes: list[float]) -> None:
    dense = posenc.ALiBi(n_heads=n_heads).dense(torch.tensor([0, 1, 5]), dtype=torch.float64)
    assert dense[0, :, 1, 0].tolist() == pytest.approx([-s for s in slopes], rel=1e-15)
    assert dense[0, :, 2, 0].tolist() == pytest.approx([-5 * s for s in slopes], rel=1e-15)


def floating_bucket(relative: Tensor, bidirectional: bool, n_buckets: int, max_distance: int) -> Tensor:
    """The public code of T5, with key minus query and a floating logarithm."""
    buckets = torch.zeros_like(relative)
    if bidirectional:
        n_buckets //= 2
        buckets += (relative > 0) * n_buckets
        relative = relative.abs()
    else:
        relative = -torch.minimum(relative, torch.zeros_like(relative))
    exact = n_buckets // 2
    far = torch.log(relative.double() / exact) / math.log(max_distance / exact) * (n_buckets - exact)
    far = (exact + far.clamp(min=0).nan_to_num(0.0).long()).clamp(max=n_buckets - 1)
    return buckets + torch.where(relative < exact, relative, far)


@pytest.mark.parametrize(
    ("bidirectional", "n_buckets", "max_distance"),
    [(False, 32, 128), (True, 32, 128), (True, 16, 100), (False, 10, 77)],
)
def test_t5_buckets_as_the_public_code_has_them(bidirectional: bool, n_buckets: int, max_distance: int) -> None:
    t5 = posenc.T5(n_heads=1, n_buckets=n_buckets, max_distance=max_distance, bidirectional=bidirectional)
    distance = torch.arange(-300, 300)
    got = t5.bucket(distance)
    wanted = floating_bucket(-distance, bidirectional, n_buckets, max_distance)
    side = n_buckets // 2 if bidirectional else n_buckets
    exact = side // 2
    edges = [exact * (max_distance / exact) ** (m / (side - exact)) for m in range(side - exact)]
    whole = {round(edge) for edge in edges if abs(edge - round(edge)) < 1e-9}
    away = torch.tensor([abs(d) not in whole for d in distance.tolist()])
    assert torch.equal(got[away], wanted[away])
    assert away.sum() > 590


def test_transformer_xl_by_the_relative_shift() -> None:
    """Dai 2019, appendix B: all q·W r in one product, then each row is shifted by its index."""
    n, width = 6, 8
    xl = randomise(posenc.TransformerXL(d_model=width, n_heads=3, head_dim=4), 5)
    q, k = normal(1, 3, n, 4, seed=1), normal(1, 3, n, 4, seed=2)
    omega = 1 / 10000 ** (torch.arange(0, width, 2).double() / width)
    angle = torch.outer(torch.arange(n - 1, -1, -1).double(), omega)  # distances n - 1 .. 0
    r = torch.cat((angle.sin(), angle.cos()), -1) @ xl.weight.detach().mT  # (heads, n, head_dim)
    by_position = (q + xl.v.detach()[:, None]) @ r.mT
    padded = torch.cat((torch.zeros(1, 3, n, 1).double(), by_position), -1)
    shifted = padded.reshape(1, 3, n + 1, n)[:, :, 1:].reshape(1, 3, n, n)
    wanted = (shifted + xl.u.detach()[:, None] @ k.mT) / 2
    placed = xl.place(positions.arange(n), dtype=torch.float64)
    got = xl.bias(q, k, placed, placed).detach()
    causal = torch.ones(n, n).tril().bool()
    torch.testing.assert_close(got[..., causal], wanted[..., causal], rtol=0, atol=1e-12)


def test_xpos_as_its_authors_scale_it() -> None:
    """TorchScale: scale ** ((position - centre) / 512) beside cos and sin, and 1 / scale for the keys."""
    x, length = normal(1, 1, 9, 8), 9
    scale = (torch.arange(0, 8, 2).double() + 0.4 * 8) / (1.4 * 8)
    power = (torch.arange(length) - length // 2).double() / 512
    scale = scale ** power[:, None]
    angle = torch.outer(torch.arange(length).double(), 1 / 10000 ** (torch.arange(0, 8, 2).double() / 8))
    every_two = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    xpos = posenc.XPos(head_dim=8, centre=float(length // 2))
    turned = xpos.rotate(x, x, xpos.place(positions.arange(length), dtype=torch.float64))
    for got, factor in zip(turned, (scale, 1 / scale), strict=True):
        sin, cos = ((t * factor).repeat_interleave(2, -1) for t in (angle.sin(), angle.cos()))
        torch.testing.assert_close(got, x * cos + every_two * sin, rtol=0, atol=1e-14)


def test_kerple_numbers() -> None:
    """Chi 2022, equation 5, with r1 = 2 and r2 = 1/2: -2 log(1 + d/2) at 0, 2 and 8 is 0, -2 log 2, -2 log 5."""
    kerple = posenc.KERPLE(n_heads=1).double()
    with torch.no_grad():
        kerple.log_r1.fill_(math.log(2.0))
        kerple.log_r2.fill_(math.log(0.5))
    got = kerple.dense(torch.tensor([8]), torch.tensor([8, 6, 0]), dtype=torch.float64).flatten().tolist()
    assert got == pytest.approx([0.0, -1.3862943611198906, -3.2188758248682006], rel=1e-14)


def test_relative_bias_is_shaws_clipping_with_the_sign_reversed() -> None:
    bias = randomise(posenc.RelativeBias(n_heads=2, max_distance=2), 1)
    table = bias.weight.detach()
    got = bias.dense(torch.arange(6), dtype=torch.float64)[0].detach()
    for i in range(6):
        for j in range(6):
            shaw = max(-2, min(2, j - i))  # Shaw 2018, section 3.2, counts from the query to the key
            assert torch.equal(got[:, i, j], table[:, 2 - shaw])
