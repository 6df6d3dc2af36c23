"""Hypothesis strategies for positions, dimensions and the options of each encoding; and what tests share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jaxtyping
import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from torch import Tensor

import posenc
import sampling
from drawn_options import options as options

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32)
REALS = (torch.float32, torch.float64)
FAR = 1_000_000
# names of encodings for text, where a position is one number
TEXT = [name for name in posenc.names() if posenc.card(name).examples()[0].n_axes == 1]
# of these, all that a host model can construct of what it knows: LongRoPE's lists come from a search, and a graph is
# no text
HOSTED = [name for name in TEXT if name not in ("longrope", "graphormer")]


def check(examples: int = 40) -> settings:
    """Settings of one property, whose examples are counted for `--whole`; no deadline: torch's first call is slow."""
    phases = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)
    slow = [HealthCheck.too_slow]
    examples = max(round(examples * sampling.property_share), 5)
    return settings(max_examples=examples, deadline=None, phases=phases, suppress_health_check=slow)


@contextmanager
def refuses(kind: type[Exception], *words: str) -> Iterator[None]:
    """Expect an error whose message holds all the words.

    Under jaxtyping's import hook an argument of a wrong kind is stopped by the hook before the library sees it.
    """
    with pytest.raises((kind, jaxtyping.TypeCheckError)) as caught:
        yield
    if not isinstance(caught.value, jaxtyping.TypeCheckError):
        missing = [word for word in words if word not in str(caught.value)]
        assert not missing, f"{missing} not in: {caught.value}"


def randomise(encoding: Any, seed: int) -> Any:
    """Draw every parameter from N(0, 1), in float64."""
    random = torch.Generator().manual_seed(seed)
    encoding = encoding.double()
    for parameter in encoding.parameters():
        parameter.data = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
    return encoding


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Draw from N(0, 1)."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def dims() -> st.SearchStrategy[posenc.Dims]:
    """What a host may know of itself; head_dim is even and n_kv_heads divides n_heads."""
    groups, kv_heads = st.integers(1, 3), st.integers(1, 4)
    return st.builds(
        lambda d, g, kv, half, n: posenc.Dims(d_model=d, n_heads=g * kv, n_kv_heads=kv, head_dim=2 * half, max_len=n),
        st.integers(1, 8).map(lambda n: 2 * n),
        groups,
        kv_heads,
        st.integers(1, 8),
        st.integers(1, 64),
    )


@st.composite
def positions(
    draw: st.DrawFn,
    *,
    low: int = -FAR,
    high: int = FAR,
    real: bool = True,
    max_len: int = 6,
    n_axes: int = 1,
    batch: bool = True,
) -> Tensor:
    """Positions of every allowed kind in low..high: any integer dtype or real ones, plain or batched."""
    kind = draw(st.sampled_from(INTEGERS + REALS if real else INTEGERS))
    shape = [draw(st.integers(1, max_len))]
    if batch and draw(st.booleans()):
        shape.insert(0, draw(st.integers(1, 3)))
    if n_axes > 1:
        shape.append(n_axes)
    if kind.is_floating_point:
        values = st.floats(low, high, allow_nan=False, width=32 if kind == torch.float32 else 64)
    else:
        limits = torch.iinfo(kind)
        values = st.integers(max(low, limits.min), min(high, limits.max))
    count = int(torch.tensor(shape).prod())
    flat = draw(st.lists(values, min_size=count, max_size=count))
    wide = torch.float64 if kind.is_floating_point else torch.int64
    return torch.tensor(flat, dtype=wide).to(kind).reshape(shape)


@st.composite
def images(draw: st.DrawFn, *, max_len: int = 6, batch: bool = True) -> Tensor:
    """Different places on a grid around (5, 5), in any order, and at most one token in a negative row."""
    cells = st.tuples(st.integers(4, 7), st.integers(4, 7))
    row = st.lists(cells, min_size=2, max_size=max_len, unique=True).map(lambda r: [(-1, 0), *r])
    rows = [draw(row) for _ in range(draw(st.integers(1, 3)) if batch else 1)]
    n = min(map(len, rows))
    pos = torch.tensor([r[:n] for r in rows])
    return pos if batch and draw(st.booleans()) else pos[0]


def draw_encoding(data: st.DataObject, name: str) -> Any:
    """Construct an encoding of that name with random learned tensors, in float64.

    In the test's body and not in a strategy, since beartype draws random numbers of its own.
    """
    arguments, seed = data.draw(options(name)), data.draw(st.integers(0, 2**20))
    return randomise(posenc.create(name, **arguments), seed)


def sites(encoding: Any, **limits: Any) -> st.SearchStrategy[Tensor]:
    """Return positions that this encoding accepts, up to a million where it has no bound of its own."""
    low, high = -FAR, FAR
    numbered = posenc.Swin, posenc.BEiT, posenc.Decomposed2D, posenc.Graphormer, posenc.PRoPE, posenc.GTA
    if isinstance(encoding, (posenc.Learned, posenc.Learned2D, posenc.TUPE, *numbered)):
        low, high = 0, encoding.max_len - 1
    if isinstance(encoding, posenc.Piecewise):  # nobody says how chunks and groups count below the first token
        low = 0
    if isinstance(encoding, posenc.DeBERTa):  # whose definition counts buckets one by one
        low, high = -2_000, 2_000
    if isinstance(encoding, posenc.CPVT):  # no two tokens of an image stand in one place
        return images(**{"max_len": 6} | limits)
    if isinstance(encoding, posenc.Binary):
        low, high = 0, 2 ** min(encoding.d_model, 62) - 1
    if isinstance(encoding, posenc.QueryTemperature):  # nobody says what is before the first token
        low = 0
    if isinstance(encoding, posenc.RetNet):
        low, high = -1_000, 1_000
    if isinstance(encoding, posenc.LieRE):  # an exponential of matrices of norm 10 times the position
        low, high = -100, 100
    if isinstance(encoding, posenc.XPos):  # lane sizes are powers of the position, and float64 ends
        low, high = -20_000, 20_000
    # fractions go through float32 on their way to bfloat16, and so may be rounded twice
    real = encoding.accepts_real and getattr(encoding, "precision", None) is None
    return positions(**{"low": low, "high": high, "real": real, "n_axes": encoding.n_axes} | limits)
