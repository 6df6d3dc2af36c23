"""Laws about half precision: at most 1.5 times the error of plain attention, compared with float64."""

import copy
from collections.abc import Iterable

import torch
from torch import Tensor

from posenc.attention import attend
from posenc.encoding import Encoding, Placed
from posenc.laws.case import Case, Law, law
from posenc.probe import form_scores

LAWS: list[Law] = []
HALVES = (torch.bfloat16, torch.float16)
CORRUPTED = 0.1  # relative to scores or added vectors; tables and networks lose 0.005, frequencies 0.3 or more
SLACK = 1.5  # relative to the error of plain SDPA on the same inputs


@law(LAWS, "half precision", by_dtype=False)
def half_precision(case: Case) -> Iterable[str]:
    """In bfloat16 and float16 the error of attention is at most 1.5 times that of plain SDPA."""
    for dtype in HALVES:
        yield from _measure(case, dtype, start=0)


@law(LAWS, "far positions", by_dtype=False)
def far_positions(case: Case) -> Iterable[str]:
    """A module cast to bfloat16 differs only by rounding, also at position 100,000; parameters keep their meaning."""
    yield from _measure(case, torch.bfloat16, start=100_000)
    yield from _corrupted(case)


@law(LAWS, "autocast", by_dtype=False)
def autocast(case: Case) -> Iterable[str]:
    """Under autocast the error of attention is at most 1.5 times that of plain SDPA under autocast."""
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
    floor = _error(run(_Plain(case, pos)), truth(_Plain(case, pos)))
    # rotated q and k may be larger, and the softmax steeper: plain attention on them counts as well
    encoding, placed = exact.layer(case.index, _exactly(exact, pos, x))
    q, k = encoding.rotate(q, k, placed)
    floor = max(floor, _error(run(_Plain(case, pos)), truth(_Plain(case, pos))))
    yield from _judge(*results, floor, "under autocast")


def _measure(case: Case, dtype: torch.dtype, *, start: int) -> Iterable[str]:
    """Compare the module cast to `dtype` with a float64 copy that has the same rounded parameters."""
    rounded = copy.deepcopy(case.original)
    rounded.load_state_dict(case.encoding.state_dict())
    rounded.to(dtype)
    # only parameters are copied: a buffer that the cast has corrupted is a fault to find
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
    floor = max(
        _error(run(_Plain(case, pos)), truth(_Plain(case, pos))), _rotated_floor(case, exact, (q, k, v), pos, x)
    )
    yield from _judge(run(rounded), truth(exact), floor, where)
    embedded = rounded.embed(x, rounded.place(pos, x))
    wanted = exact.embed(x.double(), _exactly(exact, pos, x))
    floor = _error(wanted.to(dtype), wanted)
    if embedded.dtype != dtype or _error(embedded, wanted) > SLACK * floor:
        yield f"embedded {where}: off by {_error(embedded, wanted):.2g}, where only rounding gives {floor:.2g}"


def _corrupted(case: Case) -> Iterable[str]:
    """Yield a message if the cast to bfloat16 changes what learned parameters mean, as it does with frequencies.

    Rounding changes a table or a network by some thousandths, but an angle at position 100,000 completely.
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
        if bool(wanted.ne(0).any()) and not _error(got, wanted) <= CORRUPTED:
            yield (
                f"the cast of learned parameters to bfloat16 changes {what} from position {int(pos.flatten()[0])} by "
                f"{_error(got, wanted):.2g} of their size; keep it in float32 (`keeps_float32`)"
            )


def _far(case: Case, n: int, start: int) -> Tensor:
    """Return positions from `start`, or the last ones; spread out if possible, because neighbours show too little."""
    pos = case.positions(n, start=start)
    return pos + 37 * (pos - start) if start and case.max_len is None else pos


class _Plain(Encoding):
    """NoPE with the number of axes and the factor of the scores of a case: a sharper softmax has larger errors."""

    def __init__(self, case: Case, pos: Tensor) -> None:
        super().__init__()
        self.n_axes = case.encoding.n_axes
        self._scaled = case.encoding.layer(case.index, case.place(pos[:1], case.tokens(1)))[0]

    def score_scale(self, head_dim: int) -> float:
        return self._scaled.score_scale(head_dim)


def _inputs(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    n = 64
    return (
        case.normal(2, case.n_heads, n, case.head_dim),
        case.normal(2, case.n_kv_heads, n, case.head_dim),
        case.normal(2, case.n_kv_heads, n, case.head_dim),
    )


def _exactly(encoding: Encoding, pos: Tensor, x: Tensor) -> Placed:
    return encoding.place(pos, x.double(), dtype=torch.float64)


def _rotated_floor(case: Case, exact: Encoding, qkv: tuple[Tensor, Tensor, Tensor], pos: Tensor, x: Tensor) -> float:
    """Return plain SDPA's error on queries, keys and values that were rotated exactly and rounded once.

    A rotated vector must be stored in half precision, and with few dimensions this rounding is as large as all other
    errors together.
    """
    q, k, v = qkv
    encoding, placed = exact.layer(case.index, _exactly(exact, pos, x))
    plain = _Plain(case, pos)
    rotated = *encoding.rotate(q.double(), k.double(), placed), encoding.rotate_v(v.double(), placed)
    wanted = attend(*rotated, plain, plain.place(pos, dtype=torch.float64))
    q, k, v = (t.to(q.dtype) for t in rotated)
    return _error(attend(q, k, v, plain, plain.place(pos)), wanted)


def _judge(got: Tensor, wanted: Tensor, floor: float, where: str) -> Iterable[str]:
    error = _error(got, wanted)
    if not error <= SLACK * floor:
        yield f"{where}: off by {error:.2g} of its size, where plain attention is off by {floor:.2g}"


def _error(got: Tensor, wanted: Tensor) -> float:
    """Return the root mean square error, relative to the root mean square."""
    got, wanted = got.detach(), wanted.detach()
    return float((got.double() - wanted).square().mean().sqrt() / wanted.square().mean().sqrt())
