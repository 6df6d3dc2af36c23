"""What new memory costs is measured in a process of its own; pages are counted, times only read."""

import os
from pathlib import Path

import pytest

from posenc import memory
from posenc.bench import pages

HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
counted = pytest.mark.skipif(
    not memory.is_glibc() or (HUGE.exists() and "[always]" in HUGE.read_text()),
    reason="malloc is not glibc's, or pages are of 2 MiB",
)


def ask(monkeypatch, **environment):
    for name in [name for name in os.environ if name.startswith(("GLIBC_", "MALLOC_"))]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return pages.ask()


@pytest.mark.slow
@counted
def test_a_cold_process_asks_for_pages_and_one_that_keeps_memory_does_not(monkeypatch):
    stock = ask(monkeypatch)
    assert list(stock) == ["mib", "copy_s", "clone_s", "faults", "ratio"]
    whole = stock["mib"] * 2**20 // os.sysconf("SC_PAGE_SIZE")
    assert stock["faults"] > 0.9 * whole
    assert stock["ratio"] == stock["clone_s"] / stock["copy_s"]
    assert ask(monkeypatch, GLIBC_TUNABLES=memory.TUNABLES)["faults"] < 0.05 * whole


def test_a_process_that_ends_is_reported(monkeypatch):
    monkeypatch.setattr(pages, "_CODE", "import os; os.kill(os.getpid(), 9)  # {}")
    assert pages.ask() == {"problem": "the measuring process ended with code -9"}


def test_a_process_that_does_not_answer_is_reported():
    assert pages.ask(timeout_s=0.01) == {"problem": "no answer within 0.01 seconds"}


@pytest.mark.parametrize(("room", "problem"), [(2**40, None), (2**20, "too little memory is free")])
def test_the_size_fits_into_what_is_free(monkeypatch, room, problem):
    monkeypatch.setattr("posenc.memory.available", lambda: room)
    cost = pages.measure()
    assert cost.get("problem") == problem
    assert problem or (cost["mib"], cost["ratio"]) == (64, cost["clone_s"] / cost["copy_s"])
