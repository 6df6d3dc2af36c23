"""The three faces of a bias are one: the dense mask, the bias in attend, and a FlexAttention score_mod."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention

import posenc
import strategies
from posenc import attend, positions
from strategies import check, normal, randomise, refuses

BIASES = [
    posenc.ALiBi(n_heads=4),
    posenc.ALiBi(n_heads=6, slopes="geometric"),
    randomise(posenc.KERPLE(n_heads=4), 1).float(),
    randomise(posenc.RelativeBias(n_heads=4, max_distance=5), 2).float(),
    randomise(posenc.T5(n_heads=4, n_buckets=8, max_distance=12, score_scale=1.0), 3).float(),
    randomise(posenc.T5(n_heads=4, n_buckets=8, max_distance=12, bidirectional=True), 4).float(),
]


def tensors(encoding: Any, n: int, k_len: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    h = encoding.n_heads
    return tuple(normal(2, h, length, 16, seed=i).float() for i, length in enumerate((n, k_len or n, k_len or n)))  # type: ignore[return-value]


@pytest.mark.parametrize("encoding", BIASES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_dense_is_ready_for_plain_sdpa(encoding: Any, causal: bool) -> None:
    q, k, v = tensors(encoding, 3, 9)
    k_pos = torch.tensor([0, 5, 1, 40, 2, 3, 9, 8, 20])
    mask = encoding.dense(k_pos[-3:], k_pos, causal=causal)
    assert mask.shape == (1, encoding.n_heads, 3, 9)
    assert mask.dtype == torch.float32
    got = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=encoding.score_scale(16))
    wanted = attend(q, k, v, encoding, k_pos[-3:], k_pos, causal=causal, backend="reference")
    torch.testing.assert_close(got, wanted, rtol=0, atol=4e-6)


@pytest.mark.parametrize("q", [2**63 - 2, 2**62 - 1, -(2**62)])
@pytest.mark.parametrize("k", [2**63 - 2, 2**62 - 1, -(2**62)])
def test_alibi_at_the_ends_of_int64(q: int, k: int) -> None:
    rows, columns = [q, q + 1], [k, k + 1]
    found = posenc.ALiBi(n_heads=1).dense(torch.tensor(rows), torch.tensor(columns))[0, 0]
    for i, j in ((i, j) for i in range(2) for j in range(2) if abs(rows[i] - columns[j]) < 2**63):
        assert float(found[i, j]) == pytest.approx(-abs(rows[i] - columns[j]) / 256, rel=1e-6)


@pytest.mark.compiles  # flex_attention traces score_mod, whether it is compiled or not
@pytest.mark.parametrize("encoding", BIASES, ids=str)
@pytest.mark.parametrize("batched", [False, True])
def test_score_mod_is_the_bias(encoding: Any, batched: bool) -> None:
    q, k, v = tensors(encoding, 8, 16)
    k_pos = torch.stack((torch.arange(16) * 3, torch.arange(16) + 7))
    k_pos = k_pos if batched else k_pos[0]
    placed, k_placed = encoding.place(k_pos[..., -8:]), encoding.place(k_pos)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it advises to compile
        got = flex_attention(q, k, v, score_mod=encoding.score_mod(placed, k_placed), scale=encoding.score_scale(16))
    wanted = attend(q, k, v, encoding, placed, k_placed, causal=False, backend="reference-float64")
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5)


@pytest.mark.compiles
@pytest.mark.parametrize("encoding", [BIASES[0], BIASES[2]], ids=str)
def test_score_mod_takes_real_positions(encoding: Any) -> None:
    q, k, v = tensors(encoding, 8)
    placed = encoding.place(torch.arange(8) / 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        got = flex_attention(q, k, v, score_mod=encoding.score_mod(placed))
    assert got.dtype == torch.float32
    torch.testing.assert_close(
        got, attend(q, k, v, encoding, placed, causal=False, backend="reference"), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("encoding", BIASES, ids=str)
@given(data=st.data())
@check(25)
def test_score_mod_one_score_at_a_time(encoding: Any, data: st.DataObject) -> None:
    pos, k_pos = (data.draw(strategies.sites(encoding, max_len=3)) for _ in "qk")
    placed, k_placed = (encoding.place(p, dtype=torch.float64) for p in (pos, k_pos))
    mod, rows = encoding.score_mod(placed, k_placed), pos.shape[0] if pos.ndim == 2 else 1
    b, h = data.draw(st.integers(0, min(rows, k_pos.shape[0] if k_pos.ndim == 2 else rows) - 1)), 1
    i, j = (data.draw(st.integers(0, p.shape[-1] - 1)) for p in (pos, k_pos))
    got = mod(torch.tensor(2.5, dtype=torch.float64), *map(torch.tensor, (b, h, i, j)))
    one = pos[b] if pos.ndim == 2 else pos, k_pos[b] if k_pos.ndim == 2 else k_pos
    wanted = encoding.dense(*one, dtype=torch.float64)[0, h, i, j] + 2.5
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("encoding", BIASES, ids=str)
def test_dense_causal_goes_by_index(encoding: Any) -> None:
    pos = torch.tensor([9, 0, 4, 4])
    dense = encoding.dense(pos[-2:], pos, causal=True, dtype=torch.bfloat16)
    assert dense.dtype == torch.bfloat16
    hidden = torch.tensor([[False, False, False, True], [False] * 4])
    assert torch.equal(dense == -torch.inf, hidden.expand_as(dense))
    assert not encoding.dense(pos, dtype=torch.float64).isinf().any()


@pytest.mark.parametrize("cls", [posenc.ALiBi, posenc.KERPLE, posenc.T5, posenc.RelativeBias])
def test_heads_are_counted(cls: Any) -> None:
    with refuses(ValueError, f"{cls.__name__}: n_heads must be at least 1; got n_heads=0"):
        cls(n_heads=0)
    bias, q = cls(n_heads=2), normal(1, 3, 2, 4)
    placed = bias.place(positions.arange(2))
    with refuses(ValueError, "made for n_heads=2, but q has 3 heads", "Construct it with n_heads=3"):
        bias.bias(q, q, placed, placed)


def test_errors_of_the_constructors() -> None:
    for make, words in (
        (lambda: posenc.ALiBi(n_heads=2, slopes="steep"), ["slopes must be 'authors' or 'geometric'", "'steep'"]),
        (lambda: posenc.RelativeBias(n_heads=2, max_distance=-1), ["not be negative; got max_distance=-1"]),
        (lambda: posenc.T5(n_heads=2, n_buckets=1), ["at least 2 per direction", "n_buckets=1"]),
        (lambda: posenc.T5(n_heads=2, n_buckets=2, bidirectional=True), ["at least 2 per direction"]),
        (lambda: posenc.T5(n_heads=2, n_buckets=7, bidirectional=True), ["even when bidirectional", "7"]),
        (lambda: posenc.T5(n_heads=2, max_distance=16), ["must exceed the 16 distances", "max_distance=16"]),
        (lambda: posenc.TransformerXL(d_model=3, n_heads=1, head_dim=2), ["d_model must be even", "d_model=3"]),
    ):
        with refuses(ValueError, *words):
            make()


@pytest.mark.parametrize("encoding", [posenc.T5(n_heads=2), posenc.RelativeBias(n_heads=2)], ids=str)
def test_tables_refuse_real_positions(encoding: Any) -> None:
    with refuses(TypeError, f"{encoding.name}: needs integer positions", "got torch.float32", "pos.long()"):
        encoding.place(torch.zeros(2))


def test_transformer_xl_refuses_other_heads() -> None:
    xl, q = posenc.TransformerXL(d_model=4, n_heads=2, head_dim=4), normal(1, 2, 2, 6)
    placed = xl.place(positions.arange(2))
    with refuses(ValueError, "TransformerXL: made for n_heads=2 and head_dim=4", "(1, 2, 2, 6)"):
        xl.bias(q, q, placed, placed)


BY_HEAD = [name for name in posenc.names() if isinstance(posenc.card(name).examples()[0], posenc.Bias)]


@pytest.mark.parametrize("name", BY_HEAD)
def test_some_heads_are_rows_of_the_whole(name: str) -> None:
    """As a rank of tensor parallelism has them, forwards and back: what is learned gets what its heads say."""
    for example in posenc.card(name).examples():
        encoding = randomise(copy.deepcopy(example), 0)
        if encoding.reads_x:
            continue  # FoX: on two ranks in test_parallel
        pos = positions.grid(2, 3) if encoding.n_axes > 1 else positions.arange(6)
        pull = normal(encoding.n_heads, 6, 6, seed=1)
        whole = encoding.dense(pos, dtype=torch.float64)
        learned = list(encoding.parameters())
        for first, n in ((0, 1), (1, encoding.n_heads - 1)):
            heads = slice(first, first + n)
            part = encoding.of_heads(first, n).dense(pos, dtype=torch.float64)
            torch.testing.assert_close(part, whole[:, heads], rtol=0, atol=1e-12)
            if learned:
                found, wanted = (
                    torch.autograd.grad((t[0] * pull[heads]).sum(), learned, retain_graph=True, allow_unused=True)
                    for t in (part, whole[:, heads])
                )
                for one, other in zip(found, wanted, strict=True):
                    one, other = (torch.zeros(()) if t is None else t for t in (one, other))
                    torch.testing.assert_close(one, other.expand_as(one), rtol=0, atol=1e-11)
