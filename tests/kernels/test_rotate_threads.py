"""Threads, forks, and compiled code that is kept, mixed up or missing: each ends, and what it says is the same."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import posenc
from kernels.rotations import BACKENDS, PAIRINGS, alone, bits_equal, exact, tables
from posenc import positions
from posenc.kernels import threads
from strategies import normal

FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
N = 300


@pytest.fixture
def free_threads() -> Iterator[Callable[[int], None]]:
    """Let a test choose how many threads torch may use."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def large(dtype: torch.dtype, *, transposed: bool = False) -> tuple[Tensor, Tensor]:
    """Return queries and keys that are worth several threads."""
    shapes = ((2, N, 16, 128), (2, N, 4, 128)) if transposed else ((2, 16, N, 128), (2, 4, N, 128))
    q, k = (normal(*s, seed=i, dtype=dtype) for i, s in enumerate(shapes))
    return (q.transpose(1, 2), k.transpose(1, 2)) if transposed else (q, k)


@pytest.mark.sample(4)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("transposed", [False, True])
def test_any_number_of_threads_is_the_same(
    transposed: bool, pairing: Any, backend: str, free_threads: Callable[[int], None]
) -> None:
    rope = posenc.RoPE(head_dim=128, pairing=pairing)
    placed = rope.place(positions.arange(N))
    for dtype in (torch.bfloat16, torch.float32):
        q, k = large(dtype, transposed=transposed)
        got = []
        for n in (1, 2, 3, 7):
            free_threads(n)
            got.append(rope.rotate(q, k, placed, backend=backend))
        for other in got[1:]:
            for a, b in zip(got[0], other, strict=True):
                # torch's complex product is rounded otherwise at the ends of what a thread has
                assert bits_equal(a, b) or (backend == "blocked" and pairing == "interleaved")
    exact(k, *tables(placed), pairing=pairing).holds(got[-1][1], torch.float32)


@pytest.mark.parametrize("backend", BACKENDS)
def test_many_python_threads_at_once(backend: str, free_threads: Callable[[int], None]) -> None:
    """Each with numbers of its own, one after another in other kinds; half of them start with nothing compiled."""
    free_threads(2)
    rope = posenc.RoPE(head_dim=128)
    placed = rope.place(positions.arange(N))
    given = [large(d) for d in (torch.bfloat16, torch.float32)]
    wanted = [rope.rotate(q, k, placed, backend=backend) for q, k in given]
    wrong: list[str] = []

    def work(seed: int) -> None:
        try:
            for i in range(3):
                which = (seed + i) % 2
                got = rope.rotate(*given[which], placed, backend=backend)
                if not all(bits_equal(a, b) for a, b in zip(got, wanted[which], strict=True)):
                    wrong.append(f"{seed} {i}")
        except Exception as error:
            wrong.append(repr(error))

    at_once(work, 6)
    assert not wrong


def at_once(work: Callable[[int], None], n: int) -> None:
    workers = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(n)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not any(worker.is_alive() for worker in workers)


def in_child(work: Callable[[], bool], *, seconds: float = 60.0) -> None:
    """Run in a forked child, which must end well and in time."""
    child = os.fork()
    if child == 0:
        code = 3
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0, status
            return
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    pytest.fail("the child hangs")


@FORKS
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("from_thread", [False, True])
@pytest.mark.parametrize("backend", ["numba", "auto"])
def test_a_forked_child_turns_as_its_parent_did(
    backend: str, from_thread: bool, free_threads: Callable[[int], None]
) -> None:
    """Threads are not forked with it, and OpenMP would wait for them: so it must not be asked."""
    free_threads(2)
    rope = posenc.RoPE(head_dim=128)
    placed = rope.place(positions.arange(N))
    q, k = large(torch.bfloat16)
    wanted = rope.rotate(q, k, placed, backend=backend)

    def work() -> bool:
        got = rope.rotate(q, k, placed, backend=backend)
        both = (
            [t.view(torch.int16).numpy(force=True) for t in ts] for ts in (got, wanted)
        )  # torch's OpenMP would wait
        return all((a == b).all() for a, b in zip(*both, strict=True))

    def child() -> bool:
        if not work():
            return False
        grandchild = os.fork()
        if grandchild == 0:
            os._exit(0 if work() else 1)
        return os.waitpid(grandchild, 0)[1] == 0

    failed: list[BaseException] = []

    def start() -> None:
        try:
            in_child(child)
        except BaseException as error:  # pytest.fail is none of Exception
            failed.append(error)

    if from_thread:
        at_once(lambda _: start(), 2)
    else:
        start()
    assert not failed, failed
    assert work()  # the parent goes on as before
    assert not threads._forked


TURN = """
import sys, torch, posenc
from posenc import positions
def turn(name, pairing, backend="numba"):
    dtype = getattr(torch, name)
    table = torch.float64 if dtype == torch.float64 else torch.float32
    rope = posenc.RoPE(head_dim=40, rotary_dim=36, pairing=pairing)
    x = torch.arange(1 * 2 * 5 * 40).reshape(1, 2, 5, 40).double().sin().to(dtype)
    placed = rope.place(positions.arange(5), dtype=table)
    got, _ = rope.rotate(x, x[:, :1].clone(), placed, backend=backend)
    cos, sin = (t.double() for t in placed.parts)
    pairs = (slice(0, 18), slice(18, 36)) if pairing == "half" else (slice(0, 36, 2), slice(1, 36, 2))
    a, b = (x.double()[..., lanes] for lanes in pairs)
    c, d = (got.double()[..., lanes] for lanes in pairs)
    wrong = max(float((c - a * cos + b * sin).abs().max()), float((d - b * cos - a * sin).abs().max()))
    assert wrong <= 4 * torch.finfo(dtype).eps, (name, pairing, wrong)
    assert torch.equal(got[..., 36:], x[..., 36:])
"""


def started(code: str, cache: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", TURN + code],
        env=os.environ | {"NUMBA_CACHE_DIR": str(cache)},
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_kept_code_of_one_kind_is_not_taken_for_another(tmp_path: Path) -> None:
    """Processes add kinds to one directory, two at once; each later one uses what all have left there, in any order."""
    one, other, third = 'turn("float32", "half")\n', 'turn("float64", "half")\n', 'turn("bfloat16", "interleaved")\n'
    for stage in ((one, other), (other + third + one, one + other)):
        for process in [started(code, tmp_path) for code in stage]:
            _, words = process.communicate(timeout=120)
            assert process.returncode == 0, words[-2000:]
    kept = {p.name.split("-")[0] for p in tmp_path.rglob("*.nbi")}
    assert len(kept) == 3, kept


def package_copy(tmp_path: Path) -> Path:
    """Copy the package, so that what is done to its directories is done to a copy."""
    import shutil

    home = Path(posenc.__file__).parent
    shutil.copytree(home, tmp_path / "site" / "posenc", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    return tmp_path / "site"


@pytest.mark.slow
def test_a_package_that_cannot_be_written_beside(tmp_path: Path) -> None:
    """Neither its own directory nor the home has room for compiled code: it is compiled each time."""
    site = package_copy(tmp_path)
    (site / "posenc" / "kernels" / "__pycache__").write_text("a file where a directory should be")
    home = tmp_path / "home"
    home.write_text("no directory either")
    code = TURN + f'assert posenc.__file__.startswith({str(site)!r})\nturn("float32", "half")'
    environment = {
        "PYTHONPATH": str(site),
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    alone(code, timeout=120, **environment)
    assert (site / "posenc" / "kernels" / "__pycache__").is_file()


@pytest.mark.slow
def test_a_directory_that_has_no_room(tmp_path: Path) -> None:
    """A directory can be written to when numba looks, and is full when it writes."""
    full = """
import os
from numba.core import caching
def no_room(*args, **options):
    raise OSError(28, "No space left on device")
caching.IndexDataCacheFile.save = no_room
"""
    alone(full + TURN + 'turn("float32", "half", "auto")', timeout=120, NUMBA_CACHE_DIR=str(tmp_path))


MISSING = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("numba", "llvmlite"):
            {how}
sys.meta_path.insert(0, Missing())
"""
HOWS = {
    "missing": "raise ModuleNotFoundError('No module named ' + repr(name), name=name)",
    "worse": "raise AttributeError(\"module 'numpy' has no attribute 'long'\")",
}


@pytest.mark.slow
@pytest.mark.parametrize("how", HOWS)
def test_without_numba(how: str) -> None:
    """What one has installed decides how fast it is, never whether it works."""
    code = (
        MISSING.format(how=HOWS[how])
        + TURN
        + """
for name in ("bfloat16", "float32", "float64"):
    for pairing in ("half", "interleaved"):
        turn(name, pairing, "auto")
try:
    turn("float32", "half", "numba")
except ValueError as error:
    print(error)
x = torch.randn(1, 16, 600, 128)
rope = posenc.RoPE(head_dim=128)
placed = rope.place(positions.arange(600))
got = rope.rotate(x, x.clone(), placed)[0]
assert torch.equal(got, rope.rotate(x, x.clone(), placed, backend="blocked")[0])
assert "numba" not in sys.modules
"""
    )
    message = alone(code, timeout=120)
    assert message.startswith("rotate: backend 'numba' cannot be used here: ")
    assert message.count("\n") == 1
    assert "Pass backend='auto'." in message
    if how == "missing":
        assert "numba is not installed; run pip install 'posenc[fast]'" in message


@pytest.mark.slow
def test_nothing_is_loaded_before_something_turns() -> None:
    """numba takes a second to load, which who only imports the package should not pay."""
    code = "import sys, posenc\nrope = posenc.RoPE(head_dim=8)\nrope.place(posenc.positions.arange(3))\n"
    alone(code + "assert 'numba' not in sys.modules and 'triton' not in sys.modules, 'loaded'")
