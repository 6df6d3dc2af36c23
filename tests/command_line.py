"""`posenc ...` in this process: what a test needs that looks at words and exit codes, not at signals or streams."""

import io
import os
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch


@dataclass(frozen=True)
class Done:
    """An exit code, and what stood on the streams."""

    returncode: int
    stdout: str
    stderr: str


def posenc(*arguments: str, cwd: Path | str = ".", **environment: str) -> Done:
    """Run a command as `python -m posenc` would, without a terminal."""
    from posenc.cli import run

    out, err = io.StringIO(), io.StringIO()
    with chdir(cwd), patch.dict(os.environ, environment), redirect_stdout(out), redirect_stderr(err):
        code = run(list(arguments))
    return Done(code, out.getvalue(), err.getvalue())
