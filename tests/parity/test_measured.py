"""The tables of measurements: their form, and that of the installed transformers next to transformers itself."""

import json
import math
import random
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from posenc.config.models import TYPES
from posenc.parity.loading import known

STACKS = Path(__file__).parents[2] / "benchmarks" / "stacks"
TABLES = {path.name: json.loads(path.read_text("utf-8")) for path in files("posenc.parity").joinpath("measured").iterdir()}
WORDS = ("ignored", "meant", "unknown")
N_PROBES = 6


@pytest.fixture(scope="module")
def stacks():
    """The modules of benchmarks/stacks that make probes and compare answers with rules."""
    sys.path.insert(0, str(STACKS))
    try:
        import learn
        import probes
        import small

        yield small, probes, learn
    finally:
        sys.path.remove(str(STACKS))


@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_well_formed(name, stacks):
    small, _, learn = stacks
    found = TABLES[name]
    assert name == f"{found['stack']}-{found['version']}.json"
    assert f"{found['stack']}@{found['version']}" in known()
    types = {*TYPES, *small.DATA["by_hand"], "kimi_k2"}
    assert set(found["models"]) | set(found["unbuilt"]) <= types
    assert not set(found["models"]) & set(found["unbuilt"])
    for outcomes in found["models"].values():
        for outcome in outcomes.values():
            for one in outcome.values() if isinstance(outcome, dict) else [outcome]:
                number = isinstance(one, float) and math.isfinite(one)
                assert number or one in WORDS or "Error: " in one or one.startswith("Died: "), one
    assert all(isinstance(why, str) and why for why in found["unbuilt"].values())


@pytest.fixture(scope="module")
def asked(request, stacks, tmp_path_factory):
    """Return configurations and transformers' answers of some probes of the model types that this run tests."""
    small, probes, _ = stacks
    items = [item for item in request.session.items if item.originalname == "test_transformers_does_what_its_table_says"]
    names = {item.callspec.params["name"] for item in items}
    table, jobs = TABLES["hf-5.23.0.json"]["models"], []
    for name, config in small.configurations(sorted(names)).items():
        own = list(probes.jobs({name: config}))
        draw = random.Random(name)
        draw.shuffle(own)
        own.sort(key=lambda job: job["key"].partition("/")[2] not in table[name])  # departures first
        jobs += own[: N_PROBES // 2] + own[-N_PROBES // 2 :]
    folder = tmp_path_factory.mktemp("asked")
    file, answers = folder / "jobs.json", folder / "answers.jsonl"
    file.write_text(json.dumps(jobs))
    done = subprocess.run([sys.executable, "-m", "ask.hf", file, answers], cwd=STACKS, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = {}
    for line in answers.read_text().splitlines():
        found |= json.loads(line)
    return {job["key"]: (job["config"], found[job["key"]]) for job in jobs if job["key"] in found}


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", [name for name in TABLES.get("hf-5.23.0.json", {"models": {}})["models"] if name in TYPES])
def test_transformers_does_what_its_table_says(name, stacks, asked):
    transformers = pytest.importorskip("transformers")
    if transformers.__version__ != "5.23.0":
        pytest.skip(f"the table is of 5.23.0, and {transformers.__version__} is installed")
    _, _, learn = stacks
    outcomes = TABLES["hf-5.23.0.json"]["models"][name]
    compared = 0
    for key, (config, answer) in asked.items():
        if key.startswith(f"{name}/"):
            try:
                case = learn.Case(key.partition("/")[2], config, answer)
            except (ValueError, TypeError, KeyError, ArithmeticError):  # posenc finds no meaning
                continue
            verdict, now = learn.learn(case, known()["hf@5.23.0"], outcomes)
            assert now == outcomes, key
            compared += 1
    assert compared
