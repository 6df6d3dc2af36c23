"""Collisions and phase errors, against mpmath, arithmetic by hand and loops."""

import json
import math
import re
from collections.abc import Sequence

import hypothesis.strategies as st
import mpmath
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

import posenc
from posenc import precision
from posenc.families import Rotary

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NONE = dict.fromkeys(DTYPES)


def exact_error(cos: Tensor, sin: Tensor, pos: int, inv_freq: Sequence[float]) -> float:
    """Return the largest phase error over the pairs of one position, in 60 digits."""
    with mpmath.workdps(60):
        errors = []
        for c, s, w in zip(cos.tolist(), sin.tolist(), inv_freq, strict=True):
            off = mpmath.atan2(mpmath.mpf(s), mpmath.mpf(c)) - pos * mpmath.mpf(w)
            errors.append(abs(off - 2 * mpmath.pi * mpmath.nint(off / (2 * mpmath.pi))))
        return float(max(errors))


@pytest.mark.parametrize("position", [1, 255, 65_535, 8_388_607, 10_000_000])
@pytest.mark.parametrize("off", [0.0, 1e-12, -0.3, 3.0])
def test_the_reference_is_good_to_the_last_digits_of_float64(position: int, off: float) -> None:
    inv_freq = [1.0, -0.7498942093324559, 0.01, 1e-4 / 3, 0.0]
    with mpmath.workdps(60):
        angles = [position * mpmath.mpf(w) + mpmath.mpf(off) for w in inv_freq]
        cos = torch.tensor([[float(mpmath.cos(a)) for a in angles]], dtype=torch.float64)
        sin = torch.tensor([[float(mpmath.sin(a)) for a in angles]], dtype=torch.float64)
    found = precision.phase_error(cos, sin, torch.tensor([position]), torch.tensor(inv_freq, dtype=torch.float64))
    assert found.tolist()[0] == pytest.approx([abs(off)] * 5, rel=0, abs=1e-15)


@pytest.mark.parametrize("formula", DTYPES.values(), ids=list(DTYPES))
def test_phase_errors_are_those_that_mpmath_finds(formula: torch.dtype) -> None:
    rope = posenc.RoPE(head_dim=16)
    found = precision.measure(rope, formula)
    inv_freq = [10_000 ** (-k / 8) for k in range(8)]
    rounded = torch.tensor(inv_freq, dtype=torch.float64).to(formula)
    for row in found["phase_error"]:
        pos = torch.tensor([row["position"]])
        angle = pos.to(formula) * rounded
        tables = {"ours": [t[0] for t in rope.place(pos).parts[:2]], "formula": [angle.cos(), angle.sin()]}
        for side, (cos, sin) in tables.items():
            for name, dtype in DTYPES.items():
                if cos.isnan().any():
                    assert row[side][name] is None
                else:
                    wanted = exact_error(cos.to(dtype), sin.to(dtype), row["position"], inv_freq)
                    assert row[side][name] == pytest.approx(wanted, rel=1e-3, abs=4e-9)  # inv_freq, to half an ulp


def test_the_positions_are_powers_of_ten_and_the_last_before_powers_of_two() -> None:
    shown = [row["position"] for row in precision.measure(posenc.RoPE(head_dim=4))["phase_error"]]
    assert shown == sorted(shown)
    assert {1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000} < set(shown)
    assert {255, 65_535, 8_388_607} < set(shown)


@pytest.mark.parametrize(
    ("end", "low", "high"), [(10_000, 4e-4, 1e-3), (1_000_000, 4e-2, 8e-2), (10_000_000, 0.4, 0.9)]
)
def test_angles_in_float32_go_wrong_as_measured_elsewhere(end: int, low: float, high: float) -> None:
    """Samples of cos and sin elsewhere were wrong by 5.5e-4 below 1e4, 5.8e-2 below 1e6 and 0.58 below 1e7."""
    inv_freq = torch.tensor([10_000 ** (-k / 64) for k in range(64)], dtype=torch.float64)
    pos = torch.arange(end - 2000, end)
    cos, sin = precision.form_tables(inv_freq.tolist(), torch.float32)(pos)
    assert low < precision.phase_error(cos, sin, pos, inv_freq).max() < high


def test_tables_from_float64_err_by_their_own_rounding_only() -> None:
    bounds = {"float32": 2e-7, "bfloat16": 4e-3, "float16": 5e-4}
    found = precision.measure(posenc.RoPE(head_dim=128))
    assert found["collisions"]["ours"] == NONE
    for row in found["phase_error"]:
        assert all(0 < row["ours"][dtype] < bound for dtype, bound in bounds.items())
    assert max(row["ours"]["bfloat16"] for row in found["phase_error"]) > 1e-3


@pytest.mark.parametrize(
    ("formula", "first"),
    [
        (torch.float32, None),
        (torch.bfloat16, {"position": 257, "same_as": 256}),
        (torch.float16, {"position": 2049, "same_as": 2048}),
    ],
)
def test_a_formula_collides_where_its_dtype_has_no_room_for_the_position(
    formula: torch.dtype, first: dict[str, int] | None
) -> None:
    found = precision.measure(posenc.RoPE(head_dim=64), formula)
    assert found["collisions"] == {"ours": NONE, "formula": dict.fromkeys(DTYPES, first)}
    assert found["cap"] == 65_536
    assert found["note"] is None
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_periods_are_found_though_sines_cross_zero_with_noise() -> None:
    found = precision.measure(posenc.RoPE(head_dim=4, inv_freq=(math.pi / 3, math.pi / 2)))
    assert found["collisions"]["ours"] == {name: {"position": 12, "same_as": 0} for name in DTYPES}


def test_added_vectors_collide_in_the_dtype_of_the_tokens() -> None:
    found = precision.measure(posenc.Integer(d_model=8))
    assert found["collisions"]["ours"] == {
        "float32": None,
        "bfloat16": {"position": 257, "same_as": 256},
        "float16": {"position": 2049, "same_as": 2048},
    }
    assert (found["collisions"]["formula"], found["phase_error"]) == (None, [])
    assert "No phase error and no formula" in found["note"]


def test_the_search_ends_where_the_encoding_does() -> None:
    learned = precision.measure(posenc.Learned(d_model=8, max_len=50))
    assert (learned["cap"], learned["collisions"]["ours"]) == (50, NONE)
    assert "drawn from N(0, 1)" in learned["note"]
    xpos = precision.measure(posenc.XPos(head_dim=8))
    assert 30_000 < xpos["cap"] < 40_000
    assert max(row["position"] for row in xpos["phase_error"]) == 10_000
    # 0.4 / 1.4 to the power of 10,000 / 512 is 2.4e-11, which float16 does not tell from zero
    assert xpos["phase_error"][-1]["ours"]["float16"] is None
    assert xpos["phase_error"][-1]["ours"]["float32"] < 2e-7


def test_all_axes_of_a_turn_move_together_as_in_text() -> None:
    text, plain = posenc.MRoPE(head_dim=16, sections=(2, 3, 3)), posenc.RoPE(head_dim=16)
    found, wanted = precision.measure(text), precision.measure(plain)
    assert found["note"] == "Positions are the same on all axes."
    assert [row["formula"] for row in found["phase_error"]] == [row["formula"] for row in wanted["phase_error"]]


def test_an_encoding_is_measured_as_it_is_used_and_left_as_it_is() -> None:
    learned = posenc.RoPE(head_dim=8, trainable=True)
    before = learned.inv_freq.clone()
    found = precision.measure(learned)
    assert "drawn from N(0, 1)" in found["note"]
    assert torch.equal(before, learned.inv_freq)


@pytest.mark.sample(14)
@pytest.mark.parametrize("name", posenc.names())
def test_every_encoding_can_be_measured(name: str) -> None:
    card = posenc.card(name)
    found = precision.measure(card.cls(**card.example))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["cap"] > 1) == (found["collisions"]["ours"] is not None)
    assert (found["phase_error"] != []) == (found["collisions"]["formula"] is not None)
    assert all(row["ours"]["float32"] < 2e-7 for row in found["phase_error"])


class Shared(Rotary):
    """Two heads with tables of their own, the second longer, and one set of frequencies."""

    n_kv_heads = 2

    def frequencies(self) -> Tensor:
        return torch.tensor([[1.0, 0.1]], dtype=torch.float64)

    def parts(self, pos: Tensor, x: object, past: object, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        angle = pos.double()[:, None, None] * self.frequencies() * torch.ones(2, 1)
        length = torch.tensor([[1.0], [3.0]])
        return (angle.cos() * length).to(dtype), (angle.sin() * length).to(dtype)


def test_heads_may_share_frequencies() -> None:
    found = precision.measure(Shared(head_dim=4))
    assert len(found["phase_error"]) > 8
    assert all(row["ours"]["float32"] < 2e-7 for row in found["phase_error"])
    own = precision.find_subject(Shared(head_dim=4)).task.inv_freq
    assert own == pytest.approx((1.0, 0.1, 1.0, 0.1))


class Swaying(Rotary):
    def frequencies(self) -> Tensor:
        return torch.ones(1, 2, dtype=torch.float64)

    def parts(self, pos: Tensor, x: object, past: object, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        angle = pos.double().sin()[:, None] * torch.ones(2)
        return angle.cos().to(dtype), angle.sin().to(dtype)


class Undefined(Swaying):
    def frequencies(self) -> Tensor:
        raise NotImplementedError("no frequencies")


@pytest.mark.parametrize("cls", [Swaying, Undefined])
def test_tables_that_hold_other_angles_are_only_searched(cls: type[Rotary]) -> None:
    found = precision.measure(cls(head_dim=4))
    assert found["phase_error"] == []
    assert found["collisions"]["ours"].keys() == DTYPES.keys()
    assert "not tables of cos and sin of pos * inv_freq" in found["note"]


@pytest.mark.parametrize("name", ["alibi", "t5", "shaw", "nope", "query_temperature", "complex_order"])
def test_what_has_no_numbers_of_one_position_is_said_in_a_sentence(name: str) -> None:
    card = posenc.card(name)
    found = precision.measure(card.cls(**card.example))
    assert found["collisions"] == {"ours": None, "formula": None}
    assert (found["phase_error"], found["cap"]) == ([], 0)
    assert found["note"].startswith(f"There is nothing to measure: {card.cls.__name__} neither ")


def test_a_formula_of_ones_own() -> None:
    inv_freq = torch.tensor([10_000 ** (-k / 4) for k in range(4)], dtype=torch.float64)

    def late(pos: Tensor) -> tuple[Tensor, Tensor]:
        """Count a position too many from 100 on, and repeat the one before 7."""
        wrong = pos + (pos >= 100) - (pos == 7).long()
        angle = wrong[:, None] * inv_freq
        return angle.cos(), angle.sin()

    found = precision.measure(posenc.RoPE(head_dim=8), late)
    assert found["collisions"]["formula"]["float32"] == {"position": 7, "same_as": 6}
    errors = {row["position"]: row["formula"]["float32"] for row in found["phase_error"]}
    assert errors[10] < 1e-7
    assert errors[100] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (
            (-1, 8),
            "must have shape (65536, 4) each, a row for each position and a column for each pair; got (65536, 8) and",
        ),
        ((1, -1, 4), "got (1, 65536, 4) and (1, 65536, 4)"),
    ],
)
def test_other_shapes_are_refused(shape: tuple[int, ...], said: str) -> None:
    def tables(pos: Tensor) -> list[Tensor]:
        return [torch.ones([len(pos) if n < 0 else n for n in shape])] * 2

    with pytest.raises(ValueError, match=re.escape(said)):
        precision.measure(posenc.RoPE(head_dim=8), tables)


def test_other_kinds_are_refused() -> None:
    with pytest.raises(TypeError, match="floating-point; got torch.complex64, torch.complex64"):
        precision.measure(posenc.RoPE(head_dim=2), lambda pos: [torch.ones(len(pos), 1, dtype=torch.complex64)] * 2)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=12))
@settings(deadline=None)
def test_collisions_are_those_of_a_loop(rows: list[tuple[int, int, int]]) -> None:
    wanted = next(({"position": p, "same_as": rows.index(row)} for p, row in enumerate(rows) if row in rows[:p]), None)
    for dtype in (*DTYPES.values(), torch.float64):
        assert precision.find_collision(torch.tensor(rows, dtype=dtype)) == wanted


def test_zero_has_no_sign_and_no_number_is_the_same_as_no_number() -> None:
    rows = torch.tensor([[0.0, math.nan], [-0.0, 1.0], [0.0, 1.0]])
    assert precision.find_collision(rows) == {"position": 2, "same_as": 1}
    rows = torch.tensor([[1.0, math.nan], [2.0, math.nan], [1.0, math.nan]])
    assert precision.find_collision(rows) == {"position": 2, "same_as": 0}
    found = precision.measure(posenc.RoPE(head_dim=2), lambda pos: (torch.stack([pos / 0.0], 1), pos[:, None].float()))
    assert found["collisions"]["formula"]["float32"] is None  # what is finite beside it still counts
