"""Read a rotation off its answers where no known fault explains them: the inverse problem, from structure to speeds."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from posenc.verify.engine import Fault, Seen
from posenc.verify.engine.precision import SHORT
from posenc.verify.engine.read import Structure, base_of, known, speeds, structure, turns, whole_ends
from posenc.verify.engine.records import Array, Model
from posenc.verify.families import rotation
from posenc.verify.families.rotation_calls import Ask, Places

if TYPE_CHECKING:
    from posenc.verify.families.rotation import Rotation

CLOSE = 1e-3  # of an angle or a gain: far above rounding here, far below any fault
SIDES = ("queries", "keys")
Complex = NDArray[np.complex128]


def read(family: "Rotation", seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
    """Return what the answers show by themselves, the strongest first."""
    kinds = {s.case.kind for s in wrong}
    if kinds <= set(rotation.HALF):
        return Fault(f"rope.precision.angle_{SHORT[wrong[0].case.kind]}")
    if kinds == {"grad"}:
        return _backwards(wrong[0], family.predict(model, wrong[0].case))
    near = next((s for s in wrong if s.case.kind == "near"), None)
    if near is not None and near.case.args[0].vectors == "basis":
        matrices = near.value.transpose(0, 2, 3, 1)
        if (fault := _of_structure(family, model, structure(matrices[0]), structure(matrices[1]))) is not None:
            return fault
    for s in wrong:
        if s.case.kind in ("near", "far") and (fault := _of_positions(family, s, model)) is not None:
            return fault
    return None


def _backwards(seen: Seen, right: Array) -> Fault:
    """Return whether a gradient is cut off, in all dimensions or in some, or wrong."""
    off = np.abs(seen.value - right).max((1, 2))
    side = int(off.max(1).argmax())
    name, got = SIDES[side], seen.value[side]
    cut = np.flatnonzero((got == 0).all((0, 1)))
    if len(cut) and set(np.flatnonzero(off[side] > CLOSE)) <= set(cut):
        some = f"dimensions {', '.join(map(str, cut[:4]))}{', ..' if len(cut) > 4 else ''} of {name}"
        what = name if len(cut) == got.shape[-1] else f"{some}, {len(cut)} of {got.shape[-1]}"
        return Fault("rope.grad.severed", {}, {"what": what})
    return Fault("rope.grad.not_inverse", {}, {"what": name})


def _of_structure(family: "Rotation", model: Model, q: Structure, k: Structure) -> Fault | None:
    """Return dimensions that rotate with others than they should."""
    asked = family.asked
    pair, partner, _ = rotation.lanes(asked.head_dim, asked.n_pairs, model)
    want = tuple((int(i), int(partner[i])) for i in range(len(pair)) if pair[i] >= 0 and partner[i] > i)
    for name, side in zip(SIDES, (q, k), strict=True):
        if side.tangled:
            return Fault("rope.layout.mixed", {}, {"what": f"dimension {side.tangled[0]} of {name} mixes with several"})
    sides = [(name, side) for name, side in zip(SIDES, (q, k), strict=True) if set(side.pairs) != set(want)]
    if not sides or not q.pairs or not k.pairs:
        return None
    name, side = sides[0]
    whose = f"of {name} " if len(sides) == 1 else ""
    values = {"found": f"{whose}{side.words()}", "asked": f"{asked.rotary_dim}, paired {model['pairing']}"}
    layout = side.layout()
    if set(side.pairs) < set(want):
        missing = sorted(set(want) - set(side.pairs))
        return Fault("rope.partial.pairs_still", {}, {"missing": len(missing), "of": len(want), "first": missing[0]})
    if layout is None:
        return Fault("rope.partial.wrong_partner", {}, values)
    pairing, width, first = layout
    if width == asked.rotary_dim and first == model["first"]:
        code = "rope.layout.wrong_pairing" if len(sides) == 2 else "rope.layout.mixed"
        return Fault(code, {}, {"found": pairing, "asked": model["pairing"], "what": f"{whose}{pairing} is found"})
    if first == 0 and width != asked.rotary_dim:
        return Fault("rope.partial.factor_not_read" if width == asked.head_dim else "rope.partial.width", {}, values)
    return Fault("rope.partial.other_lanes" if first != model["first"] else "rope.partial.wrong_partner", {}, values)


def sides_of(family: "Rotation", seen: Seen, model: Model) -> tuple[Array, Complex, Complex]:
    """Return positions, and gain * exp(i angle) of each pair of queries and of keys, where pairs are as asked."""
    ask: Ask = seen.case.args[0]
    pair, partner, sign = rotation.lanes(family.asked.head_dim, family.asked.n_pairs, model)
    a = np.array([np.flatnonzero((pair == i) & (sign < 0))[0] for i in range(family.asked.n_pairs)])
    b = partner[a]
    x = family.fed(ask).double().numpy()
    if ask.vectors == "basis":
        q, k = (turns(m, list(zip(a, b, strict=True))) for m in seen.value.transpose(0, 2, 3, 1))
    else:
        given = x[0, a] + 1j * x[0, b]
        q, k = (side[0][:, a] / given + 1j * (side[0][:, b] / given) for side in seen.value)
    conjugate = model["sign"] < 0
    return np.array(ask.pos, dtype=float), np.conj(q) if conjugate else q, np.conj(k) if conjugate else k


def _of_positions(family: "Rotation", seen: Seen, model: Model) -> Fault | None:
    """Return zeros, ends of tables and other places of tokens, whatever the numbers are."""
    asked = family.asked
    pos, q, k = sides_of(family, seen, model)
    lost = [i for i in range(len(pos)) if (np.abs(q[i]) < CLOSE).any() or (np.abs(k[i]) < CLOSE).any()]
    if lost and asked.xpos is None:
        from_there_on = lost == list(range(lost[0], len(pos))) and lost[0] > 0
        return Fault("rope.table.zeros", {}, {"first": int(pos[lost[0]]), "where": " on" if from_there_on else ""})
    freq = asked.inv_freq(int(pos[-1]) + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        z, sides = q / np.abs(q), k / np.abs(k)
    if not np.nanmax(np.abs(z - sides), initial=0.0) < CLOSE:
        return None
    slack = CLOSE + 2.0**-20 * float(pos.max() * freq.max())
    for name, end in whole_ends(pos, z, freq, slack):
        places = partial(_modulo if name == "wraps" else _at_most, end)
        values = {"end": int(end), "last": int(end) - 1, "how": f"positions begin again at {int(end):,}"}
        if _stands(family, seen, model, places):
            return Fault("rope.table.wraps" if name == "wraps" else "rope.table.too_short", {"pos": places}, values)
    return _elsewhere(family, seen, model, z)


def _modulo(end: float, where: Places) -> Array:
    return np.asarray(where.pos % end)


def _at_most(end: float, where: Places) -> Array:
    return np.minimum(where.pos, end - 1)


def _given(places: Array, where: Places) -> Array:
    return places


def _stands(family: "Rotation", seen: Seen, model: Model, places: object) -> bool:
    """Return whether a model with other places of tokens explains an answer, where it is finite."""
    changed = {**model, "pos": places, "lost": True}
    return bool((family.off(seen, family.predict(changed, seen.case), changed) <= 1).all())


def _elsewhere(family: "Rotation", seen: Seen, model: Model, z: Complex) -> Fault | None:
    """Return places of tokens that no known way gives, read off the slowest pair.

    It does not show how often it went round: places nearest to those given are tried, then those nearest to 0.
    """
    ask: Ask = seen.case.args[0]
    pos = np.array(ask.pos, dtype=float)
    freq = family.asked.inv_freq(int(pos[-1]) + 1)
    turning = np.flatnonzero(freq > 0)
    if not len(turning) or not np.isfinite(z).all():
        return None
    slow = int(turning[freq[turning].argmin()])
    z_slow, f = z[:, slow], freq[slow]
    for found in (pos + np.angle(z_slow * np.exp(-1j * pos * f)) / f, np.angle(z_slow) / f):
        for at in (np.round(found), np.round(2 * found) / 2):
            is_factor = np.allclose(at * pos[-1], at[-1] * pos)  # which frequencies are said of
            if (at != pos).any() and not is_factor and _stands(family, seen, model, partial(_given, at)):
                i = int(np.flatnonzero(at != pos)[0])
                return Fault("rope.positions.other", {}, {"position": int(pos[i]), "at": float(at[i])})
    return None


def unknown(family: "Rotation", seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault:
    """Return what is measured of a rotation that nothing explains: one side, gains, one base, one factor, speeds."""
    asked = family.asked
    if asked.xpos is not None and not any(_are_angles_wrong(family, s, model) for s in wrong):
        return Fault("xpos.scale.mismatch")
    s = next((s for s in wrong if s.case.kind == "near"), None)
    if s is None or not np.isfinite(s.value).all():
        return Fault(family.mismatch)
    pos, q, k = sides_of(family, s, model)
    right = asked.gain(int(pos[-1]) + 1) * np.exp(1j * np.outer(pos, asked.inv_freq(int(pos[-1]) + 1)))
    if asked.xpos is not None:
        q, k = q / np.abs(q), k / np.abs(k)
    if np.abs(q - k).max() > CLOSE:
        wrong_side = [name for name, z in zip(SIDES, (q, k), strict=True) if np.abs(z - right).max() > CLOSE * 4]
        return Fault("rope.side.differ", {}, {"side": " and ".join(wrong_side) or "one side", "why": family.mismatch})
    if asked.xpos is None and not _are_rotations(family, s, model, q):
        return Fault(family.mismatch)
    return _of_speeds(family, pos, q, right)


def _are_rotations(family: "Rotation", seen: Seen, model: Model, q: Complex) -> bool:
    """Return whether the second dimensions of pairs show the same angles as the first ones."""
    pair, partner, sign = rotation.lanes(family.asked.head_dim, family.asked.n_pairs, model)
    firsts = sorted(np.flatnonzero(sign < 0), key=lambda lane: pair[lane])
    second = turns(seen.value[0].transpose(1, 2, 0), [(int(partner[a]), int(a)) for a in firsts])
    return bool(np.abs((second if model["sign"] < 0 else second.conj()) - q).max() < CLOSE)


def _are_angles_wrong(family: "Rotation", seen: Seen, model: Model) -> bool:
    if seen.case.kind == "grad" or not np.isfinite(seen.value).all():
        return False
    pos, q, _ = sides_of(family, seen, model)
    right = np.exp(1j * np.outer(pos, family.asked.inv_freq(int(pos[-1]) + 1)))
    with np.errstate(divide="ignore", invalid="ignore"):
        return bool(np.nanmax(np.abs(q / np.abs(q) - right)) > 4 * CLOSE)


def _of_speeds(family: "Rotation", pos: Array, z: Complex, right: Complex) -> Fault:
    """Return a gain, a base, a factor or speeds that nothing explains."""
    asked = family.asked
    sizes, want = np.abs(z), float(np.abs(right[0, 0]))
    if np.ptp(sizes) > CLOSE * sizes.max():
        return Fault("rope.gain.varies", {}, {"low": float(sizes.min()), "high": float(sizes.max())})
    if abs(sizes.max() - want) > CLOSE:
        code = {"yarn": "rope.yarn.attention_factor", "default": "rope.gain"}.get(asked.scaling, "rope.scaling.gain")
        return Fault(code, {}, {"used": float(sizes.max()), "asked": want, "words": "none that is known"})
    found, _, bent = speeds(pos, z)
    freq = asked.inv_freq(int(pos[-1]) + 1)
    if bent > 0.05:
        return Fault(family.mismatch)
    shares = np.abs(found - freq) / np.where(freq == 0, 1.0, np.abs(freq))
    pair = int(shares.argmax())
    values = {"pair": pair, "speed": float(found[pair]), "wanted": float(freq[pair])}
    base = base_of(found, asked.rotary_dim) if abs(found[0] - 1) < 1e-4 else None
    if base is not None:
        return Fault("rope.frequency.base", {}, {**values, "used": known(base), "asked": asked.base})
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = found / freq
    if np.ptp(ratios) < 1e-4 * abs(ratios.mean()):
        return Fault("rope.frequency.factor", {}, {**values, "factor": float(ratios.mean())})
    code = "rope.frequency.mismatch" if asked.scaling == "default" else "rope.scaling.mismatch"
    return Fault(code, {}, values)


def refined(
    family: "Rotation", fault: Fault, wrong: frozenset[str], right: frozenset[str], seen: Sequence[Seen]
) -> Fault:
    """Return a fault of long texts only, or of a table that is kept by the length of a call, under that name."""
    if {"near", "next_of_length"} <= wrong and "first_of_length" in right:
        return Fault("rope.offset.ignored_by_cache")
    is_rounding = fault.code.startswith("rope.precision.")
    if is_rounding and "after_half" in wrong and {"near", "after_half_short"} <= right:
        return replace(fault, code="rope.precision.cache_rebuilt_in_low_precision")
    if "near" in wrong and "short" in right and family.asked.trained is None and _is_wrong_early(family, seen):
        code = "rope.precision.cache_rebuilt_in_low_precision" if is_rounding else "rope.table.length_dependent"
        return Fault(code, fault.change, {**fault.values, "first": fault.code})
    return fault


def _is_wrong_early(family: "Rotation", seen: Sequence[Seen]) -> bool:
    """Return whether positions of the short text are wrong in the long one."""
    near = next(s for s in seen if s.case.kind == "near")
    early = [i for i, p in enumerate(near.case.args[0].pos) if p < 12]
    models = [family.truth, *({**family.truth, **choice.change} for choice in family.free())]
    return all((family.off(near, family.predict(m, near.case), m)[:, :, early] > 1).any() for m in models)
