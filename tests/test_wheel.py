"""The wheel and the sdist as a user gets them: small, whole, typed, and usable where no repository is."""

import ast
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import posenc

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
CLIENT = Path(__file__).parent / "typed_client.py"
PACKAGES = sysconfig.get_path("purelib")  # of these tests; it may lie in the repository, as .venv does
LARGEST = 3_000_000  # bytes of the wheel
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "MYPY", "PIP", "COLUMNS", "VIRTUAL_ENV"))}
Run = Callable[..., subprocess.CompletedProcess[str]]

# RoPE that rotates neighbours in pairs, where its SPEC names the halves
WRONG = """
import torch
STYLE = "rope_offset_fn"
SPEC = {"encoding": "rope", "head_dim": 16, "base": 10000.0, "layout": "half"}


def rope(x, offset=0):
    inv_freq = 10000.0 ** (-torch.arange(8) / 8)
    angle = (torch.arange(x.shape[-2]) + offset)[:, None] * inv_freq
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)


def build():
    return rope
"""


def call(command: list[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, env=CLEAN, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist from the repository, and the wheel from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    done = call([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT], folder)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into a new environment, which finds its dependencies here, but not the repository."""
    root = tmp_path_factory.mktemp("installed")
    venv.create(root, symlinks=True, with_pip=False)
    python = root / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    done = call([*pip, "install", "--quiet", "--no-index", "--no-deps", wheel], root)
    assert done.returncode == 0, done.stderr
    asked = call([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], root).stdout.strip()
    # A folder named in a .pth file is searched, but its own .pth files, as that of an editable install, are not read.
    (Path(asked) / "dependencies.pth").write_text(PACKAGES + "\n")
    return root


@pytest.fixture
def run(installed: Path, tmp_path: Path) -> Run:
    """Return a function that runs a program of the environment in an empty folder."""
    return lambda program, *arguments: call([installed / "bin" / program, *arguments], tmp_path)


def test_the_wheel_is_small_and_holds_the_package_only(wheel: Path) -> None:
    assert wheel.name == f"posenc-{posenc.__version__}-py3-none-any.whl"
    assert wheel.stat().st_size < LARGEST
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"posenc", f"posenc-{posenc.__version__}.dist-info"}
    here = {f"posenc/{path.relative_to(ROOT / 'src' / 'posenc')}" for path in (ROOT / "src").rglob("*.py")}
    assert here <= set(names)
    assert "posenc/py.typed" in names
    assert not [name for name in names if name.endswith((".pyc", ".so", ".npz", ".ipynb"))]


def test_the_sdist_has_what_its_readme_names_and_its_tests_read(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = re.findall(r"\]\(([\w./-]+)\)", (ROOT / "README.md").read_text())
    wanted += ["README.md", "CHANGELOG.md", "action.yml", "Makefile", "tests/conftest.py", "src/posenc/__init__.py"]
    assert [name for name in wanted if name not in names] == []
    assert not [name for name in names if name.startswith((".venv", "dist", "docs/_build", ".git/"))]


def test_the_installed_package_is_the_wheel(run: Run, installed: Path) -> None:
    code = "import posenc, torch; from importlib.metadata import version; print(posenc.__file__, version('posenc'))"
    file, version = run("python", "-c", code).stdout.split()
    assert Path(file).is_relative_to(installed)
    assert version == posenc.__version__ == run("posenc", "--version").stdout.split()[1]
    assert str(ROOT) not in run("python", "-c", "import sys; print(*sys.path)").stdout.replace(PACKAGES, "")


def test_doctor_finds_everything(run: Run) -> None:
    done = run("posenc", "doctor", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["ok"]
    assert report["posenc"]["version"] == posenc.__version__


def test_verify_names_the_fault(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(WRONG)
    done = run("posenc", "verify", "mine.py", "--json")
    assert done.returncode == 1, done.stderr
    assert [cause["code"] for cause in json.loads(done.stdout)["causes"]] == ["rope.layout.wrong_pairing"]


def test_inspect_reads_a_known_model(run: Run) -> None:
    done = run("posenc", "inspect", "llama-3.1-8b")
    assert (done.returncode, done.stderr) == (0, "")
    assert "29 kept, 6 blended, 29 divided" in done.stdout


def test_golden_writes_numbers(run: Run, tmp_path: Path) -> None:
    done = run("posenc", "golden", "--config", "llama-3.1-8b", "--positions", "0,1", "--out", "llama")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "llama" / "manifest.json").is_file()


def test_a_short_study_writes_its_page(run: Run, tmp_path: Path) -> None:
    sizes = ["--train-len", "8", "--test-len", "8,16", "--seeds", "1", "--steps", "5", "--size", "16x1x2"]
    done = run("posenc", "study", "--encodings", "nope,alibi", *sizes, "--out", "my-study")
    assert done.returncode == 0, done.stderr
    assert "<html" in (tmp_path / "my-study" / "report.html").read_text()


def test_the_explorer_is_exported(run: Run, tmp_path: Path) -> None:
    done = run("posenc", "explore", "rope", "--export", "rope.html")
    assert (done.returncode, done.stdout) == (0, "Wrote rope.html.\n"), done.stderr
    assert "<html" in (tmp_path / "rope.html").read_text()


def check_types(installed: Path, folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    (folder / "client.py").write_text(code)
    mypy = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", installed / "mypy"]
    return call([*mypy, "--python-executable", installed / "bin" / "python", "client.py"], folder)


def test_a_typed_client_is_checked_and_runs(run: Run, installed: Path, tmp_path: Path) -> None:
    done = check_types(installed, tmp_path, CLIENT.read_text())
    assert done.stdout == "Success: no issues found in 1 source file\n", done.stdout + done.stderr
    assert run("python", "client.py").stdout == "1 2 4 8\n"
    wrong = "import posenc\nposenc.ALiBi(n_heads='8')\nposenc.attend(1)\nposenc.names(3)\n"
    lines = check_types(installed, tmp_path, wrong).stdout.splitlines()
    assert {line.split(":")[1] for line in lines[:-1] if ": error:" in line} == {"2", "3", "4"}


def test_the_client_imports_public_names_only() -> None:
    imported = {node.module for node in ast.walk(ast.parse(CLIENT.read_text())) if isinstance(node, ast.ImportFrom)}
    assert imported <= {"collections.abc", "typing", "torch", "posenc"}
