"""What a bias keeps from one call to the next: a question must have the same answer whatever was asked before it."""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor

from posenc.verify.biases.calls import BiasMeter, Meter, Probe, Seen
from posenc.verify.biases.forms import fit, same_scores
from posenc.verify.biases.slopes import alike
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause

HELP = "Keep no bias, or keep it by everything that it depends on: heads, lengths, dtype, device."


class State:
    """Asks again what was asked before, on the same object and on a copy that was made before all calls.

    Args:
        meter: How the bias is measured.
        heads_said: The number of heads is given: then other numbers matter only where objects share what is kept.
    """

    def __init__(self, meter: Meter, heads_said: bool) -> None:
        self.meter = meter
        self.heads_said = heads_said
        self.unasked = copied(meter) if heads_said else None

    def again(self, before: Seen, causal: bool) -> tuple[Seen | None, list[Cause]]:
        """Ask a call again, and return what it gives now with the cause if that is something else."""
        try:
            now = self.meter.see(before.probe)
        except SubjectError as error:
            return None, [self.stale(before.probe) or error.cause]
        unchanged = torch.equal(now.bias.nan_to_num(), before.bias.nan_to_num())
        if unchanged or same_scores(now, before.bias, causal):  # a larger matrix may have other constants in its rows
            return now, []
        off = float((now.bias - before.bias).nan_to_num().abs().max())
        message = f"{self.meter.says(before.probe)} gives other numbers after other calls, by up to {off:.4g}."
        return now, [self._cause(message, before.probe, off)]

    def stale(self, probe: Probe, raw: Tensor | None = None) -> Cause | None:
        """Return the cause of an answer that was given before to another call."""
        if not isinstance(self.meter, BiasMeter):
            return None
        raw = self.meter.last if raw is None else raw
        for old, kept in self.meter.kept.items():
            # one object for one number of heads may ignore the argument: that is no memory
            same_sizes = self.heads_said and old[1:] == probe[1:]
            if raw is not None and old != probe and not same_sizes and raw.shape == kept.shape:
                if not torch.equal(raw, kept):
                    continue
                message = f"{self.meter.says(probe)} returns what {self.meter.says(old)} returned before it."
                return self._cause(message, probe, 1.0)
        return None

    def other_heads(self, n: int, found: Mapping[int, Tensor], size: int, causal: bool, eps: float) -> list[Cause]:
        """Ask sizes that n heads were asked for other numbers, whose slopes were found at sizes never asked before."""
        for m, slopes in found.items():
            probe = Probe(m, size, size)
            if m == n:
                continue
            told = f"though bias({m}, ..) is another bias at sizes that were not asked before"
            try:
                now = fit(((copied(self.unasked) if self.unasked else None) or self.meter).see(probe), causal)
            except SubjectError as error:
                message = f"After {self.meter.says(Probe(n, size, size))}: {error.cause.message}, {told}."
                return [self._cause(message, probe, 1.0)]
            if now.linear and alike(now.back, slopes, max(1e-3, 8 * eps)):
                continue
            off = float((now.back - slopes).abs().max())
            message = (
                f"{self.meter.says(probe)} has the slopes of a call with another number of heads before it, {told}: "
            )
            h = int((now.back - slopes).abs().argmax())
            message += f"head {h} has {float(now.back[h]):.6g} here and {float(slopes[h]):.6g} there."
            return [self._cause(message, probe, off)]
        return []

    def _cause(self, message: str, probe: Probe, off: float) -> Cause:
        return Cause("alibi.mask_cached_on_class", message, off, probe._asdict(), HELP)


def copied(meter: Meter) -> BiasMeter | None:
    """Return a meter of a copy, on which only what objects share has a memory; None where it has no copy."""
    if not isinstance(meter, BiasMeter):
        return None
    try:
        made = BiasMeter(copy.deepcopy(meter.subject))
    except Exception:  # locks, generators, open files: whatever cannot be copied
        return None
    made.window = meter.window
    return made
