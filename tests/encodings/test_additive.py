"""Learned, Binary and Sinusoidal: offsets, ranges, and the sum that is rounded once."""

from typing import Any

import pytest
import torch

import posenc
from posenc import positions
from strategies import normal, refuses


def test_learned_offset() -> None:
    opt = posenc.Learned(d_model=3, max_len=5, offset=2)
    assert opt.weight.shape == (7, 3)
    assert torch.equal(opt(torch.zeros(1, 2, 3), torch.tensor([0, 4]))[0], opt.weight[[2, 6]])


@pytest.mark.parametrize(("offset", "bad"), [(0, -1), (0, -2), (0, 5), (2, -2), (2, -3), (2, 5), (2, 6)])
def test_learned_range(offset: int, bad: int) -> None:
    """With an offset, -2 and max_len would be rows of the table or wrap around."""
    learned = posenc.Learned(d_model=3, max_len=5, offset=offset)
    first = -1 if offset else 0
    with refuses(ValueError, f"Learned: positions must lie in {first}..4", "max_len=5", f"got position {bad}"):
        learned.place(torch.tensor([[0, bad]]))


def test_padding_has_the_row_before_the_first_position_and_no_gradient() -> None:
    roberta = posenc.Learned(d_model=3, max_len=5, offset=2, padding_idx=1)
    pos = positions.padded(torch.tensor([[True, True, False]]))
    out = roberta(torch.zeros(1, 3, 3), pos)[0]
    assert torch.equal(out, roberta.weight[[2, 3, 1]])
    assert not out[2].any()
    (gradient,) = torch.autograd.grad(out.sum(), roberta.weight)
    assert gradient.sum(1).tolist() == [0, 0, 3, 3, 0, 0, 0]
    (gradient,) = torch.autograd.grad(posenc.Learned(d_model=3, max_len=5, offset=2)(out[None], pos).sum(), out)
    assert gradient.eq(1).all()
    with refuses(ValueError, "Learned: padding_idx must be one of the offset=2 rows", "got padding_idx=2"):
        posenc.Learned(d_model=3, max_len=5, offset=2, padding_idx=2)


def test_a_pickle_from_before_there_was_a_first_position() -> None:
    """Pickles of whole modules have only the options that the constructor kept then."""
    opt = posenc.Learned(d_model=3, max_len=5, offset=2)
    vars(opt).pop("_first_pos", None)
    assert torch.equal(opt(torch.zeros(1, 1, 3), torch.tensor([-1]))[0], opt.weight[[1]])


def test_a_resized_table_keeps_its_ends_its_offset_and_what_lies_on_a_line() -> None:
    learned = posenc.Learned(d_model=2, max_len=3, offset=1)
    with torch.no_grad():
        learned.weight.copy_(torch.tensor([[9.0, 9.0], [0.0, 1.0], [2.0, 1.0], [4.0, 3.0]]))
    longer = learned.resized(5)
    assert longer.weight.tolist() == [[9, 9], [0, 1], [1, 1], [2, 1], [3, 2], [4, 3]]
    assert (longer.max_len, longer.offset, longer.d_model) == (5, 1, 2)
    assert torch.equal(longer.resized(3).weight, learned.weight)
    assert learned.bfloat16().resized(7).weight.dtype == torch.bfloat16


def test_a_cropped_table_has_the_first_positions_and_its_offset() -> None:
    learned = posenc.Learned(d_model=2, max_len=5, offset=2, padding_idx=1)
    shorter = learned.cropped(3)
    assert torch.equal(shorter.weight, learned.weight[:5])
    assert shorter.options() == learned.options() | {"max_len": 3}
    assert torch.equal(shorter.vectors(torch.arange(-1, 3)), learned.vectors(torch.arange(-1, 3)))
    with torch.no_grad():
        shorter.weight.zero_()
    assert learned.weight[2:].abs().min() > 0
    for wrong, why in ((6, "own 5 positions; got max_len=6"), (0, "must be at least 1; got max_len=0")):
        with refuses(ValueError, "Learned: ", why):
            learned.cropped(wrong)


class Wide(posenc.Learned):
    """A subclass of a user's own."""


def test_a_resized_table_is_of_its_own_kind_and_as_frozen_and_draws_nothing() -> None:
    frozen = Wide(d_model=2, max_len=3).eval()
    frozen.weight.requires_grad_(False)
    state = torch.random.get_rng_state()
    longer = frozen.resized(5)
    assert torch.equal(state, torch.random.get_rng_state())
    assert (type(longer), longer.training, longer.weight.requires_grad) == (Wide, False, False)
    assert longer.options() == frozen.options() | {"max_len": 5}
    assert frozen.weight.shape == (3, 2)
    with refuses(ValueError, "Wide: max_len must be at least 1; got max_len=0"):
        frozen.resized(0)


@pytest.mark.parametrize(
    ("encoding", "bad"),
    [
        (posenc.Learned(d_model=3, max_len=5, offset=2), [0, -2]),
        (posenc.Learned(d_model=3, max_len=5), [0, -1]),
        (posenc.Learned2D(d_model=3, height=2, width=2, n_prefix=1), [[0, 0], [0, 2]]),
        (posenc.Learned2D(d_model=3, height=2, width=2, n_prefix=1), [[0, 0], [-7, 0]]),
    ],
    ids=str,
)
def test_a_position_outside_a_table_never_takes_the_row_of_another(encoding: Any, bad: Any, monkeypatch: Any) -> None:
    """Where nobody may look, as in compiled code, the look-up's own check speaks."""
    monkeypatch.setattr(positions.checks, "may_look", lambda _: False)
    monkeypatch.setattr(positions, "may_look", lambda _: False)
    with pytest.raises(IndexError):
        encoding.place(torch.tensor(bad))


def test_a_position_beyond_the_digits_is_nan_where_nobody_may_look(monkeypatch: Any) -> None:
    monkeypatch.setattr(positions.checks, "may_look", lambda _: False)
    vectors = posenc.Binary(d_model=3).vectors(torch.tensor([7, 8, -1]))
    assert vectors[0].tolist() == [1, 1, 1]
    assert vectors[1:].isnan().all()
    assert posenc.Binary(d_model=70).vectors(torch.tensor([2**63 - 1])).sum() == 63


def test_learned_draws_its_table() -> None:
    torch.manual_seed(1)
    weight = posenc.Learned(d_model=100, max_len=100, init_std=0.5).weight.detach()
    assert float(weight.std()) == pytest.approx(0.5, rel=0.05)
    assert abs(float(weight.mean())) < 0.02


@pytest.mark.parametrize("bad", [{"d_model": 0}, {"max_len": 0}, {"offset": -1}])
def test_learned_refuses(bad: dict[str, int]) -> None:
    got = ", ".join(f"{name}={value}" for name, value in bad.items())
    with refuses(ValueError, "Learned: ", "must be at least", got):
        posenc.Learned(**{"d_model": 2, "max_len": 2} | bad)


@pytest.mark.parametrize("encoding", [posenc.Learned(d_model=4, max_len=4), posenc.Binary(d_model=4)], ids=str)
def test_tables_refuse_real_positions(encoding: Any) -> None:
    with refuses(TypeError, f"{encoding.name}: needs integer positions", "pos.long()"):
        encoding.place(torch.zeros(2, dtype=torch.float64))


def test_binary_is_the_number_written_out() -> None:
    for width in (1, 5, 40, 63, 64, 80):
        places = [0, 1, 2 ** min(width, 62) - 1, (2 ** min(width, 62) - 1) // 3]
        got = posenc.Binary(d_model=width).vectors(torch.tensor(places)).int().tolist()
        assert got == [[int(digit) for digit in f"{p:0{width}b}"] for p in places]


@pytest.mark.parametrize("bad", [8, -1])
def test_binary_range(bad: int) -> None:
    with refuses(ValueError, "Binary: positions must lie in 0..7", "d_model=3 dimensions", f"got position {bad}"):
        posenc.Binary(d_model=3).place(torch.tensor([bad]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_sum_is_rounded_once(dtype: torch.dtype) -> None:
    sines, x = posenc.Sinusoidal(d_model=64), normal(2, 50, 64).to(dtype)
    pos = positions.arange(50, start=30_000)
    exact = x.double() + sines.vectors(pos)
    got = sines(x, pos)
    assert got.dtype == dtype
    once = exact.to(dtype)
    assert (got != once).double().mean() < 1e-3  # the table is float32, which moves a tie now and then
    assert (got.double() - exact).abs().max() <= 1.01 * (once.double() - exact).abs().max()


def test_tokens_of_another_width() -> None:
    sines = posenc.Sinusoidal(d_model=4)
    with refuses(ValueError, "Sinusoidal: x must have d_model=4 dimensions", "(1, 2, 6)", "d_model=6"):
        sines(torch.zeros(1, 2, 6), positions.arange(2))
    with refuses(ValueError, "x must have d_model=4 dimensions"):
        sines(torch.zeros(1, 2, 1), positions.arange(2))


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"d_model": 0}, ["d_model must be at least 1"]),
        ({"order": "sines"}, ["order must be one of ('alternating', 'concatenated'); got 'sines'"]),
        ({"exponent": "vaswani"}, ["exponent must be one of ('paper', 'tensor2tensor'); got 'vaswani'"]),
        ({"base": 0.5}, ["base must be a finite number greater than 1"]),
        ({"inv_freq": [1.0]}, ["inv_freq must hold 2 frequencies"]),
    ],
)
def test_sinusoidal_refuses(bad: dict[str, Any], words: list[str]) -> None:
    with refuses(ValueError, "Sinusoidal: ", *words):
        posenc.Sinusoidal(**{"d_model": 4} | bad)


@pytest.mark.parametrize("batch", [False, True])
def test_positions_by_row(batch: bool) -> None:
    sines, x = posenc.Sinusoidal(d_model=6), torch.zeros(2, 3, 6, dtype=torch.float64)
    pos = torch.tensor([[0, 1, 2], [5, 5, 5]]) if batch else torch.tensor([0, 1, 2])
    got = sines(x, pos)
    assert torch.equal(got[0], sines.vectors(torch.tensor([0, 1, 2])))
    assert torch.equal(got[1], sines.vectors(pos[1] if batch else pos))
