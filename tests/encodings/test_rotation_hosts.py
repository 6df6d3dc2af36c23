"""The learned, mixed and scaled rotations where they are used: lengths, slices, budgets, caches, models, company."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import posenc
from posenc import positions
from posenc.families import Budgeted, OfLength
from posenc.nn import Cache, LanguageModel
from rotation_examples import LEARNED, LISTS, NEW, L, made, places
from strategies import normal, randomise, refuses

LENGTHS = ["dynamic_ntk", "longrope"]

# lengths


@pytest.mark.parametrize("name", LENGTHS)
def test_a_length_must_be_given_and_stays_as_it_is(name: str) -> None:
    open_ = posenc.create(name, **NEW[name])
    q, pos = normal(1, 1, 5, 8), positions.arange(5)
    with refuses(ValueError, f"{open_.name}: depends on the length of the sequence", "got length=None", "construct it"):
        open_.place(pos)
    with refuses(ValueError, f"{open_.name}: depends on the length of the sequence"):
        posenc.attend(q, q, q, open_, pos)
    short, long = open_.resolve(5), open_.resolve(50)
    assert (open_.length, short.length, long.length) == (None, 5, 50)
    assert (short.resolve(50), long.resolve(5)) == (short, long)
    assert not torch.equal(short.frequencies(), long.frequencies())
    assert torch.equal(open_.resolve(6).frequencies(), short.frequencies())  # the trained length is still short
    assert not torch.equal(open_.resolve(7).frequencies(), short.frequencies())
    given = type(open_)(**open_.options() | {"length": 50})
    assert torch.equal(given.frequencies(), long.frequencies())
    for length, kind in ((0, ValueError), (-1, ValueError), (2.5, TypeError), (True, TypeError), ("8", TypeError)):
        with refuses(kind, f"{open_.name}: length must be", f"got length={length!r}"):
            open_.resolve(length)


def test_the_gain_follows_the_length() -> None:
    options = NEW["longrope"] | {"long_attention_factor": 1.5}
    open_ = posenc.LongRoPE(**options)
    assert [open_.resolve(n).gain() for n in (1, 6, 7)] == [1.2, 1.2, 1.5]
    assert posenc.LongRoPE(**NEW["longrope"]).resolve(7).gain() == 1.2
    cos, sin = open_.resolve(7).place(positions.arange(9)).parts
    torch.testing.assert_close(cos.square() + sin.square(), torch.full((9, 4), 1.5**2))
    scored = posenc.DynamicNTK(**NEW["dynamic_ntk"], score_factor=1.5).resolve(7)
    assert scored.score_scale(16) == pytest.approx(1.5 / 4)


class Stretched(OfLength, posenc.StretchedRoPE):
    """Learned frequencies that also depend on the length."""

    def __init__(self, *, length: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._set_length(length)

    def frequencies(self) -> Tensor:
        return super().frequencies() / self.given_length()


def test_what_is_resolved_shares_what_is_learned() -> None:
    open_ = Stretched(head_dim=8)
    short, long = open_.resolve(5), open_.resolve(10)
    torch.testing.assert_close(short.frequencies(), 2 * long.frequencies())
    assert short.stretch is long.stretch is open_.stretch
    long.frequencies().sum().backward()
    assert open_.stretch.grad is not None
    with torch.no_grad():
        open_.stretch.fill_(1.0)
    torch.testing.assert_close(short.frequencies(), torch.e * posenc.RoPE(head_dim=8).frequencies() / 5)


# slices


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("name", ["rope", "stretched_rope", "dynamic_ntk", "longrope"])
def test_a_slice_is_turned_as_it_is_within_the_whole(name: str, pairing: str) -> None:
    options = {k: v for k, v in NEW.get(name, {}).items() if k != "head_dim"}
    if name == "longrope":
        options |= {key: value[:2] for key, value in LISTS.items()}
    last = {"head_dim": 10, "rotary_dim": 4, "rotary_side": "last", "pairing": pairing}
    whole = randomise(posenc.create(name, **options, **last).resolve(L), 1)
    part, x = whole.of_slice(), normal(2, 1, L, 10)
    pos = positions.arange(L, start=7)
    got = part.rotate_k(x[..., 6:], part.place(pos, dtype=torch.float64))
    wanted = whole.rotate_k(x, whole.place(pos, dtype=torch.float64))[..., 6:]
    assert torch.equal(got, wanted)
    assert torch.equal(part.rotate_k(x[..., 6:], whole.place(pos, dtype=torch.float64)), wanted)  # placed once for both
    assert (whole.head_dim, whole.rotary_side, part.head_dim, part.rotary_side) == (10, "last", 4, "first")
    assert all(a is b for a, b in zip(part.parameters(), whole.parameters(), strict=True))
    again = type(part)(**part.options())
    assert again.rotary_dim == 4
    with refuses(ValueError, f"{whole.name}: q and k must have head_dim=4 dimensions; got shape (2, 1, 20, 10)"):
        part.rotate_k(x, part.place(pos))


def test_a_slice_may_be_taken_before_the_length_is_known() -> None:
    last = {"head_dim": 10, "rotary_dim": 4, "rotary_side": "last", "factor": 4.0, "original_max_len": 6}
    open_, x, pos = posenc.DynamicNTK(**last), normal(1, 1, 9, 4), positions.arange(9)
    one, other = open_.of_slice().resolve(9), open_.resolve(9).of_slice()
    assert torch.equal(one.rotate_k(x, one.place(pos)), other.rotate_k(x, other.place(pos)))


def test_planes_across_all_lanes_have_no_slice() -> None:
    with refuses(ValueError, "GRAPEM: planes lie across all dimensions", "Rotate whole heads"):
        posenc.GRAPEM(**NEW["grape_m"]).of_slice()


# budgets

OTHERS: dict[str, dict[str, Any]] = {
    "rope": {"head_dim": 8},
    "axial_rope": {"head_dim": 8},
    "mrope": {"head_dim": 8, "sections": (2, 1, 1)},
    "xpos": {"head_dim": 8},
}


@pytest.mark.parametrize("name", [*NEW, *OTHERS])
def test_a_budget_is_kept_to_the_byte(name: str) -> None:
    """It counts what `place` keeps: tables for each head, and for keys too where they have others."""
    encoding = posenc.create(name, **{**NEW, **OTHERS}[name]).resolve(L)
    pos = torch.rand(2, L, encoding.n_axes).squeeze(-1).double()
    size = sum(t.nbytes for t in encoding.place(pos, dtype=torch.float64).parts)
    encoding.table_budget = size
    encoding.place(pos, dtype=torch.float64)
    encoding.table_budget = size - 1
    with refuses(ValueError, f"{encoding.name}: tables of positions must fit into table_budget=", "Place fewer"):
        encoding.place(pos, dtype=torch.float64)
    assert type(encoding).table_budget == Budgeted.table_budget == 16 * 2**30


@pytest.mark.parametrize("name", [*NEW, *OTHERS])
def test_nothing_is_allocated_for_positions_past_the_budget(name: str) -> None:
    encoding = posenc.create(name, **{**NEW, **OTHERS}[name]).resolve(L)
    many = torch.zeros(1, dtype=torch.int64).expand(10**10)
    many = many if encoding.n_axes == 1 else many[:, None].expand(-1, encoding.n_axes)
    with refuses(ValueError, f"{encoding.name}: tables of positions must fit into table_budget=16 GiB"):
        encoding.place(many)


def test_frequencies_of_an_absurd_width_are_not_formed_to_find_that_they_do_not_fit() -> None:
    with refuses(ValueError, "RoPE: tables of positions must fit into table_budget=16 GiB"):
        posenc.RoPE(head_dim=10**13).place(positions.arange(1))


# caches and models


def language_model(encoding: Any) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(vocab_size=11, d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, encoding=encoding)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", NEW)
def test_a_trained_model_says_the_same_with_a_cache_and_without(name: str) -> None:
    encoding = posenc.create(name, **NEW[name]).resolve(L)
    model, pos = language_model(encoding).double(), places(encoding)
    before = [p.detach().clone() for p in encoding.parameters()]
    text = torch.randint(11, (4, L), generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(text[:, :-1], pos[:-1]).flatten(0, 1), text[:, 1:].flatten()).backward()
        optimizer.step()
    assert all(not torch.equal(p, b) for p, b in zip(encoding.parameters(), before, strict=True))
    model.eval()
    with torch.no_grad():
        whole, cache = model(text, pos), Cache()
        parts = [model(text[:, a:b], pos[a:b], cache=cache) for a, b in ((0, 5), (5, 6), (6, L))]
        # tables are float32 here, as models place positions
        torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-5)
        assert cache.keys[0].shape == (4, 2, L, 16 if name == "pope" else 8)
        plain, cached, cache = text[:, :3], text[:, :3], Cache()
        for i in range(3, 12):
            plain = torch.cat((plain, model(plain, pos[:i])[:, -1:].argmax(-1)), 1)
            new = slice(0, 3) if i == 3 else slice(i - 1, i)
            cached = torch.cat((cached, model(cached[:, new], pos[new], cache=cache)[:, -1:].argmax(-1)), 1)
        assert torch.equal(plain, cached)


@pytest.mark.sample(4)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("backend", ["reference", "blocked"])
@pytest.mark.parametrize("name", NEW)
def test_attention_to_turned_keys_is_attention(name: str, backend: str, dtype: torch.dtype) -> None:
    """Queries are the last four tokens; groups of two share a key head; PoPE's turned lanes are twice as many."""
    encoding = made(name)
    if dtype != torch.float64:
        encoding = encoding.float()
    pos = places(encoding)
    q, k, v = (normal(2, h, n, w, seed=n).to(dtype) for h, n, w in ((4, 4, 8), (2, L, 8), (2, L, 5)))
    placed, k_placed = (encoding.place(p, dtype=torch.float64) for p in (pos[-4:], pos))
    turned = encoding.rotate(q, k, placed, k_placed)
    seen = torch.arange(L) <= torch.arange(L - 4, L)[:, None]
    wide_q, wide_k, wide_v = (
        t.detach().double() for t in (turned[0], *(x.repeat_interleave(2, 1) for x in (turned[1], v)))
    )
    scores = (wide_q @ wide_k.mT * encoding.score_scale(8)).masked_fill(~seen, -torch.inf)
    wanted = scores.softmax(-1) @ wide_v
    atol = 1e-12 if dtype == torch.float64 else 0.03
    again = posenc.attend(*turned, v, encoding, placed, k_placed, rotated=True, backend=backend)
    assert again.dtype == dtype
    torch.testing.assert_close(again.detach().double(), wanted, rtol=0, atol=atol)
    whole = posenc.attend(q, k, v, encoding, placed, k_placed, backend=backend)
    torch.testing.assert_close(whole.detach().double(), wanted, rtol=0, atol=atol)


# company


@pytest.mark.parametrize("name", NEW)
def test_beside_a_bias_scores_are_those_of_both(name: str) -> None:
    encoding = made(name)
    other = posenc.ALiBi(n_heads=4) if encoding.n_axes == 1 else posenc.OnAxes(posenc.ALiBi(n_heads=4), (1,))
    both, pos = posenc.Compose(encoding, other), places(encoding)
    q, k, v = (normal(2, h, L, 8, seed=h) for h in (4, 2, 1))
    v = v.expand(-1, 2, -1, -1)
    placed = encoding.place(pos, dtype=torch.float64)
    turned = encoding.rotate(q, k, placed)
    at = (pos if encoding.n_axes == 1 else pos[:, 1]).double()
    slopes = 2.0 ** -torch.arange(2, 10, 2, dtype=torch.float64)[:, None, None]
    scores = turned[0] @ turned[1].repeat_interleave(2, 1).mT * 8**-0.5 - slopes * (at[:, None] - at).abs()
    wanted = scores.softmax(-1) @ v.repeat_interleave(2, 1)
    torch.testing.assert_close(posenc.attend(q, k, v, both, pos, causal=False), wanted, rtol=0, atol=1e-12)


def test_polar_lanes_fit_behind_a_turn_but_not_before_one() -> None:
    pope, rope, q = made("pope"), posenc.RoPE(head_dim=8), normal(1, 2, L, 8)
    behind, pos = posenc.Compose(rope, pope), positions.arange(L)
    got = behind.rotate_q(q, behind.place(pos, dtype=torch.float64))
    first = rope.rotate_q(q, rope.place(pos, dtype=torch.float64))
    torch.testing.assert_close(got, pope.rotate_q(first, pope.place(pos, dtype=torch.float64)))
    before = posenc.Compose(pope, rope)
    with refuses(ValueError, "RoPE: q and k must have head_dim=8 dimensions; got shape (1, 2, 20, 16)"):
        before.rotate_q(q, before.place(pos))
    with refuses(ValueError, "Compose: at most one member may change the score scale; got ['PoPE', 'T5']"):
        posenc.Compose(pope, posenc.T5(n_heads=4, score_scale=1.0))


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_reach_through_company(name: str) -> None:
    open_, alibi, pos = posenc.create(name, **NEW[name]), posenc.ALiBi(n_heads=4), positions.arange(9)
    wanted = open_.resolve(9).place(pos).parts[0]
    both = posenc.Compose(open_, alibi).resolve(9)
    assert torch.equal(both.place(pos).parts[0].parts[0], wanted)
    layers = posenc.PerLayer([open_, alibi, open_]).resolve(9)
    assert (len(layers.distinct), layers.index) == (2, (0, 1, 0))
    assert torch.equal(layers.layer(2, layers.place(pos))[1].parts[0], wanted)
    column = posenc.OnAxes(open_, (1,), n_axes=2).resolve(9)
    assert torch.equal(column.place(positions.grid(1, 9)).parts[0].parts[0], wanted)
    for unresolved in (posenc.Compose(open_, alibi), posenc.PerLayer([open_, alibi])):
        with refuses(ValueError, f"{open_.name}: depends on the length of the sequence"):
            unresolved.place(pos)


@pytest.mark.parametrize("name", LEARNED)
def test_layers_that_share_it_place_it_once_and_all_teach_it(name: str) -> None:
    encoding = posenc.create(name, **NEW[name])
    apart = posenc.NoPE(n_axes=encoding.n_axes)
    layers = posenc.PerLayer([encoding, apart, encoding])
    placed = layers.place(places(encoding))
    assert len(placed.parts) == 2
    q, gradients = normal(1, 2, L, 8).float(), []
    for chosen in ((0,), (2,), (0, 2)):
        total = sum(layers.layer(i, placed)[0].rotate_k(q, layers.layer(i, placed)[1])[..., 1].sum() for i in chosen)
        gradients.append(torch.autograd.grad(total, list(encoding.parameters())[-1], retain_graph=True)[0])
    assert gradients[0].any()
    torch.testing.assert_close(gradients[2], gradients[0] + gradients[1])
