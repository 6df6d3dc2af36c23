"""xPos: the far centre keeps the law that the default exempts it from; the decay; the way back."""

import pytest
import torch

import posenc
from posenc import laws
from strategies import normal, refuses


def test_far_positions_hold_at_a_far_centre() -> None:
    far = posenc.XPos(head_dim=64, centre=100_000.0)
    assert laws.LAWS["far positions"](far) == []
    assert laws.LAWS["far positions"](posenc.XPos(head_dim=64)) != []


def test_scores_decay_by_zeta_for_each_pair() -> None:
    """One query and one key along pair k: cos(d·ω_k)·ζ_k^(d/512), by the paper's algorithm 1."""
    xpos, omega = posenc.XPos(head_dim=4), [1.0, 0.01]
    zeta = [0.4 / 1.4, 0.9 / 1.4]
    for distance in (0, 1, 512, 3000, -40):
        q_place, k_place = (xpos.place(torch.tensor([p]), dtype=torch.float64) for p in (700 + distance, 700))
        for pair in (0, 1):
            x = torch.zeros(1, 1, 1, 4, dtype=torch.float64)
            x[..., 2 * pair] = 1.0
            q, k = xpos.rotate(x, x, q_place, k_place)
            wanted = torch.tensor(distance * omega[pair], dtype=torch.float64).cos() * zeta[pair] ** (distance / 512)
            assert float((q * k).sum()) == pytest.approx(float(wanted), rel=1e-11, abs=1e-13)


@pytest.mark.parametrize("centre", [0.0, 50.0])
def test_the_way_back_undoes_amplitudes(centre: float) -> None:
    xpos, q, k = posenc.XPos(head_dim=8, centre=centre), normal(2, 4, 3, 8, seed=1), normal(2, 2, 3, 8, seed=2)
    placed = xpos.place(torch.tensor([[0, 900, 5], [2, 4, 4000]]), dtype=torch.float64)
    turned = xpos.rotate(q, k, placed)
    assert (turned[0].norm(dim=-1) / q.norm(dim=-1) - 1).abs().max() > 0.1
    for got, wanted in zip(xpos.rotate(*turned, placed, inverse=True), (q, k), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bad", [{"gamma": 0.0}, {"scale_base": -1.0}])
def test_constants_are_positive(bad: dict[str, float]) -> None:
    with refuses(ValueError, "XPos: scale_base and gamma must be positive", "512 and 0.4"):
        posenc.XPos(head_dim=4, **bad)


def test_positions_that_float32_cannot_hold_are_refused_here_and_nan_where_nobody_may_look() -> None:
    xpos = posenc.XPos(head_dim=8)
    with pytest.raises(ValueError, match=r"within 33,994 of the centre.*got one 40,004 away"):
        xpos.place(torch.arange(5) + 40_000)
    assert xpos.place(torch.tensor([-33_000, 33_000])).parts[0].isfinite().all()
    amplitude = torch.func.vmap(xpos.amplitude)(torch.tensor([[0.0, 40_000.0]], dtype=torch.float64))
    assert amplitude[0, 0].isfinite().all()
    assert amplitude[0, 1].isnan().all()
