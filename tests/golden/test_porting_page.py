"""The commands of docs/porting.md, run as they stand: a C program with a fault is diagnosed, fixed, and passes."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "porting.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler is here")


@pytest.fixture
def shell(tmp_path):
    """Run a command line in an empty folder, where `posenc` is this package's."""
    command = tmp_path / "bin" / "posenc"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m posenc "$@"\n')
    command.chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"

    def run(line):
        return subprocess.run(
            line, shell=True, cwd=home, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
        )

    run.home = home
    return run


def lines_of(text):
    return [line.strip() for line in text.splitlines() if line.strip()]


def test_the_program_is_diagnosed_fixed_and_passes(shell):
    kinds = [kind for kind, _ in BLOCKS]
    assert kinds == ["sh", "json", "c", "sh", "sh", "text", "c", "c", "sh", "text"]
    write, _, program, build, check, diagnosis, wrong, right, again, passed = (text for _, text in BLOCKS)
    assert len(program.splitlines()) < 90
    assert program.count(wrong) == 1
    source = shell.home / "rope.c"
    source.write_text(program)
    for line in lines_of(write) + lines_of(build):
        done = shell(line)
        assert done.returncode == 0, done.stderr
    done = shell(check)
    assert done.returncode == 1, done.stderr
    report = done.stdout.splitlines()
    for line in lines_of(diagnosis):
        assert any(line == said.strip() for said in report), (line, done.stdout)
    source.write_text(program.replace(wrong, right))
    *commands, last = lines_of(again)
    assert last == check.strip()
    for line in commands:
        assert shell(line).returncode == 0
    done = shell(last)
    assert (done.returncode, done.stdout) == (0, passed)


def test_the_arrays_are_as_the_page_has_them(shell):
    import numpy as np

    assert shell(BLOCKS[0][1]).returncode == 0
    shapes = {p.name.split(".")[1]: np.load(p).shape for p in (shell.home / "golden").glob("*.npy")}
    table = dict(re.findall(r"^\| `(\w+)`.*?`(\([\d, ]+\))`", PAGE, re.MULTILINE))
    assert set(table) == {"positions", "inv_freq", "cos", "q"}
    assert {name: str(shapes[name]) for name in table} == table
