"""Rows of TUPE's tables: of models that were cast, of documents, of nobody, and outside of the tables."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import posenc
from posenc import attend, positions
from strategies import normal, randomise

HEADS, LANES, N = 3, 4, 20
HALVES = (torch.bfloat16, torch.float16)


def tupe(*, dtype: torch.dtype = torch.float32, **options: Any) -> posenc.TUPE:
    made: posenc.TUPE = randomise(posenc.TUPE(n_heads=HEADS, head_dim=LANES, max_len=N, **options), 2)
    return made.to(dtype)


@pytest.mark.parametrize("pos", [[3, 4, 5, 6], [0, 1, 2, 3], [0, 9, 0, 3]], ids=str)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("untie_cls", [False, True])
def test_of_a_model_that_was_cast_they_are_wide(untie_cls: bool, dtype: torch.dtype, pos: list[int]) -> None:
    cast, q = tupe(untie_cls=untie_cls, dtype=dtype), normal(1, HEADS, 4, LANES)
    wide = tupe(untie_cls=untie_cls)
    wide.load_state_dict(cast.state_dict())
    found, wanted = (one.bias(q, q, *[one.place(torch.tensor(pos))] * 2) for one in (cast, wide))
    assert found.dtype == torch.float32
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_gradients_of_many_documents_are_summed_wide(dtype: torch.dtype, backend: str) -> None:
    """Each row is that of 256 tokens, and a sum of as many in bfloat16 loses the small ones."""
    n_docs = 256
    ids = torch.arange(2 * n_docs) // 2
    q, k, v = (normal(1, HEADS, 2 * n_docs, LANES, seed=i).float() for i in range(3))

    def gradients(one: posenc.TUPE) -> dict[str, Tensor]:
        out = attend(q, k, v, one, positions.packed(ids), document_ids=ids, causal=False, backend=backend)
        names, learned = zip(*one.named_parameters(), strict=True)
        return dict(zip(names, torch.autograd.grad(out.pow(2).sum(), learned), strict=True))

    cast, wide = tupe(dtype=dtype), tupe()
    wide.load_state_dict(cast.state_dict())
    found, wanted = gradients(cast), gradients(wide)
    for name in ("q_table", "k_table", "to_cls"):
        assert wanted[name].abs().max() > 1e-2
        torch.testing.assert_close(found[name], wanted[name].to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-5)


@pytest.mark.parametrize("pos", [[-1, 0, 1], [18, 19, 20], [-1, 5, 3]], ids=str)
def test_outside_of_the_tables_there_are_none(pos: list[int]) -> None:
    """Positions that were placed where nobody might look, as a compiler places them, meet the look-up's own check."""
    encoding, bad, q = tupe(), torch.tensor(pos), normal(1, HEADS, 3, LANES)
    placed = encoding.place(torch.arange(3))
    placed = replace(placed, pos=bad, parts=(bad.to(placed.parts[0].dtype),))
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        encoding.bias(q, q, placed, placed)


@pytest.mark.parametrize(("q_len", "k_len"), [(0, 5), (0, 0), (3, 0)])
@pytest.mark.parametrize("untie_cls", [False, True])
def test_of_no_token_gradients_are_zero_and_there(untie_cls: bool, q_len: int, k_len: int) -> None:
    encoding = tupe(untie_cls=untie_cls)
    q, k = normal(1, HEADS, q_len, LANES), normal(1, HEADS, k_len, LANES)
    bias = encoding.bias(q, k, encoding.place(torch.arange(q_len)), encoding.place(torch.arange(k_len)))
    grads = torch.autograd.grad(bias.sum(), [encoding.q_table, encoding.k_table])
    assert all(not bool(grad.any()) for grad in grads)
