"""Attention under torch.compile: masks, rows that see nothing, and gradients are those of eager calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

from attention.subjects import HEADS, IDS, LANES, LEFT, N, made, tensors
from posenc import attend, positions
from posenc.attention import plan
from strategies import normal

CALLS: dict[str, dict[str, Any]] = {
    "window": {"window": 7},
    "documents": {"document_ids": torch.stack((IDS, IDS.flip(0)))},
    "a row that sees nothing": {"mask": (torch.arange(N) < 80)[:, None] & (torch.arange(N) > 5)},
    "left padding": {"mask": LEFT[:, None, None]},
    "numbers, bidirectional": {"mask": normal(HEADS, N, N, seed=4), "causal": False},
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "SHORT", 40)  # three blocks


@pytest.mark.compiles
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # torch's own
@pytest.mark.parametrize(
    ("name", "backend"),
    [*((name, "aot_eager") for name in ("alibi", "t5", "shaw", "tupe", "deberta", "cope")), ("t5", "inductor")],
)
def test_compiled_calls_are_eager_ones(name: str, backend: str) -> None:
    encoding, pos = made(name), positions.arange(N)
    calls = CALLS if backend == "aot_eager" else {"window": CALLS["window"]}

    def step(q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Tensor:
        return attend(q, k, v, encoding, pos, **options)

    for what, options in calls.items():
        torch.compiler.reset()
        found = []
        for run in (step, torch.compile(step, fullgraph=True, backend=backend)):
            q, k, v = tensors(N)
            out = run(q, k, v, options)
            grad = normal(*out.shape, seed=8)
            wanted = [q, k, v, *encoding.parameters()]
            grads = torch.autograd.grad(out, wanted, grad, allow_unused=True)
            found.append([out, *(torch.zeros(()) if g is None else g for g in grads)])
        for one, other in zip(*found, strict=True):
            bound = 1e-10 * max(1.0, float(other.detach().abs().max()))
            torch.testing.assert_close(one, other.expand_as(one), rtol=0, atol=bound, msg=lambda m, w=what: f"{w}: {m}")


@pytest.mark.compiles
@pytest.mark.parametrize(("n", "rows"), [(160, 40), (640, 80)])
def test_known_lengths_make_no_matrix_of_scores(n: int, rows: int) -> None:
    """What a compiled call forms, forwards and back, and what it keeps in between: eight blocks at most."""
    torch.compiler.reset()  # a second length is left open
    encoding, graphs = made("t5").float(), []

    def watch(module: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(module.graph)
        return make_boxed_func(module.forward)

    seen = aot_autograd(fw_compiler=watch, bw_compiler=watch, partition_fn=min_cut_rematerialization_partition)
    q, k, v = (normal(1, HEADS, n, LANES, seed=s).float().requires_grad_() for s in range(3))
    step = torch.compile(lambda *qkv: attend(*qkv, encoding, positions.arange(n)), fullgraph=True, backend=seen)
    step(q, k, v).sum().backward()
    sizes = [[of.numel() for of in map(value, graph.nodes) if of is not None] for graph in graphs]
    assert len(sizes) == 2
    assert all(rows * n < max(found) <= HEADS * rows * n for found in sizes)
    kept = [of for of in map(value, graphs[0].output_node().args[0]) if of is not None]
    assert max(of.numel() for of in kept) < rows * n


def value(node: Any) -> Tensor | None:
    """What a node of a graph is, without its numbers."""
    found = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return found if isinstance(found, Tensor) else None


@pytest.mark.compiles
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_dropout_drops_the_same_weights_backwards(backend: str) -> None:
    """A result is linear in the values, so that their gradients say what it is."""
    encoding, pos, (q, k, v) = made("t5"), positions.arange(N), tensors(N)
    step = torch.compile(lambda *qkv: attend(*qkv, encoding, pos, dropout_p=0.3), fullgraph=True, backend=backend)
    found = step(q, k, v).sum()
    torch.testing.assert_close((torch.autograd.grad(found, v)[0] * v).sum(), found)


@pytest.mark.compiles
@pytest.mark.parametrize("strict", [False, True])
def test_known_lengths_are_exported(strict: bool) -> None:
    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoding = made("t5")

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attend(q, k, v, self.encoding, positions.arange(N), window=7)

    given, step = tuple(t.detach() for t in tensors(N)), Step()
    out = torch.export.export(step, given, strict=strict).module()(*given)
    torch.testing.assert_close(out, step(*given), rtol=0, atol=1e-10)


@pytest.mark.compiles
@pytest.mark.parametrize("transform", ["grad", "vmap", "vmap of grad"])
def test_transforms_within_a_compiler(transform: str) -> None:
    encoding, (q, k, v) = made("alibi"), (t.detach() for t in tensors(N))

    def loss(v: Tensor) -> Tensor:
        return attend(q, k, v, encoding, positions.arange(N), window=7).square().sum()

    kinds = {"grad": torch.func.grad(loss), "vmap": torch.vmap(loss), "vmap of grad": torch.vmap(torch.func.grad(loss))}
    step, given = kinds[transform], v if transform == "grad" else torch.stack((v, 2 * v))
    found = torch.compile(step, fullgraph=True, backend="aot_eager")(given)
    torch.testing.assert_close(found, step(given), rtol=0, atol=1e-9)
