"""What one layer does instead of what its configuration says: tested statements, ranked by what they explain."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from posenc.families import Rotary
from posenc.verify.models import measuring
from posenc.verify.models.measuring import Expected, Measure, Sight, fits, read_frequencies, tolerance, turns, wrap

_SAME = 1e-3


@dataclass(frozen=True)
class View:
    """One tensor of a layer in one run, with what was expected and what was measured."""

    run: str
    sight: Sight
    expected: Expected
    measure: Measure


@dataclass(frozen=True)
class Others:
    """What else may have turned a layer.

    Args:
        kinds: What turns the other layers, under the names of their kinds.
        base: The file's base.
        scaled: The kind of scaling that the file asks for, None for none.
        short: The same layer's frequencies of a short text, None where they are the same.
    """

    kinds: Mapping[str, Rotary]
    base: float | None
    scaled: str | None
    short: Tensor | None


@dataclass(frozen=True)
class Reason:
    """Why a layer is wrong, or differs without a changed score.

    Args:
        code: Its name in `posenc rule`; "" where no score changes.
        said: What the layer does, and what its configuration says, as the end of a sentence.
        evidence: The number that shows it.
        help: How to mend it.
        case: The least call on which it shows.
    """

    code: str
    said: str
    evidence: float
    help: str
    case: tuple[tuple[str, object], ...] = ()


_READ = (
    "Read base, scaling, width and pairing of this layer's kind from config.json, and pass this layer its own cos, sin."
)


def explain(views: Sequence[View], others: Others) -> Reason:
    """Return the reason why at least one view of a layer is wrong; `views` in the order in which they count."""
    view = next(v for v in views if v.measure.wrong)
    reason = _explain(view, others)
    around = [v for v in views if (v.run, v.sight.place, v.sight.side) == (view.run, "rotation", view.sight.side)]
    if reason.code == "model.rotation.missing" and view.sight.place == "attention" and around:
        said = "turns by a count of its own, and not by the positions that it is given"
        help_ = "Form cos and sin from position_ids, which a cache, padding or packing changes."
        return Reason("model.rotation.positions_ignored", said, view.measure.angle, help_, _case(view))
    if not reason.code:  # scores are the same only where both sides do the same
        rest = [_explain(v, others) for v in views if v.measure.wrong]
        sides = {v.sight.side for v in views if v.sight.place == view.sight.place}
        wrong = {v.sight.side for v in views if v.measure.wrong and v.sight.place == view.sight.place}
        if sides != wrong or any(r.code or r.said != reason.said for r in rest):
            later = next((r for r in rest if r.code), None)
            return later or _mismatch(view, f"{reason.said}, on one side alone")
        return reason
    return Reason(reason.code, reason.said + _side(views, view), reason.evidence, reason.help, _case(view))


def _explain(view: View, others: Others) -> Reason:
    measure, rope = view.measure, view.expected.rope
    if not bool(view.sight.got.isfinite().all()):
        return Reason("model.not_finite", "returns numbers that are not finite", 1.0, "Find the 0/0 or inf - inf.")
    if rope is None:
        return _unexpected(view, others)
    if measure.wrong == ("gain",):
        return _gain(view, rope)
    if set(measure.wrong) <= {"still", "gain"}:
        said = f"changes lanes beyond the {rope.rotary_dim} that turn, by {measure.still:.3g} of their size"
        return Reason("model.rotation.width", said, measure.still, _READ)
    own, _size, coherent = turns(view.sight, rope, rope.pairing)
    if 1 - coherent < _SAME:
        return _turned(view, rope, own, others)
    swapped = "interleaved" if rope.pairing == "half" else "half"
    angles, _, coherent = turns(view.sight, rope, swapped)
    if 1 - coherent < _SAME and not view.sight.sorts and fits(view.sight, angles, view.expected.inv_freq):
        said = f"turns lanes in pairs {_pairing(swapped)}, where it should be {_pairing(rope.pairing)}"
        evidence = 1 - measure.coherence
        help_ = "Use the function of the declared pairing, or convert q_proj and k_proj (`posenc convert`)."
        return Reason("model.rotation.pairing", said, evidence, help_)
    return _width(view, rope, others) or _mismatch(view, "does not turn the pairs of lanes that it should")


def _turned(view: View, rope: Rotary, angles: Tensor, others: Others) -> Reason:
    """Say by which frequencies the right pairs turn."""
    sight, should = view.sight, view.expected.inv_freq
    worst = view.measure.angle
    if bool((angles.abs() <= 4 * tolerance(sight, should)).all()):
        said = "does not turn queries and keys, where its configuration says that it does"
        return Reason("model.rotation.missing", said, worst, _READ)
    if fits(sight, wrap(angles - angles[:1]), should, shift=-float(sight.pos[0])) and sight.place == "rotation":
        return Reason("", "counts positions from another number; scores see distances alone", 0.0, "")
    if fits(sight, angles, -should):
        return Reason("", "turns queries and keys the other way round; scores are the same", 0.0, "")
    if others.short is not None and fits(sight, angles, others.short):
        said = "keeps the frequencies of short texts for positions beyond the trained length"
        return Reason("model.rotation.length", said, worst, "Choose the frequencies by the longest position.")
    for kind, other in others.kinds.items():
        freq = measuring.of_text(other)
        if len(freq) == len(should) and not torch.equal(freq, should) and fits(sight, angles, freq):
            said = f"turns as layers of kind {kind} do, and not as its own kind"
            return Reason("model.rotation.other_kind", said, worst, _READ)
    if others.base is not None and others.scaled is not None:
        plain = _geometric(others.base, len(should))
        if fits(sight, angles, plain):
            said = f"turns by base {others.base:g} alone, without the scaling {others.scaled} of its configuration"
            return Reason("model.rotation.scaling", said, worst, _READ)
    return _fitted(view, rope, angles, others)


def _fitted(view: View, rope: Rotary, angles: Tensor, others: Others) -> Reason:
    """Fit a base, or a scale of positions, to angles at consecutive positions."""
    sight, should = view.sight, view.expected.inv_freq
    consecutive = len(sight.pos) > 16 and bool((sight.pos == torch.arange(len(sight.pos))).all())
    if not consecutive:
        return _mismatch(view, "turns by other angles")
    found = read_frequencies(angles)
    scale = float((found * should).sum() / should.square().sum())
    if scale > 0 and fits(sight, angles, scale * should):
        said = f"turns {scale:.6g} times as fast as it should, as with positions times {scale:.6g}"
        return Reason("model.rotation.position_scale", said, view.measure.angle, _READ)
    k = torch.arange(len(should), dtype=torch.float64)
    seen = (found > 1e-3) & (k > 0)
    if bool(seen.any()):
        log_base = float(-(k * found.clamp_min(1e-12).log())[seen].sum() / k[seen].square().sum()) * len(should)
        fitted = float(torch.tensor(log_base).clamp(-50, 50).exp())
        bases = [float(f"{fitted:.{digits}g}") for digits in (2, 3, 4, 5, 6, 7, 17)]  # the roundest that fits
        base = next((b for b in bases if b > 1 and fits(sight, angles, _geometric(b, len(should)))), None)
        if base is not None:
            want = "" if others.base is None else f", where its configuration says {others.base:g}"
            want += f" with {others.scaled}" if others.scaled else ""
            said = f"turns by base {base:g}{want}"
            return Reason("model.rotation.base", said, view.measure.angle, _READ)
    first = ", ".join(f"{f:.6g}" for f in found[:3])
    wanted = ", ".join(f"{f:.6g}" for f in should[:3])
    return _mismatch(view, f"turns by other frequencies: {first} radians a position in its first pairs, not {wanted},")


def _unexpected(view: View, others: Others) -> Reason:
    """Say what turns a layer that should not turn."""
    moved = view.measure.still
    for kind, rope in others.kinds.items():
        if rope.head_dim != view.sight.x.shape[-1]:
            continue
        angles, _, coherent = turns(view.sight, rope, rope.pairing)
        if 1 - coherent < _SAME and fits(view.sight, angles, measuring.of_text(rope)):
            said = f"turns as layers of kind {kind} do, where its configuration says that it does not turn"
            return Reason("model.rotation.unexpected", said, moved, _READ)
    said = f"moves queries or keys by {moved:.3g} of their size, where its configuration says that it does not turn"
    return Reason("model.rotation.unexpected", said, moved, _READ)


def _gain(view: View, rope: Rotary) -> Reason:
    gain, should = view.measure.gain * rope.gain(), rope.gain()
    if view.sight.place == "attention":
        said = f"changes the size of what it turns with the position, by {view.measure.gain:.6g}"
    else:
        said = f"multiplies what it turns by {gain:.6g}, where its configuration says {should:.6g}"
    help_ = "Multiply cos and sin by the gain of the configuration once; scores get its square."
    return Reason("model.rotation.gain", said, abs(view.measure.gain - 1), help_)


def _width(view: View, rope: Rotary, others: Others) -> Reason | None:
    """Try other widths: all lanes, or half and a quarter of them."""
    d = view.sight.x.shape[-1]
    if view.sight.sorts or others.base is None:
        return None
    for width in sorted({d, d // 2, d // 4, rope.rotary_dim // 2} - {rope.rotary_dim}, reverse=True):
        if width < 2 or width % 2 or (width == d and rope.rotary_dim == d):
            continue
        other = type("_", (Rotary,), {})(
            head_dim=d, rotary_dim=width, rotary_side=rope.rotary_side, pairing=rope.pairing
        )
        angles, _, coherent = turns(view.sight, other, rope.pairing)
        if 1 - coherent < _SAME and fits(view.sight, angles, _geometric(others.base, width // 2)):
            said = f"turns {width} lanes, where its configuration says {rope.rotary_dim}"
            return Reason("model.rotation.width", said, float(abs(width - rope.rotary_dim)), _READ)
    return None


def _mismatch(view: View, said: str) -> Reason:
    m = view.measure
    lost = f"; only {m.coherence:.1%} of the lanes fit turns of these pairs" if m.coherence < 1 - _SAME else ""
    return Reason("model.rotation.mismatch", f"{said}{lost}", m.angle, _READ)


def _side(views: Sequence[View], view: View) -> str:
    place = [v for v in views if v.sight.place == view.sight.place and v.run == view.run]
    wrong = {v.sight.side for v in place if v.measure.wrong}
    names = {"q": "queries", "k": "keys"}
    if len(wrong) == 1 < len({v.sight.side for v in place}) and (one := next(iter(wrong))) in names:
        return f" ({names[one]} alone)"
    return ""


def _case(view: View) -> tuple[tuple[str, object], ...]:
    if view.expected.rope is None or set(view.measure.wrong) <= {"gain", "still"}:
        return (("side", view.sight.side), ("run", view.run))
    return (("position", view.measure.at[0]), ("pair", view.measure.at[1]), ("side", view.sight.side))


def _pairing(pairing: str) -> str:
    return "half a width apart (half)" if pairing == "half" else "of neighbours (interleaved)"


def _geometric(base: float, n_pairs: int) -> Tensor:
    return torch.tensor(base, dtype=torch.float64) ** (-torch.arange(n_pairs, dtype=torch.float64) / n_pairs)
