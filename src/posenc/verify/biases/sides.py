"""ALiBi where both sides of a query are seen: symmetric, or with a bias for the keys behind alone."""

import torch

from posenc.verify.biases.forms import Fit
from posenc.verify.report import Cause


def judge(found: Fit, asked: str | None) -> tuple[bool, list[Cause]]:
    """Return whether a bias is one-sided and may be, and what is wrong with the keys ahead of a query.

    Args:
        found: The slopes of both sides.
        asked: "symmetric", "one-sided", or None where either will do.
    """
    symmetric = torch.allclose(found.ahead, found.back, 1e-2, 1e-6)
    one_sided = bool((found.ahead.abs() <= 1e-6).all())
    if symmetric and asked != "one-sided":
        return False, []
    if one_sided and asked != "symmetric":
        return True, []
    h = int(found.ahead.abs().argmax())
    ahead, back = float(found.ahead[h]), float(found.back[h])
    message = f"In head {h} a key d ahead gets {-ahead:.4g} d, where {-back:.4g} d is right: "
    if torch.allclose(found.ahead, -found.back, 1e-2, 1e-6):
        code, message = "alibi.bidirectional.ahead_favoured", message + "the sign of the distance is kept"
        message += ", so that keys ahead are favoured the more the further they are."
    else:
        code, message = "alibi.bidirectional.sides", message + "the two sides differ."
    case = {"head": h, "found": -ahead, "expected": -back}
    return False, [Cause(code, message, abs(ahead - back), case, "Take |query - key| where both sides are seen.")]
