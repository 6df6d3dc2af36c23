"""GRAPE-AP against the authors' formula written with torch's parts: caches, documents, padding, gradients."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import posenc
from posenc import positions
from strategies import normal, refuses

D_MODEL, HEADS, P_DIM = 6, 2, 4


def grape(**options: Any) -> Any:
    encoding = posenc.GRAPEAP(**{"d_model": D_MODEL, "n_heads": HEADS, "p_dim": P_DIM} | options).double()
    encoding.weight.data = normal(*encoding.weight.shape, seed=1)
    return encoding


def causal_bias(encoding: Any, x: Tensor, start: int = 0) -> Tensor:
    """Terms (batch, n_heads, n, n) of whole texts: complex numbers, and the whole row's sum less that up to the key."""
    n = x.shape[1]
    p = F.linear(x, encoding.weight).unflatten(-1, (HEADS, P_DIM)).transpose(1, 2)
    unit = p / torch.sqrt(p.square().mean(-1, keepdim=True) + 2**-23)
    pairs = torch.complex(*unit.chunk(2, -1)) * torch.exp(1j * torch.arange(start, start + n).double())[:, None]
    product = (torch.complex(*p.chunk(2, -1)) @ pairs.conj().transpose(-1, -2)).real / P_DIM
    slopes = torch.tensor([2.0**-4, 2.0**-8], dtype=torch.float64)[:, None, None]
    edges = (slopes * F.logsigmoid(product)).tril()
    return (edges.sum(-1, keepdim=True) - edges.cumsum(-1)).tril()


def contents(n: int, batch: int = 2) -> tuple[Tensor, Tensor]:
    return normal(batch, n, D_MODEL, seed=5), normal(batch, HEADS, n, 4, seed=6)


def attended(q: Tensor, terms: Tensor, mask: Tensor) -> Tensor:
    scores = (q @ q.transpose(-1, -2)) / 2 + terms
    return scores.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num() @ q


def test_attention_is_that_of_the_formula_backwards_too() -> None:
    encoding, (x, q) = grape(), contents(9)
    x.requires_grad_()
    got = posenc.attend(q, q, q, encoding, encoding.place(torch.arange(9), x, dtype=torch.float64))
    wanted = attended(q, causal_bias(encoding, x), torch.ones(9, 9).tril().bool())
    slopes = [torch.autograd.grad((t**3).sum(), [x, encoding.weight]) for t in (got, wanted)]
    for a, b in zip((got, *slopes[0]), (wanted, *slopes[1]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_a_cache_gives_the_last_rows() -> None:
    encoding, (x, q) = grape(), contents(8)
    wanted = attended(q, causal_bias(encoding, x, start=3), torch.ones(8, 8).tril().bool())
    placed = encoding.place(torch.arange(3, 4), x[:, :1], dtype=torch.float64)
    for begin, end in ((1, 2), (2, 6), (6, 8)):
        new = encoding.place(torch.arange(begin + 3, end + 3), x[:, begin:end], past=placed, dtype=torch.float64)
        placed = placed.cat(new)
        out = posenc.attend(q[:, :, begin:end], q[:, :, :end], q[:, :, :end], encoding, new, placed)
        torch.testing.assert_close(out, wanted[:, :, begin:end], rtol=0, atol=1e-12)


def test_documents_pay_for_their_own_tokens() -> None:
    encoding, (x, q) = grape(), contents(9)
    ids = torch.tensor([0] * 4 + [1] + [2] * 4)
    placed = encoding.place(positions.packed(ids), x, dtype=torch.float64)
    got = posenc.attend(q, q, q, encoding, placed, document_ids=ids)
    for begin, end in ((0, 4), (4, 5), (5, 9)):
        n = end - begin
        alone = attended(q[:, :, begin:end], causal_bias(encoding, x[:, begin:end]), torch.ones(n, n).tril().bool())
        torch.testing.assert_close(got[:, :, begin:end], alone, rtol=0, atol=1e-12)


def test_padding_costs_nothing_and_blocks_are_the_whole() -> None:
    encoding, (x, q) = grape(), contents(8)
    wanted = attended(q, causal_bias(encoding, x), torch.ones(8, 8).tril().bool())
    real = torch.tensor([[0] * 3 + [1] * 8] * 2).bool()
    padded = F.pad(x, (0, 0, 3, 0), value=torch.nan).requires_grad_()
    placed = encoding.place(positions.left_padded(real), padded, dtype=torch.float64)
    wide = F.pad(q, (0, 0, 3, 0))
    for backend in ("reference", "blocked"):
        got = posenc.attend(wide, wide, wide, encoding, placed, mask=real[:, None, None], backend=backend)
        torch.testing.assert_close(got[:, :, 3:], wanted, rtol=0, atol=1e-12)
    assert bool(torch.autograd.grad(got[:, :, 3:].sum(), padded)[0].isfinite().all())


def test_without_weights_it_is_alibi() -> None:
    """Each token costs ln 2 of the slope."""
    encoding, (x, q) = grape(), contents(6)
    encoding.weight.data.zero_()
    placed = encoding.place(torch.arange(6), x, dtype=torch.float64)
    alibi = posenc.ALiBi(n_heads=HEADS, slopes=tuple(torch.tensor([2.0**-4, 2.0**-8]).mul(0.6931471805599453).tolist()))
    wanted = posenc.attend(q, q, q, alibi, torch.arange(6))
    torch.testing.assert_close(posenc.attend(q, q, q, encoding, placed), wanted, rtol=0, atol=1e-7)


def test_errors() -> None:
    with refuses(ValueError, "p_dim must be even, because pairs rotate; got p_dim=3"):
        grape(p_dim=3)
    encoding, (x, q) = grape(), contents(4)
    with refuses(TypeError, "reads the tokens", "got x=None"):
        encoding.place(torch.arange(4))
    placed = encoding.place(torch.arange(4), x)
    with refuses(ValueError, "made for n_heads=2; got scores of 1 heads", "n_heads=1"):
        encoding.rescore(torch.zeros(2, 1, 4, 4), q, q, placed, placed, None)
