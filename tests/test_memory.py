"""Pages are counted in processes of their own, never timed."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import posenc
from posenc import memory

PAGES = 64 * 2**20 // 4096  # that a clone of 64 MiB has
on_glibc = pytest.mark.skipif(not memory.is_glibc(), reason="malloc is not glibc's")
HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
small_pages = pytest.mark.skipif(HUGE.exists() and "[always]" in HUGE.read_text(), reason="pages are of 2 MiB")


def run(how, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("GLIBC_", "MALLOC_", "LD_PRE"))}
    script = Path(__file__).parent / "memory_calls.py"
    done = subprocess.run(
        [sys.executable, str(script), how], capture_output=True, text=True, env=clean | environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    *said, count = done.stdout.split()
    return said, float(count)


@pytest.mark.slow
@on_glibc
@small_pages
def test_clones_stop_asking_for_pages():
    said, count = run("stock")
    assert (said, count > 0.9 * PAGES) == ([], True)
    said, count = run("keep")
    assert (said, count < 0.05 * PAGES) == (["True"], True)


@pytest.mark.slow
@on_glibc
@small_pages
def test_it_can_be_undone():
    said, count = run("undo")
    assert (said, count > 0.9 * PAGES) == (["True", "True"], True)


@pytest.mark.slow
@on_glibc
@small_pages
def test_the_environment_does_the_same():
    assert run("stock", GLIBC_TUNABLES=memory.TUNABLES)[1] < 0.05 * PAGES


@pytest.mark.parametrize(
    ("platform", "libc"), [("darwin", ("", "")), ("win32", ("", "")), ("linux", ("", "")), ("linux", ("musl", "1.2"))]
)
def test_elsewhere_nothing_is_touched(monkeypatch, platform, libc):
    monkeypatch.setattr(memory.sys, "platform", platform)
    monkeypatch.setattr(memory.platform, "libc_ver", lambda: libc)
    monkeypatch.setattr(memory.ctypes, "CDLL", None)  # calling it would fail
    assert posenc.reuse_pages() is False
    assert posenc.reuse_pages(keep=False) is False


@pytest.mark.parametrize("symbol", ["mallctl", "mi_version", "tc_version"])
def test_another_malloc_is_left_alone(monkeypatch, symbol):
    monkeypatch.setattr(memory.sys, "platform", "linux")
    monkeypatch.setattr(memory.platform, "libc_ver", lambda: ("glibc", "2.36"))
    calls = []
    symbols = SimpleNamespace(**{"mallopt": lambda *given: calls.append(given) or 1, symbol: None})
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: symbols)
    assert posenc.reuse_pages() is False
    assert calls == []


def test_a_refusal_by_glibc_is_told(monkeypatch):
    monkeypatch.setattr(memory, "is_glibc", lambda: True)
    calls = []

    refusing = SimpleNamespace(mallopt=lambda *given: calls.append(given) or int(given[0] != -1))
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: refusing)
    assert posenc.reuse_pages() is False
    assert calls == [(-4, 0), (-1, -1)]  # M_MMAP_MAX and M_TRIM_THRESHOLD of malloc.h


def test_it_needs_no_torch():
    code = "import sys, posenc; posenc.reuse_pages(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "False\n")
