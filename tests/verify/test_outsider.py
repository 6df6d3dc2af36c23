"""Code by a stranger: faults are named, odd but right code is let pass."""

import pytest

import outsider_others  # noqa: F401  fills the list
from outsider_innocents import INNOCENT
from outsider_turning import FAULTS
from posenc.verify import check


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_named(name):
    build, style, spec, codes = FAULTS[name]
    report = check(build(), convention=style, spec=spec)
    assert report.status == "fail", report
    assert report.causes[0].code in codes, report


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.compiles) if n == "compiled" else n for n in INNOCENT]
)
def test_what_is_right_is_not_accused(name):
    build, style, spec = INNOCENT[name]
    report = check(build(), convention=style, spec=spec)
    assert report.status in ("pass", "equivalent"), report
