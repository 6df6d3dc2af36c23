"""What posenc does on releases of torch that lack something: docs/versions.md."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.fx.experimental import symbolic_shapes

import posenc
from attention.subjects import N, made, tensors
from posenc import attend, positions, private
from posenc.attention import whole
from posenc.interop import onnx
from posenc.versions import RELEASE
from strategies import normal


def literal(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    n = q.shape[1] // k.shape[1]
    k, v = (torch.stack([t[:, h // n] for h in range(q.shape[1])], 1) for t in (k, v))
    return (q @ k.mT / math.sqrt(q.shape[-1]) + mask).softmax(-1) @ v


@pytest.mark.parametrize("n_kv", [4, 2, 1])
def test_kernels_that_share_no_keys_and_read_masks_of_one_stride(n_kv: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "READS_STRIDES", False)
    monkeypatch.setattr(private, "SHARES_KEYS", False)
    q, k, v = (normal(2, n, 10, 8, seed=n).requires_grad_() for n in (4, n_kv, n_kv))
    mask = normal(1, 4, 10, 10, seed=9).mT
    wanted, grad = literal(q, k, v, mask), normal(2, 4, 10, 8, seed=3)
    with torch.no_grad():
        out, lse = private.attention_forward(q, k, v, mask, 8**-0.5)
        found = private.attention_backward(grad, q, k, v, out, lse, mask, 8**-0.5)
    torch.testing.assert_close(out, wanted)
    for one, other in zip(found, torch.autograd.grad(wanted, (q, k, v), grad), strict=True):
        torch.testing.assert_close(one, other)


def test_exports_to_onnx_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx, "EXPORTS", False)
    with pytest.raises(RuntimeError, match=r"onnx.export: needs torch 2.9 or later.*got torch 2"):
        onnx.export(torch.nn.Linear(2, 2), (torch.ones(2),))


@pytest.mark.compiles
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_a_compiler_that_cannot_follow_breaks_the_graph() -> None:
    encoding, pos = posenc.T5(n_heads=4), positions.arange(12)
    q, k, v = (normal(2, 4, 12, 8, seed=seed).float() for seed in range(3))

    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(2 * q, k, v, encoding, pos, causal=True) + 1

    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(step, backend="aot_eager")(q, k, v), step(q, k, v))


@pytest.mark.compiles
@pytest.mark.skipif(RELEASE < (2, 13), reason="before torch 2.13 a bias breaks the graph (docs/versions.md)")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_a_graph_in_which_no_length_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """One block of all queries stands in it then, of a bias that no operator takes."""
    encoding, pos, (q, k, v) = made("graphormer"), positions.arange(N), tensors(N)

    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, encoding, pos, window=30)

    wanted = step(q, k, v)
    for name in ("has_static_value", "is_concrete_int"):
        monkeypatch.delattr(symbolic_shapes, name, raising=False)
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(step, backend="aot_eager", fullgraph=True)(q, k, v), wanted)


@pytest.mark.parametrize("gone", ["_forward", "_backward", "_functorch"])
@pytest.mark.parametrize("name", ["t5", "shaw", "rerope"])
def test_without_a_private_name_scores_are_formed(gone: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoding, pos, (q, k, v) = made(name), positions.arange(N), tensors(N)
    options = {"window": 30, "document_ids": torch.arange(N) // 40}
    found = []
    for backend in ("reference", "auto"):
        out = attend(q, k, v, encoding, pos, backend=backend, **options)
        wanted = [q, k, v, *encoding.parameters()]
        found.append([out, *torch.autograd.grad(out.square().sum(), wanted, allow_unused=True)])
        monkeypatch.setattr(private, gone, None)
        monkeypatch.setattr(whole, "SMALL", 0)
    for one, other in zip(*found, strict=True):
        if one is not None:
            torch.testing.assert_close(other, one, rtol=0, atol=1e-10 * max(1.0, float(one.detach().abs().max())))
