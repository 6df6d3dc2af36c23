"""Without torch's private names: those of attention are in attention/test_old_torch.py, of kernels with rotations."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import posenc
from posenc import private
from posenc.character import measure
from posenc.probe import count_numbers


def test_without_a_view_of_operations_no_cost_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    alibi = posenc.ALiBi(n_heads=4)
    assert measure(alibi).cost == "score"
    monkeypatch.setattr(private, "_Mode", None)
    assert measure(alibi).cost is None
    with pytest.raises(RuntimeError, match=r"has no TorchDispatchMode under the known name"):
        count_numbers(lambda: torch.ones(2) + 1)


@dataclass
class Pair:
    tensor: Tensor
    parts: tuple[Tensor, ...]
    n_axes: int


@pytest.mark.compiles
def test_without_trees_an_exporter_still_takes_a_dataclass(monkeypatch: pytest.MonkeyPatch) -> None:
    class Step(torch.nn.Module):
        def forward(self, given: Pair) -> Pair:
            return Pair(given.tensor + 1, (2 * given.parts[0],), given.n_axes)

    monkeypatch.setattr(private, "_pytree", None)
    private.register_pytree(Pair, ("tensor", "parts"), "n_axes")
    given = Pair(torch.zeros(3), (torch.ones(2),), 2)
    got = torch.export.export(Step(), (given,)).module()(given)
    assert (got.tensor.tolist(), got.parts[0].tolist(), got.n_axes) == ([1.0] * 3, [2.0] * 2, 2)
