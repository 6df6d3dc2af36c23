"""Models that run: a cache against one pass, and attention whose scores show through its outputs."""

from collections.abc import Mapping
from typing import Any

from posenc.verify.decoding import attention, cached
from posenc.verify.report import Findings


def check(subject: Any, convention: str, spec: Mapping[str, Any]) -> Findings:
    """Hold a model with a cache against its own single pass, or attention against the scores that are asked for."""
    if convention == "cached_model":
        return cached.check(subject, spec)
    return attention.check(subject, spec)
