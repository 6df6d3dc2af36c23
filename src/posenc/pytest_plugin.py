"""A pytest plugin, found by its entry point, with the fixture `posenc_check` and the marker `posenc`.

pytest loads it in every project of an environment, so it imports nothing until the fixture is used.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from posenc.verify.report import Report

_MARKER = (
    'posenc(convention, **spec): specify position code, as in posenc("rope_fn", encoding="rope", head_dim=64); '
    "the fixture posenc_check tests a subject against it."
)


def pytest_configure(config: pytest.Config) -> None:
    """Describe the marker, for `pytest --markers` and `--strict-markers`."""
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def posenc_check(request: pytest.FixtureRequest) -> "Callable[..., Report]":
    """Return a function that fails the test unless position code matches the specification of the marker `posenc`.

    Its arguments are the subject, as `build()` of a file returns it, and optionally a convention and words of the
    specification, which take precedence over the marker's. It returns the report if the subject passes.

    Raises:
        CheckError: From that function: the code does not pass; the message is the report.
        ValueError: From that function: neither the marker nor the call has a convention, or the specification is
            incomplete or impossible.

    Example::

        @pytest.mark.posenc("slopes_fn", encoding="alibi", heads=8)
        def test_slopes(posenc_check):
            posenc_check(my_slopes)
    """
    marker = request.node.get_closest_marker("posenc")
    named, words = _asked(*marker.args, **marker.kwargs) if marker else (None, {})

    def check(subject: Any, convention: str | None = None, **spec: Any) -> "Report":
        __tracebackhide__ = True  # so that pytest shows the report at the caller's line
        from posenc.verify.testing import Check

        called = convention or named
        if called is None:
            raise ValueError(
                "posenc_check: a convention is needed, because it defines how the subject is called; got none. Write "
                '@pytest.mark.posenc("rope_fn", encoding="rope", head_dim=64), or posenc_check(subject, "rope_fn").'
            )
        return Check(request.node.name, (subject, called, {**words, **spec}), None)()

    return check


def _asked(convention: str | None = None, **spec: Any) -> tuple[str | None, dict[str, Any]]:
    """Return the arguments of a marker by name."""
    return convention, spec
