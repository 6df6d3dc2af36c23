"""The Triton kernel against the definition: on a GPU as it is, without one in Triton's interpreter.

`test_triton.py` runs this file in a process with TRITON_INTERPRET=1, which must be set before anything imports triton,
and is nothing that torch's compiler should find in the tests' own process.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import strategies
from kernels.rotations import LAYOUTS, Memory, memory
from posenc import definitions
from posenc.kernels import triton as backend
from posenc.kernels.jobs import Job

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() and not backend.interprets(), reason="neither a GPU nor TRITON_INTERPRET=1"
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# what one rounding leaves; Triton's interpreter cuts bfloat16 off where a GPU rounds it to the nearest
ROUNDED = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24, torch.float64: 2.0**-53}
if DEVICE == "cpu":
    ROUNDED[torch.bfloat16] = 2.0**-7
WIDTHS = [(6, 3), (2, 1), (80, 40), (96, 48), (128, 64), (256, 128), (128, 32), (96, 16), (10, 3), (192, 32)]
LENGTHS = [1, 2, 7, 16, 20, 33]


class Case(NamedTuple):
    """One of queries and keys, and what the definition says of it."""

    job: Job
    wanted: np.ndarray
    slack: np.ndarray
    x: Memory
    out: Memory


def case(
    *,
    dtype: torch.dtype,
    width: tuple[int, int],
    batch: int,
    table_heads: int,
    group: int,
    length: int,
    layouts: tuple[str, str, str],
    in_place: bool,
    own_positions: bool,
    seed: int,
    pairing: str,
    side: str,
) -> Case:
    random = np.random.default_rng(seed)
    head_dim, n_pairs = width
    table_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    positions = random.integers(-50, 50, (batch if own_positions else 1, length)).astype(float)
    theta = random.uniform(0, 2, (table_heads, n_pairs))
    gain = 1.25
    angles = positions[:, None, :, None] * theta[None, :, None, :]
    cos, sin = (
        memory(torch.from_numpy(gain * f(angles)).to(table_dtype).to(DEVICE), layouts[2]).tensor
        for f in (np.cos, np.sin)
    )
    x = memory(
        torch.from_numpy(random.normal(0, 2, (batch, table_heads * group, length, head_dim))).to(dtype).to(DEVICE),
        layouts[0],
    )
    out = x if in_place else memory(torch.zeros_like(x.tensor), layouts[1])
    wide = x.tensor.double().cpu().numpy()
    options = {"head_dim": head_dim, "rotary_dim": 2 * n_pairs, "pairing": pairing, "rotary_side": side}
    turns = np.array(
        [
            [[definitions.rotary.rope(p, inv_freq=f, attention_factor=gain, **options)[0] for p in row] for f in theta]
            for row in positions
        ]
    ).reshape(*angles.shape[:3], head_dim, head_dim)
    heads = wide.reshape(batch, table_heads, group, length, head_dim)
    wanted = np.einsum("btsij,btgsj->btgsi", np.broadcast_to(turns, (batch, *turns.shape[1:])), heads)
    wanted = wanted.reshape(wide.shape)
    size = np.abs(wide).max(-1, keepdims=True)
    arithmetic = (64 if table_dtype == torch.float64 else 8) * ROUNDED[table_dtype]  # float64 has angles' rounding too
    return Case(
        Job(x.tensor, out.tensor, cos, sin),
        wanted,
        ROUNDED[dtype] * np.abs(wanted) + arithmetic * (100 if table_dtype == torch.float64 else 1) * size + 2.0**-25,
        x,
        out,
    )


def hold(cases: list[Case], pairing: Any, side: Any) -> None:
    jobs = [c.job for c in cases]
    assert backend.refuses(jobs) is None
    backend.run(jobs, pairing, side)
    for c in cases:
        check(c)


def check(c: Case) -> None:
    wrong = np.abs(c.out.tensor.double().cpu().numpy() - c.wanted) - c.slack
    assert wrong.max(initial=-1) <= 0, (float(wrong.max()), c.job.x.shape, c.job.x.dtype)
    assert c.out.untouched_around()
    assert c.out is c.x or c.x.untouched()


@given(data=st.data())
@strategies.check(15)
def test_turns_as_defined(data: st.DataObject) -> None:
    draw = data.draw
    pairing, side = draw(st.sampled_from(["half", "interleaved"])), draw(st.sampled_from(["first", "last"]))
    table_heads = draw(st.sampled_from([1, 1, 2, 3]))
    shared = {
        "dtype": draw(st.sampled_from(list(ROUNDED))),
        "width": draw(st.sampled_from(WIDTHS)),
        "batch": draw(st.integers(1, 3)),
        "table_heads": table_heads,
    }
    cases = [
        case(
            **shared,
            group=draw(st.sampled_from([1, 2, 5, 9])),
            length=draw(st.sampled_from(LENGTHS)),
            layouts=tuple(draw(st.sampled_from(LAYOUTS)) for _ in range(3)),
            in_place=draw(st.booleans()),
            own_positions=draw(st.booleans()),
            seed=seed,
            pairing=pairing,
            side=side,
        )
        for seed in range(draw(st.integers(1, 2)))
    ]
    hold(cases, pairing, side)


PLAIN = {"batch": 1, "table_heads": 1, "layouts": ("plain",) * 3, "own_positions": False, "seed": 3}


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", list(ROUNDED))
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_model_of_32_and_8_heads(dtype: torch.dtype, pairing: str, in_place: bool) -> None:
    options = PLAIN | {"dtype": dtype, "width": (128, 64), "length": 5, "in_place": in_place}
    hold([case(group=g, pairing=pairing, side="first", **options) for g in (32, 8)], pairing, "first")


@pytest.mark.sample(1)
@pytest.mark.parametrize("layout", ["plain", "transposed"])
def test_enough_rows_that_a_program_goes_over_several_heads(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_ENOUGH", 4)
    options = PLAIN | {"dtype": torch.float32, "width": (64, 32), "length": 50, "in_place": False}
    options |= {"layouts": (layout,) * 3}
    cases = [case(group=g, pairing="half", side="first", **options) for g in (19, 3)]
    hold(cases, "half", "first")
    _, numbers, _ = backend.lay_out([c.job for c in cases], "half", "first")
    assert numbers[25] == 8  # steps: 19 heads are then two programs and a rest


@pytest.mark.parametrize(
    ("one", "other"),
    [({"width": (8, 4)}, {"width": (10, 4)}), ({"batch": 1}, {"batch": 2}), ({"dtype": torch.float16}, {})],
)
def test_queries_and_keys_that_differ_in_what_a_launch_shares(one: dict[str, Any], other: dict[str, Any]) -> None:
    options = PLAIN | {"dtype": torch.float32, "width": (8, 4), "length": 3, "group": 2, "in_place": False}
    pair = [case(pairing="half", side="first", **(options | more)) for more in (one, other)]
    hold(pair, "half", "first")


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_turning_back_is_the_sign_of_the_sines(pairing: Any) -> None:
    options = PLAIN | {"dtype": torch.float64, "width": (80, 40), "length": 7, "in_place": False, "group": 3}
    there = case(pairing=pairing, side="first", **options).job
    back = there._replace(x=there.out, out=torch.empty_like(there.x), sin=-there.sin)
    backend.run([there], pairing, "first")
    backend.run([back], pairing, "first")
    np.testing.assert_allclose(back.out.cpu(), 1.25**2 * there.x.cpu(), rtol=0, atol=1e-12)


def test_a_head_beyond_two_to_the_thirty_one_elements() -> None:
    far = 2**30  # fits 32 bits, as numbers of tokens and lanes do; twice that does not
    if DEVICE == "cuda" and torch.cuda.mem_get_info()[0] < 6 * 2**30:
        pytest.skip("needs 6 GiB of GPU memory")
    memory = torch.empty(2 * far + 64, dtype=torch.bfloat16, device=DEVICE)  # on Linux, pages come with the first touch
    x = memory.as_strided((1, 3, 1, 64), (0, far, 0, 1))
    x.copy_(torch.arange(192.0).view(1, 3, 1, 64))
    cos = torch.full((1, 1, 1, 32), math.cos(1.0), device=DEVICE)
    sin = torch.full((1, 1, 1, 32), math.sin(1.0), device=DEVICE)
    wanted = x.double().cpu()
    a, b = wanted.chunk(2, dim=-1)
    wanted = torch.cat((a * math.cos(1) - b * math.sin(1), b * math.cos(1) + a * math.sin(1)), dim=-1)
    jobs = [Job(x, x, cos, sin)]
    backend.run(jobs, "half", "first")
    torch.testing.assert_close(x.double().cpu(), wanted, rtol=2**-7, atol=1e-5)
