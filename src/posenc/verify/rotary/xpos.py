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
    for code, says, of_q, of_k in _guesses(want, zeta, base, gamma, asked.rotary_dim):
        if all(
            np.abs(got - guess).max() < 1e-6 + CLOSE * np.abs(guess).max()
            for got, guess in zip(slopes, (of_q, of_k), strict=True)
        ):
            return Cause(code, says, float(slopes[0][0]), case, help_)
    message = (
        f"from one position to the next the first pair of a query grows by exp({slopes[0][0]:.4g}) and of a key by "
        f"exp({slopes[1][0]:.4g}); they should by exp({want[0]:.4g}) and exp({-want[0]:.4g})"
    )
    return Cause("xpos.scale.mismatch", message, float(slopes[0][0]), case, help_)


def _guesses(want: Array, zeta: Array, base: float, gamma: float, d: int) -> Iterator[tuple[str, str, Array, Array]]:
    nothing, n = np.zeros_like(want), len(want)
    yield (
        "xpos.scale.missing",
        "nothing decays: queries and keys keep their lengths, as in plain RoPE",
        nothing,
        nothing,
    )
    yield (
        "xpos.scale.key_missing",
        "queries are scaled and keys are not: scores depend on more than the distance",
        want,
        nothing,
    )
    yield (
        "xpos.scale.query_missing",
        "keys are scaled and queries are not: scores depend on more than the distance",
        nothing,
        -want,
    )
    yield "xpos.scale.not_inverted", "keys are scaled as queries are, and should be by the inverse", want, want
    yield "xpos.scale.not_inverted", "queries are scaled as keys are, and should be by the inverse", -want, -want
    yield (
        "xpos.scale.sign",
        "scores grow with the distance: queries have the scale of keys and keys that of queries",
        -want,
        want,
    )
    whole = want * base
    says = f"powers are not divided by scale_base = {base:g}: the division binds to the centre alone"
    yield "xpos.power.precedence", says, whole, -whole
    for other in (512.0, 1024.0, 256.0, 2048.0, 64.0, 1.0):
        if other != base:
            yield (
                f"xpos.scale_base.{'too_small' if other < base else 'too_large'}",
                f"scale_base is {other:g} whatever is asked for; it should be {base:g}",
                whole / other,
                -whole / other,
            )
    i = np.arange(n)
    for g in (0.4, 0.0, 1.0):
        if g != gamma:
            other_zeta = np.log((2 * i / d + g) / (1 + g), where=(2 * i / d + g) > 0, out=np.full(n, -np.inf)) / base
            yield (
                "xpos.gamma.not_read",
                f"gamma is {g:g} whatever is asked for; it should be {gamma:g}",
                other_zeta,
                -other_zeta,
            )
    lanes_counted = np.log((i / d + gamma) / (1 + gamma)) / base
    yield (
        "xpos.zeta.counts_lanes",
        "zeta counts pairs over all lanes: (i/d + gamma) instead of (2i/d + gamma)",
        lanes_counted,
        -lanes_counted,
    )
    undivided = np.log(2 * i / d + gamma) / base
    yield "xpos.zeta.precedence", "zeta is not divided by 1 + gamma", undivided, -undivided
