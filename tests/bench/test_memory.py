from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

import bench_calls
from posenc import attention
from posenc.bench import memory, report, rows
from posenc.bench.attend import Attention
from posenc.bench.memory import MIB, NotMeasured

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the mark is Linux's")
NUMBERS = 16 * MIB  # float32: 64 MiB


def peak(call, n=NUMBERS, *more):
    found = memory.peak(partial(call, n, *more), warm=partial(call, 256, *more))
    assert isinstance(found, int), found
    return found


@pytest.mark.slow
def test_a_temporary_of_64_mib_is_seen():
    found = peak(bench_calls.temporary)
    assert 63.5 * MIB < found < 67 * MIB


@pytest.mark.slow
def test_what_is_returned_counts_and_what_was_there_does_not():
    assert 63.5 * MIB < peak(bench_calls.kept) < 67 * MIB
    assert peak(bench_calls.inputs_only) < 3 * MIB
    assert peak(bench_calls.freed_before) < 3 * MIB


def test_twice_the_size_is_twice_the_peak():
    one, two = peak(bench_calls.temporary), peak(bench_calls.temporary, 2 * NUMBERS)
    assert 1.9 < two / one < 2.1


def test_what_is_taken_in_one_hole_after_the_other_counts_once():
    """Of 1 MiB at a time, in eight places."""
    assert peak(bench_calls.in_holes, 2**18) < 2.5 * MIB


def test_without_a_small_call_the_call_itself_runs_first():
    found = memory.peak(partial(bench_calls.temporary, NUMBERS))
    assert 63.5 * MIB < found < 67 * MIB


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "length", "dtype", "of_q"),
    [
        ("t5.forward", 2048, "bfloat16", 3.8),
        ("t5.documents", 384, "bfloat16", 3.8),
    ],
)
def test_views_of_a_vector_take_a_few_copies_of_q(name, length, dtype, of_q):
    """Keys in reverse and one block's results; a matrix of scores in half precision would be 32 and 6 times q."""
    (row,) = rows.choose("attend", [length], [dtype], name)
    small = replace(row, length=min(length, 512))
    found = memory.peak(partial(report.build, row, "attend:auto"), warm=partial(report.build, small, "attend:auto"))
    assert isinstance(found, int), found
    assert found < of_q * Attention(row).q_bytes


@pytest.mark.sample(2)
@pytest.mark.parametrize("n", [2048, 4096])  # blocks of which a kernel takes more rows begin between these
@pytest.mark.parametrize("call", [(8,), (1,), (8, 2), (8, 1, 50)], ids=["8 heads", "1 head", "a sum", "too far apart"])
def test_what_is_told_of_scattered_positions_is_taken(call, n):
    """A bias looked up, or computed, for a block at a time: 1.3 to 3.5 blocks of scores; 0.1 were reported."""
    encoding, q, pos = bench_calls.scattered_call(n, *call)
    with torch.no_grad():
        (estimate,) = (one.memory for one in attention.explain(q, q, q, encoding, pos) if one.backend == "blocked")
    taken = peak(bench_calls.scattered, n, *call) - q.nbytes  # without the result
    assert 0.5 * estimate < taken < 2 * estimate  # pages that the allocator keeps make it 0.8 to 1.8


TOLD = [
    *((name, "blocked", learns, False) for name in ("t5", "shaw", "deberta", "cope", "dape") for learns in (0, 1)),
    *((name, "blocked", learns, True) for name in ("kerple", "shaw", "deberta", "cope") for learns in (0, 1)),
    *(("rerope", "piecewise", learns, False) for learns in (0, 1)),
    *((name, "blocked", 1, False) for name in ("alibi", "t5", "kerple")),
]


@pytest.mark.sample(2)
@pytest.mark.parametrize(("name", "backend", "learns", "elsewhere"), TOLD)
def test_what_is_told_is_taken(name, backend, learns, elsewhere, monkeypatch):
    """Of score maps a sixth to a tenth was reported, and of gradients of biases that do not learn a twentieth."""
    n, call = 2048, (name, backend, bool(learns))
    taken = peak(bench_calls.attended, n, *call, elsewhere)
    encoding, q, pos = bench_calls.attended_call(n, name, bool(learns), elsewhere=False)
    taken -= (1 + 2 * learns) * q.nbytes  # the result, or gradients, of which q has those of k and v as well
    if elsewhere:
        bench_calls.look_at_nothing(monkeypatch.setattr)
    with torch.set_grad_enabled(bool(learns)):
        reported = {one.backend: one.memory for one in attention.explain(q, q, q, encoding, pos)}[backend]
    assert 0.4 * reported < taken < 2.4 * reported


def test_an_error_is_a_sentence():
    assert memory.peak(bench_calls.failing) == NotMeasured("there is nothing to see")


def test_a_process_that_dies_is_told_and_not_to_be_repeated_here():
    found = memory.peak(bench_calls.killed)
    assert isinstance(found, NotMeasured)
    assert found.fatal
    assert "code -9" in found.why


def test_a_process_that_never_ends_is_ended():
    found = memory.peak(bench_calls.sleeping, timeout_s=1.0)
    assert found == NotMeasured("no answer within 1 seconds", fatal=True)


def test_elsewhere_it_says_that_nothing_was_measured(monkeypatch):
    monkeypatch.setattr(memory.multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    found = memory.peak(bench_calls.failing)
    assert isinstance(found, NotMeasured)
    assert not found.fatal
    assert "Linux does" in found.why
