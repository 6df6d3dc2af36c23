"""`posenc doctor`: what is installed, what is missing, what new memory costs, and how to fix it."""

import os
import platform
import shutil
import sys
import sysconfig
import warnings
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import click

from posenc.cli import output
from posenc.cli.requirements import Requirement, is_at_least, read_requirements, whole

# What each extra is for; the package's metadata lists what it needs.
FEATURES = {
    "torch": "encodings in models, and attention",
    "study": "comparing encodings: `posenc study`",
    "plot": "figures, and `posenc plot`",
    "web": "the explorer: `posenc explore`",
    "hf": "Hugging Face models",
    "onnx": "exporting to ONNX and running the result",
    "ray": "studies on a Ray cluster: `posenc study --engine ray`",
    "parquet": "a study's results as Parquet",
    "fast": "faster rotary on the CPU (numba)",
    "docs": "building the documentation: `make docs`",
    "test": "running the tests",
}
MUCH = 2.0  # a clone that takes as long as this many copies is worth the side effect of keeping freed memory


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the report as a JSON object.")
def examine_installation(as_json: bool) -> None:
    """Report what is installed, what each feature lacks, and how to install it.

    Also measures the cost of new memory, which on Linux is often more than
    that of the computation that fills it.
    """
    report = examine()
    if as_json:
        output.write_json(report)
    else:
        write_report(report)
    raise click.exceptions.Exit(0 if report["ok"] else 1)


def examine() -> dict[str, Any]:
    """Return the whole report as plain JSON values."""
    report = _examine_installed()
    return report | {"new_memory": _examine_memory() if report["torch"] else None}


def _examine_installed() -> dict[str, Any]:
    import posenc

    needs_python, requirements = _read_metadata()
    required = [examine_requirement(r, imports=True) for r in requirements if not r.extra]
    extras = [_examine_extra(e, [r for r in requirements if r.extra == e]) for e in _extras(requirements)]
    here = platform.python_version()
    python = {"version": here, "needs": needs_python, "ok": is_at_least(here, needs_python.lstrip(">="))}
    return {
        "ok": bool(requirements) and python["ok"] and all(package["ok"] for package in required),
        "posenc": {"version": posenc.__version__, "path": str(Path(posenc.__file__).parent)},
        "python": python | {"executable": sys.executable},
        "required": required,
        "machine": _examine_machine(),
        "torch": _examine_torch(),
        "compiler": _examine_compiler(),
        "extras": extras,
    }


def examine_requirement(requirement: Requirement, *, imports: bool = False) -> dict[str, Any]:
    """Compare the installed version with the required one; `imports` also tries the import."""
    try:
        installed = metadata.version(requirement.package)
    except metadata.PackageNotFoundError:
        installed = None
    problem = None
    if installed is None:
        problem = "missing"
    elif not is_at_least(installed, requirement.minimum):
        problem = "too old"
    elif requirement.below and is_at_least(installed, requirement.below):
        problem = "too new"
    elif imports:
        problem = _try_import(requirement.package)
    return {
        "package": requirement.package,
        "needs": requirement.bounds,
        "installed": installed,
        "ok": problem is None,
        "problem": problem,
        "mend": None if problem is None else f"pip install '{requirement.spelling}'",
    }


def _read_metadata() -> tuple[str, list[Requirement]]:
    """Return the required Python and the requirements; both empty if posenc is not installed."""
    try:
        found = metadata.metadata("posenc")
    except metadata.PackageNotFoundError:
        return "", []
    return found["Requires-Python"] or "", whole(read_requirements(metadata.requires("posenc") or []))


def _extras(requirements: list[Requirement]) -> list[str]:
    """Order extras as in FEATURES, unknown ones last."""
    names = {r.extra for r in requirements if r.extra}
    return [*(n for n in FEATURES if n in names), *sorted(names.difference(FEATURES))]


def _examine_extra(name: str, requirements: list[Requirement]) -> dict[str, Any]:
    missing = [found for found in map(examine_requirement, requirements) if not found["ok"]]
    return {
        "name": name,
        "feature": FEATURES.get(name, ""),
        "ok": not missing,
        "missing": missing,
        "mend": f"pip install 'posenc[{name}]'" if missing else None,
    }


def _try_import(package: str) -> str | None:
    """Return why a package that is installed cannot be imported, or None."""
    try:
        import_module(package)
    except Exception as error:  # a broken installation may raise anything, and that is a finding
        return f"does not import: {' '.join(str(error).split())}"
    return None


def _examine_machine() -> dict[str, Any]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"platform": platform.platform(), "cores": os.cpu_count(), "usable_cores": usable}


def _examine_torch() -> dict[str, Any] | None:
    try:
        torch = import_module("torch")
    except Exception:  # reported among the required packages already
        return None
    with warnings.catch_warnings(record=True) as caught:  # a broken driver shows up as warnings
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
        gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if available else []
    return {
        "version": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "built_for_cuda": torch.version.cuda,
        "gpus": gpus,
        "mps": torch.backends.mps.is_available(),
        "notes": [" ".join(str(w.message).split()) for w in caught],
    }


def _examine_compiler() -> dict[str, Any]:
    """Look for what torch.compile's inductor needs: $CXX or a C++ compiler, and Python's headers."""
    names = [os.environ.get("CXX", ""), "g++", "clang++", "cl"]
    path = next((found for name in names if name and (found := shutil.which(name))), None)
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    return {"path": path, "python_headers": headers.is_file(), "ok": path is not None and headers.is_file()}


def _examine_memory() -> dict[str, Any]:
    """Measure in a fresh process the time of a clone of a large tensor over that of a copy into existing memory."""
    from posenc import memory
    from posenc.bench import pages

    found = dict.fromkeys(("mib", "copy_s", "clone_s", "ratio", "faults", "problem")) | pages.ask()
    worth = found["ratio"] is not None and found["ratio"] > MUCH and memory.is_glibc()
    return found | {"set": f"GLIBC_TUNABLES={memory.TUNABLES}" if worth else None}


def write_report(report: dict[str, Any]) -> None:
    """Print the report as text: required packages, machine, extras, and what to do."""
    from posenc.cli.prescription import lay_out

    output.write_rich(*lay_out(report, output.console().width))
