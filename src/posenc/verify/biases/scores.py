"""What a score_mod does to the score itself."""

import torch
from torch import Tensor

from posenc.verify.biases.calls import HIDDEN, Probe, ScoreMeter, Seen
from posenc.verify.biases.forms import fit
from posenc.verify.biases.slopes import Asked, alike
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause


def scores(meter: ScoreMeter, heads: int, asked: Asked) -> list[Cause]:
    """Return what a score_mod does to the score itself: it must come back with the bias added, whatever the batch."""
    probe = Probe(heads, 5, 5)
    zero, one, low = (meter.scores(probe, s, 0).double() for s in (0.0, 1.0, -2.5))
    kept = (zero > HIDDEN) & zero.isfinite() & one.isfinite()
    gain = torch.where(kept, one - zero, 1.0)
    curve = torch.where(kept, low - zero + 2.5 * gain, 0.0).abs().max()
    tolerance = 1e-4 * (1 + float(torch.where(kept, zero, 0.0).abs().max()))
    if float((gain - 1).abs().max()) > tolerance or float(curve) > tolerance:
        return [_score_cause(gain[kept], zero, float(curve), probe, asked, tolerance)]
    try:
        other = meter.scores(probe, 0.0, 1).double()
    except SubjectError:
        return []
    if bool((torch.where(kept, other - zero, 0.0).abs() <= tolerance).all()):
        return []
    message = "The bias depends on the index of the batch: in row 1 it is another than in row 0."
    if bool((zero == zero[:1]).all()):
        message += " It does not depend on the head: the slope is looked up by b in place of h."
    off = float(torch.where(kept, other - zero, 0.0).abs().max())
    return [Cause("alibi.axis.batch", message, off, probe._asdict(), "Look the slope up by h.")]


def _score_cause(gain: Tensor, zero: Tensor, curve: float, probe: Probe, asked: Asked, tolerance: float) -> Cause:
    low, high = float(gain.min()), float(gain.max())
    help_ = "Return score + slope * (key - query); the score comes scaled."
    if curve > tolerance:
        message = f"A score does not come back with a bias added, but bent: off a straight line by {curve:.4g}."
    elif (
        high - low <= tolerance
        and abs(low) > tolerance
        and alike(fit(Seen(probe, zero / low, 1e-6, zero), True).back, asked.slopes(probe.heads), 1e-3)
    ):
        message = f"The sum of score and bias is multiplied by {low:.5g}: the bias is that much weaker than ALiBi's."
        return Cause("alibi.scale.applied_to_bias", message, low, probe._asdict(), help_)
    elif high - low <= tolerance:
        message = f"The score comes back multiplied by {low:.5g}" + (
            " (it is dropped)." if abs(low) < tolerance else "."
        )
    else:
        message = f"The score is multiplied by numbers from {low:.4g} to {high:.4g}, where a bias is added to it."
    return Cause("alibi.score.not_added", message, max(abs(low - 1), abs(high - 1)), probe._asdict(), help_)
