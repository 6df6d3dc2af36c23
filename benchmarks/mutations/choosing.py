"""Which subjects a mutant is checked by: those that run its line, the cheapest first, and few of many alike."""

from pathlib import Path
from typing import Any

import patching
from mutants import Mutant
from subjects import Subject

# encodings, and which variants, whose laws are held against a change of what many share, by the start of a file's name
SHARED = {
    "families/heads": "pope 0,grape_m 1",
    "families/angles": "rope 5,mrope 1,fope 0,axial_rope 0",
    "families/rotary": "rope 4,rope 6,xpos 1,fope 0,mixed_rope 0",
    "families/bias": "t5 1,swin 0,kerple 0,fox 0,transformer_xl 0,sandwich 0",
    "families/embedded": "learned 0,learned 1,sinusoidal 0",
    "families/windows": "swin 1,swin 2,beit 1,decomposed_2d 1",
    "families/networks": "swin_v2 0,swin_v2 1,dynamic_position_bias 1,dynamic_position_bias 2,fire 0",
    "families/options": "rope 5,rope 6,sinusoidal 2,dynamic_ntk 0,longrope 1",
    "families/numbers": "kerple 0,xpos 0,fire 0,shaw 0",
    "families/": "rope 0,kerple 0,query_temperature 0",
    "frequencies/": "rope 0,dynamic_ntk 0,longrope 1,axial_rope 0,stretched_rope 0",
    "kernels/": "rope 0,rope 4,fope 0,fope 2",
    "positions/": "rope 0,learned 1,swin 0",
}
MOST = 10.0  # seconds of checks by other conventions, of what many share: the cheapest that run the line
CONFIGURED = ("frequencies/", "families/options", "encodings/")  # of other files a few configurations show as much
FEW = (
    "hf_rope: plain",
    "hf_rope: no float64, a gain",
    "hf_rope: dynamic",
    "hf_rope: yarn, mscale",
    "hf_rope: longrope",
    "hf_rope: partial",
)


def candidates(mutant: Mutant, known: dict[str, Any], all_subjects: dict[str, Subject]) -> list[str]:
    """Return the subjects that run a mutant's statement, the cheapest first, and laws after other conventions.

    Of what many encodings share, a few of them that use it in different ways.
    """
    first, last = mutant.lines
    body = patching.is_body(mutant)
    reached = []
    for name, (_, _, lines) in known.items():
        here = lines.get(mutant.file, ())
        if here if body else any(first <= line <= last for line in here):
            reached.append(name)
    if not mutant.file.startswith(CONFIGURED):
        reached = [name for name in reached if not name.startswith("hf_rope:") or name in FEW]
    own = f"encoding: {Path(mutant.file).stem},"
    if mutant.file.startswith("encodings/"):
        others = [name for name in reached if name.startswith("encoding:") and not name.startswith(own)]
        reached = [name for name in reached if name not in others[2 if len(others) < len(reached) else 3 :]]
    else:
        some = next(names for start, names in SHARED.items() if mutant.file.startswith(start))
        fitting = {f"encoding: {name.replace(' ', ', ')}" for name in some.split(",")}
        reached = [name for name in reached if not name.startswith("encoding:") or name in fitting]
    return _affordable(
        sorted(reached, key=lambda name: (all_subjects[name].convention == "encoding", known[name][1])), known
    )


def _affordable(names: list[str], known: dict[str, Any]) -> list[str]:
    """Return laws, and of other conventions those that take `MOST` seconds together."""
    kept, seconds = [], 0.0
    for name in names:
        law = name.startswith("encoding:")
        seconds += 0.0 if law else known[name][1]
        if law or seconds <= MOST or not kept:
            kept.append(name)
    return kept
