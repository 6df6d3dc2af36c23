"""A rotation in compiled code is the formula, which one compiled graph holds whole, forwards and backwards."""

import re
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from functorch.compile import aot_module_simplified, make_boxed_func
from torch import Tensor
from torch._inductor.utils import run_and_get_code

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
    assert seen.count("aten.mul.Tensor") + seen.count("aten.addcmul.default") >= 12
    assert not any("posenc" in name for name in seen)


@pytest.mark.parametrize("owned", [False, True])
def test_a_forward_pass_computes_its_cosines_once(owned: bool) -> None:
    """Whether the layers share what was placed or each places for itself, with gradients of the layers' weights."""
    ropes, weight = [posenc.RoPE(head_dim=12) for _ in range(3)], torch.eye(12, requires_grad=True)

    def forward(q: Tensor, pos: Tensor) -> Tensor:
        placed = ropes[0].place(pos)
        for rope in ropes:
            q = rope.rotate(q, q, rope.place(pos) if owned else placed)[0] @ weight
        return q

    torch.compiler.reset()
    q = normal(1, 4, 7, 12, dtype=torch.float32)
    out, code = run_and_get_code(torch.compile(forward), q, POS)
    exact = torch.as_tensor(np.stack([definitions.rotary.rope(3 * float(p), head_dim=12)[0] for p in POS]))
    torch.testing.assert_close(out.double(), torch.einsum("nij,...nj->...ni", exact, q.double()), rtol=0, atol=1e-5)
    kernels = re.findall(r"^(cpp_fused\w+) = async_compile.*?r'''(.*?)'''", "\n".join(code), re.M | re.S)
    cosines = [name for name, body in kernels if "cos(" in body]
    assert len(cosines) == 1
    assert len(re.findall(rf"^ +{cosines[0]}\(", "\n".join(code), re.M)) == 1
