"""Laws about half precision: no further from float64 than plain attention is."""

import copy
from collections.abc import Iterable

import torch
from torch import Tensor

from posenc.attention import attend
from posenc.encoding import Encoding, Placed
from posenc.laws.case import Case, Law, statute
from posenc.probe import form_scores

LAWS: list[Law] = []
HALVES = (torch.bfloat16, torch.float16)
SPOILT = 0.1  # of the size of scores, or of what is added; tables and networks lose 0.005, frequencies 0.3 or more
SLACK = 1.5  # times the error of plain SDPA on the same inputs


@statute(LAWS, "half precision", by_dtype=False)
def half_precision(case: Case) -> Iterable[str]:
    """Attention in bfloat16 and float16 is no further from float64 than 1.5 times plain SDPA is."""
    for dtype in HALVES:
        yield from _measure(case, dtype, start=0)


@statute(LAWS, "far positions", by_dtype=False)
def far_positions(case: Case) -> Iterable[str]:
    """A module moved to bfloat16 differs by rounding only, also at position 100,000; what is learned is not spoilt."""
    yield from _measure(case, torch.bfloat16, start=100_000)
    yield from _spoilt(case)


@statute(LAWS, "autocast", by_dtype=False)
def autocast(case: Case) -> Iterable[str]:
    """Under autocast, attention is no further from float64 than 1.5 times plain SDPA under autocast."""
    q, k, v = (t.float().double() for t in _inputs(case))
    pos = case.positions(q.shape[2])
    single = copy.deepcopy(case.encoding).float()
    exact = copy.deepcopy(single).double()

    x = case.tokens(q.shape[2]).float()

    def run(encoding: Encoding) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return attend(q.float(), k.float(), v.float(), *encoding.layer(case.index, encoding.place(pos, x)))

    def truth(encoding: Encoding) -> Tensor:
        return attend(q, k, v, *encoding.layer(case.index, _exactly(encoding, pos, x)))

    results = run(single), truth(exact)
    floor = _error(run(_plain(case)), truth(_plain(case)))
    # what an encoding makes of q and k may be larger, and its softmax steeper: plain attention of that counts, too
    encoding, placed = exact.layer(case.index, _exactly(exact, pos, x))
    q, k = encoding.rotate(q, k, placed)
    floor = max(floor, _error(run(_plain(case)), truth(_plain(case))))
    yield from _judge(*results, floor, "under autocast")


def _measure(case: Case, dtype: torch.dtype, *, start: int) -> Iterable[str]:
    """Compare the module cast to `dtype` with a float64 copy of it that has the same rounded parameters."""
    rounded = copy.deepcopy(case.original)
    rounded.load_state_dict(case.encoding.state_dict())
    rounded.to(dtype)
    # only parameters are taken over: a buffer that the cast has spoiled is the fault to be found
    exact = copy.deepcopy(case.original).double()
    for wide, narrow in zip(exact.parameters(), rounded.parameters(), strict=True):
        wide.data = narrow.data.double()
    q, k, v = (t.to(dtype) for t in _inputs(case))
    x, pos = case.tokens(q.shape[2]).to(dtype), _far(case, q.shape[2], start)

    def run(encoding: Encoding) -> Tensor:
        return attend(q, k, v, *encoding.layer(case.index, encoding.place(pos, x)))

    def truth(encoding: Encoding) -> Tensor:
        return attend(q.double(), k.double(), v.double(), *encoding.layer(case.index, _exactly(encoding, pos, x)))

    where = f"in {dtype} from position {int(pos.flatten()[0])}"
    floor = max(_error(run(_plain(case)), truth(_plain(case))), _turned_floor(case, exact, (q, k, v), pos, x))
    yield from _judge(run(rounded), truth(exact), floor, where)
    embedded = rounded.embed(x, rounded.place(pos, x))
    wanted = exact.embed(x.double(), _exactly(exact, pos, x))
    floor = _error(wanted.to(dtype), wanted)
    if embedded.dtype != dtype or _error(embedded, wanted) > SLACK * floor:
        yield f"embedded {where}: off by {_error(embedded, wanted):.2g}, where rounding alone gives {floor:.2g}"


def _spoilt(case: Case) -> Iterable[str]:
    """Tell whether moving a module to bfloat16 makes other positions of what it learned, as it does of frequencies.

    Rounding costs a table or a network some thousandths; an angle at position 100,000 it makes another one.
    """
    if not any(True for _ in case.encoding.parameters()):
        return
    moved = copy.deepcopy(case.original)
    moved.load_state_dict(case.encoding.state_dict())
    kept, rounded = copy.deepcopy(moved).double(), moved.bfloat16().double()
    q, k, _ = _inputs(case)
    x, pos = case.tokens(q.shape[2]), _far(case, q.shape[2], 100_000)
    found = []
    for encoding in (kept, rounded):
        placed = _exactly(encoding, pos, x)
        found.append((encoding.embed(x, placed) - x, form_scores(*encoding.layer(case.index, placed), q, k)))
    for what, wanted, got in zip(("embedded tokens", "scores"), *found, strict=True):
        if bool(wanted.ne(0).any()) and not _error(got, wanted) <= SPOILT:
            yield (
                f"moved to bfloat16, what is learned changes {what} from position {int(pos.flatten()[0])} by "
                f"{_error(got, wanted):.2g} of their size; keep it in float32 (`keeps_float32`)"
            )


def _far(case: Case, n: int, start: int) -> Tensor:
    """Return positions from `start`, or the last ones; spread where there is room, since neighbours see too little."""
    pos = case.positions(n, start=start)
    return pos + 37 * (pos - start) if start and case.max_len is None else pos


def _plain(case: Case) -> Encoding:
    """Return NoPE for positions of as many axes as the case's."""
    plain = Encoding()
    plain.n_axes = case.encoding.n_axes
    return plain


def _inputs(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    n = 64
    return (
        case.normal(2, case.n_heads, n, case.head_dim),
        case.normal(2, case.n_kv_heads, n, case.head_dim),
        case.normal(2, case.n_kv_heads, n, case.head_dim),
    )


def _exactly(encoding: Encoding, pos: Tensor, x: Tensor) -> Placed:
    return encoding.place(pos, x.double(), dtype=torch.float64)


def _turned_floor(case: Case, exact: Encoding, qkv: tuple[Tensor, Tensor, Tensor], pos: Tensor, x: Tensor) -> float:
    """Return plain SDPA's error on queries, keys and values that were turned exactly and rounded once.

    A turned vector must be stored, and in half precision that alone costs something: with few lanes as
    much as everything else.
    """
    q, k, v = qkv
    encoding, placed = exact.layer(case.index, _exactly(exact, pos, x))
    plain = _plain(case)
    turned = *encoding.rotate(q.double(), k.double(), placed), encoding.rotate_v(v.double(), placed)
    wanted = attend(*turned, plain, plain.place(pos, dtype=torch.float64))
    q, k, v = (t.to(q.dtype) for t in turned)
    return _error(attend(q, k, v, plain, plain.place(pos)), wanted)


def _judge(got: Tensor, wanted: Tensor, floor: float, where: str) -> Iterable[str]:
    error = _error(got, wanted)
    if not error <= SLACK * floor:
        yield f"{where}: off by {error:.2g} of its size, where plain attention is off by {floor:.2g}"


def _error(got: Tensor, wanted: Tensor) -> float:
    """Return the root mean square error over the root mean square."""
    got, wanted = got.detach(), wanted.detach()
    return float((got.double() - wanted).square().mean().sqrt() / wanted.square().mean().sqrt())
