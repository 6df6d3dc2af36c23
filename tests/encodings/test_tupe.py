"""TUPE: its [CLS], its heads, and rows of its tables: cast, of documents, of no token, and outside of the tables."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import posenc
from posenc import attend, definitions, positions
from posenc.probe import count_numbers
from strategies import normal, randomise, refuses

HEADS, LANES, N = 3, 4, 20
HALVES = (torch.bfloat16, torch.float16)


def tupe(*, dtype: torch.dtype = torch.float32, **options: Any) -> posenc.TUPE:
    made: posenc.TUPE = randomise(posenc.TUPE(**({"n_heads": HEADS, "head_dim": LANES, "max_len": N} | options)), 2)
    return made.to(dtype)


def exact(**options: Any) -> Any:
    return tupe(dtype=torch.float64, **options)


@pytest.mark.parametrize("untie_cls", [False, True])
def test_one_score_at_a_time(untie_cls: bool) -> None:
    encoding = exact(untie_cls=untie_cls)
    q_pos, k_pos = torch.tensor([[0, 7, 3], [5, 0, 19]]), torch.tensor([[4, 0, 0, 12], [0, 1, 2, 3]])
    placed, k_placed = (encoding.place(p, dtype=torch.float64) for p in (q_pos, k_pos))
    mod = encoding.score_mod(placed, k_placed)
    for b, h, i, j in np.ndindex(2, 3, 3, 4):
        got = mod(torch.tensor(0.5, dtype=torch.float64), *map(torch.tensor, (b, h, i, j)))
        wanted = encoding.dense(q_pos[b], k_pos[b], dtype=torch.float64)[0, h, i, j] + 0.5
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize("q_pos", [[0, 7, 3], [7, 3, 1], [5, 0, 0]])
@pytest.mark.parametrize("learns", [False, True])
def test_rows_of_cls_stand_wherever_they_are_asked(q_pos: list[int], learns: bool) -> None:
    """A block of queries may hold [CLS] or not, and what it pays is kept out of a softmax alone."""
    encoding, k_pos = exact(), [4, 0, 12]
    with torch.set_grad_enabled(learns):
        got = encoding.dense(torch.tensor(q_pos), torch.tensor(k_pos), dtype=torch.float64)[0].detach().numpy()
    learned = {name: p.detach().double().numpy() for name, p in encoding.named_parameters()}
    wanted = definitions.find("tupe")(np.array(q_pos), np.array(k_pos), **encoding.options(), **learned)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-13)


def test_of_some_heads_is_those_of_all() -> None:
    encoding, pos = exact(), torch.arange(7)
    twin = encoding.of_heads(1, 2)
    whole = encoding.dense(pos, dtype=torch.float64)
    assert torch.equal(twin.dense(pos, dtype=torch.float64), whole[:, 1:])
    placed = twin.place(pos, dtype=torch.float64)
    score = twin.score_mod(placed)(torch.zeros((), dtype=torch.float64), *map(torch.tensor, (0, 1, 3, 5)))
    torch.testing.assert_close(score, whole[0, 2, 3, 5], rtol=0, atol=1e-14)


def test_no_softmax_sees_what_cls_pays() -> None:
    encoding, (q, k, v) = exact(), (normal(1, 3, 6, 4, seed=i) for i in range(3))

    def run() -> Tensor:
        return attend(q, k, v, encoding, torch.arange(6), causal=False, backend="reference-float64")

    before = run()
    paid, to_cls = torch.autograd.grad(before.square().sum(), [encoding.cls_to, encoding.to_cls])
    assert paid.abs().max() < 1e-14 < 1e-3 < to_cls.abs().min()
    with torch.no_grad():
        encoding.cls_to.add_(3.0)
    torch.testing.assert_close(run(), before, rtol=0, atol=1e-13)
    assert encoding.dense(torch.arange(6))[0, 0, 0, 0] == encoding.cls_to[0].float()


def test_divides_both_products_by_the_same() -> None:
    encoding = exact(untie_cls=False)
    with torch.no_grad():
        encoding.q_table[1, 5], encoding.k_table[1, 9] = torch.tensor([[1.0, 0, 2, 0], [3.0, 9, 4, 9]])
    assert encoding.score_scale(8) == 0.25
    assert float(encoding.dense(torch.tensor([5]), torch.tensor([9]))[0, 1].detach()) == pytest.approx(11 / 8**0.5)


def test_forms_no_product_lane_by_lane() -> None:
    encoding = posenc.TUPE(n_heads=2, head_dim=64, max_len=100)
    assert count_numbers(lambda: encoding.dense(torch.arange(100))) < 2 * 100 * 100 * 5 + 2 * 100 * 64 * 10


def test_errors() -> None:
    for pos in (torch.tensor([0, 20]), torch.tensor([[-1, 3]])):
        with refuses(ValueError, "TUPE: positions must lie in 0..19, because it has max_len=20"):
            exact().place(pos)
    for name in ("n_heads", "head_dim", "max_len"):
        with refuses(ValueError, f"TUPE: {name} must be at least 1; got {name}=0"):
            exact(**{name: 0})
    with refuses(TypeError, "TUPE: needs integer positions"):
        exact().place(torch.zeros(2))


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
