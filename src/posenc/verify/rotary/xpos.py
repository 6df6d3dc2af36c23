"""xPos: a rotation whose queries grow and whose keys shrink with the position, so that scores decay with distance."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause, Findings
from posenc.verify.rotary import check as rotation
from posenc.verify.rotary.angles import probe
from posenc.verify.rotary.expected import Expected, read
from posenc.verify.rotary.matrix import Array
from posenc.verify.rotary.scores import lanes
from posenc.verify.rotary.turner import TURNERS, Turner

LENGTHS = (24, 150)  # tokens; a wrong power overflows in long texts
CLOSE = 1e-3


class Normed(Turner):
    """A rotation with the length of each pair of lanes as it was before.

    Args:
        turner: The rotation.
        pairs: The lanes that turn together.
    """

    def __init__(self, turner: Turner, pairs: tuple[tuple[int, int], ...]) -> None:
        super().__init__(turner.subject)
        self.turner, self.pairs, self.reach = turner, pairs, turner.reach

    def fresh(self) -> "Turner":
        """Return the same around a copy."""
        return Normed(self.turner.fresh(), self.pairs)

    def _turn(self, q: Tensor, k: Tensor, pos: Tensor, said: str, grad: bool) -> tuple[Any, Any]:
        turned = self.turner.turn(q, k, pos, grad=grad)
        return tuple(self._norm(t, x) for t, x in zip(turned, (q, k), strict=True))  # type: ignore[return-value]

    def _norm(self, t: Tensor, x: Tensor) -> Tensor:
        factor = torch.ones_like(t)
        for a, b in self.pairs:
            now, before = (torch.hypot(s[..., a].float(), s[..., b].float()) for s in (t, x))
            found = torch.where((now > 0) & (before > 0), before / now.clamp(min=1e-38), 1.0).to(t.dtype)
            factor[..., a], factor[..., b] = found, found
        return t * factor.detach()


def check(subject: Any, convention: str, spec: Mapping[str, Any]) -> Findings:
    """Hold an xPos against its specification: what scores see of lengths, then the turns.

    Raises:
        SubjectError: A call fails in a way that is a finding of its own.
        ValueError: The specification says too little, or something impossible.
    """
    asked, turner = read(spec), TURNERS[convention](subject)
    layout = asked.layout or _layout(turner, asked)
    pairs = tuple(lanes(asked, layout))
    found = Findings(definitions=["xpos"], measured={"layout": layout})
    if (cause := _dtypes(turner, asked)) is not None:
        found.causes.append(cause)
        return found
    for n in LENGTHS:
        pos = torch.arange(n)
        q, k = probe(turner.fresh(), asked.head_dim, pairs, pos)
        cause = _lengths(asked, spec, np.abs(q.first), np.abs(k.first))
        if cause is not None:
            found.causes.append(cause)
            return found
    turned = rotation.of_turner(Normed(turner, pairs), asked)
    found.causes, found.equivalent = turned.causes, turned.equivalent
    return found


def _dtypes(turner: Turner, asked: Expected) -> Cause | None:
    """Tell queries and keys that come back in different dtypes, which no attention takes."""
    x = torch.ones(1, 1, 4, asked.head_dim, dtype=torch.bfloat16)
    try:
        q, k = turner.fresh().turn(x, x.clone(), torch.arange(4))
    except SubjectError:
        return None  # it does not take this dtype
    if q.dtype == k.dtype:
        return None
    message = f"of bfloat16 queries and keys, queries come back in {str(q.dtype)[6:]} and keys in {str(k.dtype)[6:]}"
    name = "keys" if k.dtype == torch.float32 else "queries"
    case = {"dtype": "bfloat16"}
    return Cause(f"xpos.dtype.{name}_float32", message, 1.0, case, "Return both in the dtype they came in.")


def _layout(turner: Turner, asked: Expected) -> str:
    x = torch.zeros(1, 1, 4, asked.head_dim)
    x[..., 0] = 1.0
    turned, _ = turner.fresh().turn(x, x.clone(), torch.arange(4))
    return "interleaved" if bool(turned[0, 0, 2, 1].abs() > CLOSE) else "half"


def _lengths(asked: Expected, spec: Mapping[str, Any], q: Array, k: Array) -> Cause | None:
    """Hold lengths of queries and keys, (positions, pairs), against the powers that scores should see."""
    gamma, base = float(spec.get("gamma", 0.4)), float(spec.get("scale_base", 512.0))
    n, i = len(q), np.arange(asked.rotary_dim // 2)
    zeta = (2 * i / asked.rotary_dim + gamma) / (1 + gamma)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = [np.log(side) for side in (q, k)]
    scores = logs[0][:, None] + logs[1][None]  # (query, key, pair)
    t = np.arange(n)
    right = np.subtract.outer(t, t)[..., None] * np.log(zeta) / base
    if np.isfinite(scores).all() and np.abs(scores - right).max() < CLOSE:
        return None
    slopes = [(side[1] - side[0]) for side in logs]
    want = np.log(zeta) / base
    case = {"positions": [0, 1], "query": float(slopes[0][0]), "key": float(slopes[1][0]), "wanted": float(want[0])}
    help_ = "Queries times zeta^((p - centre) / scale_base), keys by the inverse; zeta = (2i/d + gamma) / (1 + gamma)."
    for code, says, *guess in _guesses(want, zeta, base, gamma, asked.rotary_dim):
        if all(_grows(side, by) for side, by in zip(logs, guess, strict=True)):
            return Cause(code, says, float(slopes[0][0]), case, help_)
    steps = np.array([np.diff(side, axis=0)[:, 0] for side in logs])
    if np.isfinite(steps).all() and np.ptp(steps, 1).max() > CLOSE * np.abs(want).max() + 1e-6:
        message = "lengths do not change by the same factor from each position to the next, so that scores depend on "
        message += "more than the distance"
        return Cause("xpos.scale.mismatch", message, float(np.ptp(steps, 1).max()), case, help_)
    message = (
        f"from one position to the next the first pair of a query grows by exp({slopes[0][0]:.4g}) and of a key by "
        f"exp({slopes[1][0]:.4g}); they should by exp({want[0]:.4g}) and exp({-want[0]:.4g})"
    )
    return Cause("xpos.scale.mismatch", message, float(slopes[0][0]), case, help_)


def _grows(logs: Array, by: Array) -> bool:
    """Whether logarithms of lengths (positions, pairs) grow by so much a position, as far as they are finite."""
    first = logs[1] - logs[0]
    if not np.abs(first - by).max() < 1e-6 + CLOSE * np.abs(by).max():
        return False
    with np.errstate(invalid="ignore"):
        off = np.abs(logs - logs[0] - np.outer(np.arange(len(logs)), by))
    seen = np.isfinite(off)
    return bool((off[seen] < len(logs) * (1e-6 + CLOSE * np.abs(by).max())).all())


def _guesses(want: Array, zeta: Array, base: float, gamma: float, d: int) -> Iterator[tuple[str, str, Array, Array]]:
    """Yield faults: a code, words, and by what logarithms of queries and of keys would grow a position."""
    yield from _of_sides(want)
    for code, says, powers in _of_powers(want, zeta, base, gamma, d):
        yield code, says, powers, -powers


def _of_sides(want: Array) -> Iterator[tuple[str, str, Array, Array]]:
    """Yield right powers on the wrong sides."""
    nothing = np.zeros_like(want)
    says = "nothing decays: queries and keys keep their lengths, as in plain RoPE"
    yield "xpos.scale.missing", says, nothing, nothing
    says = "queries are scaled and keys are not: scores depend on more than the distance"
    yield "xpos.scale.key_missing", says, want, nothing
    says = "keys are scaled and queries are not: scores depend on more than the distance"
    yield "xpos.scale.query_missing", says, nothing, -want
    yield "xpos.scale.not_inverted", "keys are scaled as queries are, and should be by the inverse", want, want
    yield "xpos.scale.not_inverted", "queries are scaled as keys are, and should be by the inverse", -want, -want
    says = "scores grow with the distance: queries have the scale of keys and keys that of queries"
    yield "xpos.scale.sign", says, -want, want


def _of_powers(want: Array, zeta: Array, base: float, gamma: float, d: int) -> Iterator[tuple[str, str, Array]]:
    """Yield wrong powers of queries; those of keys are the inverse."""
    whole, i = want * base, np.arange(len(want))
    says = f"powers are not divided by scale_base = {base:g}: the division binds to the centre alone"
    yield "xpos.power.precedence", says, whole
    for other in (512.0, 1024.0, 256.0, 2048.0, 64.0, 1.0):
        if other != base:
            says = f"scale_base is {other:g} whatever is asked for; it should be {base:g}"
            yield f"xpos.scale_base.{'too_small' if other < base else 'too_large'}", says, whole / other
    for g in (0.4, 0.0, 1.0):
        if g != gamma:
            other_zeta = (2 * i / d + g) / (1 + g)
            logs = np.log(other_zeta, where=other_zeta > 0, out=np.full(len(want), -np.inf)) / base
            says = f"gamma is {g:g} whatever is asked for; it should be {gamma:g}"
            yield "xpos.gamma.not_read", says, logs
    says = "zeta counts pairs over all lanes: (i/d + gamma) instead of (2i/d + gamma)"
    yield "xpos.zeta.counts_lanes", says, np.log((i / d + gamma) / (1 + gamma)) / base
    yield "xpos.zeta.precedence", "zeta is not divided by 1 + gamma", np.log(2 * i / d + gamma) / base
    says = "gamma alone is divided by 1 + gamma, and 2i/d is not"
    yield "xpos.zeta.precedence", says, np.log(2 * i / d + gamma / (1 + gamma)) / base
