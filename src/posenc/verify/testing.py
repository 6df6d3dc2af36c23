"""A pytest decorator that makes one test for each subject."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

    from posenc.verify.report import Report

Expected = Mapping[str, tuple[str, str]]


class CheckError(AssertionError):
    """An implementation does not match its spec, or the check cannot decide."""


class ExpectedError(CheckError):
    """The subject fails with the expected code."""


class Check:
    """One check that is ready to run.

    Args:
        name: The subject's name.
        subject: The object that `build()` returns, its convention, and its spec.
        code: The code of the expected first cause; None if it should pass.
    """

    def __init__(self, name: str, subject: tuple[Any, str, Mapping[str, Any] | None], code: str | None) -> None:
        self.name, self.code = name, code
        self.subject, self.convention, self.spec = subject

    def __call__(self) -> "Report":
        """Run the check and return the report.

        Raises:
            CheckError: It does not pass; the message is the report's text.
        """
        __tracebackhide__ = True  # pytest shows the test's line and the report
        from posenc.verify import check, sentences

        report = check(self.subject, convention=self.convention, spec=self.spec)
        if report.status in ("pass", "equivalent"):
            return report
        said = "\n" + sentences.text(report, self.name)
        found = report.causes[0].code if report.causes else report.status
        if found == self.code:
            raise ExpectedError(said)
        raise CheckError(said if self.code is None else f"{said}\nexpected {self.code}, found {found}")

    def __repr__(self) -> str:
        return f"Check({self.name!r}, {self.convention!r})"


def parametrize_with_checks(
    subjects: Mapping[str, Any] | Iterable[Any], *, expected: Expected | None = None
) -> "pytest.MarkDecorator":
    """Run a test once for each subject; it receives `check`, to be called without arguments.

    A known failure stays visible: it is an xfail with its reason while the first cause is the named one, and it fails
    the run when the subject fails otherwise or passes.

    Args:
        subjects: (subject, convention, spec) by name, or a list of them, which are named by convention and index.
        expected: By name, the code of the first cause, or "cannot_tell", and the reason.

    Raises:
        TypeError: A subject is not such a triple.
        ValueError: An expected failure names no subject, or lacks a code or a reason.

    >>> from posenc.verify import parametrize_with_checks
    >>> @parametrize_with_checks({"bloom": (lambda n: [2.0 ** -(h + 1) for h in range(n)], "slopes_fn", {"heads": 8})})
    ... def test_positions(check):
    ...     check()
    """
    import pytest

    known, cases = dict(expected or {}), []
    listed = subjects.items() if isinstance(subjects, Mapping) else enumerate(subjects)
    for name, subject in listed:
        is_triple = isinstance(subject, tuple | list) and len(subject) == 3 and isinstance(subject[1], str)
        own = name if isinstance(name, str) else f"{subject[1] if is_triple else 'subject'}-{name}"
        if not is_triple:
            raise TypeError(
                f"parametrize_with_checks: {own!r} must be (subject, convention, spec); got {type(subject).__name__}. "
                f"Pass what build() returns, a convention's name, and a dict or None."
            )
        why, marks = known.pop(own, None), []
        if why is not None:
            if not isinstance(why, tuple | list) or len(why) != 2 or not all(isinstance(w, str) and w for w in why):
                raise ValueError(
                    f"parametrize_with_checks: an expected failure is (code, reason); got {why!r} for {own!r}. "
                    f"Give a reason."
                )
            marks = [pytest.mark.xfail(strict=True, reason=": ".join(why), raises=ExpectedError)]
        cases.append(pytest.param(Check(own, subject, why and why[0]), id=own, marks=marks))
    if known:
        raise ValueError(
            f"parametrize_with_checks: expected names {next(iter(known))!r}, which is not a subject; "
            f"got {', '.join(str(case.id) for case in cases) or 'none'}. Name one of them."
        )
    return pytest.mark.parametrize("check", cases)
