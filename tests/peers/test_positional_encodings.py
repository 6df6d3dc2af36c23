"""Agreement with the package positional-encodings."""

import pytest
import torch

import posenc
from posenc import positions

torch_encodings = pytest.importorskip("positional_encodings.torch_encodings")


@pytest.mark.parametrize("d_model", [4, 32, 512])
def test_sinusoidal_is_theirs(d_model):
    theirs = torch_encodings.PositionalEncoding1D(d_model)(torch.zeros(1, 100, d_model))[0]
    sinusoidal = posenc.Sinusoidal(d_model=d_model)
    ours = sinusoidal(torch.zeros(1, 100, d_model), positions.arange(100))[0]
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)  # their angles are float32
