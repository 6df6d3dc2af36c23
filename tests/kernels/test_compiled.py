"""Neighbours in compiled code: our operator turns them, wherever they lie in memory, forwards and backwards."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

import posenc
from posenc import definitions

pytestmark = [pytest.mark.compiles, pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")]
ROPE = posenc.RoPE(head_dim=12, pairing="interleaved")
POS = torch.arange(7) + 100


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(dtype)


def rotate(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return ROPE.rotate(q, k, ROPE.place(POS))


def exactly(x: Tensor, sign: int = 1) -> Tensor:
    """Turn each row by the definition's matrix (head_dim, head_dim) of its position."""
    turns = [definitions.rotary.rope(sign * float(p), head_dim=12, pairing="interleaved")[0] for p in POS]
    return torch.einsum("nij,...nj->...ni", torch.as_tensor(np.stack(turns)), x.detach().double())


PLACES: dict[str, Callable[[], Tensor]] = {
    "plain": lambda: normal(2, 4, 7, 12),
    "from an odd place": lambda: normal(2 * 4 * 7 * 12 + 1)[1:].view(2, 4, 7, 12),  # in the graph of the one before
    "transposed": lambda: normal(2, 7, 4, 12).transpose(1, 2),
    "a slice": lambda: normal(2, 4, 7, 36)[..., 12:24],
    "odd rows": lambda: normal(2, 4, 7, 13)[..., :12],
    "lanes apart": lambda: normal(2, 4, 12, 7).mT,
    "float16": lambda: normal(2, 4, 7, 12, dtype=torch.float16),
    "float32": lambda: normal(2, 4, 7, 12, dtype=torch.float32),
}


@pytest.mark.slow
def test_neighbours_are_turned_wherever_they_lie() -> None:
    torch.compiler.reset()
    compiled = torch.compile(rotate, fullgraph=True, dynamic=False)
    for place, make in PLACES.items():
        q, k = make().requires_grad_(), make()[:, :2].detach()
        eps = torch.finfo(q.dtype).eps
        turned = compiled(q, k)
        for x, got in zip((q, k), turned, strict=True):
            torch.testing.assert_close(
                got.double(), exactly(x), rtol=eps, atol=1e-5, msg=lambda m, p=place: f"{p}: {m}"
            )
        grad = normal(*q.shape, dtype=q.dtype)
        turned[0].backward(grad)
        torch.testing.assert_close(q.grad.double(), exactly(grad, -1), rtol=eps, atol=1e-5)


@pytest.mark.parametrize(("pairing", "n_turns"), [("interleaved", 2), ("half", 0)])
def test_compilers_fuse_halves_and_call_us_for_neighbours(pairing: Any, n_turns: int) -> None:
    seen: list[str] = []

    def look(graph: torch.fx.GraphModule, example: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return make_boxed_func(graph.forward)

    rope = posenc.RoPE(head_dim=12, pairing=pairing)
    placed = rope.place(POS)
    torch.compiler.reset()
    backend = aot_autograd(fw_compiler=look, bw_compiler=look)
    q, k = normal(2, 4, 7, 12).requires_grad_(), normal(2, 2, 7, 12)
    torch.compile(lambda q, k: rope.rotate(q, k, placed), fullgraph=True, backend=backend)(q, k)[0].sum().backward()
    assert seen.count("posenc.turn.default") == n_turns
