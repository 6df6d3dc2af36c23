"""The decorator for pytest, by runs of pytest in a child process: what passes, fails, and is expected to fail."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from posenc.verify import parametrize_with_checks
from posenc.verify.testing import Check, CheckError, ExpectedError

ALIBI = {"encoding": "alibi", "heads": 12}


def authors(n):
    low = 1 << (n.bit_length() - 1)
    series = [2 ** (-8 * (h + 1) / (2 * low)) for h in range(2 * low)]
    return series[1::2] + series[0::2][: n - low]


def geometric(n):
    return [2 ** (-8 * (h + 1) / n) for h in range(n)]


@parametrize_with_checks(
    {"authors": (authors, "slopes_fn", ALIBI), "geometric": (geometric, "slopes_fn", ALIBI)},
    expected={"geometric": ("alibi.slopes.not_power_of_two", "kept for checkpoints that were trained so")},
)
def test_it_decorates_a_test(check):
    assert check().status == "pass"


def test_a_list_is_named_by_convention_and_number():
    listed = parametrize_with_checks([(authors, "slopes_fn", ALIBI), (geometric, "slopes_fn", None)])
    assert [case.id for case in listed.args[1]] == ["slopes_fn-0", "slopes_fn-1"]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (None, r"fail: mine as slopes_fn\n\n  alibi.slopes.not_power_of_two(.|\n)*fix:"),
        ("alibi.sign", "expected alibi.sign, found alibi.slopes.not_power_of_two"),
    ],
)
def test_a_check_fails_with_the_report_which_is_no_expected_failure(code, said):
    with pytest.raises(CheckError, match=said) as failed:
        Check("mine", (geometric, "slopes_fn", ALIBI), code)()
    assert not isinstance(failed.value, ExpectedError)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"subjects": {"a": (authors, "slopes_fn")}}, TypeError, "must be (subject, convention, spec); got tuple"),
        ({"subjects": [authors]}, TypeError, "'subject-0' must be (subject, convention, spec); got function"),
        ({"subjects": {}, "expected": {"b": ("x.y", "z")}}, ValueError, "expected names 'b', which is not a subject"),
        (
            {"subjects": {"a": (authors, "slopes_fn", {})}, "expected": {"a": ("x.y", "")}},
            ValueError,
            "an expected failure is (code, reason)",
        ),
    ],
)
def test_wrong_use_is_told_at_once(options, error, said):
    with pytest.raises(error, match=re.escape(said)):
        parametrize_with_checks(**options)


RUN = """
from posenc.verify import parametrize_with_checks
from test_testing import ALIBI as SPEC, authors, geometric

known = ("alibi.slopes.not_power_of_two", "old checkpoints")

@parametrize_with_checks(
    {
        "right": (authors, "slopes_fn", SPEC),
        "wrong": (geometric, "slopes_fn", SPEC),
        "known": (geometric, "slopes_fn", SPEC),
        "fixed": (authors, "slopes_fn", SPEC),
        "otherwise": (geometric, "slopes_fn", SPEC),
    },
    expected={"known": known, "fixed": known, "otherwise": ("alibi.sign", "another reason")},
)
def test_mine(check):
    check()
"""


@pytest.mark.slow
def test_a_run_of_pytest(tmp_path):
    (tmp_path / "test_mine.py").write_text(RUN)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "-q", "--rootdir", str(tmp_path), "."]
    paths = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    run = subprocess.run(command, cwd=tmp_path, env=paths, capture_output=True, text=True, timeout=120, check=False)
    ended = {
        name: word for word, name in re.findall(r"^(\w+) test_mine.py::test_mine\[(\w+)\]", run.stdout, re.MULTILINE)
    }
    assert ended == {
        "right": "PASSED",
        "wrong": "FAILED",
        "known": "XFAIL",
        "fixed": "FAILED",  # strict: what passes is no longer expected to fail
        "otherwise": "FAILED",
    }, run.stdout
    assert "old checkpoints" in run.stdout
