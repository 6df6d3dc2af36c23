"""The plugin of pytest, by runs of pytest in child processes that load it as a project of a user does."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[1]
ENTRIES = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]

TESTS = """
import pytest

def authors(n):
    low = 1 << (n.bit_length() - 1)
    series = [2 ** (-8 * (h + 1) / (2 * low)) for h in range(2 * low)]
    return series[1::2] + series[0::2][: n - low]

def geometric(n):
    return [2 ** (-8 * (h + 1) / n) for h in range(n)]

@pytest.mark.posenc("slopes_fn", encoding="alibi", heads=12)
def test_right(posenc_check):
    assert posenc_check(authors).status == "pass"

@pytest.mark.posenc(convention="slopes_fn", encoding="alibi", heads=12)
def test_wrong(posenc_check):
    posenc_check(geometric)

@pytest.mark.posenc("rope_fn", encoding="alibi", heads=12)
def test_the_call_wins(posenc_check):
    assert posenc_check(geometric, "slopes_fn", heads=8).convention == "slopes_fn"

def test_without_a_marker(posenc_check):
    posenc_check(authors, "slopes_fn", encoding="alibi", heads=8)

def test_without_a_convention(posenc_check):
    posenc_check(authors)

def test_of_others():
    pass
"""


@pytest.fixture
def project(pytester, monkeypatch):
    """A folder of tests in which pytest finds posenc's entry points as pip would have written them."""
    installed = pytester.mkdir("site") / "posenc_under_test-0.dist-info"
    installed.mkdir()
    lines = "".join(f"{name} = {value}\n" for name, value in ENTRIES.items())
    (installed / "entry_points.txt").write_text(f"[pytest11]\n{lines}")
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: posenc-under-test\nVersion: 0\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(installed.parent), str(ROOT / "src")]))
    pytester.makepyfile(TESTS)
    return pytester


def test_a_failing_check_is_its_report(project):
    run = project.runpytest_subprocess("-p", "no:cacheprovider", "--strict-markers")
    run.assert_outcomes(passed=4, failed=2)
    run.stdout.fnmatch_lines(
        [
            "*posenc_check(geometric)",
            "E *CheckError: *",
            "E *fail: test_wrong as slopes_fn",
            "E *alibi.slopes.not_power_of_two",
            "E *smallest case: n_heads 12, *",
            "E *fix: *",
            "E *ValueError: posenc_check: a convention is needed, because*; got none.*",
        ]
    )
    run.stdout.no_fnmatch_line("*raise CheckError*")  # no lines of ours stand between


@pytest.mark.parametrize("loaded", [(), ("-p", "posenc.pytest_plugin")], ids=["by entry point", "once more by name"])
def test_the_marker_is_documented_however_often_the_plugin_is_named(project, loaded):
    run = project.runpytest_subprocess("--markers", *loaded)
    run.stdout.fnmatch_lines(["@pytest.mark.posenc(convention, [*][*]spec): specify position code*"])
    assert run.ret == 0


def test_the_plugin_can_be_left_out(project):
    run = project.runpytest_subprocess("-p", "no:posenc.pytest_plugin", "-p", "no:cacheprovider")
    run.assert_outcomes(passed=1, errors=5)


def test_a_project_that_does_not_use_it_imports_nothing_for_it(project):
    heavy = "[m for m in ('torch', 'click', 'posenc.verify') if m in sys.modules]"
    project.makepyfile(test_others=f"import sys\ndef test_nothing_is_imported(): assert {heavy} == []")
    run = project.runpytest_subprocess("-p", "no:cacheprovider", "test_others.py")
    run.assert_outcomes(passed=1)
    run.stdout.fnmatch_lines(["plugins: *posenc-under-test*"])  # it was loaded


def test_the_entry_point_names_its_module():
    """So that pytest, which loads entry points by their names, takes `-p posenc.pytest_plugin` for the same one."""
    assert ENTRIES == {"posenc.pytest_plugin": "posenc.pytest_plugin"}
    code = "import posenc.pytest_plugin, sys; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
