"""What is worked out for one kind of call is never taken for another, and fresh memory is asked for as it should be."""

import mmap
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import posenc
from kernels.rotations import BACKENDS, exact, kind_name, tables
from posenc import kernels, positions
from posenc.kernels import pages
from strategies import normal

N = 13


def other_places(rope: posenc.RoPE, pos: Tensor) -> dict[str, posenc.Placed]:
    """Tables for keys that differ from those of the queries in one thing each, and mostly in their numbers."""
    each = rope.place(pos + torch.tensor([[3], [40]]))
    wide = rope.place(pos + 3)
    cos, sin = (torch.cat([t, t], -1)[:, : t.shape[-1]] for t in wide.parts)
    return {
        "numbers": rope.place(pos + 3),
        "shape": each,
        "strides": replace(wide, parts=(cos, sin)),
        "dtype": rope.place(pos + 3, dtype=torch.float64),
    }


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=kind_name)
@pytest.mark.parametrize("first", ["shared", "own"])
def test_tables_that_are_shared_and_tables_of_their_own(first: str, dtype: torch.dtype, backend: str) -> None:
    """Calls alike in all but the keys' tables, one right after the other."""
    rope, pos = posenc.RoPE(head_dim=38), positions.arange(N)
    placed = rope.place(pos)
    for name, k_placed in other_places(rope, pos).items():
        if backend == "numba" and dtype == torch.bfloat16 and name == "dtype":
            continue  # refused: it has no way from float64 to bfloat16
        calls = [(placed, None), (placed, k_placed)]
        for queries, keys in calls if first == "shared" else calls[::-1]:
            q, k = normal(2, 6, N, 38, dtype=dtype), normal(2, 3, N, 38, seed=1, dtype=dtype)
            own = q.clone(), k.clone()
            for xs, out in (((q, k), None), ((q, k), (torch.empty_like(q), torch.empty_like(k))), (own, own)):
                got = rope.rotate(*xs, queries, keys, out=out, backend=backend)
                exact(q, *tables(queries), pairing="half").holds(got[0], torch.float32)
                exact(k, *tables(keys or queries), pairing="half").holds(got[1], torch.float32)


@pytest.mark.parametrize("sin_dtype", [torch.float32, torch.float64], ids=kind_name)
@pytest.mark.parametrize("cos_dtype", [torch.float32, torch.float64], ids=kind_name)
def test_cosines_and_sines_of_two_dtypes(cos_dtype: torch.dtype, sin_dtype: torch.dtype) -> None:
    """One address and one width of a number do for both only where they are of one dtype."""
    x, angle = normal(1, 2, N, 34, dtype=torch.float32), normal(N, 17)
    cos, sin = angle.cos().to(cos_dtype), angle.sin().to(sin_dtype)
    for _ in range(2):
        got = kernels.turn(x, cos, sin, pairing="half")
        exact(x, cos[None, None], sin[None, None], pairing="half").holds(got, torch.float32)


@pytest.mark.parametrize("transposed", [False, True])
def test_large_outputs_ask_for_large_pages(transposed: bool) -> None:
    """The system marks what was asked for; what lies before and behind is not ours to ask for."""
    rows, heads = pages.LEAST // (64 * 4), 2
    x = torch.zeros(1, rows, heads, 64).transpose(1, 2) if transposed else torch.zeros(1, heads, rows, 64)
    rope = posenc.RoPE(head_dim=64)
    for backend in BACKENDS[:2]:
        places = rope.place(positions.arange(rows)), rope.place(positions.arange(8))
        q, _ = rope.rotate(x, x[:, :1, :8], *places, backend=backend)
        assert q.stride() == x.stride()
        if Path("/sys/kernel/mm/transparent_hugepage").exists():
            assert is_marked(q)
            assert not is_marked(torch.frombuffer(mmap.mmap(-1, pages.LEAST), dtype=torch.uint8))


def is_marked(x: Tensor) -> bool:
    """Whether large pages were asked for the middle of a tensor: "hg" among the flags of its mapping."""
    middle, inside = x.data_ptr() + x.nbytes // 2, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        begin, dash, end = line.split()[0].partition("-")
        if dash and not begin.endswith(":"):
            inside = int(begin, 16) <= middle < int(end, 16)
        elif inside and line.startswith("VmFlags:"):
            return "hg" in line.split()
    return False
