"""Encodings that read tokens: batches, a past of another precision, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import posenc
from posenc import positions
from posenc.families import ReadsTokens
from strategies import normal, randomise, refuses

NAMES = [name for name in posenc.names() if issubclass(posenc.card(name).cls, ReadsTokens)]
POS = positions.arange(6)


def reader(name: str) -> Any:
    encoding: Any = posenc.card(name).examples()[0]
    return randomise(encoding, 1)


def text(encoding: Any, rows: int) -> Tensor:
    return normal(rows, 6, encoding.d_model, seed=2)


def test_there_are_readers() -> None:
    assert {"fox", "grape_ap", "inkling", "selective_rope"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_other_numbers_of_rows_are_refused(name: str) -> None:
    encoding = reader(name)
    who = type(encoding).__name__
    with refuses(ValueError, f"{who}: tokens, positions and past must have one batch", "got rows: 3 of x and 2 of pos"):
        encoding.place(POS.expand(2, -1), text(encoding, 3))
    past = encoding.place(POS, text(encoding, 2))
    with refuses(ValueError, f"{who}: tokens, positions and past must have one batch", "3 of x and 2 of past"):
        encoding.place(POS + 6, text(encoding, 3), past=past)


@pytest.mark.parametrize("name", NAMES)
def test_a_past_of_several_rows_gives_its_batch_to_tokens_of_one(name: str) -> None:
    encoding = reader(name)
    past, one = encoding.place(POS, text(encoding, 2), dtype=torch.float64), text(encoding, 1)
    got = encoding.place(POS + 6, one, past=past, dtype=torch.float64)
    wanted = encoding.place((POS + 6).expand(2, -1), one.expand(2, -1, -1), past=past, dtype=torch.float64)
    assert got.pos.shape == (2, 6)
    for mine, theirs in zip(got.parts, wanted.parts, strict=True):
        assert mine.shape[:2] == (2, 6)
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("name", NAMES)
def test_tokens_must_be_a_tensor(name: str) -> None:
    encoding = reader(name)
    for x in (None, text(encoding, 1).numpy(), "text"):
        with refuses(TypeError, f"{type(encoding).__name__}: reads the tokens", "got x=", "Pass place(pos, x)"):
            encoding.place(POS, x)


@pytest.mark.parametrize("name", NAMES)
def test_a_past_in_float64_serves_a_step_in_float32(name: str) -> None:
    encoding = reader(name)
    x = normal(1, 12, encoding.d_model, seed=3)
    whole = encoding.place(positions.arange(12), x, dtype=torch.float64)
    past = encoding.place(POS, x[:, :6], dtype=torch.float64)
    step = encoding.place(POS + 6, x[:, 6:], past=past)
    for got, wanted in zip(step.parts, whole.last(6).parts, strict=True):
        assert got.dtype in (torch.float32, torch.int64)
        assert (got.double() - wanted).abs().max() < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_a_default_device_does_not_reach_places_of_tokens_elsewhere(name: str) -> None:
    encoding = reader(name)
    x = text(encoding, 1)
    wanted = encoding.place(POS, x)
    with torch.device("meta"):
        got = encoding.place(POS, x)
    for mine, theirs in zip(got.parts, wanted.parts, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("name", NAMES)
def test_padding_that_is_not_finite_leaves_gradients_finite(name: str) -> None:
    encoding = reader(name)
    x = text(encoding, 2).index_fill(1, torch.tensor([0, 1]), float("nan")).requires_grad_()
    q, k, v = normal(3, 2, 4, 6, 8, seed=5)
    seen = torch.arange(6)[None, None, None] >= 2
    out = posenc.attend(q, k, v, encoding, encoding.place(POS, x), mask=seen, backend="reference")
    out[:, :, 2:].square().sum().backward()
    learned = [p.grad for p in encoding.parameters()]
    assert all(grad is not None and grad.isfinite().all() for grad in learned)
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_a_temperature_that_is_no_number_is_refused() -> None:
    with refuses(TypeError, "Inkling: temperature must be a number; got 'a'"):
        posenc.Inkling(d_model=4, n_heads=1, temperature="a")
