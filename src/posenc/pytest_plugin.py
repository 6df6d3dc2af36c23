"""A plugin of pytest, found by its entry point: the fixture `posenc_check` and the marker `posenc`.

pytest loads it in every project of an environment, so it imports nothing until the fixture is used.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from posenc.verify.report import Report

_MARKER = (
    'posenc(convention, **spec): what position code should be, as posenc("rope_fn", encoding="rope", head_dim=64); '
    "the fixture posenc_check compares a subject with it."
)


def pytest_configure(config: pytest.Config) -> None:
    """Describe the marker, for `pytest --markers` and `--strict-markers`."""
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def posenc_check(request: pytest.FixtureRequest) -> "Callable[..., Report]":
    """Return a function that fails the test unless position code is what the marker `posenc` says.

    It takes what `build()` of a file returns, and optionally a convention and words of the specification, which win
    over the marker's. It returns the report of what passes.

    Raises:
        CheckError: From that function: the code does not pass; the message is the report.
        ValueError: From that function: neither the marker nor the call names a convention, or the specification says
            too little or something impossible.

    Example::

        @pytest.mark.posenc("slopes_fn", encoding="alibi", heads=8)
        def test_slopes(posenc_check):
            posenc_check(my_slopes)
    """
    marker = request.node.get_closest_marker("posenc")
    named, words = _asked(*marker.args, **marker.kwargs) if marker else (None, {})

    def check(subject: Any, convention: str | None = None, **spec: Any) -> "Report":
        __tracebackhide__ = True  # the report stands next to the caller's line
        from posenc.verify.testing import Check

        called = convention or named
        if called is None:
            raise ValueError(
                "posenc_check: a convention must be named, because it says how the subject is called; got none. Write "
                '@pytest.mark.posenc("rope_fn", encoding="rope", head_dim=64), or posenc_check(subject, "rope_fn").'
            )
        return Check(request.node.name, (subject, called, {**words, **spec}), None)()

    return check


def _asked(convention: str | None = None, **spec: Any) -> tuple[str | None, dict[str, Any]]:
    """Name what a marker was given."""
    return convention, spec
