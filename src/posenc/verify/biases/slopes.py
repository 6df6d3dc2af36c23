"""Which slopes a subject has, one per head, and what spoilt them if they are not ALiBi's.

A fault is a way to spoil the series for one number of heads; with it both rules for numbers that are no power of two
are formed, and what then gives the measured numbers to rounding is the cause.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from posenc import definitions
from posenc.verify.biases.ranks import repeated
from posenc.verify.biases.series import series_of
from posenc.verify.report import Cause

Series = Callable[[int], Tensor]
"""The slopes of so many heads, in one geometric series."""

ROOTS = (8, 16, 24, 32, 40, 48, 64, 72, 80, 88, 96, 112, 128, 160, 192, 256)
MEND = "Take the authors' rule: 2**(-8 (h + 1) / n) for n a power of two; else those of the next lower power of two, "
MEND += "then the 1st, 3rd, 5th.. slope of twice that number of heads."


@dataclass(frozen=True)
class Asked:
    """What slopes are right.

    Args:
        rule: "authors" or "geometric", as the definition `alibi` has it.
        bias_max: The 8 of all exponents.
        head_dim: Known width of a head, or None.
        says: A call in words, by the number of heads.
        tolerance: Relative, of one slope.
    """

    rule: Literal["authors", "geometric"] = "authors"
    bias_max: float = 8.0
    head_dim: int | None = None
    says: Callable[[int], str] = "slopes({})".format
    tolerance: float = 1e-5

    def slopes(self, n: int) -> Tensor:
        """Return the slopes of n heads by the definition, float64."""
        at = definitions.bias.alibi(
            np.array([1.0]), np.array([0.0]), n_heads=n, slopes=self.rule, bias_max=self.bias_max
        )
        return torch.from_numpy(-at[:, 0, 0])


@dataclass
class Measured:
    """Slopes by the number of heads; for the numbers that gave none, why."""

    slopes: dict[int, Tensor] = field(default_factory=dict)
    failed: dict[int, Cause] = field(default_factory=dict)


def power_of_two(n: int) -> bool:
    """Say whether n is 1, 2, 4.."""
    return n & (n - 1) == 0


def alike(found: Tensor, want: Tensor, tolerance: float) -> bool:
    """Say whether all slopes agree to a share of themselves."""
    return found.shape == want.shape and bool(((found - want).abs() <= tolerance * want.abs() + 1e-12).all())


def judge(found: Measured, numbers: list[int], asked: Asked) -> tuple[list[Cause], str | None]:
    """Return the causes, the first one first, and why other slopes make no difference.

    Args:
        found: What was measured, for the numbers of heads asked for and others beside.
        numbers: The numbers of heads to judge by; the others only help to name the fault.
        asked: What is right.
    """
    wrong = [n for n in numbers if n in found.failed or not alike(found.slopes[n], asked.slopes(n), asked.tolerance)]
    if not wrong:
        return [], None
    if not any(n in found.failed for n in wrong) and all(_same_heads(found.slopes[n], n, asked) for n in wrong):
        return [], _other_order(found.slopes[wrong[0]], asked.slopes(wrong[0]), asked.says(wrong[0]))
    return _causes(found, wrong, asked), None


def _other_order(found: Tensor, want: Tensor, says: str) -> str:
    """Say that heads have each other's slopes, and to whom that matters."""
    ways = (("from the last head to the first", want.flip(0)), ("sorted", want.sort(descending=True).values),
            ("sorted", want.sort().values))  # fmt: skip
    how = next((f", {words}" for words, order in ways if alike(found, order, 1e-3)), "")
    exponents = [[round(-math.log2(s), 2) for s in slopes.tolist()] for slopes in (found, want)]
    return (
        f"the heads have ALiBi's slopes in another order{how} ({says} has the exponents {exponents[0]}, for "
        f"{exponents[1]}): heads can be exchanged, so a model that is trained so is as good; weights that were trained "
        "with the usual order need it, since each of their heads would look as far as another one should"
    )


def _same_heads(found: Tensor, n: int, asked: Asked) -> bool:
    want = asked.slopes(n)
    return found.shape == want.shape and alike(found.sort().values, want.sort().values, asked.tolerance)


def _causes(found: Measured, wrong: list[int], asked: Asked) -> list[Cause]:
    """Return the first spoilt series that gives what was measured, or the failure, or a mismatch."""
    dead = [n for n in wrong if n in found.failed and power_of_two(n)]
    if dead:
        return [found.failed[dead[0]]]
    usable = {n: s for n, s in found.slopes.items() if n > 1 or len(found.slopes) == 1}
    parts = repeated(usable, asked.slopes, lambda s, want: alike(s, want, asked.tolerance))
    if parts:
        return [_cause(*parts, found, wrong, asked)]
    powers = [n for n in usable if power_of_two(n)]
    others = sorted(n for n in (*usable, *(n for n in found.failed if n in wrong)) if not power_of_two(n))
    partly: list[Cause] = []  # explains powers of two alone, with another fault for the other numbers
    for code, words, series in _spoilt(usable, asked) if usable else ():
        if any(not alike(usable[n], series(n), asked.tolerance) for n in powers):
            continue
        made = {n: ruled(asked.rule, series, n) for n in others if n in usable}
        off = [n for n in others if n not in made or not alike(usable[n], made[n], asked.tolerance)]
        # with no power of two to go by, the other numbers must come from this series by a known way
        if not powers and any(n in found.failed or not _how(usable[n], n, series, bool(code)) for n in off):
            continue
        off = [n for n in off if n in wrong]
        if code and off and powers and all(alike(series(n), _geometric(n, asked.bias_max), 1e-9) for n in powers):
            continue  # the right series under another name
        causes = [_cause(code, words, found, wrong, asked)] if code else []
        if off and asked.rule == "authors":
            causes.append(_other_numbers(found, off[0], series, asked))
        if causes and not off:
            return causes
        partly = partly or causes
    if partly:
        return partly
    n = wrong[0]
    if n in found.failed:
        return [found.failed[n]]
    if len(found.slopes[n]) != n:
        return [_count(found, n, asked)]
    many = max((m for m in wrong if power_of_two(m)), default=n)
    code, words = series_of(usable) or _shape_of(found.slopes[many])
    return [_cause(code, words, found, [many], asked)]


def ruled(rule: str, series: Series, n: int) -> Tensor:
    """Return the slopes of n heads that a rule makes of a series."""
    low = 1 << (n.bit_length() - 1)
    if rule == "geometric" or n == low:
        return series(n)
    return torch.cat([series(low), series(2 * low)[0::2][: n - low]])


def _geometric(n: int, bias_max: float, shift: int = 1, base: float = 2.0) -> Tensor:
    return base ** (-bias_max * (torch.arange(n, dtype=torch.float64) + shift) / n)


def _spoilt(found: Mapping[int, Tensor], asked: Asked) -> Iterator[tuple[str | None, str, Series]]:
    """Yield codes, what is computed, and the series; the right one first, the likelier before the others."""
    top = asked.bias_max

    def true(n: int) -> Tensor:
        return _geometric(n, top)

    n = next((n for n in found if power_of_two(n)), next(iter(found)))
    s = found[n]
    yield None, "", true
    words = f"the exponent is -{top:g} h / n, so that head 0 has slope 1, for -{top:g} (h + 1) / n"
    yield "alibi.slopes.exponent_off_by_one", words, lambda n: _geometric(n, top, 0)
    yield from _scaled(s, ruled(asked.rule, true, n), true, asked.head_dim)
    words = f"the exponent is -{top:g} (h + 2) / n for -{top:g} (h + 1) / n: each head has the next one's slope"
    yield "alibi.slopes.exponent_off_by_one", words, lambda n: _geometric(n, top, 2)
    yield "alibi.slopes.base", "powers of e are taken for powers of 2", lambda n: _geometric(n, top, base=math.e)
    yield "alibi.slopes.inverted", "the exponents are positive: slopes above 1 that grow", lambda n: 1 / true(n)
    if len(s) > 1 and bool((s > 0).all()) and float(s[1]) != float(s[0]):
        heads = top / math.log2(float(s[0] / s[1]))
        m = round(heads)
        if m > 0 and abs(heads - m) < 1e-3 and m != n:
            words = f"these are the slopes of {m} heads, whatever number is asked"
            yield "alibi.slopes.heads_hardwired", words, lambda n: _geometric(m, top) if n == m else _long(n, m, top)
        least = -math.log2(float(s[-1]))
        words = f"the exponents reach {least:.4g} in the last head, not {top:g}"
        yield "alibi.slopes.bias_max", words, lambda n: _geometric(n, least)
    for kind in (torch.float16, torch.bfloat16):
        words = f"the slopes are rounded to {str(kind).removeprefix('torch.')}"
        yield "alibi.precision.slopes_fp16", words, lambda n, kind=kind: true(n).float().to(kind).double()  # type: ignore[misc]


def _long(n: int, m: int, top: float) -> Tensor:
    return 2.0 ** (-top * torch.arange(1, n + 1, dtype=torch.float64) / m)


def _scaled(s: Tensor, want: Tensor, true: Series, head_dim: int | None) -> Iterator[tuple[str, str, Series]]:
    """Yield the right slopes times the one factor by which these differ, if there is one."""
    if s.shape != want.shape or not alike(s / want, (s / want)[:1].expand_as(s), 1e-4) or not bool(s.any()):
        return
    factor = float((s / want)[0])
    size = abs(factor)
    if abs(size - 1) < 1e-4:
        words = "the slopes have the wrong sign: far keys are favoured in place of near ones"
        yield "alibi.sign", words, lambda n: -true(n)
    root = next((d for d in ((head_dim,) if head_dim else ROOTS) if d and abs(size * math.sqrt(d) - 1) < 1e-4), None)
    words = f"all slopes are {factor:.6g} times ALiBi's"
    if root:
        words = f"the bias is divided by sqrt({root}), as if by the scale of the scores ({words})"
    elif abs(size - math.log2(math.e)) < 1e-4:
        words += ", which is log2(e): a bias for exp2"
    code = "alibi.sign" if factor < 0 else "alibi.scale.applied_to_bias" if root else "alibi.scale.factor"
    yield code, words, lambda n: factor * true(n)


def _how(s: Tensor, n: int, series: Series, strict: bool) -> str | None:
    """Say how slopes for a number that is no power of two were made of a series, or None."""
    low = 1 << (n.bit_length() - 1)
    after = series(2 * low)
    ways = {
        f"2**(-8 (h + 1) / {n}), as in the paper's text": series(n),
        f"the first {n} slopes of {2 * low} heads": after[:n],
        f"the last {n} slopes of {2 * low} heads": after[-n:],
        f"those of {low} heads, over and over": series(low).repeat(2)[:n],
        f"those of {low} heads, then the first of {2 * low}": torch.cat([series(low), after[: n - low]]),
        f"those of {low} heads, then the 2nd, 4th.. of {2 * low}": torch.cat([series(low), after[1::2][: n - low]]),
        f"those of {low} heads, then zeros": torch.cat([series(low), torch.zeros(n - low, dtype=s.dtype)]),
        f"those of {low} heads, then their last one": torch.cat([series(low), series(low)[-1:].expand(n - low)]),
    }
    found = next((words for words, want in ways.items() if alike(s, want, 1e-4)), None)
    if found is None and len(s) != n:
        return f"{len(s)} of them for {n} heads"
    if found is None and not strict and alike(s[:low], series(low), 1e-4):
        return f"right in the first {low} heads, and others from there"
    return found


def _shape_of(s: Tensor) -> tuple[str, str]:
    """Say what slopes of no known fault look like."""
    if len(s) > 1 and alike(s, s[:1].expand_as(s), 1e-5):
        return "alibi.slopes.shared", f"all heads have one slope, {float(s[0]):.6g}"
    if len(s) > 2 and bool((s > 0).all()):
        e = -torch.log2(s)
        if alike(e.diff(), e.diff()[:1].expand(len(s) - 1), 1e-4):
            words = (
                f"the exponents start at {0 - round(float(e[0]), 9):.5g} and fall by {float(e[1] - e[0]):.5g} a head"
            )
            return "alibi.slopes.ratio", words
    return "alibi.mismatch", "no known fault gives these slopes"


def _cause(code: str, words: str, found: Measured, wrong: list[int], asked: Asked) -> Cause:
    """Return the cause with the first wrong head of the least wrong number of heads."""
    whole = [n for n in (*sorted(wrong), *found.slopes) if n in found.slopes and len(found.slopes[n]) == n]
    n = whole[0]
    s, want = found.slopes[n], asked.slopes(n)
    off = (s - want).abs() > asked.tolerance * want
    h = int(off.int().argmax())
    message = f"{words[:1].upper()}{words[1:]}: head {h} of {asked.says(n)} has slope {float(s[h]) + 0.0:.8g}, "
    message += f"where {float(want[h]):.8g} is right."
    case = {"n_heads": n, "head": h, "found": float(s[h]), "expected": float(want[h])}
    return Cause(code, message, float((s - want).abs().max()), case, MEND)


def _count(found: Measured, n: int, asked: Asked) -> Cause:
    message = f"{asked.says(n)} has {len(found.slopes[n])} slopes for {n} heads."
    return Cause("alibi.slopes.count", message, float(len(found.slopes[n])), {"n_heads": n}, MEND)


def _other_numbers(found: Measured, n: int, series: Series, asked: Asked) -> Cause:
    """Return the cause of slopes that are right for powers of two alone."""
    code = "alibi.slopes.not_power_of_two"
    if n in found.failed:
        message = f"Only numbers of heads that are powers of two have slopes: {found.failed[n].message}."
        return Cause(code, message, float(n), {"n_heads": n}, MEND)
    s, want = found.slopes[n], ruled("authors", series, n)
    how = _how(s, n, series, False) or "others"
    message = (
        f"For numbers of heads that are no power of two the slopes are not the authors': {asked.says(n)} has {how}"
    )
    case: dict[str, Any] = {"n_heads": n}
    worst = float(n)
    if len(s) == n:
        h = int(((s - want).abs() > asked.tolerance * want.abs()).int().argmax())
        case |= {"head": h, "found": float(s[h]), "expected": float(want[h])}
        message += f"; head {h} has {float(s[h]):.6g}, where the authors' code has {float(want[h]):.6g}"
        worst = float((s - want).abs().max())
    return Cause(code, message + ".", worst, case, MEND)
