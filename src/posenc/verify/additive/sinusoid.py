"""Fixed sinusoids, of sequences, images and distances: all their checks, in order."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from posenc.verify.additive.asked import Asked
from posenc.verify.additive.calls import later, long, low_precision
from posenc.verify.additive.judge import judge
from posenc.verify.additive.looks import SHAPES, call, look
from posenc.verify.additive.probe import Probe, gradients, tokens, width
from posenc.verify.report import Cause, Findings

_USELESS = (".state_kept", ".random", ".dropout_in_eval", ".input.changed")


def check(subject: Any, convention: str, asked: Asked) -> Findings:
    """Return what is wrong with a sinusoidal code.

    Args:
        subject: What build() returned.
        convention: How it is called.
        asked: What it should be.

    Raises:
        posenc.verify.guard.SubjectError: A call cannot be used.
    """
    findings = Findings(definitions=[asked.name])
    probe = Probe(subject, convention)
    probe.dim = asked.dim or width(probe.fresh(), convention)
    findings.measured["dim"] = probe.dim
    seen, cause = look(probe, asked)
    if cause is not None:
        findings.causes = [cause]
        return findings
    shape = SHAPES[convention][0]
    if (kept := _kept(probe, seen, shape)) is not None:
        findings.causes = [kept] if convention == "relative_table_fn" else tokens(probe, "sinusoidal", shape) or [kept]
        return findings
    if convention != "relative_table_fn":
        findings.causes += tokens(probe, "sinusoidal", shape)
        if any(c.code.endswith(_USELESS) for c in findings.causes):
            return findings
        seen = {s: probe.code(s) for s in seen}  # with the factor of x known
    model = judge(probe, asked, seen, findings)
    if model is not None:
        findings.causes += later(probe, asked, model)
        findings.causes += long(probe, asked, model, findings)
        _with_bfloat16(probe, asked, model, findings)
    if not any(c.code.endswith("mismatch") for c in findings.causes):
        findings.causes += gradients(probe, "sinusoidal", shape, trained=False)
    return findings


def _kept(probe: Probe, seen: Mapping[Any, Any], shape: Any) -> Cause | None:
    """Tell a code that hangs on earlier calls: a function cannot be copied, and what it keeps shows here."""
    if np.allclose(probe.code(shape), seen[shape], atol=1e-5):
        return None
    message = f"{probe.say(shape)} gives other numbers after calls of the sizes {list(seen)} than before them"
    help_ = "Compute the code from this call's sizes alone; a kept table must be cut anew for each call."
    off = float(np.abs(probe.code(shape) - seen[shape]).max())
    return Cause("sinusoidal.state_kept", message, off, call(probe, shape), help_)


def _with_bfloat16(probe: Probe, asked: Asked, model: Any, findings: Findings) -> None:
    """Judge bfloat16 tokens where they were asked for; else only say what they do."""
    coarse = low_precision(probe, asked, model) if not findings.causes else []
    if asked.said.get("activation_dtype"):
        findings.causes += coarse
    elif coarse:
        findings.measured["with_bfloat16_tokens"] = coarse[0].message
