"""Lanes that do not turn in the pairs that are asked for, or in no pairs at all."""

from typing import Any

import numpy as np

from posenc.verify.report import Cause
from posenc.verify.rotary.angles import probe, slopes
from posenc.verify.rotary.bench import CLOSE, Bench
from posenc.verify.rotary.matrix import Array, Structure
from posenc.verify.rotary.scores import EPS, lanes
from posenc.verify.rotary.sides import paired_apart


def structure_of(bench: Bench, q: Structure, k: Structure) -> Cause | None:
    """Tell lanes that should not turn together, or do not."""
    asked, want = bench.asked, tuple(sorted(lanes(bench.asked, bench.layout)))
    n = asked.rotary_dim
    for name, side, other in (("queries", q, k), ("keys", k, q)):
        if not side.pairs and not side.tangled and other.pairs:
            help_ = "Turn queries and keys alike, each by its own positions."
            return Cause("rope.side.not_turned", f"{name} are not turned at all", 1.0, bench.case(side=name), help_)
    if not q.pairs and not q.tangled:
        return _not_turned(bench)
    if q.tangled or k.tangled or set(q.pairs) == set(want) == set(k.pairs) or not q.pairs:
        return None
    if (cause := paired_apart(bench, q, k)) is not None:
        return cause
    whose = ""
    if set(q.pairs) != set(k.pairs):
        q, whose = (q, "of queries ") if set(q.pairs) != set(want) else (k, "of keys ")
    help_ = "Pair lanes as the weights were trained: half pairs i with i + d/2, interleaved 2i with 2i + 1."
    said = f"{whose}turned are {q.words()}; asked for are the first {n} lanes, paired {bench.layout}"
    case = bench.case(lanes=list(q.pairs[0]), wanted=list(want[0]))
    wrong = float(len(set(q.pairs) ^ set(want)))
    found = q.layout()
    if found is not None and found[:2] != (bench.layout, n) and found[1] == n and found[2] == asked.first:
        return Cause("rope.layout.wrong_pairing", said, wrong, case, help_)
    still_slow = set(q.pairs) < set(want)
    if still_slow:
        missing = sorted(set(want) - set(q.pairs))
        message = f"{whose}{len(missing)} of {len(want)} pairs do not turn, {missing[0]} the first of them"
        return Cause(
            "rope.partial.pairs_still", message, float(len(missing)), case, "Turn all pairs that are asked for."
        )
    if found is not None and found[1] == asked.head_dim != n and found[2] == 0:
        help_ = "Turn the first rotary_dim lanes alone, and pass the others through."
        return Cause("rope.partial.factor_not_read", said, wrong, case, help_)
    if found is not None and found[1] != n and found[2] == 0:
        return Cause("rope.partial.width", said, wrong, case, "Turn rotary_dim lanes, no more and no fewer.")
    if found is not None and found[2] != asked.first:
        return Cause("rope.partial.other_lanes", said, wrong, case, "Turn the first rotary_dim lanes, not the last.")
    return _partner(
        bench, q, Cause("rope.partial.wrong_partner", said, wrong, case, "Pair lane i with i + rotary_dim/2.")
    )


def _partner(bench: Bench, side: Structure, cause: Cause) -> Cause:
    """Tell a head's width taken for that of what turns, in partners and exponents alike."""
    asked = bench.asked
    if asked.head_dim == asked.rotary_dim or any(b - a != asked.head_dim // 2 for a, b in side.pairs):
        return cause
    q, _ = probe(bench.turner.fresh(), asked.head_dim, side.pairs, bench.pos)
    measured = np.abs(slopes(q)[0])
    if np.abs(measured / asked.base ** (-2.0 * np.arange(len(measured)) / asked.head_dim) - 1).max() > CLOSE:
        return cause
    message = f"{cause.message}; exponents and partners are those of a head of {asked.head_dim} lanes that all turn"
    help_ = "Count exponents and partners over rotary_dim lanes."
    return Cause("rope.partial.head_dim_used", message, cause.evidence, cause.smallest_case, help_)


def _not_turned(bench: Bench) -> Cause:
    gain = float(np.abs(np.einsum("pii->pi", bench.matrices.q)).max())
    same = float(np.abs(bench.matrices.q - bench.matrices.q[:1]).max())
    message = f"nothing is turned: whatever the position, a lane is multiplied by {gain:.3g}"
    return Cause("rope.not_turned", message, same, bench.case(), "Multiply by cos and sin of position times frequency.")


def blocks_of(bench: Bench, q: Structure, k: Structure) -> Cause | None:
    """Tell pairs that are no rotations."""
    layouts = [bench.layout, "interleaved" if bench.layout == "half" else "half"]
    for name, matrices, side in (("queries", bench.matrices.q, q), ("keys", bench.matrices.k, k)):
        if side.tangled:
            return _tangled(bench, name, matrices, side, layouts)
        for a, b in side.pairs:
            block = matrices[:, [a, b]][:, :, [a, b]]
            odd = max(
                float(np.abs(block[:, 0, 0] - block[:, 1, 1]).max()),
                float(np.abs(block[:, 0, 1] + block[:, 1, 0]).max()),
            )
            if odd > CLOSE:
                return _no_rotation(bench, name, block, (a, b), odd)
    return None


def _no_rotation(bench: Bench, name: str, block: Array, pair: tuple[int, int], odd: float) -> Cause:
    a, b = pair
    case = bench.case(lanes=[a, b])
    mirrored = max(
        float(np.abs(block[:, 0, 0] - block[:, 1, 1]).max()), float(np.abs(block[:, 0, 1] - block[:, 1, 0]).max())
    )
    if mirrored < CLOSE:
        message = (
            f"lanes {a} and {b} of {name} both get the same sign of the sine: (x cos + y sin, y cos + x sin) is no turn"
        )
        return Cause(
            "rope.sign.same_twice",
            message,
            odd,
            case,
            "One of the two sines is negative: (x cos - y sin, y cos + x sin).",
        )
    swapped = max(
        float(np.abs(block[:, 0, 0] + block[:, 1, 1]).max()), float(np.abs(block[:, 0, 1] - block[:, 1, 0]).max())
    )
    if swapped < CLOSE:
        message = f"lanes {a} and {b} of {name} are mirrored, not turned: a reflection has another sign in one lane"
        return Cause("rope.sign.reflection", message, odd, case, "Write (x cos - y sin, y cos + x sin).")
    if (cause := _overwritten(name, block, pair, odd, case)) is not None:
        return cause
    first, second = (
        np.abs(np.angle(row)) for row in (block[:, 0, 0] + 1j * -block[:, 0, 1], block[:, 1, 1] + 1j * block[:, 1, 0])
    )
    message = f"lanes {a} and {b} of {name} turn together by different angles, {first.max():.4g} and {second.max():.4g}"
    if not _of_other_lanes(bench, block, pair):
        help_ = "Write (x cos - y sin, y cos + x sin), with the cos and sin of one angle in both lanes."
        return Cause("rope.mismatch", f"{message}, in no way that is known", odd, case, help_)
    message += ": cos and sin are laid out for one pairing, and the lanes are paired in the other"
    help_ = (
        "Repeat cos and sin as the pairing needs: cat((t, t), -1) for half, repeat_interleave(2, -1) for interleaved."
    )
    return Cause("rope.layout.mixed", message, odd, case, help_)


def _overwritten(name: str, block: Array, pair: tuple[int, int], odd: float, case: dict[str, Any]) -> Cause | None:
    """Tell a lane that is made of its partner after that was turned: a shear, no turn."""
    forms = "y' = y cos + x' sin with x' = x cos - y sin", "x' = x cos - y' sin with y' = y cos + x sin"
    for lane, other, sign, form in ((1, 0, 1.0, forms[0]), (0, 1, -1.0, forms[1])):
        cos, sin = block[:, other, other], -sign * block[:, other, lane]
        lengths = cos**2 + sin**2
        off = sign * block[:, lane, other] - cos * sin, block[:, lane, lane] - cos + sin**2, lengths - lengths[0]
        if max(float(np.abs(t).max()) for t in off) > CLOSE:
            continue
        message = (
            f"lane {pair[lane]} of {name} is made of lane {pair[other]} after that was turned, {form}: it is "
            "written in place, or into a view of what is still needed"
        )
        help_ = "Form both lanes from x as it came in, and join them into a new tensor."
        return Cause("rope.aliased_write", message, odd, case, help_)
    return None


def _of_other_lanes(bench: Bench, block: Array, pair: tuple[int, int]) -> bool:
    """Whether each lane has the cos and sin that belong to it in the other layout."""
    n, first, pos = bench.asked.rotary_dim // 2, bench.asked.first, bench.pos.double().numpy()
    freq, gain = bench.asked.inv_freq(bench.seq_len), bench.asked.gain(bench.seq_len)
    rows = block[:, 0, 0] - 1j * block[:, 0, 1], block[:, 1, 1] + 1j * block[:, 1, 0]
    slack = CLOSE + 16 * EPS * float(pos.max() * freq.max())
    for numbers in (np.arange(2 * n) % n, np.arange(2 * n) // 2):
        off = [
            min(np.abs(row - gain * np.exp(way * pos * freq[numbers[lane - first]])).max() for way in (1j, -1j))
            for row, lane in zip(rows, pair, strict=True)
            if 0 <= lane - first < 2 * n
        ]
        if len(off) == 2 and max(off) < slack:
            return True
    return False


def _tangled(bench: Bench, name: str, matrices: Array, side: Structure, layouts: list[str]) -> Cause:
    lane = side.tangled[0]
    row = np.abs(matrices[:, lane]).max(0)
    others = [int(j) for j in np.flatnonzero(row > 1e-5) if j != lane]
    message = f"lane {lane} of {name} is made of lanes {others[:4]}: lanes are not in pairs that turn into each other"
    case = bench.case(lanes=[lane, *others[:4]])
    help_ = "Use one layout throughout: how lanes are split, which cos and sin they meet, how they are joined again."
    return Cause("rope.layout.mixed", message, float(len(side.tangled)), case, help_)
