"""A rotation in compiled code is the formula, which one compiled graph holds whole, forwards and backwards."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from functorch.compile import aot_module_simplified, make_boxed_func
from torch import Tensor

import posenc
from posenc import definitions
from strategies import normal

pytestmark = [pytest.mark.compiles, pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")]
POS = torch.arange(7) + 100


def exactly(x: Tensor, pairing: str, sign: int = 1) -> Tensor:
    """Rotate each row by the definition's matrix (head_dim, head_dim) of its position."""
    rotations = [definitions.rotary.rope(sign * float(p), head_dim=12, pairing=pairing)[0] for p in POS]
    return torch.einsum("nij,...nj->...ni", torch.as_tensor(np.stack(rotations)), x.detach().double())


@pytest.mark.parametrize(("pairing", "backend"), [("interleaved", "auto"), ("half", "numba")])
def test_compiled_code_holds_the_formula(pairing: Any, backend: str) -> None:
    seen: list[str] = []

    def look(graph: torch.fx.GraphModule, example: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return make_boxed_func(graph.forward)

    rope = posenc.RoPE(head_dim=12, pairing=pairing)
    placed = rope.place(POS)
    torch.compiler.reset()
    q, k = normal(2, 4, 7, 12, dtype=torch.float32).requires_grad_(), normal(2, 2, 7, 12, dtype=torch.float32)
    compiled = torch.compile(
        lambda q, k: rope.rotate(q, k, placed, backend=backend),
        fullgraph=True,
        backend=partial(aot_module_simplified, fw_compiler=look, bw_compiler=look),
    )
    rotated = compiled(q, k)
    for x, got in zip((q, k), rotated, strict=True):
        torch.testing.assert_close(got.double(), exactly(x, pairing), rtol=1e-6, atol=1e-5)
    above = normal(2, 4, 7, 12, seed=3, dtype=torch.float32)
    rotated[0].backward(above)
    torch.testing.assert_close(q.grad.double(), exactly(above, pairing, -1), rtol=1e-6, atol=1e-5)  # type: ignore[union-attr]
    assert seen.count("aten.mul.Tensor") >= 12
    assert not any("posenc" in name for name in seen)
