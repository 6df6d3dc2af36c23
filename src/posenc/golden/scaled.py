"""The check of a port's query scale, for models whose queries grow with their position."""

from typing import TYPE_CHECKING

import numpy as np

from posenc.golden import scales
from posenc.golden.writing import Array
from posenc.verify import rules
from posenc.verify.sentences import finding

if TYPE_CHECKING:
    from posenc.golden.checked import Written

NAME = "query_scale"


def judge(written: "Written") -> None:
    """Compare the factors of a port with the law, and with the law under known faults."""
    found, law, pos = written.findings, written.layer[NAME], written.golden["positions"]
    found.definitions = list(dict.fromkeys([*found.definitions, f"query_temperature, law {law['law']}"]))
    if not written.has(NAME):
        return
    right, theirs, share = written.golden[NAME], written.theirs[NAME], written.roundings[NAME].absolute

    def differs(wanted: Array) -> Array:
        return np.asarray(np.abs(theirs - wanted) > share * wanted)

    if not (wrong := differs(right)).any():
        return
    faults = {
        "query_scale.not_applied": [np.ones(len(pos))],
        "query_scale.off_by_one": [scales.arrays(law, np.maximum(pos + by, 0))[NAME] for by in (1, -1)],
    }
    named = (code for code, others in faults.items() if any(not differs(other).any() for other in others))
    code, at = next(named, "query_scale.mismatch"), int(wrong.argmax())
    case = {"position": int(pos[at]), "found": float(theirs[at]), "expected": float(right[at])}
    message = f"{rules.find(code).title}; found {case['found']:.6g}, expected {case['expected']:.6g}"
    off = float(np.abs(theirs - right).max())
    found.causes.append(finding(code, message, off, layer=written.layer["kind"], file=NAME, **case))
