"""Memory is estimated before it is taken."""

import pytest
import torch

import posenc
from posenc import attention, memory, positions

GIB = 2**30


def call(encoding, n, **options):
    q = torch.empty(1, 8, n, 64)  # never filled, so that it takes none
    return posenc.attend(q, q, q, encoding, encoding.place(positions.arange(n)), **options)


def test_free_memory_is_a_plausible_number():
    free = memory.available()
    assert free is not None
    assert 2**20 < free < 2**50
    assert memory.available("meta") is None


def test_what_is_small_is_not_asked_for(monkeypatch):
    def fail(device):
        raise AssertionError("asked")

    monkeypatch.setattr(memory, "available", fail)
    encoding = posenc.ALiBi(n_heads=8)
    call(encoding, 16, backend="reference")
    monkeypatch.setattr(attention, "CHECKED_FROM", 3 * 8 * 16**2 * 4)  # bytes of three matrices of float32
    with pytest.raises(AssertionError, match="asked"):
        call(encoding, 16, backend="reference")


def test_what_does_not_fit_is_refused_before_it_is_taken(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda device: GIB)
    with pytest.raises(
        MemoryError, match=r"reference.* too little memory: it needs about 24\.0 GiB, and 1\.0 GiB are free"
    ):
        call(posenc.ALiBi(n_heads=8), 16384, backend="reference")
    bias = posenc.FIRE(n_heads=8)
    with pytest.raises(MemoryError, match=r"no backend can run this call(.|\n)*blocked: it needs about"):
        call(bias, 2**18)
    q = torch.empty(1, 8, 2**18, 64)
    said = {one.backend: one.verdict for one in attention.explain(q, q, q, bias, positions.arange(2**18))}
    assert "GiB are free" in said["blocked"]
    assert "taken" not in said.values()


@torch.no_grad()
def test_auto_takes_the_first_that_has_room(monkeypatch):
    encoding, n = posenc.ALiBi(n_heads=8), 350
    monkeypatch.setattr(attention, "CHECKED_FROM", 1)
    q = torch.randn(1, 8, n, 64)
    sizes = {one.backend: one.memory for one in attention.explain(q, q, q, encoding, positions.arange(n))}
    monkeypatch.setattr(memory, "available", lambda device: sizes["blocked"])
    assert sizes["sdpa"] > sizes["blocked"]
    said = {one.backend: one.verdict for one in attention.explain(q, q, q, encoding, positions.arange(n))}
    assert said["blocked"] == "taken"
    found, law = call_with(q, encoding, "auto"), call_with(q.double(), encoding, "reference-float64")
    assert (found - law).abs().max() < 1e-5


def call_with(q, encoding, backend):
    with pytest.MonkeyPatch.context() as patch:
        if backend != "auto":
            patch.setattr(memory, "available", lambda device: None)
        return posenc.attend(q, q, q, encoding, positions.arange(q.shape[2]), backend=backend)
