"""Attention under torch.compile: an operator that runs eager code, and what is traced where there can be none."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from functorch.compile import aot_module_simplified, make_boxed_func
from functorch.compile import min_cut_rematerialization_partition as min_cut
from torch import Tensor

import posenc
from attention.subjects import HEADS, LANES, MASKS, NAMES, N, largest, made, places, tensors
from posenc import Compose, attend, positions
from posenc.attention import compiled, spans
from posenc.versions import RELEASE
from strategies import normal

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.skipif(RELEASE < (2, 13), reason="before torch 2.13 a bias breaks the graph (docs/versions.md)"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),  # torch's own
]


@pytest.fixture(autouse=True)
def afresh() -> None:
    torch.compiler.reset()


def gradients(out: Tensor, wanted: list[Tensor]) -> list[Tensor]:
    found = torch.autograd.grad(out, wanted, normal(*out.shape, seed=8).to(out.dtype), allow_unused=True)
    return [torch.zeros(()) if g is None else g for g in found]


def same(got: list[Tensor], wanted: list[Tensor], what: str, error: float = 1e-10) -> None:
    for one, other in zip(got, wanted, strict=True):
        bound = error * max(1.0, float(other.detach().abs().max()))
        torch.testing.assert_close(one, other.expand_as(one), rtol=0, atol=bound, msg=lambda m: f"{what}: {m}")


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler's own, of what was placed with gradients
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "what",
    ["causal", "window both ways", "documents by row", "left padding", "numbers", "a row that sees nothing"],
)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_compiled_calls_are_eager_ones(name: str, dynamic: bool, what: str) -> None:
    """Forwards and backwards, whatever hides, in one graph; of open lengths one graph for all."""
    encoding, options = made(name), dict(MASKS[what])
    if (name in ("cope", "fox") and what == "window both ways") or (dynamic and "q_len" in options):
        pytest.skip("refused")

    def step(q: Tensor, k: Tensor, v: Tensor, placed: Any, k_placed: Any, options: dict[str, Any]) -> Tensor:
        return attend(q, k, v, encoding, placed, k_placed, **options)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    q_len = options.pop("q_len", 70)
    pos = places(name, encoding)["in order"]
    for n, then in ((q_len, "default"), *([(41, "fail_on_recompile")] if dynamic else [])):
        found = []
        for run in (step, compiled):
            (q, k, v), k_placed = tensors(n), encoding.place(pos, dtype=torch.float64)
            with torch.compiler.set_stance(then):
                out = run(q, k, v, k_placed.last(n), k_placed, options)
            found.append([out, *gradients(out, [q, k, v, *encoding.parameters()])])
        same(found[1], found[0], f"{n} queries")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5", "shaw"])
def test_by_inductor(name: str) -> None:
    encoding = made(name)

    def step(q: Tensor, k: Tensor, v: Tensor, pos: Tensor) -> Tensor:
        return attend(2 * q, k, v, encoding, pos[-q.shape[2] :], pos).tanh()

    compiled = torch.compile(step, fullgraph=True, dynamic=True)
    for n in (50, 80):
        found = []
        for run in (step, compiled):
            q, k, v = tensors(n)
            out = run(q, k, v, positions.arange(N))
            found.append([out, *gradients(out, [q, k, v, *encoding.parameters()])])
        same(found[1], found[0], f"{n} queries")


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_graph_holds_nothing_as_large_as_all_scores(dynamic: bool) -> None:
    """What the graph makes, forwards and back, and what it keeps in between."""
    n, encoding, graphs = 1000, made("t5").float(), []

    def watch(module: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(module.graph)
        return make_boxed_func(module.forward)

    seen = partial(aot_module_simplified, fw_compiler=watch, bw_compiler=watch, partition_fn=min_cut)
    q, k, v = (normal(1, HEADS, n, LANES, seed=s).float().requires_grad_() for s in range(3))
    ids = torch.arange(n) // 50

    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, encoding, positions.arange(q.shape[2]), document_ids=ids)

    torch.compile(step, fullgraph=True, backend=seen, dynamic=dynamic)(q, k, v).sum().backward()
    assert len(graphs) == 2
    assert max(map(largest, graphs)) <= HEADS * n * 20  # a vector over distances of 4 * 2n behind and ahead


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_dropout_drops_the_same_weights_backwards(backend: str) -> None:
    """A result is linear in the values, so that their gradients say what it is."""
    encoding, pos, (q, k, v) = made("t5"), positions.arange(N), tensors(N)
    step = torch.compile(lambda q, k, v: attend(q, k, v, encoding, pos, dropout_p=0.3), fullgraph=True, backend=backend)
    found = step(q, k, v).sum()
    other = step(q, k, v).sum()
    torch.testing.assert_close((torch.autograd.grad(found, v)[0] * v).sum(), found)
    assert not torch.equal(found, other)  # others are dropped the next time


@pytest.mark.parametrize("mask", ["numbers", "by head", "left padding as numbers"])
def test_a_learned_bias_with_a_mask_gets_its_gradients(mask: str) -> None:
    encoding, pos, options = made("t5"), positions.arange(N), dict(MASKS[mask])
    options.pop("q_len", None)

    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, encoding, pos, **options)

    found = []
    for run in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
        q, k, v = tensors(N)
        out = run(q, k, v)
        found.append([out, *gradients(out, [q, k, v, encoding.weight])])
    same(found[1], found[0], mask)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_autocast_is_that_of_eager_code(kind: torch.dtype) -> None:
    encoding, pos = made("t5").float(), positions.arange(N)

    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, encoding, pos, backend="blocked")

    found = []
    for run in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
        q, k, v = (t.detach().float().requires_grad_() for t in tensors(N))
        with torch.autocast("cpu", kind):
            out = run(q, k, v)
        assert out.dtype == kind
        found.append([out, *gradients(out, [q, k, v, encoding.weight])])
        assert [t.dtype for t in found[-1][1:]] == [torch.float32] * 4
    same(found[1], found[0], "autocast", 1e-6)


def test_what_a_row_must_not_see_does_not_leak() -> None:
    """Compiled code reads the values when it runs."""
    encoding, pos, (q, k, v) = made("t5"), positions.arange(N), (t.detach() for t in tensors(N))
    v[0, 1, 40] = torch.nan
    step = torch.compile(lambda q, k, v: attend(q, k, v, encoding, pos), fullgraph=True, backend="aot_eager")
    spoiled = step(q, k, v).isnan().any(-1)
    assert spoiled[0, 2:, 40:].all()
    assert int(spoiled.sum()) == 2 * (N - 40)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rope", "t5"])
def test_nor_where_it_is_traced(name: str) -> None:
    encoding, pos, (q, k, v) = made(name), positions.arange(N), (t.detach() for t in tensors(N))
    v[0, 1, 40] = torch.nan
    step = torch.compile(lambda q, k, v: attend(q, k, v, encoding, pos), fullgraph=True, backend="aot_eager")
    spoiled = step(q, k, v).isnan().any(-1)
    assert spoiled[0, 2:, 40:].all()
    assert int(spoiled.sum()) == 2 * (N - 40)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alibi", "t5", "shaw", "cope"])
def test_traced_calls_are_eager_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "ROWS", 40)  # three blocks
    encoding, pos = made(name), positions.arange(N)

    def step(q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Tensor:
        return attend(q, k, v, encoding, pos, **options)

    for what in ("window", "documents by row", "left padding", "a row that sees nothing"):
        options = {name: given for name, given in MASKS[what].items() if name != "q_len"}
        found = []
        for run in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
            q, k, v = tensors(N)
            out = run(q, k, v, options)
            found.append([out, *gradients(out, [q, k, v, *encoding.parameters()])])
        same(found[1], found[0], what)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ["alibi", "t5"])
@pytest.mark.parametrize("transform", ["grad", "vmap", "vmap of grad"])
def test_transforms_within_a_compiler(transform: str, name: str, dynamic: bool) -> None:
    encoding, (q, k, v) = made(name), (t.detach() for t in tensors(N))

    def loss(v: Tensor) -> Tensor:
        return attend(q, k, v, encoding, positions.arange(N), window=7).square().sum()

    kinds = {"grad": torch.func.grad(loss), "vmap": torch.vmap(loss), "vmap of grad": torch.vmap(torch.func.grad(loss))}
    step, given = kinds[transform], v if transform == "grad" else torch.stack((v, 2 * v))
    found = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=dynamic)(given)
    torch.testing.assert_close(found, step(given), rtol=0, atol=1e-9)


def test_it_is_what_torch_asks_of_operators() -> None:
    pos, vector = positions.arange(20), normal(HEADS, 2 * 300 + 1, seed=7).requires_grad_()
    mask = torch.ones(1, 1, 1, 20, dtype=torch.bool)
    q, k, v = (t[:, :, :20].detach().requires_grad_() for t in tensors(N))
    for given in ((vector, pos, pos, mask, None, True, None, 0.3), (None, None, None, None, pos // 7, False, 5, 0.3)):
        torch.library.opcheck(compiled.attend, (q, k, v, *given))


def test_a_second_derivative_is_refused() -> None:
    encoding, (q, k, v) = made("t5"), tensors(N)
    out = torch.compile(lambda q: attend(q, k, v, encoding, positions.arange(N)), backend="aot_eager")(q)
    with pytest.raises(RuntimeError, match=r"no second derivative|double backward"):
        torch.autograd.grad(torch.autograd.grad(out.square().sum(), q, create_graph=True)[0].sum(), q)


def test_positions_too_far_apart_for_a_vector_are_refused() -> None:
    encoding, (q, k, v) = made("alibi"), tensors(N)
    step = torch.compile(lambda pos: attend(q, k, v, encoding, pos), fullgraph=True, backend="aot_eager")
    same([step(8 * positions.arange(N))], [attend(q, k, v, encoding, 8 * positions.arange(N))], "spread")
    with pytest.raises(
        ValueError, match=r"within 784 of each other .about 4 times the lengths.*got a distance of 8900"
    ):
        step(100 * positions.arange(N))


@pytest.mark.slow
def test_a_setting_that_changes_makes_another_graph() -> None:
    encoding, other, (q, k, v) = posenc.ALiBi(n_heads=HEADS), posenc.ALiBi(n_heads=HEADS, bias_max=3.0), tensors(N)

    def step(encoding: posenc.Encoding) -> Tensor:
        return attend(q, k, v, encoding, positions.arange(N), window=30)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for one in (encoding, other, copy.deepcopy(other)):
        same([compiled(one)], [step(one)], repr(one))
    encoding.bias_max = 5.0
    same([compiled(encoding)], [step(encoding)], "changed")


def test_classes_of_one_name_are_told_apart() -> None:
    def named(factor: float) -> posenc.Encoding:
        class Mine(posenc.ALiBi):
            def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
                return factor * super().at(h, q, k)

        return Mine(n_heads=HEADS)

    (q, k, v), pos = tensors(N), positions.arange(N)
    for one in (named(1.0), named(3.0)):
        compiled = torch.compile(lambda o=one: attend(q, k, v, o, pos, window=30), fullgraph=True, backend="aot_eager")
        same([compiled()], [attend(q, k, v, one, pos, backend="reference", window=30)], "Mine")


@pytest.mark.slow
def test_a_parameter_that_is_not_read_and_queries_that_are_none() -> None:
    encoding, pos = posenc.ALiBi(n_heads=HEADS), positions.arange(N)
    encoding.unread = torch.nn.Parameter(torch.ones(3, 5).t())
    _, k, v = tensors(N)
    step = torch.compile(lambda q: attend(q, k, v, encoding, pos[N - q.shape[2] :], pos, window=30), backend="inductor")
    for n in (70, 0):
        q = tensors(N)[0].detach()[:, :, :n].requires_grad_()
        found = torch.autograd.grad(step(q).sum() + q.sum(), [q, encoding.unread])
        assert [t.shape for t in found] == [q.shape, (5, 3)]
        assert not found[1].any()


@pytest.mark.slow
def test_a_backend_may_be_named() -> None:
    (q, k, v), encoding = tensors(N), made("t5")
    for backend in ("blocked", "reference"):

        def step(backend: str = backend) -> Tensor:
            return attend(q, k, v, encoding, positions.arange(N), backend=backend)

        same([torch.compile(step, fullgraph=True, backend="aot_eager")()], [step()], backend)


@pytest.mark.slow
def test_frozen_and_shared_parameters() -> None:
    """One T5 twice in a sum gets the gradients of both places; what is frozen gets none."""
    t5 = made("t5")
    encoding, pos = Compose(t5, t5), positions.arange(N)

    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, encoding, pos, window=30)

    found = []
    for run in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
        q, k, v = tensors(N)
        k.requires_grad_(False)
        out = run(q, k, v)
        found.append([out, *gradients(out, [q, v, t5.weight])])
        assert not k.requires_grad
    same(found[1], found[0], "shared")
    with torch.inference_mode():
        same([torch.compile(step, fullgraph=True, backend="aot_eager")(*tensors(N))], [step(*tensors(N))], "inference")


@pytest.mark.parametrize("name", ["shaw", "decomposed_2d"])
def test_grouped_heads_of_an_open_number_are_traced(name: str) -> None:
    encoding = posenc.create(name, dims=posenc.Dims(head_dim=16, max_len=64, grid=(64, 64)))
    place = partial(positions.on_each_axis, n_axes=2) if encoding.n_axes == 2 else lambda pos: pos

    def step(q: Tensor, k: Tensor) -> Tensor:
        return attend(q, k, k, encoding, place(positions.arange(q.shape[2])))

    q, k = normal(2, 4, 20, 16), normal(2, 2, 20, 16, seed=1)
    got = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")(q, k)
    same([got], [step(q, k.repeat_interleave(2, 1))], name)
