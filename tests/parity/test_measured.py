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
from posenc.extend.stretch import stretch
from posenc.extend.write import RefusedError, write
from posenc.parity.compare import compare
from posenc.parity.loading import choose, known

STACKS = Path(__file__).parents[2] / "benchmarks" / "stacks"
FOLDER = files("posenc.parity").joinpath("measured")
TABLES = {path.name: json.loads(path.read_text("utf-8")) for path in FOLDER.iterdir()}
OF_TRANSFORMERS = TABLES["hf-5.23.0.json"]["models"]
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
    small, _, _ = stacks
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
    here = [item for item in request.session.items if item.originalname == "test_transformers_does_what_its_table_says"]
    names, jobs = {item.callspec.params["name"] for item in here}, []
    for name, config in small.configurations(sorted(names)).items():
        own = list(probes.jobs({name: config}))
        draw = random.Random(name)
        draw.shuffle(own)
        own.sort(key=lambda job: job["key"].partition("/")[2] not in OF_TRANSFORMERS[name])  # departures first
        jobs += [*own[: N_PROBES - 1], own[-1]]
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
@pytest.mark.parametrize("name", [name for name in OF_TRANSFORMERS if name in TYPES])
def test_transformers_does_what_its_table_says(name, stacks, asked):
    transformers = pytest.importorskip("transformers")
    if transformers.__version__ != "5.23.0":
        pytest.skip(f"the table is of 5.23.0, and {transformers.__version__} is installed")
    _, _, learn = stacks
    rules, outcomes, compared = known()["hf@5.23.0"], OF_TRANSFORMERS[name], 0
    for key, (config, answer) in asked.items():
        if key.startswith(f"{name}/"):
            try:
                case = learn.Case(key.partition("/")[2], config, answer)
            except (ValueError, TypeError, KeyError, ArithmeticError):  # posenc finds no meaning
                continue
            verdict, now = learn.learn(case, rules, outcomes)
            assert now == outcomes, key
            doubts = [probe for probe, outcome in outcomes.items() if outcome == "unknown"]
            if verdict == "unknown" and doubts == [case.probe]:  # nothing is unknown that can be learned
                without = {probe: outcome for probe, outcome in outcomes.items() if probe != case.probe}
                assert learn.learn(case, rules, without)[0] in ("unknown", "raised"), key
            compared += 1
    assert compared


# mlx_lm/models/NAME.py constructs nn.RoPE from rope_theta and does not pass the scaling on
@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral", "ernie4_5", "cohere2", "gemma2", "llama4_text"])
def test_a_scaling_that_mlx_ignores(name):
    file = {"model_type": name, "hidden_size": 512, "num_attention_heads": 4, "num_hidden_layers": 4, "head_dim": 128}
    file |= {"max_position_embeddings": 32768, "rope_theta": 1e4}
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    (found,) = compare(file | {"rope_scaling": scaling}, choose("mlx")).stacks
    assert (found.status, found.gain) == ("differs", 1.0)
    with pytest.raises(RefusedError, match=f"its code for {name} does not read rope_scaling"):
        write(stretch(file, "yarn", factor=4, trained_len=32768), "mlx")
