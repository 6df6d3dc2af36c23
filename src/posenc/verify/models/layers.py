"""What was found of a model's layers, as one report: causes that layers share, and numbers by layer and position."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from posenc.verify import rules
from posenc.verify.engine import Fault
from posenc.verify.models.rotation import View
from posenc.verify.report import Cause, Findings


@dataclass(frozen=True)
class Layer:
    """What was found of one layer, under the names that reports have; None where it was not seen.

    `status` is "pass", "equivalent", "wrong", "no rotation" as configured, or "cannot tell". `position` and `pair` are
    those of the angle error that exceeds rounding most; `said` is what it does, where that is not what it should.
    """

    layer: int
    kind: str
    status: str
    angle_error: float | None = None
    position: int | None = None
    pair: int | None = None
    gain: float | None = None
    configured_gain: float | None = None
    mean_cos: float | None = None
    scale: float | None = None
    configured_scale: float | None = None
    bias_error: float | None = None
    said: str = ""


@dataclass
class Judged:
    """A layer, why it is wrong if it is, and the views of what rotates it."""

    layer: Layer
    faults: list[Fault] = field(default_factory=list)
    views: Sequence[View] = ()
    pairs_unseen: bool = False  # whether another pairing of dimensions would pass

    def note(self, **numbers: Any) -> None:
        """Put numbers or words into the layer."""
        self.layer = replace(self.layer, **numbers)

    def wrong(self, faults: Sequence[Fault]) -> None:
        """Add what explains that it is wrong."""
        self.faults += faults
        if faults:
            self.note(status="wrong", said=self.layer.said or faults[0].values["said"])


def findings(judged: Sequence[Judged], definition: str, measured: Mapping[str, Any]) -> Findings:
    """Return the findings of all layers; `measured`: what else stands among the numbers."""
    layers = [one.layer for one in judged]
    angles = [one for one in layers if one.angle_error is not None]
    worst = max(angles, key=lambda one: one.angle_error or 0.0, default=None)
    found = Findings(causes=_causes(judged), definitions=[definition])
    found.measured = {
        **measured,
        "first_wrong_layer": next((one.layer for one in layers if one.status == "wrong"), None),
        "largest_angle_error": worst and worst.angle_error,
        "largest_angle_error_layer": worst and worst.layer,
        "gain_error": _largest((one.gain, one.configured_gain) for one in layers),
        "scale_error": _largest((one.scale, one.configured_scale) for one in layers),
        "bias_error": max((one.bias_error for one in layers if one.bias_error is not None), default=None),
        "mean_cos_by_position": _by_position([view for one in judged for view in one.views]),
        "layers": [asdict(one) for one in layers],
    }
    for status in ("equivalent", "cannot tell"):
        if same := [one for one in layers if one.status == status]:
            words = f"{named([one.layer for one in same])}: {same[0].said}"
            found.equivalent, found.unknown = (words, None) if status == "equivalent" else (found.equivalent, words)
    if not found.causes and all(one.angle_error is None and one.bias_error is None for one in layers):
        found.unknown = found.unknown or "no layer rotates queries and keys, and none adds a bias to scores"
    return found


def _largest(pairs: Any) -> float | None:
    return max((abs(got / want - 1) for got, want in pairs if got and want), default=None)


def _causes(judged: Sequence[Judged]) -> list[Cause]:
    """Return one cause for all layers that are wrong for the same reason, the first wrong layer's first."""
    groups: dict[tuple[str, str], list[tuple[Layer, Fault]]] = {}
    for one in judged:
        for fault in one.faults:
            groups.setdefault((fault.code, fault.values["said"]), []).append((one.layer, fault))
    causes = []
    for (code, said), group in groups.items():
        layer, fault = group[0]
        message, evidence = f"{_places([one for one, _ in group])} {said}", fault.values.get("evidence")
        case: dict[str, Any] = {"layer": layer.layer, **fault.case}
        if evidence is None:
            evidence = layer.angle_error or 0.0
            message += (
                f"; the largest angle error is {evidence:.4g} rad, and mean cos(angle error) {layer.mean_cos:.4f}"
            )
            case |= {"position": layer.position, "pair": layer.pair}
        causes.append(Cause(code, message, float(evidence), case, rules.find(code).fix))
    return causes


def _places(layers: Sequence[Layer]) -> str:
    """Name layers with their kinds; by kind, where a number stands for several, as in an encoder and a decoder."""
    kinds = dict.fromkeys(one.kind for one in layers)
    numbers = [one.layer for one in layers]
    if len(set(numbers)) == len(numbers):
        return f"{named(numbers)} ({', '.join(kinds)})"
    return "; ".join(f"{named([one.layer for one in layers if one.kind == kind])} ({kind})" for kind in kinds)


def named(numbers: Sequence[int]) -> str:
    """Name layers by their numbers."""
    if len(numbers) == 1:
        return f"layer {numbers[0]}"
    shown = ", ".join(map(str, numbers[:8]))
    return f"layers {shown}" + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")


def _by_position(views: Sequence[View]) -> list[tuple[int, float]]:
    """Return pairs of a position and the mean cosine of angle errors, at powers of two and at far positions."""
    found: dict[int, list[float]] = {}
    for view in views:
        if len(view.freq):
            cosines, n = np.cos(view.errors()).mean(-1), len(view.pos)
            wanted = {0, n - 1, *(2**i for i in range(8))} if view.run == "near" else {n - 1, *range(0, n, 16)}
            for i in wanted & set(range(n)):
                found.setdefault(int(view.pos[i]), []).append(float(cosines[i]))
    return [(position, float(np.mean(cosines))) for position, cosines in sorted(found.items())]
