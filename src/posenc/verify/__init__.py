"""Report what an implementation of a position encoding computes, what is right, and which fault explains it."""

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from posenc.verify.identity.identify import Identification, identify
from posenc.verify.report import Cause, Report, Status
from posenc.verify.testing import parametrize_with_checks

if TYPE_CHECKING:
    from posenc.verify.engine import Family

__all__ = [
    "FAMILIES",
    "Cause",
    "Identification",
    "Report",
    "Status",
    "check",
    "identify",
    "parametrize_with_checks",
]

_MODULES = {
    "families.rotation": "hf_rope meta_complex rope_fn rope_offset_fn lucidrains bshd_module xpos_fn",
    "families.bias": "slopes_fn bias_fn score_mod",
    "families.indices": "relative_index_fn",
    "families.buckets": "bucket_fn",
    "families.builders": "mrope_positions_fn",
    "families.axes": "mrope_fn rope2d_table_fn rope_axes_fn",
    "families.added": "additive_module additive_2d_module relative_table_fn",
    "families.counts": "position_fn packed_position_fn learned_rows_fn",
    "families.cache": "cached_model",
    "families.attention": "attention",
    "families.contents": "scores_fn shift_fn",
    "families.learned_bias": "learned_bias_fn",
    "laws": "encoding",
}
FAMILIES = {convention: module for module, names in _MODULES.items() for convention in names.split()}


def check(subject: Any, *, convention: str, spec: Mapping[str, Any] | None = None) -> Report:
    """Compare an implementation with its definition, only by calling it.

    Args:
        subject: The object that `build()` of a file returns: a callable, a module, or a tuple of them.
        convention: How to call it: one of `FAMILIES`.
        spec: What it should compute, in words such as encoding, head_dim, base, layout, config.

    Returns:
        A report; its first cause explains most.

    Raises:
        ValueError: The convention is unknown, the subject cannot be called by it, or the spec is incomplete, is
            impossible, or has a misspelt word.
        TypeError: The spec is not a dict.

    >>> import torch
    >>> def slopes(n_heads): return [2 ** (-8 * (i + 1) / n_heads) for i in range(n_heads)]
    >>> check(slopes, convention="slopes_fn", spec={"encoding": "alibi", "heads": 8}).status
    'pass'
    >>> check(slopes, convention="slopes_fn", spec={"encoding": "alibi", "heads": 12}).causes[0].code
    'alibi.slopes.not_power_of_two'
    """
    from posenc.verify import conventions, rules, sentences
    from posenc.verify import spec as words
    from posenc.verify.engine import CannotTellError, judge

    module = _module(convention)
    asked, unread = words.read(spec, convention)
    if (wrong := conventions.misfit(subject, convention)) is not None:
        raise ValueError(f"verify: {wrong}.")
    if convention == "encoding":
        found: Report = module.check(subject, convention, asked)
    else:
        try:
            family: Family = module.family(convention, asked)
            found = sentences.report(judge(family, subject), convention, family.definition)
        except CannotTellError as open_:
            found = Report("cannot_tell", convention, because=str(open_))
    known = rules.known()
    causes = tuple(c if c.fix or c.code not in known else replace(c, fix=known[c.code].fix) for c in found.causes)
    return replace(found, causes=causes, not_judged=(*found.not_judged, *unread))


def _module(convention: str) -> Any:
    if convention not in FAMILIES:
        raise ValueError(f"verify: unknown convention {convention!r}. Use one of {', '.join(FAMILIES)}.")
    return import_module(f"posenc.verify.{FAMILIES[convention]}")


def family_of(convention: str, spec: Mapping[str, Any] | None) -> "Family":
    """Return the cases, the definition and the faults of a convention for a specification."""
    from posenc.verify import spec as words

    if convention == "encoding":
        raise ValueError(f"verify: the cases of {convention} cannot be written to a file.")
    family: Family = _module(convention).family(convention, words.read(spec, convention)[0])
    return family


def unbuilt(convention: str, spec: Mapping[str, Any], cause: Cause) -> Cause:
    """Return the fault behind a build() that raises, if a family knows it; else the given cause."""
    refused = getattr(_module(convention), "refused", None) if convention in FAMILIES else None
    return cause if refused is None else refused(convention, spec, cause)
