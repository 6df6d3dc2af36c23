"""What a project takes into its CI: the hook of pre-commit, the action of GitHub, and the page about both."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from command_line import posenc

ROOT = Path(__file__).parents[1]
(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
INSTALL, CHECK = ACTION["runs"]["steps"]
GOOD = {"model_type": "llama", "head_dim": 64, "num_hidden_layers": 2, "max_position_embeddings": 8192}
GOOD |= {"rope_theta": 10000.0}
BAD = GOOD | {"rope_theta": 0.5}


@pytest.fixture
def models(tmp_path):
    for name, fields in {"good": GOOD, "a bad one": BAD}.items():
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "config.json").write_text(json.dumps(fields, indent=1))
    return tmp_path


def test_the_hook_runs_on_what_it_matches(models):
    program, *arguments = shlex.split(HOOK["entry"])
    assert (program, HOOK["language"], HOOK["types"]) == ("posenc", "python", ["json"])
    files = ["config.json", "models/good/config.json", "models/a bad one/config.json"]
    others = ["my-config.json", "config.jsonl", "config.json/a.txt", "tokenizer_config.json"]
    assert [name for name in files + others if re.search(HOOK["files"], name)] == files  # as pre-commit does
    assert posenc(*arguments, files[1], cwd=models).returncode == 0
    done = posenc(*arguments, *files[1:], cwd=models)  # pre-commit gives many files to one call
    assert done.returncode == 1
    assert "models/a bad one/config.json: 1 finding" in done.stdout
    assert "models/good/config.json: nothing found" in done.stdout


def run_step(step, folder, inputs):
    """Run a step as GitHub's runner does: expressions become the values of environment variables, in bash."""
    given = {name: fact.get("default", "") for name, fact in ACTION["inputs"].items()} | inputs
    values = {f"inputs.{name}": value for name, value in given.items()} | {"github.action_path": str(ROOT)}
    env = {name: re.sub(r"\$\{\{ (.+?) \}\}", lambda m: values[m[1]], value) for name, value in step["env"].items()}
    assert "${{" not in step["run"]  # nothing untrusted is a part of the script
    assert step["shell"] == "bash"
    (folder / "runner").mkdir(exist_ok=True)
    script = folder / "runner" / "script.sh"
    script.write_text(step["run"])
    (folder / "bin").mkdir(exist_ok=True)
    python = folder / "bin" / "python"  # pip is only recorded, since tests have no network
    record = '[ "$3" = pip ] && { printf "%s\\n" "$@" > pip.txt; exit; }'
    python.write_text(f'#!/bin/sh\n{record}\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    paths = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
    files = {"RUNNER_TEMP": str(folder / "runner"), "GITHUB_OUTPUT": str(folder / "runner" / "output")}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]
    return subprocess.run(
        command, cwd=folder, env=os.environ | env | paths | files, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("version", "asked"), [("", str(ROOT)), ("0.1.0", "posenc==0.1.0"), ("1.0rc1", "posenc==1.0rc1")]
)
def test_the_action_installs_itself_or_a_version(tmp_path, version, asked):
    assert run_step(INSTALL, tmp_path, {"version": version}).returncode == 0
    assert (tmp_path / "pip.txt").read_text().splitlines() == ["-P", "-m", "pip", "install", "--quiet", asked]


@pytest.mark.parametrize(
    "version", ["--index-url=https://evil", "0.1.0 evil", "../evil", "$(touch evil)", "0.1;touch evil"]
)
def test_the_action_installs_nothing_else(tmp_path, version):
    done = run_step(INSTALL, tmp_path, {"version": version})
    assert (done.returncode, done.stderr) == (2, "posenc: version must be one such as 0.1.0\n")
    assert not (tmp_path / "pip.txt").exists()
    assert not (tmp_path / "evil").exists()


def test_the_action_checks_every_line_and_pattern(models):
    done = run_step(CHECK, models, {"targets": "llama-3.1-8b\nmodels/*/config.json\n"})
    assert done.returncode == 1, done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith("::error file=models/a bad one/config.json,line=6,title=out_of_range::")
    done = run_step(CHECK, models, {"targets": "models/good", "format": "sarif"})
    assert done.returncode == 0
    report = (models / "runner" / "output").read_text().splitlines()[-1].removeprefix("report=")
    assert Path(report).read_text() == done.stdout
    assert json.loads(done.stdout)["version"] == "2.1.0"
    assert ACTION["outputs"]["report"]["value"] == "${{ steps.check.outputs.report }}"
    assert CHECK["id"] == "check"


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"targets": "models/good", "command": "study; touch evil"}, "posenc: command must be"),
        ({"targets": "$(touch evil)"}, "no configuration is at '$(touch evil)'"),
        ({"targets": "models/good'; touch evil; '"}, "no configuration is at"),
        ({"targets": "--exec=touch evil", "command": "verify"}, "TARGET must be FILE.py or package.module:OBJECT"),
        ({"targets": "models/good", "format": "$(touch evil)"}, "--output-format must be text, json"),
    ],
)
def test_no_input_of_the_action_is_run(models, inputs, said):
    (models / "json.py").write_text("open('evil', 'w')")  # a module of the repository under check
    done = run_step(CHECK, models, inputs)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (models / "evil").exists()
