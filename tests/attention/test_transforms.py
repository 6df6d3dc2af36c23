"""Attention within torch.func: one gradient is what eager code computes, and others are traced."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, jacrev, vmap

import posenc
from attention.subjects import HEADS, MASKS, NAMES, N, made, places, tensors
from posenc import attend, positions
from strategies import normal


class Door(torch.nn.Module):
    """Attention as a module's forward, so that its parameters can be given."""

    def __init__(self, encoding: posenc.Encoding) -> None:
        super().__init__()
        self.encoding = encoding

    def forward(self, q: Tensor, k: Tensor, v: Tensor, pos: Tensor, options: dict[str, Any]) -> Tensor:
        placed = self.encoding.place(pos, dtype=torch.float64)
        return attend(q, k, v, self.encoding, placed.last(q.shape[2]), placed, **options)


@pytest.mark.sample(40)
@pytest.mark.parametrize("what", ["causal", "documents by row", "left padding", "numbers"])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_autograd(name: str, what: str) -> None:
    """Of q, k, v, all that is learned, and a mask of numbers."""
    encoding, options = made(name), dict(MASKS[what])
    q_len, pos = options.pop("q_len", 70), places(name, encoding)["in order"]
    inputs = {"q k v"[i]: t.detach() for i, t in zip((0, 2, 4), tensors(q_len), strict=True)}
    inputs |= {f"encoding.{key}": t.detach() for key, t in encoding.named_parameters()}
    if what == "numbers":
        inputs["mask"] = options["mask"]
    pull = normal(2, HEADS, q_len, 5, seed=8)

    def loss(given: dict[str, Tensor]) -> Tensor:
        rest = dict(given)
        q, k, v = (rest.pop(key) for key in "qkv")
        asked = {**options, "mask": rest.pop("mask")} if "mask" in rest else options
        out: Tensor = functional_call(Door(encoding), rest, (q, k, v, pos, asked))
        return (out * pull).sum()

    found = grad(loss)(inputs)
    leaves = {key: t.clone().requires_grad_() for key, t in inputs.items()}
    expected = torch.autograd.grad(loss(leaves), [*leaves.values()], allow_unused=True)
    for key, wanted in zip(leaves, expected, strict=True):
        wanted = torch.zeros_like(leaves[key]) if wanted is None else wanted
        bound = 1e-11 * max(1.0, float(wanted.abs().max()))
        torch.testing.assert_close(found[key], wanted, rtol=0, atol=bound, msg=lambda m, k=key: f"{k}: {m}")


def test_what_is_frozen_gets_nothing() -> None:
    encoding, pos, (q, k, v) = made("t5"), positions.arange(N), (t.detach() for t in tensors(N))

    def loss(v: Tensor) -> Tensor:
        return attend(q, k, v, encoding, pos, window=9).square().sum()

    leaf = v.clone().requires_grad_()
    torch.testing.assert_close(grad(loss)(v), torch.autograd.grad(loss(leaf), leaf)[0], rtol=0, atol=1e-11)
    assert encoding.weight.grad is None


def test_many_gradients_at_a_time() -> None:
    encoding, pos, (q, k, v) = made("t5"), positions.arange(N), (t.detach() for t in tensors(N))

    def few(q: Tensor) -> Tensor:
        return attend(q, k, v, encoding, pos, window=9)[0, 1, 40:43, 2]

    found = jacrev(few)(q)
    leaf = q.clone().requires_grad_()
    for i, one in enumerate(few(leaf)):
        wanted = torch.autograd.grad(one, leaf, retain_graph=True)[0]
        torch.testing.assert_close(found[i], wanted, rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind", ["second derivative", "gradients by row"])
def test_others_are_traced(kind: str) -> None:
    encoding, pos, (q, k, v) = made("t5"), positions.arange(N), (t.detach() for t in tensors(N))

    def loss(v: Tensor, backend: str = "auto") -> Tensor:
        return attend(q, k, v, encoding, pos, window=9, backend=backend).tanh().sum()

    def asked(backend: str) -> Tensor:
        step = grad(lambda v: loss(v, backend))
        if kind == "second derivative":
            return grad(lambda v: step(v).square().sum())(v)
        return vmap(step)(torch.stack((v, 2 * v)))

    torch.testing.assert_close(asked("auto"), asked("reference"), rtol=0, atol=1e-10)


def test_more_queries_than_keys_of_which_all_are_seen() -> None:
    encoding, (q, k, v) = made("t5"), (t.detach() for t in tensors(9))
    k, v, pos = k[:, :, :5], v[:, :, :5], positions.arange(9)

    def step(q: Tensor) -> Tensor:
        return attend(q, k, v, encoding, pos, pos[:5], causal=False)

    torch.testing.assert_close(vmap(step)(torch.stack((q, 2 * q)))[1], step(2 * q), rtol=0, atol=1e-11)
