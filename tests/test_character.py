"""Measurements against encodings whose character is known by mathematics, and declarations against measurements."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import command_line
import pages
import posenc
from posenc import Placed, character, registry
from posenc.character import CAP, measure
from posenc.cli import table


class Vectors(posenc.Additive):
    """Adds the lanes that a function of the positions returns."""

    def __init__(self, *lanes: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.lanes, self.d_model = lanes, len(lanes)

    def vectors(self, pos: Tensor) -> Tensor:
        return torch.stack([lane(pos.double()) for lane in self.lanes], -1)


class Term(posenc.Bias):
    """Adds a function of the distance to the scores, another one for each head."""

    def __init__(self, *heads: Callable[[Tensor], Tensor]) -> None:
        super().__init__(n_heads=len(heads))
        self.heads = heads

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        return torch.cat([head((q - k).double()) for head in self.heads], -3)


class Learns(posenc.Bias):
    """Falls or rises with distance, as one learned number has it; `positive` keeps it falling."""

    def __init__(self, *, positive: bool) -> None:
        super().__init__(n_heads=1)
        self.positive, self.slope = positive, nn.Parameter(torch.ones(1))

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        return -(self.slope.exp() if self.positive else self.slope) * (q - k).abs()


class Swells(posenc.Rotary):
    """Turns nothing; queries shrink and keys grow, by a factor of two in 100 positions."""

    def frequencies(self) -> Tensor:
        return torch.zeros(1, self.head_dim // 2, dtype=torch.float64)

    def amplitude(self, pos: Tensor) -> Tensor:
        return (0.5 ** (pos / 100).clamp(max=100))[..., None].expand(*pos.shape, self.head_dim // 2)


class Ends(Vectors):
    """Refuses positions from `end` on."""

    def __init__(self, end: int) -> None:
        super().__init__(lambda p: p)
        self.end = end

    def vectors(self, pos: Tensor) -> Tensor:
        if bool((pos >= self.end).any()):
            raise IndexError("out of the table")
        return super().vectors(pos)


class Centres(Vectors):
    """Counts from the middle of what is there."""

    def __init__(self) -> None:
        super().__init__(lambda p: p - p.mean(-1, keepdim=True))


class Divides(Vectors):
    """Divides by the length, which `resolve` gives; `start` is what it has before."""

    def __init__(self, start: int | None) -> None:
        super().__init__(lambda p: p)
        self.start = start

    def vectors(self, pos: Tensor) -> Tensor:
        if self.start is None:
            raise ValueError("Divides: the length is not known")
        return super().vectors(pos) / self.start

    def resolve(self, seq_len: int) -> posenc.Encoding:
        return Divides(seq_len)


class Rows(posenc.Additive):
    """Two axes; a lane counts axis 0 modulo 7 and another one axis 1."""

    n_axes, d_model = 2, 2

    def vectors(self, pos: Tensor) -> Tensor:
        return torch.stack((pos[..., 0] % 7, pos[..., 1]), -1).double()


class SeesColumns(posenc.Bias):
    """Two axes; the bias is absolute on axis 1 and does not see axis 0."""

    n_axes = 2

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        return (q[1] * k[1]).double() * (h + 1)


class Gates(posenc.Bias):
    """A term that the tokens scale by themselves, so that it must be placed with them."""

    reads_x = True

    def parts(self, pos: Tensor, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        assert x is not None
        return (pos.expand(x.shape[:2]).to(dtype), x.abs().mean(-1).to(dtype))

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        return -(q[0] - k[0]).abs() * k[1] * (h + 1)

    def _broadcast(self, placed: Placed, k_placed: Placed) -> Tensor:
        rows = tuple(part[:, None, :, None] for part in placed.parts)
        return self.at(torch.arange(self.n_heads)[:, None, None], rows, [p[:, None, None, :] for p in k_placed.parts])


class Maps(posenc.ScoreMap):
    """Takes a function of the distance from scores that it gets without it."""

    n_heads = 2

    def __init__(self, term: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.term = term

    def rescore(
        self, scores: Tensor, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed, mask: Tensor | None
    ) -> Tensor:
        return scores - self.term((placed.pos[:, None] - k_placed.pos).to(scores.dtype))


class Fails(posenc.Encoding):
    def place(self, pos: Tensor, *rest: Any, **options: Any) -> Placed:
        raise RuntimeError("nothing works today")


def zero(p: Tensor) -> Tensor:
    return 0 * p


@pytest.mark.parametrize(
    ("encoding", "counts"),
    [
        (Vectors(lambda p: p % 7), (7, 7, 7)),
        (Vectors(lambda p: p % 3000), (3000, 257, 2049)),  # bfloat16 rounds 257 to 256, float16 2049 to 2048
        (Vectors(lambda p: p), (CAP, 257, 2049)),
        (Vectors(lambda p: p % 7, lambda p: p % 13), (91, 91, 91)),
        (Vectors(lambda p: p % 7, lambda p: (p * torch.pi).sin()), (7, 7, 7)),  # the sine is noise of its angle
        (Vectors(lambda p: (p * torch.pi / 8).cos(), lambda p: (p * torch.pi / 8).sin()), (16, 16, 16)),
        (Vectors(lambda p: p % 2, lambda p: (p % 3) / 1e6), (6, 6, 6)),  # small is not noise
        (Vectors(lambda p: p + 2.0**24), (1, 1, 1)),  # float32 has no 2^24 + 1
        (Term(lambda d: d.clamp(max=40)), (41, 41, 41)),
        (Term(zero, lambda d: d % 5), (5, 5, 5)),
        (posenc.NoPE(), (1, 1, 1)),
        (Rows(), (7, 7, 7)),
        (Ends(20), (20, 20, 20)),
        (posenc.RoPE(head_dim=2, inv_freq=[torch.pi / 8]), (16, 16, 16)),
    ],
)
def test_distinct(encoding: posenc.Encoding, counts: tuple[int, ...]) -> None:
    found = measure(encoding).distinct
    assert found is not None
    assert list(found) == ["float32", "bfloat16", "float16"]
    assert tuple(found.values()) == counts


def test_distinct_is_that_of_the_worst_draw() -> None:
    class Either(posenc.Additive):
        d_model = 1

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def vectors(self, pos: Tensor) -> Tensor:
            return (pos + 128 * (self.weight > 0)).double()[..., None]

    assert measure(Either()).distinct == {"float32": CAP, "bfloat16": 129, "float16": 1921}  # 128 less in one draw


@pytest.mark.parametrize(
    ("encoding", "longest"),
    [
        (Ends(1000), 999),
        (Ends(2**40), 2**40 - 1),
        (Ends(1), 0),
        (Vectors(lambda p: p), None),
        (posenc.Learned(d_model=2, max_len=77, offset=2), 76),
        (posenc.Binary(d_model=5), 31),
        (posenc.Binary(d_model=64), None),
    ],
)
def test_longest(encoding: posenc.Encoding, longest: int | None) -> None:
    assert measure(encoding).longest == longest


def test_real_positions() -> None:
    assert measure(Vectors(lambda p: p)).real_positions is True
    assert measure(posenc.T5(n_heads=1)).real_positions is False


@pytest.mark.parametrize(
    ("encoding", "step", "smooth"),
    [
        (Vectors(lambda p: p), 1 / 4096, True),
        (Vectors(lambda p: p + 4096 * (p >= 2000)), 4097 / 8192, False),
        (Vectors(lambda p: p + 2000 * (p >= 2000)), 2001 / 6096, True),
        (Vectors(lambda p: p % 2), 1.0, False),
        (Vectors(lambda p: (p * torch.pi / 2048).sin()), torch.pi / 4096, True),  # both ends are far from position 0
        (Vectors(torch.sin, torch.cos), torch.tensor(0.5).sin().item(), False),  # the chord of one radian, by 2
        (Term(lambda d: -d.abs()), 1 / 4096, True),
        (posenc.NoPE(), 0.0, True),
    ],
)
def test_smooth(encoding: posenc.Encoding, step: float, smooth: bool) -> None:
    found = measure(encoding)
    assert found.step == pytest.approx(step, rel=1e-4)
    assert found.smooth is smooth


@pytest.mark.parametrize(
    ("encoding", "bounded"),
    [
        (Vectors(torch.sin), True),
        (Vectors(lambda p: (p / 10_000).sin(), torch.cos), True),
        (Vectors(lambda p: p.clamp(min=-5000, max=5000)), False),
        (Vectors(lambda p: p.clamp(max=1000)), True),
        (Term(lambda d: -d.abs().log1p()), False),
        (Term(torch.cos, lambda d: 1e-3 * d), False),
        (Swells(head_dim=4), False),  # by its keys alone
        (posenc.NoPE(), True),
        (Ends(50), True),
    ],
)
def test_bounded(encoding: posenc.Encoding, bounded: bool) -> None:
    assert measure(encoding).bounded is bounded


@pytest.mark.parametrize(
    ("encoding", "invariant", "symmetric"),
    [
        (Term(lambda d: -d.abs()), True, True),
        (Term(lambda d: -d.abs(), lambda d: -d.clamp(min=0)), True, False),
        (Term(torch.cos), True, True),
        (Term(torch.sin), True, False),
        (Vectors(torch.sin, torch.cos), False, False),
        (SeesColumns(n_heads=2), False, True),
        (Swells(head_dim=4), True, False),
        (posenc.RoPE(head_dim=4), True, False),
        (posenc.NoPE(), True, True),
        (Ends(3), False, False),
        (Ends(1), None, True),  # one position has no room to move, and only itself to change places with
    ],
)
def test_moving_and_changing_places(encoding: posenc.Encoding, invariant: bool | None, symmetric: bool) -> None:
    found = measure(encoding)
    assert found.shift_invariant is invariant
    assert found.symmetric is symmetric


@pytest.mark.parametrize(
    ("encoding", "recency"),
    [
        (Term(lambda d: -d.abs()), True),
        (Term(lambda d: -d.abs(), zero), True),
        (Term(lambda d: -d.clamp(max=3)), True),
        (Term(zero), False),
        (Term(lambda d: d.abs()), False),
        (Term(lambda d: -d.abs() + 2 * (d >= 5)), False),
        (Term(lambda d: -d.abs(), lambda d: -d.abs() + 2 * (d >= 5)), False),
        (Term(lambda d: -d.clamp(max=3) + (d > 20_000)), False),
        (Learns(positive=True), True),
        (Learns(positive=False), False),
        (Vectors(lambda p: p), False),  # for some projections, not for all
        (posenc.RoPE(head_dim=8), False),
    ],
)
def test_recency(encoding: posenc.Encoding, recency: bool) -> None:
    assert measure(encoding).recency is recency


@pytest.mark.parametrize(
    ("encoding", "linear"),
    [
        (Vectors(torch.sin, torch.cos), True),
        (Vectors(torch.sin, lambda p: (p + 1).sin()), True),
        (Vectors(lambda p: p, lambda p: 0 * p + 1), True),  # a shear
        (Vectors(lambda p: 2.0 ** (-p / 9000)), True),
        (Vectors(torch.sin), False),
        (Vectors(lambda p: p), False),
        (Vectors(lambda p: p % 2, lambda p: 1 - p % 2), True),  # they change places
        (Vectors(lambda p: p % 2, lambda p: p.sin().sign()), False),
        (posenc.RoPE(head_dim=6), True),
        (Swells(head_dim=4), True),
        (posenc.Learned(d_model=8, max_len=64), False),
        (Centres(), None),  # what it makes of a position depends on the others
        (posenc.Learned(d_model=64, max_len=64), None),  # any 64 vectors are mapped to any others
        (Term(torch.cos), None),
        (posenc.NoPE(), None),
        (Vectors(zero), None),
    ],
)
def test_linear_shift(encoding: posenc.Encoding, linear: bool | None) -> None:
    found = measure(encoding)
    assert found.linear_shift is linear
    assert (found.residual is None) == (linear is None)


def test_the_residual_is_what_is_left_over() -> None:
    # the best multiple of sin p for sin(p + k) is cos k, and |sin k| of the size is left; largest for k = 1
    assert measure(Vectors(torch.sin)).residual == pytest.approx(abs(torch.tensor(1.0).sin().item()), rel=0.1)


def test_the_residual_is_judged_where_nothing_was_fitted() -> None:
    # at random: a fit of 20 lanes to 31 positions leaves less than everything there, and more elsewhere
    found = measure(posenc.Learned(d_model=20, max_len=64)).residual
    assert found is not None
    assert found > 1


def test_length_dependent() -> None:
    assert measure(Divides(None)).length_dependent is True
    assert measure(Divides(64)).length_dependent is True
    assert measure(Divides(64)).distinct == {"float32": CAP, "bfloat16": 257, "float16": 2049}  # at 1,024: a power of 2
    assert measure(Vectors(lambda p: p)).length_dependent is False


def test_learned() -> None:
    assert measure(posenc.Learned(d_model=3, max_len=50, offset=2)).learned == 156
    assert measure(posenc.NoPE()).learned == 0


def test_an_encoding_that_reads_the_tokens() -> None:
    found = measure(Gates(n_heads=2))
    assert (found.recency, found.shift_invariant, found.bounded) == (True, True, False)
    assert found.distinct is not None
    assert found.distinct["float32"] == CAP


def test_what_maps_scores_is_measured_by_what_it_makes_of_them() -> None:
    far, waves = measure(Maps(torch.abs)), measure(Maps(lambda d: d % 5))
    assert (far.recency, far.symmetric, far.bounded, far.shift_invariant) == (True, True, False, True)
    assert far.distinct == {"float32": CAP, "bfloat16": 257, "float16": 2049}
    assert (waves.recency, waves.symmetric, waves.bounded) == (False, False, True)
    assert waves.distinct == {"float32": 5, "bfloat16": 5, "float16": 5}
    # the distance, that as a float, its size, and the difference from the scores of two heads
    assert (far.cost, far.per_token, far.per_score) == ("score", 0.0, 5.0)


def test_sums_along_the_tokens_are_measured_in_their_order() -> None:
    """FoX by mathematics: each token takes something away, so that far ones have less, without end."""
    found = measure(posenc.FoX(d_model=3, n_heads=2))
    assert (found.recency, found.bounded, found.symmetric) == (True, False, False)


def test_what_multiplies_the_tokens_is_seen() -> None:
    class Multiplies(posenc.Additive):
        d_model = 4

        def parts(self, pos: Tensor, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
            return (pos.to(dtype) % 11,)

        def embed(self, x: Tensor, placed: Placed) -> Tensor:
            return x * placed.parts[0][:, None]

    assert measure(Multiplies()).distinct == {"float32": 11, "bfloat16": 11, "float16": 11}


def test_what_cannot_be_measured_is_none() -> None:
    found = measure(Fails())
    nothing = {name: value for name, value in found.as_dict().items() if name not in ("learned", "length_dependent")}
    assert set(nothing.values()) == {None}
    assert found.learned == 0


def test_what_is_random_in_training_is_measured_as_it_evaluates() -> None:
    class Jitters(Vectors):
        def vectors(self, pos: Tensor) -> Tensor:
            return super().vectors(pos) + (torch.rand(()) if self.training else 0)

    assert measure(Jitters(lambda p: p % 7).train()).distinct == {"float32": 7, "bfloat16": 7, "float16": 7}
    assert measure(Jitters(lambda p: p % 7).train()).length_dependent is False


def test_of_layers_the_first_is_measured() -> None:
    layers = posenc.PerLayer([posenc.ALiBi(n_heads=4), posenc.RoPE(head_dim=8)])
    assert measure(layers) == measure(posenc.ALiBi(n_heads=4))


def test_nothing_outside_is_touched() -> None:
    encoding = posenc.Learned(d_model=4, max_len=32).bfloat16().train()
    before, state = encoding.weight.detach().clone(), torch.get_rng_state()
    measure(encoding)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(encoding.weight, before)
    assert encoding.weight.dtype == torch.bfloat16
    assert encoding.training


def test_a_character_is_plain_json() -> None:
    found = measure(posenc.Sinusoidal(d_model=4))
    assert json.loads(json.dumps(found.as_dict()))["distinct"]["float32"] == CAP
    assert set(found.as_dict()) == {*registry.TRAITS, "step", "residual", "per_token", "per_score"}
    assert set(found.traits()) == set(registry.TRAITS)


@pytest.fixture(scope="module")
def measured() -> dict[str, character.Character]:
    """The character of every encoding's example, which takes long, once for all that show it."""
    cards = [posenc.card(name) for name in posenc.names()]
    return dict(zip(posenc.names(), table._measure(cards), strict=True))


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", posenc.names())
def test_the_declared_character_is_the_measured_one(name: str) -> None:
    assert character.check(posenc.card(name)) == []


@pytest.mark.slow
def test_the_page_of_encodings_is_in_step(
    measured: dict[str, character.Character], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_measure", lambda cards: [measured[card.name] for card in cards])
    fresh = pages.generate.PAGES["encodings.md"]()
    assert pages.differences((pages.DOCS / "encodings.md").read_text(), fresh) == [], "run: python docs/generate.py"


@pytest.mark.slow
@pytest.mark.parametrize("columns", ["80", "120", "200"])
def test_the_table_cuts_no_word(
    columns: str, measured: dict[str, character.Character], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_measure", lambda cards: [measured[card.name] for card in cards])
    printed = command_line.posenc("list", "--table", COLUMNS=columns).stdout
    assert max(map(len, printed.splitlines())) <= int(columns)
    words = printed.replace("(", " ").replace(")", " ").replace(",", " ").split()
    for name in registry.names():
        card = registry.card(name)
        said = " ".join((card.name, card.family.replace("_", " "), str(card.year), *card.used_by))
        for word in said.replace("(", " ").replace(")", " ").split():
            assert word in words


WRONG = {
    "distinct": {"float32": CAP, "bfloat16": 250, "float16": 2049},
    "longest": 127,
    "real_positions": False,
    "smooth": False,
    "bounded": True,
    "shift_invariant": False,
    "symmetric": False,
    "recency": None,
    "linear_shift": False,
    "length_dependent": True,
    "learned": False,  # equals 0, but is no number
    "cost": "token",
}


@pytest.mark.parametrize("trait", registry.TRAITS)
def test_a_wrong_declaration_is_one_sentence(trait: str) -> None:
    card = posenc.card("alibi")
    planted = dataclasses.replace(card, traits={**card.traits, trait: WRONG[trait]})
    (sentence,) = character.check(planted)
    assert sentence == f"alibi: declares {trait}={WRONG[trait]!r}; measured {card.traits[trait]!r}. Fix one of them."


@pytest.mark.parametrize("trait", registry.TRAITS)
def test_a_missing_declaration_is_one_sentence(trait: str) -> None:
    card = posenc.card("alibi")
    planted = dataclasses.replace(card, traits={t: value for t, value in card.traits.items() if t != trait})
    (sentence,) = character.check(planted)
    assert sentence == f"alibi: does not declare {trait}; measured {card.traits[trait]!r}. Declare it."


def test_an_unknown_declaration_is_one_sentence() -> None:
    card = posenc.card("alibi")
    (sentence,) = character.check(dataclasses.replace(card, traits={**card.traits, "colour": True}))
    assert sentence.startswith("alibi: 'colour' is not a trait. The traits are distinct, longest, ")


class Falls(posenc.Bias):
    """Four numbers a score: the distance, the same as float32, its negative, and, in each head, the product."""

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        return -(q - k).float() * h


def test_work_is_counted_by_the_numbers_that_are_computed() -> None:
    """Three of them are common to the heads, and the product is not: 3 + 5."""
    found = measure(Falls(n_heads=5))
    assert (found.cost, found.per_token, found.per_score) == ("score", 0.0, 8.0)
    found = measure(posenc.Learned(d_model=12, max_len=128))
    assert (found.cost, found.per_token, found.per_score) == ("token", 12.0, 0.0)
    found = measure(posenc.NoPE())
    assert (found.cost, found.per_token, found.per_score) == ("nothing", 0.0, 0.0)
    assert measure(posenc.Learned(d_model=12, max_len=2)).cost == "token"


def test_a_short_table_waits_for_no_length_and_what_is_broken_is_not_said_to() -> None:
    assert measure(posenc.Learned(d_model=4, max_len=1)).length_dependent is False
    assert measure(posenc.Learned2D(d_model=4, height=1, width=5)).length_dependent is False
    assert measure(Broken(d_model=4)).length_dependent is None


class Broken(posenc.Additive):
    def vectors(self, pos: Tensor) -> Tensor:
        raise RuntimeError("not today")
