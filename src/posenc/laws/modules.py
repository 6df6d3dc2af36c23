"""Laws about encodings as modules: state, gradients, devices, copies, threads, compilers."""

import copy
import pickle
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from posenc.attention import attend
from posenc.laws.case import Case, Law, law
from posenc.placed import tensors

LAWS: list[Law] = []


@law(LAWS, "state", by_dtype=False)
def state(case: Case) -> Iterable[str]:
    """The state holds learned tensors only, before and after use: no buffers and no tables."""
    case.layer(case.tokens(9), case.positions(9))
    learned = set(dict(case.encoding.named_parameters()))
    if buffers := [name for name, _ in case.encoding.named_buffers()]:
        yield f"holds buffers: {buffers}"
    if extra := set(case.encoding.state_dict()) ^ learned:
        yield f"state_dict and parameters differ by {sorted(extra)}"
    if scalars := [name for name, p in case.encoding.named_parameters() if not p.ndim]:
        yield f"learns numbers without a dimension, which FSDP refuses: {scalars}; use torch.empty(1)"
    attributes = (item for m in case.encoding.modules() for item in vars(m).items())
    own = ("_parameters", "_buffers")
    hidden = [n for n, v in attributes if n not in own and tensors(v)]
    if hidden:
        yield f"keeps tensors outside its state: {hidden}"


@law(LAWS, "no graph", by_dtype=False)
def no_graph(case: Case) -> Iterable[str]:
    """Placing builds no autograd graph for an encoding without parameters."""
    if any(True for _ in case.encoding.parameters()):
        return
    placed = case.place(case.positions(9), case.tokens(9))
    if any(t.requires_grad for t in tensors(placed)):
        yield "place() of a fixed encoding requires gradients"


@law(LAWS, "gradients", by_dtype=False)
def gradients(case: Case) -> Iterable[str]:
    """Gradients of parameters and tokens pass gradcheck, and every parameter that affects the output has a gradient."""
    x, pos = case.tokens(5).requires_grad_(), case.positions(5)
    names, learned = zip(*case.encoding.named_parameters(), strict=True) if _learns(case) else ((), ())

    def run(tokens: Tensor, *values: Tensor) -> Tensor:
        layer = _Layer(case, pos)
        given = {f"encoding.{name}": value for name, value in zip(names, values, strict=True)}
        return functional_call(layer, given, (tokens,))  # type: ignore[no-any-return]

    values = tuple(p.detach().clone().requires_grad_() for p in learned)
    found = torch.autograd.grad(run(x, *values).square().sum(), values, allow_unused=True) if values else ()
    rough: list[dict[str, Any]] = [{}, *([{"eps": 3e-3, "atol": 1e-2, "rtol": 1e-2}] if case.rounds else [])]
    zero = [name for name, g in zip(names, found, strict=True) if g is None or not bool(g.ne(0).any())]
    if cut := [name for name in zero if not _common(case, name, pos)]:
        yield f"no gradient reaches {', '.join(cut)}"
    elif not any(
        torch.autograd.gradcheck(run, (x, *values), fast_mode=True, raise_exception=False, **steps) for steps in rough
    ):
        yield "gradcheck fails"


def _common(case: Case, name: str, pos: Tensor) -> bool:
    """Return whether a learned tensor adds one number to all scores of a query, which a softmax ignores."""
    x, learned = case.tokens(len(pos)), case.encoding.get_parameter(name)
    placed = case.place(pos, x)
    q, k, _ = case.project(x, placed)
    scores = case.scores(q, k, placed)
    weights = case.normal(*scores.shape)
    sums = (weights * scores).sum(), (weights * (scores - scores[..., :1])).sum()
    whole, apart = (torch.autograd.grad(s, learned, retain_graph=True, allow_unused=True)[0] for s in sums)
    return whole is not None and apart is not None and bool(apart.abs().max() < 1e-12 * whole.abs().max())


def _learns(case: Case) -> bool:
    return any(True for _ in case.encoding.parameters())


class _Layer(torch.nn.Module):
    """The case's layer as a module, so that parameters can be passed as arguments."""

    def __init__(self, case: Case, pos: Tensor) -> None:
        super().__init__()
        self.encoding, self.case, self.pos = case.encoding, case, pos

    def forward(self, x: Tensor) -> Tensor:
        return self.case.layer(x, self.pos)


@law(LAWS, "meta", by_dtype=False)
def meta(case: Case) -> Iterable[str]:
    """After a move to the meta device, materialisation and reset it equals a fresh one, whose results are finite."""
    fresh, hollow = (
        copy.deepcopy(case.original),
        copy.deepcopy(case.original).to("meta").to_empty(device="cpu"),
    )
    for module in (fresh, hollow):
        with torch.random.fork_rng():
            torch.manual_seed(11)
            module.reset_parameters()
    for (name, a), b in zip(fresh.state_dict().items(), hollow.state_dict().values(), strict=True):
        if not (a.dtype == b.dtype and torch.equal(a, b)):
            yield f"{name} differs from a fresh module's"
    blank, key = (torch.empty(2, n, 5, case.head_dim, device="meta") for n in (case.n_heads, case.n_kv_heads))
    places = case.positions(5).to("meta")
    empty = copy.deepcopy(hollow).to("meta")
    x = case.tokens(5).to("meta", case.dtype)
    shape = attend(blank, key, key, *empty.layer(case.index, empty.place(places, x))).shape
    if shape != blank.shape:
        yield f"on the meta device attention has shape {tuple(shape)}"
    x, pos = case.tokens(5), case.positions(5)
    wide = copy.deepcopy(fresh).double()
    inner, placed = wide.layer(case.index, wide.place(pos, x.double(), dtype=torch.float64))
    q, k = case.normal(2, case.n_heads, 5, case.head_dim), case.normal(2, case.n_kv_heads, 5, case.head_dim)
    if not bool(attend(q.double(), k.double(), k.double(), inner, placed).isfinite().all()):
        yield "with freshly initialised parameters attention is not finite"
    made, wanted = (Case(m, torch.float64).layer(x.double(), pos) for m in (hollow, fresh))
    if not torch.equal(made, wanted):
        yield "its results differ from a fresh module's"


@law(LAWS, "copies")
def copies(case: Case) -> Iterable[str]:
    """A deep copy and a pickled copy give the same results."""
    x, pos = case.tokens(9), case.positions(9)
    wanted, original = case.layer(x, pos), case.encoding
    for how, twin in (
        ("deepcopy", copy.deepcopy(original)),
        ("pickle", pickle.loads(pickle.dumps(original))),
    ):
        case.encoding = twin
        if not torch.equal(case.layer(x, pos), wanted):
            yield f"a copy by {how} gives other results"
    case.encoding = original


@law(LAWS, "threads")
def threads(case: Case) -> Iterable[str]:
    """Two concurrent threads with different lengths give the same results as one."""
    lengths = (5, 17) * 8
    x = case.tokens(17)
    largest = case.largest(x, case.positions(17))
    wanted = {n: case.layer(x[:, :n], case.positions(n)) for n in set(lengths)}
    with ThreadPoolExecutor(2) as pool:
        got = pool.map(lambda n: case.layer(x[:, :n], case.positions(n)), lengths)
        pairs = list(zip(lengths, got, strict=True))
    # up to rounding: a library may choose its kernel by the alignment of the memory
    differences = [message for n, out in pairs for message in case.differ(out, wanted[n], largest)]
    if differences:
        yield f"concurrent calls disturb each other: one {differences[0]}"


@law(LAWS, "compile", by_dtype=False, compiles=True)
def compiles(case: Case) -> Iterable[str]:
    """torch.compile (aot_eager, fullgraph, dynamic length) compiles once and gives the same results."""
    yield from compiled(case, "aot_eager")


def compiled(case: Case, backend: str) -> Iterable[str]:
    """Compile a layer, run it with growing lengths, and compare it with the eager one."""
    torch.compiler.reset()
    encoding = copy.deepcopy(case.encoding).float()

    def layer(x: Tensor, q: Tensor, k: Tensor, v: Tensor, pos: Tensor, all_pos: Tensor) -> tuple[Tensor, ...]:
        everything, x = encoding.place(all_pos, x), x[:, 6:]
        placed = encoding.place(pos, x)
        here, of_layer = encoding.layer(case.index, placed)
        plain = attend(q, k[:, :, 6:], v[:, :, 6:], here, of_layer)
        cached = attend(q, k, v, here, of_layer, encoding.layer(case.index, everything)[1])
        return encoding.embed(x, placed), plain, cached

    fast = torch.compile(layer, backend=backend, fullgraph=True, dynamic=True)
    for n, then in ((7, "default"), (12, "fail_on_recompile"), (33, "fail_on_recompile")):
        heads, lengths = (case.n_heads, case.n_kv_heads, case.n_kv_heads), (n, n + 6, n + 6)
        qkv = [case.normal(2, h, m, case.head_dim).float() for h, m in zip(heads, lengths, strict=True)]
        pos = case.positions(n + 6)
        arguments = (case.tokens(n + 6).float(), *qkv, pos[6:], pos)
        try:
            with torch.compiler.set_stance(then):
                found = fast(*arguments)
        except RuntimeError as error:
            if "fail_on_recompile" not in str(error):
                raise
            yield f"recompiled for another length: {n}"
            return
        for got, wanted in zip(found, layer(*arguments), strict=True):
            off = float((got - wanted).detach().abs().max())
            if off > 1e-5 * max(1.0, float(wanted.detach().abs().max())):
                yield f"compiled it differs by {off:.2g} at length {n}"
