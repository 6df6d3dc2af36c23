"""The judgement of a code: one fault that explains it, something read off it, two faults, or a mismatch."""

import math

import numpy as np

from posenc.verify.additive import reading
from posenc.verify.additive.asked import Asked, coded
from posenc.verify.additive.looks import at, call, worst
from posenc.verify.additive.models import Model, Seen, truths
from posenc.verify.additive.probe import Probe
from posenc.verify.additive.reading import Told
from posenc.verify.additive.search import free_and_fault, one_fault, two_faults
from posenc.verify.additive.variants import renamed
from posenc.verify.report import Cause, Findings

_LANES = (
    "the lanes stand in another order ({words}), and no order was declared: a model trained with this one computes the "
    "same; weights from elsewhere need the lanes of everything permuted alike"
)
_ORIGIN = (
    "the first position is {start:+g} from the definition's, and origin='any' was declared: each pair of lanes is "
    "turned by a constant angle, which a model trained with it takes up; weights from elsewhere would see it"
)
_DIRECTION = "distances are counted the other way round, and direction='any' was declared: the sines change their sign"


def judge(probe: Probe, asked: Asked, seen: Seen, findings: Findings) -> Model | None:
    """Put down what the code is; return the model for further calls, or None where it is wrong or unexplained.

    Args:
        probe: The subject.
        asked: What it should be.
        seen: Its codes by the shape of the call.
        findings: What is found is added here.
    """
    if all(np.abs(code).max() < 1e-6 for code in seen.values()):
        case = call(probe, next(iter(seen)))
        message = "nothing is added: the code is zero everywhere"
        findings.causes.append(Cause(coded(asked.family, "not_used"), message, 0.0, case, "Return x + code."))
        return None
    model = one_fault(seen, asked, probe.dim) or free_and_fault(seen, asked, probe.dim)
    if model is None:
        told = _read_off(probe, asked, seen, findings)
        if told is None and findings.equivalent is None:
            model = two_faults(seen, asked, probe.dim)
        if model is None:
            findings.causes += _told(probe, asked, seen, told) if findings.equivalent is None else []
            return None
    words = {"angles": model.rule.words, "lanes": _order(model, asked), "positions": model.place.words}
    findings.measured |= {**words, "base": model.base}
    if _free(model, asked, findings):
        return model
    if (
        probe.keep != 1
        and [f[0] for f in model.faults] == ["scaled"]
        and math.isclose(model.gain, probe.keep, rel_tol=1e-4)
    ):
        return model  # the sum is scaled as a whole: one fault, told already
    findings.causes.append(_faulty(probe, asked, seen, model))
    return None


def _faulty(probe: Probe, asked: Asked, seen: Seen, model: Model) -> Cause:
    case = worst(probe, truths(asked, probe.dim)[0], seen)
    free: tuple[str, ...] = ("layout", "axes") if model.lanes_moved else ()
    free += ("start",) if model.shift and asked.origin_free else ()
    faults = [f for f in model.faults if not f[0].startswith(free)]
    codes = [coded(asked.family, code) for code, _, _ in faults]
    message = f"{' and '.join(w for _, w, _ in faults)}: off by {case['off']:.3g} at {at(case)}"
    return Cause(codes[0], message, case["off"], case, " ".join(h for _, _, h in faults), tuple(codes[1:]))


def _free(model: Model, asked: Asked, findings: Findings) -> bool:
    """Say whether all that differs is free by the spec, and put down how."""
    told = []
    if model.lanes_moved:
        told.append(_LANES.format(words=_order(model, asked)))
    if model.shift and asked.origin_free:
        told.append(_ORIGIN.format(start=model.shift))
    if model.turned and asked.direction_free:
        told.append(_DIRECTION)
    if len(model.faults) > len(told):
        return False
    if told:
        findings.equivalent = "; ".join(told)
    return True


def _order(model: Model, asked: Asked) -> str:
    axes = {"yx": ", rows first", "xy": ", columns first"}.get(model.join, ", the axes taking turns")
    return model.layout.words + (axes if asked.family == "sinusoidal2d" else "")


def _read_off(probe: Probe, asked: Asked, seen: Seen, findings: Findings) -> Told | None:
    """Return what can be read off a code that no known fault explains; put down where it is equivalent."""
    right = truths(asked, probe.dim)
    for truth in right:
        lanes = reading.permutation(seen, truth)
        if lanes is None:
            continue
        if not asked.layout_said and (not asked.join_said or asked.family != "sinusoidal2d"):
            findings.equivalent = _LANES.format(words=f"{lanes[:8]}...")
            findings.measured["lane_order"] = lanes
            return None
        words = f"the lanes are those of the definition in the order {lanes[:8]}..."
        return "layout.permuted", words, "Order them as declared."
    for model in (*right, *renamed(right, asked)):
        told = reading.by_rows(seen, model, asked.family)
        if told is not None and told[0] == "start" and asked.origin_free and asked.family == "sinusoidal":
            findings.equivalent = _ORIGIN.format(start=float(told[1].split()[-1]) - asked.starts[0])
            return None
        told = told or _from_numbers(probe, asked, seen, model)
        if told is not None:
            return told
    return None


def _from_numbers(probe: Probe, asked: Asked, seen: Seen, truth: Model) -> Told | None:
    """Return a vector that is added, a base or a rounding that was read off the numbers."""
    extra = reading.constant(seen, truth)
    if extra is not None:
        return "constant_added", f"one vector, up to {extra:.4g}, is added to every row", "Add the code alone."
    coarse = reading.rounding(seen, truth)
    if coarse is not None and coarse[2] < 2e-6:
        return f"precision.{coarse[0]}", coarse[1], "Form positions, frequencies, angles and the table in float32."
    fitted = reading.base(seen, truth)
    if fitted is None:
        return None
    _, value, first = fitted
    if abs(first - 1) > 1e-4:
        words = f"the frequencies are {first:.6g} * {value:.6g}**(-2k/d): the first one must be 1"
        return "frequency.factor", words, "Leave the factor out."
    divisor = probe.dim * math.log(asked.base) / math.log(value) if value > 1 else 0.0
    if value != float(f"{value:.1g}") and abs(divisor - round(divisor)) < 1e-3:
        words = f"exponents are divided by {round(divisor)}, the width being {probe.dim}"
        return "frequency.divisor", words, "Divide by the width that is encoded, not by a number in the code."
    return "frequency.base", f"the base is {value:.6g}, where {asked.base:g} was asked for", "Use the base asked for."


def _told(probe: Probe, asked: Asked, seen: Seen, told: Told | None) -> list[Cause]:
    right = truths(asked, probe.dim)[0]
    case = worst(probe, right, seen)
    if told is not None:
        code, words, mend = told
        message = f"{words}: off by {case['off']:.3g} at {at(case)}"
        return [Cause(coded(asked.family, code), message, case["off"], case, mend)]
    numbers = f"{case['got']:.6g} where {case['expected']:.6g} is right"
    message = f"the code is not {asked.name}: {numbers}, at {at(case)}; {_share(seen, right)}"
    help_ = f"The definition: angles {right.rule.words}, lanes {_order(right, asked)}, {right.place.words}."
    return [Cause(f"{asked.family}.mismatch", message, case["off"], case, help_)]


def _share(seen: Seen, truth: Model) -> str:
    """Say which share of the numbers is wrong, and in which lanes."""
    wrongs = []
    for shape, found in seen.items():
        code, slack = truth.predict(shape)
        wrongs.append(np.asarray(np.abs(found - code) > slack + 1e-5))
    wrong = max(wrongs, key=lambda w: float(w.mean()))
    lanes = np.asarray(wrong.reshape(-1, wrong.shape[-1]).any(0))
    share = f"{wrong.mean():.1%} of the numbers are wrong"
    return f"{share}, in {lanes.sum()} of {len(lanes)} lanes, the first being {int(lanes.argmax())}"
