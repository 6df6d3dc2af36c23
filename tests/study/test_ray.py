"""The study on Ray: a real one, on this machine, of which nodes are really killed."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

import posenc as package
from command_line import posenc
from posenc.study.on_ray import OnRay

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'posenc[ray]'")
SEARCH = os.pathsep.join(
    [str(Path(__file__).parents[1]), str(Path(package.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
)
MEASURED = ("train_seconds", "test_seconds", "step_ms", "tokens_per_s", "peak_mib")
SMALL = ["--train-len", "8", "--test-len", "8,16", "--seeds", "1", "--size", "16x1x2"]
CLUSTER = """
import json, sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
nodes = {"head": cluster.head_node, "other": cluster.add_node(num_cpus=1)}
pids = {name: {kind: of[0].process.pid for kind, of in node.all_processes.items()} for name, node in nodes.items()}
print(json.dumps({"address": cluster.address} | pids), flush=True)
sys.stdin.read()
cluster.shutdown()
"""


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


@pytest.fixture
def rays(monkeypatch):
    """Give Ray a folder of its own, short enough for its sockets, and see that its processes end."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        for name, value in (("RAY_TMPDIR", folder), ("PYTHONPATH", SEARCH), ("COLUMNS", "200")):
            monkeypatch.setenv(name, value)
        yield folder
        wait_for(lambda: not processes(folder), seconds=20)


def processes(folder):
    """Return the processes with this folder in their environment, but for multiprocessing's own."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            mine = f"RAY_TMPDIR={folder}\0".encode() in (entry / "environ").read_bytes()
            if mine and b"resource_tracker" not in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


@pytest.fixture
def cluster(rays):
    """Yield the address of a cluster, and the processes of its head and of its other node."""
    command = [sys.executable, "-c", CLUSTER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield json.loads(process.stdout.readline())
        process.stdin.close()
    for orphan in processes(rays):  # agents of a raylet that a test killed
        with suppress(ProcessLookupError):
            os.kill(orphan, signal.SIGKILL)


def kill(node, *kinds):
    for kind in kinds:
        os.kill(node[kind], signal.SIGKILL)


@pytest.fixture
def start(tmp_path):
    """Return what starts `posenc study`; the test's end is the process's."""
    with ExitStack() as stack:

        def begin(*arguments):
            command = [sys.executable, "-m", "posenc", "study", *arguments]
            process = stack.enter_context(
                subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            )
            stack.callback(process.kill)
            return process

        yield begin


def finished(study):
    return {p.parent.name: p.stat().st_mtime_ns for p in (study / "cells").glob("[a-z]*/result.json")}


def trained(study):
    """Return what does not depend on the machine: results but for what was measured, and weights."""
    found = {}
    for name in finished(study):
        result = json.loads((study / "cells" / name / "result.json").read_text())
        weights = (study / "cells" / name / "model.safetensors").read_bytes()
        found[name] = {k: v for k, v in result.items() if k not in MEASURED}, weights
    return found


def train_here(*arguments, cwd):
    """Do the same cells in this process, and return what comes of them."""
    assert posenc("study", *arguments, "--workers", "0", "--out", "here", cwd=cwd).returncode == 0
    assert posenc("study", "worker", "here", cwd=cwd).returncode == 0
    return trained(cwd / "here")


def test_ray_on_this_machine_gives_what_a_worker_here_gives(tmp_path, rays):
    arguments = ["--encodings", "nope,study.own:SquareRoot", *SMALL, "--steps", "10"]
    done = posenc("study", *arguments, "--engine", "ray", "--workers", "1", "--out", "s", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "complete"
    assert len(trained(tmp_path / "s")) == 2
    assert trained(tmp_path / "s") == train_here(*arguments, cwd=tmp_path)


@pytest.mark.slow
def test_a_class_that_raises_or_kills_its_process_is_named_and_the_others_go_on(tmp_path, rays):
    names = "nope,study.own:Failing,study.own:Dying"
    arguments = ["--encodings", names, *SMALL, "--steps", "20", "--engine", "ray", "--out", "s", "--json"]
    done = posenc("study", *arguments, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    summary = json.loads(done.stdout)
    assert [r["encoding"] for r in summary["results"]] == ["nope"]
    problems = {p["encoding"]: p["message"] for p in summary["problems"]}
    assert "RuntimeError: out of <positions> (in own.py:" in problems["study.own:Failing"]
    assert "Ray gave up, after 3 tries" in problems["study.own:Dying"]


@pytest.mark.slow
def test_the_cells_of_a_node_that_dies_are_done_by_others(tmp_path, cluster, start):
    arguments = ["--encodings", "nope,alibi,rope,t5", *SMALL, "--steps", "300"]
    process = start(*arguments, "--engine", "ray", "--address", cluster["address"], "--out", "s")
    wait_for(lambda: finished(tmp_path / "s") and len(list((tmp_path / "s/claims").iterdir())) == 2)  # one on each
    kill(cluster["other"], "raylet")
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, out
    assert trained(tmp_path / "s") == train_here(*arguments, cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("dead", [("gcs_server", "raylet"), ("raylet",)], ids=" ".join)
def test_without_its_head_the_study_ends_in_one_line_and_another_engine_goes_on(
    tmp_path, cluster, start, dead, monkeypatch
):
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "5")  # of 60
    arguments, study = ["--encodings", "nope,alibi,rope,t5", *SMALL, "--steps", "300", "--out", "s"], tmp_path / "s"
    process = start(*arguments, "--engine", "ray", "--address", cluster["address"])
    wait_for(lambda: finished(study))
    kill(cluster["head"], *dead)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1, out
    assert "Traceback" not in out
    last = out.strip().splitlines()[-1]
    assert last == f"study: the Ray cluster at {cluster['address']} is gone; repeat the command, or use --engine local"
    assert json.loads((study / "run.json").read_text())["status"] == "interrupted"
    assert (study / "report.html").exists()
    assert list((study / "claims").iterdir()) == []
    before = finished(study)
    assert 1 <= len(before) < 4
    done = posenc("study", *arguments, "--engine", "local", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(finished(study)) == 4
    assert before.items() <= finished(study).items()  # not trained again


def test_what_cannot_be_is_said_at_once(monkeypatch):
    with pytest.raises(ValueError, match="--workers 0 leaves the cells"):
        OnRay(None, 0)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'posenc\[ray\]'"):
        OnRay()
