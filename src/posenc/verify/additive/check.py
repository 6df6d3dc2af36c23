"""Codes that are added to the tokens, and tables of sinusoids of distances: `check`."""

from collections.abc import Mapping
from typing import Any

from posenc.verify.additive import learned, looks, sinusoid
from posenc.verify.additive.asked import read
from posenc.verify.report import Cause, Findings

CONVENTIONS = ("additive_module", "additive_2d_module", "relative_table_fn")


def check(subject: Any, convention: str, spec: Mapping[str, Any]) -> Findings:
    """Return what is wrong with an additive code.

    Args:
        subject: What build() returned: forward(x) -> x + code, or table(n).
        convention: "additive_module" (x (batch, seq, dim)), "additive_2d_module" (x (n, channels, h, w)) or
            "relative_table_fn" (n -> (2n - 1, dim), row r for distance (n - 1) - r).
        spec: encoding, dim, base, layout, variant, start, order, offset, ... in foreign words.

    Raises:
        posenc.verify.guard.SubjectError: A call cannot be used.
    """
    word = str(spec.get("encoding") or "sin").lower()
    image = convention == "additive_2d_module"
    if not word.startswith(("sin", "relative_sin", "learned")) or ("2d" in word and not image):
        return Findings(unknown=f"{convention} with encoding {word!r} has no definition to hold it against")
    if word.startswith("learned") and convention == "relative_table_fn":
        return Findings(unknown="a trained table of distances has no numbers to hold it against")
    asked = read(spec, convention)
    if asked.family.startswith("learned"):
        return learned.check(subject, convention, asked)
    return sinusoid.check(subject, convention, asked)


def refused(convention: str, spec: Mapping[str, Any], cause: Cause) -> Cause:
    """Return the fault behind a build() that raises: a width that its halves do not divide; else the cause as it is."""
    asked = read(spec, convention)
    by = 4 if convention == "additive_2d_module" else 2
    if asked.dim and asked.dim % by and cause.code in {"subject.raises", "subject.build_fails"}:
        return looks.odd_width(asked, cause, asked.dim)
    return cause
