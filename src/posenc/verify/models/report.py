"""What was found of a model's layers, as one report: causes that layers share, and numbers by layer and position."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from posenc.verify.models import measuring
from posenc.verify.models.causes import Reason, View
from posenc.verify.report import Cause, Findings


@dataclass(frozen=True)
class Layer:
    """What was found of one layer.

    Args:
        layer: Its number, from 0.
        kind: What its configuration calls it.
        status: "pass", "equivalent", "wrong", "no rotation" as configured, or "cannot tell".
        angle_error: The largest in radians, None where nothing was measured.
        position: Where it is, over what rounding allows.
        pair: Which pair of lanes it is.
        gain: What turned lanes are multiplied by; None where it was not seen.
        configured_gain: What the configuration says of it.
        mean_cos: Mean cosine of the angle error over all positions and pairs.
        scale: What scores are multiplied by; None where it was not seen.
        configured_scale: What the configuration says of it.
        bias_error: The largest of a bias for distance, less the mean of its row; None where none is asked for.
        said: What it does, where that is not what it should.
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

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and strings."""
        return asdict(self)


Judged = tuple[Layer, Sequence[Reason], list[View]]


def reported(judged: Sequence[Judged], runs: Sequence[tuple[str, Tensor]], told: dict[str, Any]) -> Findings:
    """Return the findings of all layers.

    Args:
        judged: Each layer, the reasons why it is wrong if it is, and what was seen of it.
        runs: Names and positions of the runs.
        told: What else is to be said among the numbers.
    """
    layers = [layer for layer, _, _ in judged]
    wrong = [layer for layer in layers if layer.status == "wrong"]
    angles = [layer for layer in layers if layer.angle_error is not None]
    scaled = [abs(one.scale / one.configured_scale - 1) for one in layers if one.scale and one.configured_scale]
    gains = [abs(one.gain / one.configured_gain - 1) for one in layers if one.gain and one.configured_gain]
    worst = max(angles, key=lambda one: one.angle_error or 0.0, default=None)
    measured: dict[str, Any] = {
        **told,
        "first_wrong_layer": wrong[0].layer if wrong else None,
        "largest_angle_error": worst.angle_error if worst else None,
        "largest_angle_error_layer": worst.layer if worst else None,
        "gain_error": max(gains, default=None),
        "scale_error": max(scaled, default=None),
        "mean_cos_by_position": _by_position([view for _, _, views in judged for view in views], runs),
        "layers": [layer.to_dict() for layer in layers],
    }
    found = Findings(causes=causes(judged), measured=measured, definitions=["posenc.PerLayer.from_config(config.json)"])
    if same := [layer for layer in layers if layer.status == "equivalent"]:
        found.equivalent = f"{named([one.layer for one in same])}: {same[0].said}"
    if open_ := [layer for layer in layers if layer.status == "cannot tell"]:
        found.unknown = f"{named([one.layer for one in open_])}: {open_[0].said}"
    elif not angles and not wrong:
        found.unknown = "no layer turns queries and keys, and this command looks at nothing else"
    return found


def causes(judged: Sequence[Judged]) -> list[Cause]:
    """Return one cause for all layers that are wrong for the same reason, the first wrong layer's first."""
    groups: dict[tuple[str, str], list[tuple[Layer, Reason]]] = {}
    for layer, reasons, _ in judged:
        for reason in reasons:
            groups.setdefault((reason.code, reason.said), []).append((layer, reason))
    causes = []
    for (code, said), group in groups.items():
        layer, reason = group[0]
        message = f"{_places([one for one, _ in group])} {said}"
        if layer.angle_error is not None and code not in ("model.rotation.gain", "model.scores.scale"):
            message += f"; the largest angle error is {layer.angle_error:.4g} rad, and mean cos(angle error) "
            message += f"{layer.mean_cos:.4f}"
        else:
            message += f"; evidence {reason.evidence:.4g}"
        case = {"layer": layer.layer, **dict(reason.case)}
        causes.append(Cause(code, message, reason.evidence, case, reason.help))
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


def _by_position(views: list[View], runs: Sequence[tuple[str, Tensor]]) -> list[tuple[int, float]]:
    """Return pairs of a position and the mean cosine over layers, at powers of two and the last one."""
    sums: dict[int, list[float]] = {}
    for name, pos in runs:
        mine = [v for v in views if v.run == name and v.expected.rope is not None]
        if not mine:
            continue
        mean = measuring.mean_cosines([v.measure for v in mine])
        wanted = {0, len(mean) - 1, *(2**i for i in range(8))} if name == "near" else set(range(0, len(mean), 16))
        for i in sorted(wanted | {len(mean) - 1}):
            if i < len(mean):
                sums.setdefault(int(pos[i]), []).append(float(mean[i]))
    return [(position, sum(found) / len(found)) for position, found in sorted(sums.items())]
