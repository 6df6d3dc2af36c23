"""What the tests against peers share."""

from collections.abc import Sequence

import torch
from torch import Tensor


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def assert_same(ours: Tensor, theirs: Tensor, inputs: Sequence[Tensor], atol: float = 2e-6) -> None:
    """Compare values, then the gradients of a random sum with respect to inputs that both sides were made of."""
    torch.testing.assert_close(ours, theirs, atol=atol, rtol=1e-5)
    weight = torch.randn_like(ours)
    gradients = [torch.autograd.grad((out * weight).sum(), inputs, retain_graph=True) for out in (ours, theirs)]
    for mine, peer in zip(*gradients, strict=True):
        assert peer.any()
        torch.testing.assert_close(mine, peer, atol=10 * atol, rtol=1e-4)
