"""Cells that several processes train together, against the same cells in one process."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from command_line import posenc
from posenc import registry
from posenc.study.config import make_config
from study import hands

TIMES = ("train_seconds", "test_seconds", "step_ms", "tokens_per_s", "peak_mib")
EVERY_STEP = {"cell.LOG_EVERY": 1, "worker.RECLAIM_S": 0.1, "queue.BEAT_S": 0.1}


def fill(path, encodings, *options, steps=20):
    """Make a study, and leave its cells to workers; some lengths of its tests are odd."""
    small = ["--size", "16x2x2", "--train-len", "16", "--test-len", "17,31", "--seeds", "1", "--steps", str(steps)]
    done = posenc("study", "--encodings", encodings, *small, *options, "--workers", "0", "--out", str(path))
    assert done.returncode == 0, done.stderr
    return path


def together(path, n=2, constants=EVERY_STEP, dtype=torch.float32):
    """Let n processes work on a study together."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [hands.hire(hands.join, path, i, n, store.port, constants=constants, dtype=dtype) for i in range(n)]
    wait(ranks)
    return path


def alone(path, constants=EVERY_STEP, dtype=torch.float32):
    """Let one process work on a study."""
    wait([hands.hire(hands.work, path, constants, dtype=dtype)])
    return path


def wait(processes):
    for process in processes:
        process.join(500)
        assert process.exitcode == 0


def read(cell):
    """Return the loss of each step, everything else but times, and the weights."""
    losses = [json.loads(line)["bits"] for line in (cell / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((cell / "result.json").read_text())
    return losses, flat({k: v for k, v in result.items() if k not in TIMES}), load_file(cell / "model.safetensors")


def flat(value, key=""):
    """Return the leaves of a nested value by their paths."""
    if not isinstance(value, dict | list):
        return {key: value}
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    return {k: leaf for name, part in parts for k, leaf in flat(part, f"{key}/{name}").items()}


def same(one, other, within):
    """Hold the cells of two studies against each other: losses, results to their last digit, and names of weights."""
    names = {cell.name for cell in (one / "cells").iterdir()}
    assert names == {cell.name for cell in (other / "cells").iterdir()}
    for name in names:
        (wanted, true, whole), (losses, result, weights) = read(one / "cells" / name), read(other / "cells" / name)
        assert losses == pytest.approx(wanted, rel=within), name
        words = [{k: v for k, v in found.items() if isinstance(v, str)} for found in (result, true)]
        assert words[0] == words[1]
        numbers = [{k: v for k, v in found.items() if not isinstance(v, str)} for found in (result, true)]
        assert numbers[0] == pytest.approx(numbers[1], abs=1.1e-4, rel=0), name
        assert {key: t.shape for key, t in weights.items()} == {key: t.shape for key, t in whole.items()}
    return names


def torchrun(path):
    """Start two processes on a study, as a user does."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([*command, "-m", "posenc", "study", "worker", str(path)], env=environment)


def failures(path):
    found = [json.loads(file.read_text()) for file in (path / "failed").iterdir()]
    return {problem["encoding"]: problem["message"] for problem in found}


def test_two_processes_are_one_and_fail_as_one(tmp_path):
    encodings = "rope,alibi,fox,study.own:FailingInOne"
    cut = together(fill(tmp_path / "cut", encodings, steps=5))
    found = failures(cut)
    assert found.keys() == {"fox", "study.own:FailingInOne"}
    assert "FoX reads all tokens from the first one" in found["fox"]
    assert "RuntimeError: out of positions in one (in own.py" in found["study.own:FailingInOne"]
    assert not [p for folder in ("queue", "claims", "workers") for p in (cut / folder).iterdir()]
    assert len(same(alone(fill(tmp_path / "alone", "rope,alibi", steps=5)), cut, 1e-5)) == 2


def text_encodings():
    """Return every encoding that the study takes."""
    for name in registry.names():
        with suppress(TypeError, ValueError):
            make_config([name])
            yield name


@pytest.mark.slow
def test_every_encoding_is_exact_or_refused(tmp_path):
    """In float64, where a wrong key is not lost in rounding; four processes divide the trained length alone."""
    names = ",".join(text_encodings())
    one, cut = (fill(tmp_path / folder, names, steps=3) for folder in ("one", "cut"))
    sized = {"optim.AdamW": hands.Plain, "nn.clip_grad_norm_": hands.unclipped}
    exactly = {"constants": EVERY_STEP | sized, "dtype": torch.float64}
    together(cut, 4, **exactly)
    refused = failures(cut)
    for message in refused.values():
        assert "Run its cells with posenc study worker without torchrun" in message
    assert len(refused) < 8
    alone(one, **exactly)
    for name in refused:
        shutil.rmtree(one / "cells" / f"{name}-text-16x2x2-s0")
    assert len(same(one, cut, 1e-9)) > 30


@pytest.mark.slow
def test_torchrun_and_the_command_line(tmp_path):
    """As a user starts them, on text and on positions of the data."""
    options = ("--task", "text,copy@randomised")
    one, cut = (fill(tmp_path / name, "nope,rope,alibi,t5,sinusoidal,learned", *options) for name in ("one", "cut"))
    done = torchrun(cut)
    assert done.wait(300) == 0
    assert posenc("study", "worker", str(one)).returncode == 0
    assert len(same(one, cut, 1e-5)) == 12


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes as Linux shows them")
def test_a_killed_process_ends_the_others_and_its_cell_is_done_again(tmp_path):
    path = fill(tmp_path / "cut", "rope", steps=300)
    agent = torchrun(path)
    end = time.monotonic() + 60
    while not any(re.search('"step": [1-9]', beat.read_text()) for beat in path.glob("workers/*.json")):
        assert time.monotonic() < end
        time.sleep(0.02)
    first = json.loads(next(path.glob("workers/*.json")).read_text())["pid"]
    ranks = {int(pid) for pid in Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()}
    assert first in ranks
    os.kill((ranks - {first}).pop(), signal.SIGKILL)
    assert agent.wait(60) != 0
    assert not Path(f"/proc/{first}").exists()
    assert [claim.name.split("~")[2] for claim in (path / "claims").iterdir()] == ["rope-text-16x2x2-s0"]
    alone(path)
    assert [cell.name for cell in (path / "cells").iterdir()] == ["rope-text-16x2x2-s0"]
