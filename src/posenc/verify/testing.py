"""A pytest decorator that makes one test of each subject."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

    from posenc.verify.report import Report

Expected = Mapping[str, tuple[str, str]]


class CheckError(AssertionError):
    """An implementation is not what its spec says, or nothing can be said of it."""


class ExpectedError(CheckError):
    """It fails, by the code that was expected."""


class Check:
    """One check that is ready to run.

    Args:
        name: The subject's name.
        subject: What `build()` returns, how it is called, and its spec.
        code: The first cause that is expected of it; None expects it to pass.
    """

    def __init__(self, name: str, subject: tuple[Any, str, Mapping[str, Any] | None], code: str | None) -> None:
        self.name, self.code = name, code
        self.subject, self.convention, self.spec = subject

    def __call__(self) -> "Report":
        """Run it and return the report.

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
        raise CheckError(said if self.code is None else f"{said}\nexpected is {self.code}, found {found}")

    def __repr__(self) -> str:
        return f"Check({self.name!r}, {self.convention!r})"


def parametrize_with_checks(
    subjects: Mapping[str, Any] | Iterable[Any], *, expected: Expected | None = None
) -> "pytest.MarkDecorator":
    """Run a test once for each subject; it gets `check`, to be called without arguments.

    A failure that is known stays visible: it is an xfail with its reason while the first cause is the one named, and
    fails the run as soon as the subject fails otherwise or passes.

    Args:
        subjects: (subject, convention, spec) by name, or a list of them, named by convention and number.
        expected: By name: the code of the first cause, or "cannot_tell", and the reason.

    Raises:
        TypeError: A subject is no such triple.
        ValueError: A failure is expected of a name that is no subject's, or without a code or a reason.

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
                    f"Say why it is expected."
                )
            marks = [pytest.mark.xfail(strict=True, reason=": ".join(why), raises=ExpectedError)]
        cases.append(pytest.param(Check(own, subject, why and why[0]), id=own, marks=marks))
    if known:
        raise ValueError(
            f"parametrize_with_checks: a failure is expected of {next(iter(known))!r}, which is no subject; "
            f"got {', '.join(str(case.id) for case in cases) or 'none'}. Name one of them."
        )
    return pytest.mark.parametrize("check", cases)
