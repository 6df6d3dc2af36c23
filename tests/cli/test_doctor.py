import importlib.metadata
import json
import subprocess
import sys
import types

import pytest
from click.testing import CliRunner

from posenc import memory
from posenc.cli import app, doctor
from posenc.cli.requirements import read_requirements

COST = {"mib": 64, "copy_s": 0.004, "clone_s": 0.026, "ratio": 6.5, "faults": 16384}


@pytest.fixture(autouse=True)
def cost(monkeypatch, request):
    """Measure nothing: a clone takes 6.5 copies, or whatever a test writes here."""
    said = dict(COST)
    if "really" not in request.node.name:
        monkeypatch.setattr("posenc.bench.pages.ask", lambda: said)
    monkeypatch.setattr("posenc.memory.is_glibc", lambda: True)
    return said


def invoke(*arguments):
    return CliRunner().invoke(app, ["doctor", *arguments], env={"COLUMNS": "80"})


@pytest.fixture
def versions(monkeypatch):
    """Pretend other versions: {package: version, or None where it is missing}."""
    pretended, real = {}, importlib.metadata.version

    def version(package):
        found = pretended.get(package, "") if package in pretended else real(package)
        if found is None:
            raise importlib.metadata.PackageNotFoundError(package)
        return found

    monkeypatch.setattr(importlib.metadata, "version", version)
    return pretended


def test_here_everything_required_is_there():
    done = invoke("--json")
    report = json.loads(done.stdout)
    assert done.exit_code == 0
    assert report["ok"]
    assert {package["package"] for package in report["required"]} == {"numpy", "click", "rich", "safetensors"}
    assert report["torch"]["threads"] >= 1


def test_every_extra_of_the_metadata_is_examined_and_described():
    declared = importlib.metadata.metadata("posenc").get_all("Provides-Extra")
    report = doctor.examine()
    assert sorted(extra["name"] for extra in report["extras"]) == sorted(declared)
    assert all(extra["feature"] for extra in report["extras"])


def test_a_missing_requirement_is_a_finding_with_its_remedy(versions):
    versions["numpy"] = None
    done = invoke()
    assert done.exit_code == 1
    assert "pip install 'numpy>=2.0'" in done.stdout
    assert "A required package is missing" in done.stdout


def test_a_requirement_that_is_too_old_is_a_finding(versions):
    versions["numpy"] = "1.26.4"
    done = invoke("--json")
    numpy = next(p for p in json.loads(done.stdout)["required"] if p["package"] == "numpy")
    assert done.exit_code == 1
    assert (numpy["problem"], numpy["installed"], numpy["needs"]) == ("too old", "1.26.4", ">=2.0")


@pytest.mark.parametrize(("version", "problem"), [("5.22.9", "too old"), ("5.23.1", None), ("5.24.0", "too new")])
def test_a_version_beyond_what_was_tried_is_a_finding(version, problem, versions):
    versions["transformers"] = version
    (requirement,) = read_requirements(["transformers<5.24,>=5.23; extra == 'test'"])
    found = doctor.examine_requirement(requirement)
    assert (found["ok"], found["problem"], found["needs"]) == (problem is None, problem, ">=5.23,<5.24")


def test_a_python_that_is_too_old_is_a_finding(monkeypatch):
    monkeypatch.setattr(doctor.platform, "python_version", lambda: "3.9.1")
    done = invoke()
    assert done.exit_code == 1
    assert "too old, needs >=3.11" in done.stdout


def test_an_extra_names_what_is_missing_and_what_mends_it(versions):
    versions.update(matplotlib=None, starlette="0.1", uvicorn="9", plotly=None)
    done = invoke()
    shown = " ".join(done.stdout.split())
    assert done.exit_code == 0  # extras are no findings
    assert "needs matplotlib: pip install 'posenc[plot]'" in shown
    assert "needs plotly, starlette >=0.40 (0.1 is too old): pip install 'posenc[web]'" in shown


def test_an_extra_that_is_there_is_ok(versions):
    versions["matplotlib"] = "3.9"
    plot = next(extra for extra in doctor.examine()["extras"] if extra["name"] == "plot")
    assert (plot["ok"], plot["missing"], plot["mend"]) == (True, [], None)


def test_an_installed_package_that_does_not_import_is_a_finding(monkeypatch, tmp_path):
    (tmp_path / "brokenpackage.py").write_text("raise OSError('libfoo.so: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "1.0")
    (requirement,) = read_requirements(["brokenpackage>=1"])
    found = doctor.examine_requirement(requirement, imports=True)
    assert found["problem"] == "does not import: libfoo.so: cannot open shared object file"
    assert not found["ok"]


def test_it_runs_without_torch():
    code = "import sys; sys.modules['torch'] = None; from posenc.cli import run; sys.exit(run(['doctor']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"torch uses" not in done.stdout


def test_a_folder_that_is_not_installed_is_a_finding(monkeypatch):
    def absent(package):
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "metadata", absent)
    done = invoke()
    assert done.exit_code == 1
    assert "pip install -e ." in done.stdout


def test_a_gpu_is_named_and_a_broken_driver_quoted(monkeypatch):
    import warnings

    def broken():
        warnings.warn("CUDA initialization: driver too old", UserWarning, stacklevel=1)
        return False

    torch = types.SimpleNamespace(
        __version__="2.13",
        version=types.SimpleNamespace(cuda="12.8"),
        get_num_threads=lambda: 4,
        backends=types.SimpleNamespace(mps=types.SimpleNamespace(is_available=lambda: False)),
        cuda=types.SimpleNamespace(
            is_available=lambda: True, device_count=lambda: 1, get_device_name=lambda i: "NVIDIA H200"
        ),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert "NVIDIA H200 (CUDA 12.8)" in invoke().stdout
    torch.cuda.is_available = broken
    assert "driver too old" in invoke().stdout


def test_no_compiler_is_said_with_its_consequence(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    shown = " ".join(invoke().stdout.split())
    assert "no C++ compiler, so torch.compile does not work on the CPU" in shown


def test_what_new_memory_costs_is_told_with_what_mends_it(cost):
    done = invoke()
    lines = done.stdout.splitlines()
    shown = " ".join(done.stdout.split())
    assert "a clone of 64 MiB takes 6.5 times as long as a copy into existing memory, with 16,384 page faults" in shown
    assert "posenc.reuse_pages()" in shown
    assert f"  GLIBC_TUNABLES={memory.TUNABLES}" in lines  # whole, to be copied
    assert max(map(len, (line for line in lines if "/" not in line))) <= 80
    found = json.loads(invoke("--json").stdout)["new_memory"]
    assert found == cost | {"problem": None, "set": f"GLIBC_TUNABLES={memory.TUNABLES}"}


@pytest.mark.parametrize("change", [{"ratio": 2.0}, {"ratio": 1.0, "faults": 0}, "elsewhere", {"faults": None}])
def test_advice_is_given_only_where_it_helps(cost, monkeypatch, change):
    if change == "elsewhere":
        monkeypatch.setattr("posenc.memory.is_glibc", lambda: False)
    else:
        cost.update(change)
    found = json.loads(invoke("--json").stdout)["new_memory"]
    shown = " ".join(invoke().stdout.split())
    assert f"takes {cost['ratio']:.1f} times as long as a copy into existing memory" in shown
    assert ("reuse_pages" in shown) == (found["set"] is not None) == (change == {"faults": None})
    assert ("page faults" in shown) == bool(cost["faults"])


def test_what_could_not_be_measured_is_said(cost):
    cost.clear()
    cost["problem"] = "too little memory is free"
    assert "not measured: too little memory is free" in " ".join(invoke().stdout.split())
    found = json.loads(invoke("--json").stdout)["new_memory"]
    assert (found["ratio"], found["set"], found["problem"]) == (None, None, "too little memory is free")


def test_without_torch_there_is_nothing_to_measure(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    done = invoke("--json")
    assert json.loads(done.stdout)["new_memory"] is None
    assert done.exit_code == 0


def test_each_extra_for_models_asks_for_torch(versions):
    versions["torch"] = None
    extras = {extra["name"]: extra for extra in doctor.examine()["extras"]}
    lacking = {name for name, e in extras.items() if "torch" in [package["package"] for package in e["missing"]]}
    assert lacking == {"torch", "study", "plot", "web", "hf", "onnx", "ray", "parquet", "fast", "test", "docs"}
    assert extras["hf"]["mend"] == "pip install 'posenc[hf]'"


@pytest.mark.slow
def test_it_really_measures_in_a_process_of_its_own():
    found = doctor.examine()["new_memory"]
    assert found["problem"] in (None, "too little memory is free")
    if found["problem"] is None:
        assert found["clone_s"] / found["copy_s"] == found["ratio"]


def test_the_extra_for_speed_says_what_it_brings():
    extras = {extra["name"]: extra["feature"] for extra in doctor.examine()["extras"]}
    assert extras["fast"] == "faster rotary on the CPU (numba)"
