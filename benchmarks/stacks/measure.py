"""Measure what a stack's own code does with the keys of a configuration, and write its table.

    python benchmarks/stacks/measure.py vllm --python VENV/bin/python
    python benchmarks/stacks/measure.py vllm --answers FILE      # learns again from answers

It makes a small configuration of each model type, changes one key at a time, asks the stack in its environment what
each layer rotates, and writes where that departs from the stack's rules into src/posenc/parity/measured. README.md says
how the environments are made.
"""

import argparse
import datetime
import json
import os
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import learn
import probes
import small

from posenc.parity.loading import choose, known
from posenc.parity.rules import Rules

HERE = Path(__file__).resolve().parent
TABLES = HERE.parents[1] / "src" / "posenc" / "parity" / "measured"
PROGRAMS = {"hf": "hf", "vllm": "vllm", "sglang": "sglang", "mlx-lm": "mlx", "llamacpp": "llamacpp"}


def ask(python: str, program: str, jobs: list[dict[str, Any]], answers: Path) -> None:
    """Ask a stack in its environment; answers that are in the file are kept."""
    own = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | own
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(jobs, file)
        file.flush()
        command = [os.path.abspath(python), "-m", f"ask.{program}", file.name, str(answers.absolute())]
        subprocess.run(command, cwd=HERE, env=env, check=True, stdout=subprocess.DEVNULL)


def load(path: Path) -> dict[str, Any]:
    """Return the answers of a file by key, with the version of the stack."""
    found: dict[str, Any] = {}
    for line in path.read_text("utf-8").splitlines():
        found |= json.loads(line)
    return found


def rules_of(stack: str, version: str) -> Rules:
    """Return the rules of a version, those of the newest one if the version has none."""
    (newest,) = choose(stack)
    return known().get(f"{newest.stack}@{version}", newest)


def write(stack: str, version: str, configs: dict[str, Any], answers: dict[str, Any], date: str) -> Path:
    """Write the table of a stack, and print what was learned."""
    rules = rules_of(stack, version)
    if rules.version != version:
        print(f"posenc has no rules for {stack} {version}: these are departures from {rules.name}")
    models, unbuilt, verdicts = learn.tables(configs, answers, rules)
    rows = {"stack": rules.stack, "version": version, "date": date}
    table = json.dumps(rows, indent=1)[:-2]
    for name, part in (("models", models), ("unbuilt", unbuilt)):
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(part[key])}" for key in sorted(part))
        table += f',\n "{name}": {{\n{lines}\n }}'
    path = TABLES / f"{rules.stack}-{version}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(table + "\n}\n", "utf-8")
    counts = Counter(verdict.partition(":")[0] for verdict in verdicts.values())
    print(f"{path.name}: {len(models)} model types measured, {len(unbuilt)} could not be built;")
    print("; ".join(f"{n} probes {verdict}" for verdict, n in counts.most_common()))
    return path


def main() -> None:
    """Ask, learn and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stack", choices=list(PROGRAMS))
    parser.add_argument("--python", help="the interpreter of the environment; without it, nothing is asked")
    parser.add_argument("--answers", type=Path, help="a file that keeps the answers: only what it lacks is asked")
    parser.add_argument(
        "--types", type=lambda text: text.split(","), help="only these model types; no table is written"
    )
    parser.add_argument("--version", help="the name of the version, if the stack's rules name it otherwise")
    given = parser.parse_args()
    if not given.python and not given.answers:
        parser.error("there is nothing to learn from. Give --python, or --answers with a file of answers.")
    jobs = list(probes.jobs(small.configurations(given.types)))
    path = given.answers or Path(tempfile.mkdtemp()) / "answers.jsonl"
    if given.python:
        ask(given.python, PROGRAMS[given.stack], jobs, path)
    answers = load(path)
    configs = {job["key"]: job["config"] for job in jobs}
    version = given.version or answers["version"]
    if given.types:
        models, unbuilt, _ = learn.tables(configs, answers, rules_of(given.stack, version))
        print(json.dumps({"version": version, "models": models, "unbuilt": unbuilt}, indent=1))
    else:
        write(given.stack, version, configs, answers, answers.get("date") or str(datetime.date.today()))


if __name__ == "__main__":
    main()
