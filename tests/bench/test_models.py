"""Whole models of transformers, as loaded and with their attention run by posenc, compute the same."""

import pytest

pytest.importorskip("transformers")

from posenc.bench import candidates, rows
from posenc.interop.hf import interface

CHOSEN = rows.choose([48], ["float32"], "hf.")


@pytest.mark.parametrize("row", CHOSEN, ids=lambda row: row.name)
def test_both_sides_compute_the_same(row):
    plain, ours = (candidates.build_row(row, name)() for name in (candidates.PLAIN, "attend:auto"))
    assert plain.shape == (1, 48, 512)
    assert (plain - ours).abs().max() < 1e-4
    assert not plain.requires_grad


def test_the_second_calls_attend(monkeypatch):
    called = []
    attend = interface.attend
    monkeypatch.setattr(interface, "attend", lambda *args, **options: called.append(1) or attend(*args, **options))
    assert [row.name for row in CHOSEN] == ["hf.t5", "hf.bloom", "hf.mpt", "hf.deberta"]
    for row in CHOSEN:
        called.clear()
        candidates.build_row(row, candidates.PLAIN)()
        assert called == []
        candidates.build_row(row, "attend:auto")()
        assert len(called) == 2  # layers
