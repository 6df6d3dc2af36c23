"""DeBERTa and FoX: what their laws do not ask, since it is of one of them alone."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention.flex_attention import flex_attention

import posenc
from posenc import attend, definitions, positions
from posenc.nn import Cache, LanguageModel
from posenc.probe import count_numbers
from strategies import check, normal, randomise, refuses

BOTH = ("c2p", "p2c")


def deberta(n_heads: int = 2, terms: Sequence[str] = BOTH, **options: Any) -> Any:
    options = {"head_dim": 3, "n_buckets": 6, "max_distance": 12} | options
    return randomise(posenc.DeBERTa(n_heads=n_heads, terms=tuple(terms), **options), 1)


def tupe(**options: Any) -> Any:
    return randomise(posenc.TUPE(**({"n_heads": 3, "head_dim": 4, "max_len": 20} | options)), 2)


def fox(d_model: int = 6, n_heads: int = 3) -> Any:
    return randomise(posenc.FoX(d_model=d_model, n_heads=n_heads), 3)


def test_deberta_rows_by_hand() -> None:
    """Buckets 0, 1 and 2 are exact; then 2 + ceil(log2(n / 2) / 2): 3 up to 8, which is an edge, and 4 beyond."""
    encoding = posenc.DeBERTa(n_heads=1, head_dim=1, n_buckets=4, max_distance=9)
    far = torch.tensor([0, 1, 2, 3, 7, 8, 9, 32, 33, 10**9])
    assert encoding.row(far).tolist() == [4, 5, 6, 7, 7, 7, 7, 7, 7, 7]
    assert encoding.row(-far).tolist() == [4, 3, 2, 1, 1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("terms", [BOTH, ("c2p",), ("p2c",)])
@given(data=st.data())
@check(40)
def test_deberta_of_any_queries_and_keys(terms: Sequence[str], data: st.DataObject) -> None:
    """Near or far, in order or not, in blocks or not: each pair is by itself."""
    encoding = deberta(terms=terms)
    spot = st.one_of(st.integers(-40, 40), st.sampled_from([-(10**6), 10**6]))
    in_order = data.draw(st.booleans())
    drawn = [data.draw(st.lists(spot, min_size=1, max_size=9)) for _ in "qk"]
    q_pos, k_pos = (torch.tensor(sorted(p) if in_order else p) for p in drawn)
    q, k = (normal(1, 2, len(p), 3, seed=i) for i, p in enumerate((q_pos, k_pos)))
    got = encoding.bias(q, k, *(encoding.place(p, dtype=torch.float64) for p in (q_pos, k_pos)))
    tables = {name: p.detach().numpy() for name, p in encoding.named_parameters()}
    define: Any = definitions.find("deberta")
    wanted = define(q[0].numpy(), k[0].numpy(), q_pos.numpy(), k_pos.numpy(), **encoding.options(), **tables)
    np.testing.assert_allclose(got[0].detach().numpy(), wanted, atol=1e-12)


def test_deberta_of_rows_of_a_batch_that_are_far_apart() -> None:
    """A key is far only if it is in every row of the batch."""
    encoding, q, k = deberta(), normal(2, 2, 3, 3), normal(2, 2, 50, 3, seed=1)
    k_pos = torch.stack((torch.arange(50), torch.arange(50) + 100))
    q_pos = torch.tensor([[47, 48, 49], [100, 101, 102]])
    got = encoding.bias(q, k, *(encoding.place(p, dtype=torch.float64) for p in (q_pos, k_pos)))
    for b in range(2):
        alone = [encoding.place(p[b], dtype=torch.float64) for p in (q_pos, k_pos)]
        torch.testing.assert_close(
            got[b : b + 1], encoding.bias(q[b : b + 1], k[b : b + 1], *alone), rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("order", ["along", "mixed"])
def test_deberta_of_many_near_keys_is_that_of_each_alone(order: str) -> None:
    encoding, q, k = deberta(n_buckets=256, max_distance=512), normal(1, 2, 7, 3), normal(1, 2, 300, 3, seed=1)
    k_pos = torch.arange(300) if order == "along" else torch.randperm(300, generator=torch.Generator().manual_seed(0))
    placed, k_placed = (encoding.place(p, dtype=torch.float64) for p in (torch.arange(140, 147), k_pos))
    alone = [encoding.bias(q, k[:, :, j : j + 1], placed, k_placed.rows(j, j + 1)) for j in range(300)]
    torch.testing.assert_close(encoding.bias(q, k, placed, k_placed), torch.cat(alone, -1), rtol=0, atol=1e-13)


def test_deberta_shares_keys_among_groups_of_heads() -> None:
    encoding, q, k = deberta(4), normal(1, 4, 5, 3), normal(1, 2, 30, 3, seed=1)
    placed, k_placed = (encoding.place(p, dtype=torch.float64) for p in (torch.arange(25, 30), torch.arange(30)))
    wanted = encoding.bias(q, k[:, [0, 0, 1, 1]], placed, k_placed)
    assert torch.equal(encoding.bias(q, k, placed, k_placed), wanted)


def test_deberta_gradients_where_most_keys_are_far() -> None:
    encoding, q, k = deberta(), normal(1, 2, 2, 3).requires_grad_(), normal(1, 2, 40, 3, seed=1).requires_grad_()
    placed, k_placed = (encoding.place(p, dtype=torch.float64) for p in (torch.tensor([19, 21]), torch.arange(40)))
    assert encoding._sizes(placed.pos, k_placed.pos) == [8, 25, 7]  # rows end 12 away

    def run(q: Tensor, k: Tensor, *tables: Tensor) -> Tensor:
        named = dict(zip(("key_table", "query_table"), tables, strict=True))
        return torch.func.functional_call(Door(encoding), {f"encoding.{n}": t for n, t in named.items()}, (q, k))

    class Door(torch.nn.Module):
        def __init__(self, encoding: Any) -> None:
            super().__init__()
            self.encoding = encoding

        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            return self.encoding.bias(q, k, placed, k_placed)

    tables = [p.detach().clone().requires_grad_() for p in encoding.parameters()]
    assert torch.autograd.gradcheck(run, (q, k, *tables), fast_mode=True)


def test_deberta_computes_little_for_a_key_that_is_far() -> None:
    """A sum a pair, written twice: no product with all rows of a table."""
    encoding, rows = posenc.DeBERTa(n_heads=2, head_dim=4, n_buckets=256, max_distance=512), 8

    def work(n: int) -> int:
        q, k = torch.ones(1, 2, rows, 4), torch.ones(1, 2, n, 4)
        placed, k_placed = encoding.place(torch.arange(n - rows, n)), encoding.place(torch.arange(n))
        return count_numbers(lambda: encoding.bias(q, k, placed, k_placed))

    assert (work(3000) - work(2000)) / 1000 < 3 * 2 * rows + 30


@pytest.mark.parametrize("kind", ["deberta", "transformer_xl"])
def test_rows_of_what_is_learned_are_those_heads(kind: str) -> None:
    """As each rank of tensor parallelism has them."""
    options: dict[str, Any] = {"head_dim": 8}
    options |= {"n_buckets": 6, "max_distance": 9} if kind == "deberta" else {"d_model": 6}
    whole, pos = randomise(posenc.create(kind, n_heads=6, **options), 3), positions.arange(40)
    q, k, v = (normal(2, 6, 40, 8, seed=i) for i in range(3))
    expected = attend(q, k, v, whole, pos)
    for mine in (slice(0, 2), slice(2, 6)):
        share = posenc.create(kind, n_heads=mine.stop - mine.start, **options).double()
        share.load_state_dict({name: t[mine] for name, t in whole.state_dict().items()})
        found = attend(q[:, mine], k[:, mine], v[:, mine], share, pos)
        torch.testing.assert_close(found, expected[:, mine], rtol=0, atol=1e-12)


def test_deberta_errors() -> None:
    for options, words in (
        ({"n_buckets": 3}, ["n_buckets must be at least 4; got n_buckets=3"]),
        ({"n_buckets": 8, "max_distance": 5}, ["max_distance must be at least 6", "got max_distance=5"]),
        ({"terms": ()}, ["terms must be 'c2p', 'p2c' or both", "got terms=()"]),
        ({"terms": ("c2p", "c2p")}, ["terms must be"]),
        ({"terms": ("p2p",)}, ["terms must be", "('p2p',)"]),
        ({"terms": "c2p"}, ["terms must be", "in a tuple; got terms='c2p'"]),
        ({"n_heads": 0}, ["n_heads must be at least 1"]),
    ):
        with refuses(ValueError, "DeBERTa: ", *words):
            posenc.DeBERTa(**({"n_heads": 2, "head_dim": 4} | options))  # type: ignore[arg-type]
    encoding, q = deberta(), normal(1, 2, 2, 4)
    placed = encoding.place(positions.arange(2))
    with refuses(ValueError, "DeBERTa: made for n_heads=2 and head_dim=3", "(1, 2, 2, 4)"):
        encoding.bias(q, q, placed, placed)
    with refuses(TypeError, "DeBERTa: needs integer positions"):
        encoding.place(torch.zeros(2))


def test_deberta_has_the_tables_of_its_terms_alone() -> None:
    assert set(deberta(terms=("c2p",)).state_dict()) == {"key_table"}
    assert set(deberta(terms=("p2c",)).state_dict()) == {"query_table"}
    assert deberta(terms=("p2c",)).score_scale(8) == 0.25
    assert deberta().score_scale(12) == pytest.approx(1 / 6)


def literal_fox(encoding: Any, x: Tensor) -> Tensor:
    """-log(1 + e^-z) of every token after the key up to the query, one by one."""
    out = torch.zeros(x.shape[0], encoding.n_heads, x.shape[1], x.shape[1], dtype=torch.float64)
    weight, bias = encoding.weight.detach(), encoding.b.detach()
    for b, h, i, j in np.ndindex(*out.shape):
        gates = [float(x[b, t] @ weight[h] + bias[h]) for t in range(min(i, j) + 1, max(i, j) + 1)]
        out[b, h, i, j] = math.copysign(1, j - i) * sum(math.log1p(math.exp(-z)) for z in gates)
    return out


@pytest.mark.parametrize("batched", [False, True])
def test_fox_is_a_sum_of_gates(batched: bool) -> None:
    encoding, x = fox(), normal(2, 5, 6)
    pos = torch.tensor([[3, 4, 5, 0, 1]] * 2) if batched else torch.arange(5)
    placed = encoding.place(pos, x, dtype=torch.float64)
    q = normal(2, 3, 5, 4)
    torch.testing.assert_close(
        encoding.bias(q, q, placed, placed).detach(), literal_fox(encoding, x), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fox_goes_on_from_a_past(dtype: torch.dtype) -> None:
    encoding, x = fox(), normal(2, 7, 6)
    for t in (encoding.weight.data, encoding.b.data, x):  # eighths, whose products are exact in whatever order
        t.mul_(8).round_().div_(8)
    whole = encoding.place(torch.arange(7), x, dtype=dtype)
    past = encoding.place(torch.arange(0), x[:, :0], dtype=dtype)
    for begin, end in ((0, 3), (3, 4), (4, 7)):
        new = encoding.place(torch.arange(begin, end), x[:, begin:end], past=past, dtype=dtype)
        past = past.cat(new)
    assert past.pos.shape == whole.pos.shape == (2, 7)
    for got, wanted in zip(past.parts, whole.parts, strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-14)
    total = [sum(part.double() for part in p.parts) for p in (past, whole)]  # in float32 as well
    torch.testing.assert_close(*total, rtol=0, atol=1e-12)


def test_fox_past_of_one_row_serves_a_batch() -> None:
    encoding, x = fox(), normal(1, 4, 6)
    past = encoding.place(torch.arange(2), x[:, :2], dtype=torch.float64)
    new = encoding.place(torch.arange(2, 4), x[:, 2:].expand(3, -1, -1), past=past, dtype=torch.float64)
    wanted = encoding.place(torch.arange(4), x, dtype=torch.float64)
    torch.testing.assert_close(past.cat(new).parts[0], wanted.parts[0].expand(3, -1, -1), rtol=0, atol=1e-14)


def test_fox_differences_are_right_at_the_end_of_a_long_text() -> None:
    """Sums of 40,000 logarithms are tens of thousands; float32 would know them to 0.002."""
    encoding, n = fox().float(), 40_000
    x = normal(1, n, 6).float()
    placed = encoding.place(torch.arange(n), x)
    assert float(placed.parts[0].detach().abs().max()) > 20_000
    last = placed.last(6)
    q = torch.ones(1, 3, 6, 4)
    got = encoding.bias(q, q, last, last).detach()
    torch.testing.assert_close(got.double(), literal_fox(encoding.double(), x[:, -6:].double()), rtol=1e-6, atol=1e-6)


def test_fox_forgets_nothing_at_what_is_not_finite() -> None:
    encoding, x = fox(), normal(1, 6, 6)
    padded = torch.cat((torch.full((1, 2, 6), torch.nan).double(), x), 1)
    padded[0, 1, 3] = torch.inf
    q = normal(1, 3, 6, 4)

    def run(tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
        tokens = tokens.clone().requires_grad_()
        placed = encoding.place(torch.arange(tokens.shape[1]), tokens, dtype=torch.float64).last(6)
        bias = encoding.bias(q, q, placed, placed)
        wanted = [tokens, encoding.weight, encoding.b]
        return bias.detach(), list(torch.autograd.grad((bias * normal(*bias.shape)).sum(), wanted))

    (alone, of_alone), (behind, of_behind) = run(x), run(padded)
    torch.testing.assert_close(behind, alone, rtol=0, atol=1e-13)
    assert not of_behind[0][:, :2].any()
    for got, wanted in zip([of_behind[0][:, 2:], *of_behind[1:]], of_alone, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


def test_fox_jumps_over_what_is_not_finite_in_the_middle() -> None:
    encoding, x = fox(), normal(1, 5, 6)
    broken = x.clone()
    broken[0, 2, 0] = torch.nan
    q, rest = normal(1, 3, 4, 4), [0, 1, 3, 4]
    placed = encoding.place(torch.arange(5), broken, dtype=torch.float64)
    around = posenc.Placed(placed.pos[:, rest], tuple(part[:, rest] for part in placed.parts))
    wanted = literal_fox(encoding, x[:, rest])
    torch.testing.assert_close(encoding.bias(q, q, around, around).detach(), wanted, rtol=0, atol=1e-12)


def test_fox_of_some_heads_is_those_of_all() -> None:
    encoding, x = fox(), normal(2, 5, 6)
    twin, placed = encoding.of_heads(1, 2), encoding.place(torch.arange(5), x, dtype=torch.float64)
    q = normal(2, 3, 5, 4)
    whole = encoding.bias(q, q, placed, placed)
    assert torch.equal(twin.bias(q[:, 1:], q[:, 1:], placed, placed), whole[:, 1:])
    mod, heads = twin.score_mod(placed), [encoding.score_mod(placed)]
    for b, i, j in np.ndindex(2, 5, 5):
        zero, at = torch.zeros((), dtype=torch.float64), list(map(torch.tensor, (i, j)))
        assert mod(zero, torch.tensor(b), torch.tensor(1), *at) == whole[b, 2, i, j]
        assert heads[0](zero, torch.tensor(b), torch.tensor(0), *at) == whole[b, 0, i, j]


@pytest.mark.compiles  # flex_attention traces score_mod, whether it is compiled or not
@pytest.mark.parametrize("name", ["fox", "tupe"])
def test_score_mod_is_the_bias(name: str) -> None:
    encoding = {"fox": fox, "tupe": tupe}[name]().float()
    q, k, v = (normal(2, 3, 16, 16, seed=i).float() for i in range(3))
    x = normal(2, 16, 6).float() if encoding.reads_x else None
    placed = encoding.place(torch.arange(16), x)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", UserWarning)  # it advises to compile
        got = flex_attention(q, k, v, score_mod=encoding.score_mod(placed), scale=encoding.score_scale(16))
    wanted = attend(q, k, v, encoding, placed, causal=False, backend="reference")
    torch.testing.assert_close(got, wanted.detach(), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.compiles
@pytest.mark.parametrize("make", [deberta, tupe], ids=["deberta", "tupe"])
def test_compiled_once_for_all_lengths(make: Any) -> None:
    """Nothing is read off the positions there, and what comes out is the same."""
    torch.compiler.reset()
    encoding = make(head_dim=4).float()

    def run(q: Tensor, k: Tensor, pos: Tensor) -> Tensor:
        placed = encoding.place(pos)
        return encoding.bias(q, k, placed.last(q.shape[2]), placed)

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=True)
    with torch.no_grad():
        for n in (13, 18, 20):
            q, k = (normal(1, encoding.n_heads, m, 4, seed=m).float() for m in (n // 2, n))
            torch.testing.assert_close(compiled(q, k, torch.arange(n)), run(q, k, torch.arange(n)), rtol=0, atol=1e-5)


def test_fox_decodes_with_a_cache() -> None:
    torch.manual_seed(0)
    model = LanguageModel(vocab_size=11, d_model=16, n_layers=2, n_heads=4, encoding=posenc.FoX(d_model=16, n_heads=4))
    tokens, cache = torch.randint(11, (2, 9)), Cache()
    with torch.no_grad():
        whole = model(tokens)
        steps = torch.cat([model(part, cache=cache) for part in tokens.split((4, 1, 3, 1), 1)], 1)
    torch.testing.assert_close(steps, whole, rtol=0, atol=2e-5)


def test_fox_errors() -> None:
    encoding, pos, x = fox(), torch.arange(3), torch.zeros(1, 3, 6)
    cases: list[tuple[Any, type[Exception], list[str]]] = [
        (lambda: encoding.place(pos), TypeError, ["FoX: reads the tokens", "got x=None", "place(pos, x)"]),
        (lambda: encoding.dense(pos), TypeError, ["FoX: reads the tokens"]),
        (lambda: encoding.place(torch.zeros(3), x), TypeError, ["FoX: needs integer positions"]),
        (lambda: posenc.FoX(d_model=0, n_heads=1), ValueError, ["FoX: d_model must be at least 1"]),
        (lambda: posenc.FoX(d_model=1, n_heads=0), ValueError, ["FoX: n_heads must be at least 1"]),
    ]
    for shape in ((3, 6), (1, 4, 6), (1, 3, 5)):
        words = ["FoX: x must be (batch, seq_len=3, d_model=6)", f"got {shape}"]
        cases.append((lambda shape=shape: encoding.place(pos, torch.zeros(shape)), ValueError, words))
    for call, kind, words in cases:
        with refuses(kind, *words):
            call()


@pytest.mark.filterwarnings("ignore:.torch.jit.script")  # torch's own, where it looks for tangents first
def test_deberta_s_far_keys_have_tangents_where_no_gradients_are_kept() -> None:
    encoding = deberta()
    q, k, tangent = (normal(1, 2, n, 3, seed=i) for i, n in enumerate((6, 90, 6)))
    placed = encoding.place(positions.arange(6, start=84)), encoding.place(positions.arange(90))
    with torch.no_grad():
        difference = encoding.bias(q + tangent, k, *placed) - encoding.bias(q, k, *placed)  # it is linear in q
        with forward_ad.dual_level():
            found = encoding.bias(forward_ad.make_dual(q, tangent), k, *placed)
            moved = forward_ad.unpack_dual(found).tangent
    torch.testing.assert_close(moved, difference, atol=1e-4, rtol=0)
