"""The formula of a rotation, with every choice a parameter, and its inverse, which measures answers."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from posenc.verify.engine import Fault, Seen
from posenc.verify.engine.precision import rounded
from posenc.verify.engine.read import base_of, known, phasors, speeds, structure, unrotated, whole_ends
from posenc.verify.engine.records import Array, Model
from posenc.verify.families.rotation_calls import Ask, Places
from posenc.verify.families.rotation_faults import gain_code, gains

if TYPE_CHECKING:
    from posenc.verify.families.rotation import Rotation

CLOSE = 1e-3  # tolerance of an angle or a gain: far above rounding, far below any fault
Complex = NDArray[np.complex128]
Lanes = tuple[Any, Any, Any]  # indices of pairs and of partners, and signs


def rotated(x: Array, where: Places, m: Model, heads: int) -> Array:
    """Return vectors x (vectors, positions or 1, head_dim) rotated by a model: (vectors, positions, head_dim).

    Positions on several axes are (positions, pairs): the position that each pair follows.
    """
    for _ in range(m["times"]):
        x = _rotated_once(x, where, m, heads)
    return x


def _rotated_once(x: Array, where: Places, m: Model, heads: int) -> Array:
    head_dim = x.shape[-1]
    freq, gain = rows(m, "freq", where, heads), rows(m, "gain", where, heads)
    pair, partner, sign = lanes(head_dim, freq.shape[1], m)
    pos = where.pos if m["pos"] is None else m["pos"](where)
    at = rounded(pos if pos.ndim == 2 else pos[:, None], m["round_positions"])
    angle = at * rounded(freq * m["drift"], m["round_frequencies"])
    angle = summed(freq, at, m["round_sum"]) if m["round_sum"] else rounded(angle, m["round_product"])
    angle = m["sign"] * angle
    numbers = pair if m["tables"] is None else lanes(head_dim, freq.shape[1], m, m["tables"])[0]
    at = np.maximum(numbers, 0)
    gains = (gain if m["gained"] in (None, name) else 1.0 for name in ("cos", "sin"))
    cos, sin = (rounded(of * f(angle), m["round_table"])[:, at] for of, f in zip(gains, (np.cos, np.sin), strict=True))
    if m["growth"] is not None:
        centre = (where.last + 1) // 2 if m["centre"] else 0.0
        grown = np.exp(np.clip(m["grow"] * m["growth"](rounded(pos, m["round_powers"]) - centre), -700, 700))
        grown = grown[:, np.maximum(lanes(head_dim, freq.shape[1], m, m["powers"])[0], 0)]
        cos, sin = cos * grown, sin * grown
    cos, sin = np.where(pair >= 0, cos, m["rest"]), np.where(pair >= 0, sin, 0.0)
    x = rounded(x, m["round_x"])
    if m["form"] == "same":
        sign = np.abs(sign)
    y = x * cos + x[..., partner] * sign * sin
    if m["form"] in ("first", "second"):  # this one is computed first, and the other one reads it
        late = sign > 0 if m["form"] == "first" else sign < 0
        y = np.where(late, x * cos + y[..., partner] * sign * sin, y)
    y = rounded(y, m["round_y"])
    return y if m["order"] is None else y[..., m["order"]]


def summed(freq: Array, at: Array, dtype: str) -> Array:
    """Return the angles at whole positions (positions, 1) if frequencies are added up in a dtype, token by token."""
    end = int(at.max()) + 1
    if dtype == "float32":
        steps = np.broadcast_to(freq[-1].astype(np.float32), (end, freq.shape[1])).copy()
        steps[0] = 0.0
        total = np.cumsum(steps, 0, dtype=np.float32).astype(np.float64)
    else:  # a sum that no longer grows stays
        step, sums = rounded(freq[-1], dtype), [np.zeros(freq.shape[1])]
        while len(sums) < end and not np.array_equal(sums[-1], after := rounded(sums[-1] + step, dtype)):
            sums.append(after)
        total = np.stack(sums)
    return np.asarray(total[np.minimum(at[:, 0].astype(int), len(total) - 1)])


def lanes(head_dim: int, n_pairs: int, model: Model, pairing: str | None = None) -> Lanes:
    """Return for each dimension the index of its pair (-1: not rotated), its partner, and the sign of the sine."""
    return _lanes(head_dim, n_pairs, pairing or model["pairing"], model["first"], model["partner"] or n_pairs)


@cache
def _lanes(head_dim: int, n_pairs: int, pairing: str, first: int, apart: int) -> Lanes:
    pair, partner, sign = np.full(head_dim, -1), np.arange(head_dim), np.zeros(head_dim)
    numbers = np.arange(n_pairs)
    a, b = (numbers, numbers + apart) if pairing == "half" else (2 * numbers, 2 * numbers + 1)
    inside = b + first < head_dim
    numbers, a, b = numbers[inside], a[inside] + first, b[inside] + first
    pair[a], pair[b], partner[a], partner[b], sign[a], sign[b] = numbers, numbers, b, a, -1.0, 1.0
    return pair, partner, sign


def rows(m: Model, name: str, where: Places, heads: int) -> Array:
    """Return frequencies (positions, pairs) or gains (positions, 1), by the length that chooses them."""
    if not callable(m[name]):
        return np.atleast_2d(m[name])
    by = {
        "end": where.last + 1,
        "tokens": where.tokens,
        "first": where.first + 1,
        "token": where.pos + 1,
        "heads": np.full_like(where.pos, heads),
    }[m["by"] if name == "freq" else "end"]
    lengths, back = np.unique(by, return_inverse=True)
    return np.stack([np.atleast_1d(m[name](int(n))) for n in lengths])[back]


@np.errstate(all="ignore")
def read(family: "Rotation", seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
    """Return wrong pairs or positions that the answers show by themselves."""
    some = [s for s in wrong if s.case.kind in ("near", "far")]
    for s in some:
        found = (*_of_structure(family, model, s), *_of_positions(family, s, model))
        found = tuple(f for f in found if not f.change or _stands(family, s, {**model, **f.change}))
        whole = (f for f in found if all(_stands(family, other, {**model, **f.change}) for other in some))
        if found:
            return next(whole, found[0])
    return None


def _stands(family: "Rotation", seen: Seen, model: Model) -> bool:
    """Return whether a model explains an answer."""
    return bool((family.off(seen, family.predict(model, seen.case), model) <= 1).all())


def _of_structure(family: "Rotation", model: Model, seen: Seen) -> Iterator[Fault]:
    """Yield dimensions that rotate with the wrong partners."""
    asked = family.asked
    pair, partner, _ = lanes(asked.head_dim, asked.n_pairs, model)
    want = {(i, int(partner[i])) for i in range(len(pair)) if pair[i] >= 0 and partner[i] > i}
    for side, name in zip(seen.value.transpose(0, 2, 3, 1), ("queries", "keys"), strict=True):
        found = structure(side) if seen.case.args[0].vectors == "basis" else None
        if found is not None and found.tangled:
            yield Fault("rope.layout.mixed", {}, {"what": f"dimension {found.tangled[0]} of {name} mixes with several"})
        elif found is not None and found.pairs and not set(found.pairs) <= want:
            pairing, width, first = found.layout() or ("", 0, -1)
            code = "partial.width" if first == 0 and width != asked.rotary_dim else "partial.wrong_partner"
            if (pairing, width) == (model["pairing"], asked.rotary_dim) and first != model["first"]:
                code = "partial.other_lanes"
            code = "layout.wrong_pairing" if (width, first) == (asked.rotary_dim, model["first"]) else code
            wanted = f"{asked.rotary_dim}, paired {model['pairing']}"
            yield Fault(f"rope.{code}", {}, {"found": f"{found.words()} in {name}", "asked": wanted})


def sides_of(family: "Rotation", seen: Seen, model: Model) -> tuple[Array, Complex, Complex]:
    """Return positions, and gain * exp(i angle) of each pair of queries and of keys, if pairs are right."""
    ask: Ask = seen.case.args[0]
    pair, partner, sign = lanes(family.asked.head_dim, family.asked.n_pairs, model)
    a = np.array(sorted(np.flatnonzero(sign < 0), key=lambda lane: pair[lane]))
    if ask.vectors == "basis":
        q, k = (phasors(m, list(zip(a, partner[a], strict=True))) for m in seen.value.transpose(0, 2, 3, 1))
    else:
        sides = zip(seen.value[:, 0], family.given(seen.case)[:, 0], strict=True)
        q, k = ((y[:, a] + 1j * y[:, partner[a]]) / (x[:, a] + 1j * x[:, partner[a]]) for y, x in sides)
    q, k = (np.conj(z) if model["sign"] < 0 else z for z in (q, k))
    return np.array(ask.pos, dtype=float), q, k


def _of_positions(family: "Rotation", seen: Seen, model: Model) -> Iterator[Fault]:
    """Yield zeros, ends of tables and other positions of tokens, which a model must then explain."""
    pos, q, _ = sides_of(family, seen, model)
    lost = (np.abs(q) < CLOSE).all(1)
    if lost.any() and family.asked.xpos is None:
        how = f"the token at position {pos[lost][0]:,.0f} is returned as zeros"
        yield Fault("rope.table.too_short", {}, {"how": how})
    freq, z = family.asked.inv_freq(int(pos[-1]) + 1), q / np.abs(q)
    for name, end in whole_ends(pos, z, freq, CLOSE + 2.0**-20 * np.outer(pos, freq)):
        if name == "wraps":
            how = f"positions restart at {end:,.0f}"
            yield Fault("rope.table.wraps", {"pos": lambda at, end=end: at.pos % end}, {"how": how})
            how = f"all positions from {end:,.0f} on are too small by {end:,.0f}"
            less = {"pos": lambda at, end=end: np.where(at.pos < end, at.pos, at.pos - end)}
            yield Fault("rope.table.restarts", less, {"how": how})
        else:
            how = f"positions from {end:,.0f} on use the angles of {end - 1:,.0f}"
            last = {"pos": lambda at, end=end: np.minimum(at.pos, end - 1)}
            yield Fault("rope.table.too_short", last, {"how": how})
    slow = int(np.where(freq > 0, freq, np.inf).argmin())  # its angle does not show how many rotations it made
    z, f = z[:, slow], freq[slow]
    for found in (pos + np.angle(z * np.exp(-1j * pos * f)) / f, np.angle(z) / f):
        for at in (np.round(found), np.round(2 * found) / 2):
            off = at != pos
            if off.any() and not np.allclose(at * pos[-1], at[-1] * pos):  # a factor belongs to the frequencies
                values = {"position": int(pos[off][0]), "at": float(at[off][0])}
                yield Fault("rope.positions.other", {"pos": lambda _, at=at: at}, values)


@np.errstate(all="ignore")
def unknown(family: "Rotation", seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault:
    """Return the measurements of a rotation that nothing explains: one side, a gain, one base, speeds."""
    asked, by_kind = family.asked, {s.case.kind: s for s in wrong}
    if "near" not in by_kind:
        return Fault("rope.not_linear" if "short" in by_kind else family.mismatch)
    pos, q, k = sides_of(family, by_kind["near"], model)
    end = int(pos[-1]) + 1
    freq, want, found = asked.inv_freq(end), float(asked.gain(end)[0]), speeds(pos, q)[0]
    angles, gain = np.exp(1j * np.outer(pos, freq)), float(np.abs(q).mean())
    if asked.xpos is not None:
        is_right = np.abs(q / np.abs(q) - angles).max() < 4 * CLOSE
        return Fault("xpos.scale.mismatch" if is_right else family.mismatch)
    if np.abs(q - k).max() > CLOSE:
        off = [np.abs(z - want * angles).max() > 4 * CLOSE for z in (q, k)]
        both = {"message": "queries and keys are rotated by different angles, and both are wrong"}
        one = {"side": "queries" if off[0] else "keys", "why": family.mismatch}
        return Fault("rope.side.differ", {}, both if all(off) else one)
    if not _stands(family, by_kind["near"], {**model, "freq": found, "gain": gain}):
        return Fault(family.mismatch)
    if abs(gain - want) > CLOSE:
        near = (words for other, words in gains(asked) if abs(gain - other) < CLOSE * gain)
        words = next(near, "no known formula")
        return Fault(gain_code(asked), {}, {"used": gain, "asked": want, "words": words})
    still = (np.abs(found) < 1e-9) & (freq > 0)
    if still.any() and not still.all():
        return Fault("rope.partial.width", {}, {"found": unrotated(still), "asked": asked.rotary_dim})
    pair, base = int(np.abs(found / np.where(freq == 0, np.inf, freq) - 1).argmax()), base_of(found, asked.rotary_dim)
    if base is not None and abs(found[0] - 1) < 1e-4:
        used, right = known(base), base_of(freq, asked.rotary_dim) or asked.base
        return Fault("rope.frequency.base", {}, {"used": base if used == right else used, "asked": right})
    values: dict[str, Any] = {"pair": pair, "speed": float(found[pair]), "wanted": float(freq[pair])}
    return Fault("rope.frequency.mismatch", {}, values)
