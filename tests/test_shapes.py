"""That shapes and types are checked while the tests run, where the run asks for it."""

import jaxtyping
import pytest
import torch

import posenc
from posenc.measure.scores import scores


@pytest.fixture(autouse=True)
def _asked(pytestconfig):
    if not pytestconfig.getoption("jaxtyping_packages", None):
        pytest.skip("this run does not check shapes: `make check` does")


@pytest.mark.parametrize("batches", [(1, 1), (1, 2)], ids=str)
def test_sizes_of_one_name_are_one(batches):
    """Two batches would broadcast, and nothing else would say so."""
    rope, pos = posenc.RoPE(head_dim=8), torch.arange(3)
    q, k = (torch.ones(batch, 2, 3, 8, dtype=torch.float64) for batch in batches)
    placed = rope.place(pos, dtype=torch.float64)
    if batches == (1, 1):
        assert scores("test", rope, placed, q, k, placed).shape == (1, 2, 3, 3)
        return
    with pytest.raises(jaxtyping.TypeCheckError):
        scores("test", rope, placed, q, k, placed)


def test_functions_without_shapes_have_types():
    with pytest.raises(jaxtyping.TypeCheckError):
        posenc.positions.is_plain("no tensor")
