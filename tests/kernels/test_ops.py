"""posenc::turn and posenc::turn_into, the operators that compiled code for GPUs keeps: what torch asks of operators."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode

import posenc.kernels.ops  # noqa: F401 - registers them
import strategies

turn, turn_into = torch.ops.posenc.turn, torch.ops.posenc.turn_into
WAYS = [("half", "first"), ("half", "last"), ("interleaved", "first"), ("interleaved", "last")]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: see benchmarks/gpu_checks.sh")


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype).to(DEVICE)


def tables(*shape: int, seed: int = 7, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    angles = 9 * normal(*shape, seed=seed, dtype=dtype)
    return angles.cos(), angles.sin()


def inputs(pairing: str = "half", side: str = "first", dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    q, k = normal(2, 4, 7, 12, dtype=dtype), normal(2, 2, 5, 12, seed=1, dtype=dtype)
    q_tables, k_tables = tables(1, 1, 7, 5, dtype=dtype), tables(2, 2, 5, 4, dtype=dtype)
    return (q, k, *q_tables, *k_tables, pairing, side)


def definition(x: Tensor, cos: Tensor, sin: Tensor, pairing: str, side: str) -> Tensor:
    """One matrix for each head and token: slow, in float64, and nothing of the library's."""
    n = cos.shape[-1]
    start = 0 if side == "first" else x.shape[-1] - 2 * n
    pairs = [(start + i, start + i + n) if pairing == "half" else (start + 2 * i, start + 2 * i + 1) for i in range(n)]
    group = x.shape[1] // cos.shape[1]
    cos, sin = (t.double().repeat_interleave(group, dim=1).expand(*x.shape[:3], n) for t in (cos, sin))
    matrix = torch.eye(x.shape[-1], dtype=torch.float64, device=x.device).repeat(*x.shape[:3], 1, 1)
    for i, (a, b) in enumerate(pairs):
        matrix[..., a, a], matrix[..., a, b] = cos[..., i], -sin[..., i]
        matrix[..., b, a], matrix[..., b, b] = sin[..., i], cos[..., i]
    return torch.einsum("bhsij,bhsj->bhsi", matrix, x.double())


def wanted(q: Tensor, k: Tensor, qc: Tensor, qs: Tensor, kc: Tensor, ks: Tensor, *way: str) -> list[Tensor]:
    return [definition(q, qc, qs, *way), definition(k, kc, ks, *way)]


def close(got: Any, expected: Any, atol: float = 3e-6) -> None:
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=0, atol=atol)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x.contiguous(),
    "transposed": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "lanes apart": lambda x: x.mT.contiguous().mT,
    "expanded": lambda x: x[:, :1].expand(-1, x.shape[1], -1, -1),
    "a slice": lambda x: torch.nn.functional.pad(x, (3, 2, 1, 1))[:, :, 1:-1, 3:-2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("way", WAYS)
def test_turns_as_defined(way: tuple[str, str], layout: str) -> None:
    q, k, *rest = inputs(*way)
    q, k = LAYOUTS[layout](q), LAYOUTS[layout](k)
    expected = wanted(q, k, *rest)
    got = turn(q, k, *rest)
    close(got, expected)
    assert all(x.stride(-1) == 1 for x in got)
    outs = torch.full_like(q, 9.0, memory_format=torch.contiguous_format), torch.empty_like(k).contiguous()
    assert turn_into(q, k, *rest, *outs) is None
    close(outs, expected)


@pytest.mark.parametrize("which", [0, 1])
def test_tables_of_other_strides(which: int) -> None:
    """A table that is expanded beside one that is not: a kernel that took one's strides for both would read astray."""
    q, pairing, side = normal(2, 4, 7, 12), "half", "first"
    table = list(tables(2, 1, 7, 5))
    table[which] = table[which][:1].expand(2, -1, -1, -1)
    close(turn(q, q, *table, *table, pairing, side), wanted(q, q, *table, *table, pairing, side))


def test_in_place() -> None:
    q, k, *rest = inputs("interleaved")
    expected = wanted(q, k, *rest)
    turn_into(q, k, *rest, q, k)
    close((q, k), expected)


def test_memory_is_laid_out_as_it_came() -> None:
    q, k, *rest = inputs()
    q = LAYOUTS["transposed"](q)
    assert turn(q, k, *rest)[0].stride() == q.stride()
    assert turn(q, k, *rest)[1].stride() == k.stride()


def test_nothing_to_turn() -> None:
    q, k, *rest = inputs()
    assert [x.shape for x in turn(q[:0], k[:0], rest[0], rest[1], rest[2][:0], rest[3][:0], *rest[4:])] == [
        q[:0].shape,
        k[:0].shape,
    ]


@pytest.mark.compiles
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("layout", ["plain", "transposed", "lanes apart"])
def test_opcheck(layout: str, grad: bool) -> None:
    q, k, *rest = inputs()
    q, k = (LAYOUTS[layout](x).detach().requires_grad_(grad) for x in (q, k))
    torch.library.opcheck(turn, (q, k, *rest))
    if not grad and layout != "lanes apart":
        torch.library.opcheck(turn_into, (q, k, *rest, torch.empty_like(q), torch.empty_like(k)))


@pytest.mark.sample(1)
@pytest.mark.parametrize("way", WAYS)
def test_gradients(way: tuple[str, str]) -> None:
    q, k, *rest = inputs(*way, dtype=torch.float64)
    q, k = q.requires_grad_(), k.requires_grad_()
    assert torch.autograd.gradcheck(lambda q, k: turn(q, k, *rest), (q, k))
    small = q[:1, :1, :1].detach().requires_grad_(), k[:1, :2, :1].detach().requires_grad_()
    few = [t[:1, :, :1] for t in rest[:4]]
    assert torch.autograd.gradgradcheck(lambda q, k: turn(q, k, *few, *way), small)


def test_only_one_needs_a_gradient() -> None:
    q, k, *rest = inputs()
    q.requires_grad_()
    turned_q, _ = turn(q, k, *rest)
    (turned_q**2).sum().backward()
    assert q.grad is not None
    torch.testing.assert_close(q.grad, 2 * q.detach())  # a turn keeps lengths


def test_backwards_keeps_the_tables_alone() -> None:
    q, k, *rest = inputs()
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        turn(q.requires_grad_(), k.requires_grad_(), *rest)
    assert [t.data_ptr() for t in kept] == [t.data_ptr() for t in rest[:4]]


def test_gradients_of_tables_are_refused() -> None:
    q, k, q_cos, *rest = inputs()
    with pytest.raises(ValueError, match="no gradients to its tables"):
        turn(q, k, q_cos.requires_grad_(), *rest)


def test_into_memory_is_refused_under_autograd() -> None:
    q, k, *rest = inputs()
    with pytest.raises(ValueError, match="no_grad"):
        turn_into(q.requires_grad_(), k, *rest, torch.empty_like(q), torch.empty_like(k))
    with torch.no_grad():
        turn_into(q, k, *rest, out := torch.empty_like(q), torch.empty_like(k))
    close([out], wanted(q.detach(), k, *rest)[:1])


def test_writing_is_counted() -> None:
    """Autograd compares the count: what was kept for a backward pass and then overwritten must be noticed."""
    q, k, *rest = inputs()
    kept = torch.ones_like(q).requires_grad_()
    out = torch.ones_like(q)
    loss = (kept * out).sum()  # needs `out` backwards
    with torch.no_grad():
        turn_into(q, k, *rest, out, torch.empty_like(k))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.inference_mode():
        turn_into(q, k, *rest, torch.empty_like(q), torch.empty_like(k))


BAD = {
    "half or": (lambda a: (*a[:6], "thirds", "first"), "pairing is 'half' or 'interleaved'"),
    "side": (lambda a: (*a[:7], "middle"), "side 'first' or 'last'"),
    "dimensions": (lambda a: (a[0][0], *a[1:]), "four dimensions"),
    "tokens": (lambda a: (a[0][:, :, :4], *a[1:]), "tables must be"),
    "batch": (lambda a: (a[0], torch.cat((a[1], a[1])), *a[2:]), "tables must be"),
    "heads": (lambda a: (a[0], a[1][:, :1], *a[2:]), "a divisor of heads"),
    "lanes": (lambda a: (a[0][..., :8], *a[1:]), "half of head_dim"),
    "sin": (lambda a: (*a[:3], a[3][..., :4], *a[4:]), "tables must be"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_refused(name: str) -> None:
    make, words = BAD[name]
    with strategies.refuses(ValueError, words):
        turn(*make(inputs()))


@pytest.mark.parametrize("out", [lambda q: q[:1], lambda q: q.double(), lambda q: q.mT.contiguous().mT])
def test_memory_that_does_not_fit_is_refused(out: Callable[[Tensor], Tensor]) -> None:
    q, k, *rest = inputs()
    with pytest.raises(ValueError, match="memory given"):
        turn_into(q, k, *rest, out(q), torch.empty_like(k))


def test_fake_tensors() -> None:
    q, k, *rest = inputs()
    mode = FakeTensorMode()
    fake = [mode.from_tensor(t) for t in (LAYOUTS["transposed"](q), k, *rest[:4])]
    with mode:
        got = turn(*fake, *rest[4:])
    assert [x.shape for x in got] == [q.shape, k.shape]
    assert got[0].stride() == LAYOUTS["transposed"](q).stride()
    meta = turn(*(t.to("meta") for t in (q, k, *rest[:4])), *rest[4:])
    assert [x.device.type for x in meta] == ["meta", "meta"]


@pytest.mark.parametrize("batched", [(0, 0), (0, 1), (None, 0), (2, None)])
def test_vmap_over_queries_and_keys(batched: tuple[int | None, int | None]) -> None:
    *_, pairing, side = inputs()
    q_tables, k_tables = tables(1, 1, 7, 5), tables(2, 2, 5, 4)
    many = [normal(3, 2, h, n, 12, seed=h) for h, n in ((4, 7), (2, 5))]
    given = [x[0] if axis is None else x.movedim(0, axis) for x, axis in zip(many, batched, strict=True)]

    def f(q: Tensor, k: Tensor) -> Any:
        return turn(q, k, *q_tables, *k_tables, pairing, side)

    got = torch.vmap(f, batched)(*given)
    for i in range(3):
        each = [x[0 if axis is None else i] for x, axis in zip(many, batched, strict=True)]
        close([x[i] for x in got], wanted(*each, *q_tables, *k_tables, pairing, side))


@pytest.mark.parametrize("axes", [(0, 0), (1, None), (None, 2)])
def test_vmap_over_tables(axes: tuple[int | None, int | None]) -> None:
    q = normal(2, 4, 7, 12)
    many = tables(3, 1, 1, 7, 5)
    given = [t[0] if axis is None else t.movedim(0, axis) for t, axis in zip(many, axes, strict=True)]
    got = torch.vmap(lambda c, s: turn(q, q, c, s, c, s, "half", "last"), axes)(*given)
    for i in range(3):
        c, s = (t[0 if axis is None else i] for t, axis in zip(many, axes, strict=True))
        close([x[i] for x in got], wanted(q, q, c, s, c, s, "half", "last"))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own, in its jvp
def test_transformations() -> None:
    """The turn is linear: its derivative along v is the turn of v, and its gradient the transposed turn."""
    q, k, *rest = inputs()
    v, w = normal(*q.shape, seed=5), normal(*q.shape, seed=6)

    def f(q: Tensor) -> Tensor:
        turned: Tensor = turn(q, k, *rest)[0]
        return turned

    along = definition(v, *rest[:2], *rest[4:])
    back = definition(w, rest[0], -rest[1], *rest[4:])
    close([torch.func.jvp(f, (q,), (v,))[1]], [along])
    close([torch.func.grad(lambda q: (f(q) * w).sum())(q)], [back])
    close([torch.vmap(torch.func.grad(lambda q: (f(q) * w).sum()))(torch.stack((q, v)))[1]], [back])
    close([torch.func.vjp(f, q)[1](w)[0]], [back])


@pytest.mark.compiles
@pytest.mark.parametrize("dynamic", [False, True])
def test_stays_whole_in_a_compiled_graph(dynamic: bool) -> None:
    seen: list[str] = []

    def look(graph: torch.fx.GraphModule, example: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return make_boxed_func(graph.forward)

    compiled = torch.compile(
        lambda q, k, *rest: turn(q * 2, k, *rest, "half", "first"),
        fullgraph=True,
        dynamic=dynamic,
        backend=aot_autograd(fw_compiler=look, bw_compiler=look),
    )
    for n in (7, 6):
        _q, k, *rest = inputs()
        q, tables_of_q = normal(2, 4, n, 12).requires_grad_(), tables(1, 1, n, 5)
        got = compiled(q, k, *tables_of_q, *rest[2:4])
        close(got, wanted(2 * q.detach(), k, *tables_of_q, *rest[2:]))
        (got[0] ** 2).sum().backward()
        torch.testing.assert_close(q.grad, 8 * q.detach())
    assert seen.count("posenc.turn.default") == 2 * (1 if dynamic else 2)  # forwards and backwards


@ON_GPU
@pytest.mark.compiles
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_whole_on_a_gpu(mode: str) -> None:
    q, k = normal(2, 32, 64, 128, dtype=torch.float32).bfloat16(), normal(2, 8, 64, 128).bfloat16()
    table = tables(1, 1, 64, 64)
    q, k = q.requires_grad_(), k.requires_grad_()
    compiled = torch.compile(lambda q, k: turn(q + 1, k, *table, *table, "half", "first"), fullgraph=True, mode=mode)
    for _ in range(3):  # the third runs a recorded graph where the mode makes one
        torch.compiler.cudagraph_mark_step_begin()  # what the last run returned is given up
        got = compiled(q, k)
        expected = wanted((q + 1).detach(), k.detach(), *table, *table, "half", "first")
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=2**-8, atol=1e-5)
        q.grad = None
        got[0].float().sum().backward()
        assert q.grad is not None
