"""Queries and keys that are not turned alike: which side is right, and what is wrong with the other."""

import numpy as np

from posenc.verify.report import Cause
from posenc.verify.rotary import places
from posenc.verify.rotary.angles import Turns
from posenc.verify.rotary.bench import CLOSE, Bench
from posenc.verify.rotary.matrix import Structure
from posenc.verify.rotary.rates import frequencies
from posenc.verify.rotary.scores import EPS


def paired_apart(bench: Bench, q: Structure, k: Structure) -> Cause | None:
    """Tell queries whose lanes are paired in one layout, and keys in the other."""
    layouts = q.layout(), k.layout()
    if None in layouts or layouts[0] == layouts[1]:
        return None
    (first, *one), (second, *other) = (found for found in layouts if found is not None)
    if first == second or one != other:
        return None
    name, side = ("keys", k) if first == bench.layout else ("queries", q)
    said = f"queries turn {q.words()}, and keys {k.words()}"
    wanted = f"asked for is {bench.layout}, so {name} are wrong"
    case = bench.case(side=name, lanes=list(side.pairs[0]))
    wrong = float(len(set(q.pairs) ^ set(k.pairs)))
    help_ = f"Pair lanes of {name} {bench.layout} as well: the same function for queries and keys."
    return Cause("rope.layout.mixed", f"{said}: {wanted}", wrong, case, help_)


def apart(bench: Bench, q: Turns, k: Turns) -> Cause | None:
    """Tell queries and keys that are not turned alike."""
    zq, zk = q.first / np.abs(q.first), k.first / np.abs(k.first)
    if np.abs(zq - zk).max() < CLOSE:
        return None
    off = float(np.abs(zq - zk).max())
    if np.abs(zq - zk.conj()).max() < CLOSE:
        message = "queries and keys turn in opposite directions: scores depend on the sum of positions"
        return Cause("rope.sign.one_side", message, off, bench.case(), "Turn both the same way.")
    moved = np.angle(zq / zk)
    if np.abs(np.angle(np.exp(1j * (moved - moved[:1])))).max() < CLOSE:
        freq = bench.asked.inv_freq(bench.seq_len)
        shift = float(moved[0, 0] / freq[0])
        message = f"queries and keys of one position differ by a turn of {shift:.4g} positions, whatever the position"
        return Cause(
            "rope.offset.sides_differ", message, shift, bench.case(), "Count queries and keys from the same place."
        )
    first = int(np.argmax(np.abs(zq - zk).max(1) > CLOSE))
    message = f"queries and keys are turned by different angles, first at position {int(q.pos[first])}"
    for name, other, good, bad in (("keys", "queries", q, k), ("queries", "keys", k, q)):
        if _right(bench, good) and not _right(bench, bad):
            why = places.positions(bench, bad, bad) or frequencies(bench, bad, bad)
            message += f"; {other} are right, {name} are not" + (f": {why.message}" if why is not None else "")
            return Cause("rope.side.differ", message, off, bench.case(side=name), "Turn both by one table.")
    return Cause("rope.side.differ", message, off, bench.case(), "Turn both by one table.")


def _right(bench: Bench, turns: Turns) -> bool:
    """Whether a side is turned as asked for, in either direction."""
    angles = np.outer(turns.pos, bench.asked.inv_freq(bench.seq_len))
    z, slack = turns.first / np.abs(turns.first), CLOSE + 16 * EPS * angles
    return any(bool((np.abs(z - np.exp(way * angles)) <= slack).all()) for way in (1j, -1j))
