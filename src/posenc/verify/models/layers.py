"""Combine the results of a model's layers into one report: shared causes, and numbers by layer and position."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from posenc.verify import rules
from posenc.verify.engine import Fault
from posenc.verify.report import Cause, Findings

# reported numbers of a layer; position and pair are those of the largest angle error
NUMBERS = (
    *("angle_error", "position", "pair", "gain", "configured_gain", "mean_cos"),
    *("scale", "configured_scale", "bias_error"),
)


@dataclass
class Layer:
    """The results of one layer."""

    number: int
    kind: str  # as in the configuration, or its stack
    status: str = "pass"  # or "equivalent", "wrong", "no rotation" as configured, "cannot tell"
    said: str = ""  # what it does wrong
    numbers: dict[str, Any] = field(default_factory=dict)  # by names of NUMBERS
    cosines: Sequence[tuple[int, float]] = ()  # positions and mean cosines of angle errors there
    faults: list[Fault] = field(default_factory=list)

    def note(self, status: str, said: str) -> None:
        """Set a status that is not "pass", and its reason."""
        self.status, self.said = status, said

    def wrong(self, faults: Iterable[Fault]) -> None:
        """Add the faults that explain why the layer is wrong."""
        self.faults += faults
        if self.faults:
            self.note("wrong", self.said or self.faults[0].values["said"])


def findings(layers: Sequence[Layer], definition: str, measured: Mapping[str, Any]) -> Findings:
    """Return the findings of all layers; `measured` has further numbers."""
    angles = {one.numbers["angle_error"]: one.number for one in layers if "angle_error" in one.numbers}
    curve: dict[int, list[float]] = {}
    for position, cosine in chain.from_iterable(one.cosines for one in layers):
        curve.setdefault(position, []).append(cosine)
    biases = [one.numbers["bias_error"] for one in layers if "bias_error" in one.numbers]
    found = Findings(causes=_causes(layers), definitions=[definition])
    found.measured = {
        **measured,
        "first_wrong_layer": next((one.number for one in layers if one.status == "wrong"), None),
        "largest_angle_error": max(angles, default=None),
        "largest_angle_error_layer": angles[max(angles)] if angles else None,
        "gain_error": _largest(layers, "gain"),
        "scale_error": _largest(layers, "scale"),
        "bias_error": max(biases, default=None),
        "mean_cos_by_position": [(position, float(np.mean(found))) for position, found in sorted(curve.items())],
        "layers": [
            {"layer": one.number, "kind": one.kind, "status": one.status, "said": one.said}
            | {name: one.numbers.get(name) for name in NUMBERS}
            for one in layers
        ],
    }
    found.equivalent, found.unknown = _of_status(layers, "equivalent"), _of_status(layers, "cannot tell")
    if not (found.causes or found.unknown or angles or biases):
        found.unknown = "no layer rotates queries and keys, and none adds a bias to scores"
    return found


def _largest(layers: Sequence[Layer], name: str) -> float | None:
    """Return the largest relative error of a number that the configuration determines."""
    pairs = ((one.numbers.get(name), one.numbers.get(f"configured_{name}")) for one in layers)
    return max((abs(got / want - 1) for got, want in pairs if got and want), default=None)


def _of_status(layers: Sequence[Layer], status: str) -> str | None:
    same = [one for one in layers if one.status == status]
    return f"{named([one.number for one in same])}: {same[0].said}" if same else None


def _causes(layers: Sequence[Layer]) -> list[Cause]:
    """Return one cause for all layers that are wrong for the same reason, first that of the first wrong layer."""
    groups: dict[tuple[str, str], list[tuple[Layer, Fault]]] = {}
    for one in layers:
        for fault in one.faults:
            groups.setdefault((fault.code, fault.values["said"]), []).append((one, fault))
    causes = []
    for (code, said), group in groups.items():
        (one, fault), kinds = group[0], dict.fromkeys(layer.kind for layer, _ in group)
        places = [f"{named([layer.number for layer, _ in group if layer.kind == kind])} ({kind})" for kind in kinds]
        message, case = f"{'; '.join(places)} {said}", {"layer": one.number, **fault.case}
        evidence = fault.values.get("evidence")
        if evidence is None:
            evidence, cosine = one.numbers["angle_error"], one.numbers["mean_cos"]
            message += f"; the largest angle error is {evidence:.4g} rad, the mean cos(angle error) {cosine:.4f}"
            case |= {name: one.numbers[name] for name in ("position", "pair")}
        causes.append(Cause(code, message, float(evidence), case, rules.find(code).fix))
    return causes


def named(numbers: Sequence[int]) -> str:
    """Return the names of layers, from their numbers."""
    if len(numbers) == 1:
        return f"layer {numbers[0]}"
    shown = ", ".join(map(str, numbers[:8]))
    return f"layers {shown}" + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
