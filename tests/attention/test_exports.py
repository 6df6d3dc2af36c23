"""Attention that is exported, and other traced calls whose lengths stay open: queries in parts, each with a mask."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from functorch.compile import aot_module_simplified, make_boxed_func
from functorch.compile import min_cut_rematerialization_partition as min_cut
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import posenc
from attention.subjects import HEADS, LANES, LEFT, NAMES, N, made, places, tensors
from posenc import attend, positions
from posenc.interop.onnx import export
from posenc.versions import EXPORTS, RELEASE
from strategies import normal

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),  # torch's own
]
ROWS, KEYS = torch.export.Dim("rows"), torch.export.Dim("keys")
LENGTHS = (2 * N, N, 17, 9, 2, 1)
FOLLOWS = RELEASE >= (2, 13)  # before, a compiler follows no bias
OPEN = [{2: ROWS}, {2: ROWS}, {2: ROWS}, None, None]


class Step(torch.nn.Module):
    """The last queries of a text, with all of its keys."""

    def __init__(self, encoding: posenc.Encoding, **options: Any) -> None:
        super().__init__()
        self.encoding, self.options = encoding, options

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, document_ids: Tensor | None = None
    ) -> Tensor:
        k_pos = positions.arange(k.shape[2])
        pos = positions.arange(q.shape[2]) + (k.shape[2] - q.shape[2])
        return attend(q, k, v, self.encoding, pos, k_pos, mask=mask, document_ids=document_ids, **self.options)


def given(q_len: int, k_len: int) -> list[Any]:
    """The arguments of a step without masks."""
    shapes = ((2, HEADS, q_len, LANES), (2, 2, k_len, LANES), (2, 2, k_len, 5))
    return [*(normal(*shape, seed=seed) for seed, shape in enumerate(shapes)), None, None]


def exported(
    step: Step, arguments: list[Any], open_: list[Any], *, strict: bool = False
) -> torch.export.ExportedProgram:
    found = torch.export.export(step, tuple(arguments), dynamic_shapes=tuple(open_), strict=strict)
    assert not any("posenc" in str(node.target) for node in found.graph.nodes)  # whoever runs it may not have us
    return found


@pytest.mark.slow
@pytest.mark.parametrize("strict", [False, True] if FOLLOWS else [False])
def test_known_lengths_are_exported(strict: bool) -> None:
    step, arguments = Step(made("t5"), window=7), given(N, N)
    found = exported(step, arguments, [{}, {}, {}, None, None], strict=strict)
    torch.testing.assert_close(found.module()(*arguments), step(*arguments), rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"window": 7}, {"causal": False}], ids=str)
@pytest.mark.parametrize("name", ["t5", "rope", "alibi", "shaw", "deberta", "cope", "two vectors, turned"])
def test_open_lengths_are_exported_once_for_all(name: str, options: dict[str, Any]) -> None:
    step = Step(made(name), **options)
    found = exported(step, given(N, N), OPEN, strict=FOLLOWS and name == "t5")
    for n in LENGTHS:
        got, wanted = (run(*given(n, n)) for run in (found.module(), step))
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", ["rope", "t5", "alibi", "shaw"])
def test_a_trace_is_right_at_other_lengths(name: str) -> None:
    step = Step(made(name))
    traced = torch.jit.trace(step, given(N, N)[:3], check_trace=False)
    for n in LENGTHS:
        arguments = given(n, n)[:3]  # a trace computes the scale, 1 / √d, in float32
        torch.testing.assert_close(traced(*arguments), step(*arguments), rtol=0, atol=1e-6)


class Placed(torch.nn.Module):
    """Attention at positions that are an input, as the mask is."""

    def __init__(self, encoding: posenc.Encoding) -> None:
        super().__init__()
        self.encoding = encoding

    def forward(self, q: Tensor, k: Tensor, v: Tensor, pos: Tensor, mask: Tensor) -> Tensor:
        return attend(q, k, v, self.encoding, self.encoding.place(pos, dtype=torch.float64), mask=mask)


@pytest.mark.sample(12)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("how", ["jit", "make_fx"])
@pytest.mark.parametrize("name", NAMES)
def test_a_graph_is_right_at_other_positions(name: str, how: str) -> None:
    encoding = made(name)
    found, (q, k, v) = places(name, encoding), given(N, N)[:3]
    step, begun = Placed(encoding), (q, k, v, found["in order"], LEFT[:, None, None])
    graph = torch.jit.trace(step, begun, check_trace=False) if how == "jit" else make_fx(step)(*begun)
    for pos in (one for one in found.values() if one.shape == begun[3].shape):
        arguments = 2 * q, k, v, pos, LEFT.flip(0)[:, None, None]
        torch.testing.assert_close(graph(*arguments), step(*arguments), rtol=0, atol=1e-6)


CASES: dict[str, tuple[str, tuple[int, int], list[Any]]] = {
    "padding and documents by row": ("t5", (N, N), [{2: KEYS}, {2: KEYS}, {2: KEYS}, {3: KEYS}, {1: KEYS}]),
    "numbers by query": ("alibi", (N, N), [{2: KEYS}, {2: KEYS}, {2: KEYS}, {2: KEYS, 3: KEYS}, None]),
    "fewer queries": ("t5", (30, N), [{2: ROWS}, {2: KEYS}, {2: KEYS}, None, None]),
    "open keys": ("t5", (30, N), [{}, {2: KEYS}, {2: KEYS}, None, None]),
    "open keys of many queries": ("shaw", (600, 650), [{}, {2: KEYS}, {2: KEYS}, None, None]),
    "open queries": ("t5", (30, N), [{2: ROWS}, {}, {}, None, None]),
}


def masks(case: str, q_len: int, k_len: int) -> list[Tensor | None]:
    if case == "padding and documents by row":
        at = torch.arange(k_len)
        seen = torch.stack((at >= 3, at >= k_len // 2))
        return [seen[:, None, None], torch.stack((at // 11, at // 7))]
    if case == "numbers by query":
        mask = normal(1, 1, q_len, k_len, seed=7)
        mask[..., 5, :] = -torch.inf  # sees nothing
        return [mask, None]
    return [None, None]


@pytest.mark.skipif(not EXPORTS, reason="exports of open lengths need torch 2.9 (docs/versions.md)")
@pytest.mark.sample(1)
@pytest.mark.parametrize("case", CASES)
def test_masks_and_caches_of_open_lengths(case: str) -> None:
    name, (q_len, k_len), open_ = CASES[case]
    step = Step(made(name))
    found = exported(step, [*given(q_len, k_len)[:3], *masks(case, q_len, k_len)], open_)
    for n in (k_len, k_len + 33, 2 * k_len):
        rows = q_len if open_[0] == {} else n if q_len == k_len else n // 3
        keys = k_len if open_[1] == {} else n
        arguments = [*given(rows, keys)[:3], *masks(case, rows, keys)]
        wanted = step(*arguments)
        torch.testing.assert_close(found.module()(*arguments), wanted, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_what_a_row_must_not_see_does_not_leak_in_exports() -> None:
    step = Step(made("t5"))
    found = exported(step, given(N, N), OPEN)
    arguments = given(70, 70)
    arguments[2][0, 1, 40] = torch.nan
    spoiled = found.module()(*arguments).isnan().any(-1)
    assert spoiled[0, 2:, 40:].all()
    assert int(spoiled.sum()) == 2 * 30


@pytest.mark.slow
def test_gradients_of_exports() -> None:
    step = Step(made("t5"), window=30)
    found = exported(step, given(N, N), OPEN).module()
    grads = []
    for module in (step, found):
        q, k, v, *rest = given(N + 7, N + 7)
        wanted = [q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), *module.parameters()]
        grads.append(torch.autograd.grad(module(q, k, v, *rest).square().sum(), wanted))
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.skipif(not FOLLOWS, reason="before torch 2.13 a bias breaks the graph (docs/versions.md)")
@pytest.mark.parametrize("name", ["graphormer", "swin"])
def test_what_is_traced_with_open_lengths(name: str) -> None:
    """Compiled, of encodings that no operator can be given; forwards and backwards."""
    graphs: list[torch.fx.Graph] = []

    def watch(module: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(module.graph)
        return make_boxed_func(module.forward)

    seen = partial(aot_module_simplified, fw_compiler=watch, bw_compiler=watch, partition_fn=min_cut)
    encoding = made(name)
    vars(encoding)["somebodys"] = object()
    pos = places(name, encoding)["in order"]

    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, encoding, pos[-q.shape[2] :], pos, document_ids=torch.arange(N) // 40)

    compiled = torch.compile(step, fullgraph=True, backend=seen, dynamic=True)
    for q_len in (N - 7, N - 30):
        found = []
        for run in (step, compiled):
            q, k, v = tensors(q_len)
            out = run(q, k, v)
            found.append([out, *torch.autograd.grad(out.sin().sum(), [q, k, v, *encoding.parameters()])])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
    assert len(graphs) == 2  # forwards and back, for both lengths


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the exporter's own
@pytest.mark.parametrize("name", ["t5", "alibi"])
def test_onnxruntime_attends_at_every_length(name: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    step, path = Step(made(name).float(), window=30).eval(), tmp_path / "attend.onnx"
    export(step, tuple(t.float() for t in given(N, N)[:3]), path, dynamic_shapes=tuple(OPEN[:3]))
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    for n in LENGTHS:
        arguments = [t.float() for t in given(n, n)[:3]]
        (found,) = session.run(None, {key: t.numpy() for key, t in zip(names, arguments, strict=True)})
        torch.testing.assert_close(torch.from_numpy(found), step(*arguments), rtol=0, atol=1e-5)
