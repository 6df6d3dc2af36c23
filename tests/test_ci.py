"""What a project takes into its CI: the hook of pre-commit, the action of GitHub, and the page about both."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from command_line import posenc
from posenc import registry

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
    ("inputs", "asked"),
    [
        ({}, str(ROOT)),
        ({"version": "0.1.0"}, "posenc==0.1.0"),
        ({"version": "1.0rc1", "command": "verify"}, "posenc[torch]==1.0rc1"),
        ({"command": "verify-model"}, f"{ROOT}[hf]"),
    ],
)
def test_the_action_installs_itself_or_a_version_with_what_the_command_needs(tmp_path, inputs, asked):
    assert run_step(INSTALL, tmp_path, inputs).returncode == 0
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
        ({"targets": "$(touch evil)"}, "'$(touch evil)' is neither a configuration"),
        ({"targets": "models/good'; touch evil; '"}, "is neither a configuration"),
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


PAGE = (ROOT / "docs" / "ci.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = re.findall(r"^    (posenc .+)$", PAGE, re.MULTILINE)
MINE = """
STYLE, SPEC = "slopes_fn", {"encoding": "alibi", "heads": 12}
def build():
    return lambda n: [2 ** (-8 * (h + 1) / n) for h in range(n)]
"""


def block(beginning):
    (found,) = [text for _, text in BLOCKS if text.startswith(beginning)]
    return found


def install(site, name, entries):
    """Write what pip writes of a package's entry points."""
    (site / f"{name}-1.0.dist-info").mkdir(parents=True)
    (site / f"{name}-1.0.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = "".join(f"{key} = {value}\n" for key, value in entries.items())
    (site / f"{name}-1.0.dist-info" / "entry_points.txt").write_text(f"[posenc.encodings]\n{lines}")
    return site


@pytest.fixture
def site(tmp_path):
    """A folder in which the page's package is installed."""
    project = tomllib.loads(block("# pyproject.toml"))["project"]
    folder = install(tmp_path / "site", project["name"], project["entry-points"]["posenc.encodings"])
    (folder / "recent.py").write_text(block("# recent.py"))
    return folder


def test_the_commands_of_the_page_run(models, site):
    (models / "mine.py").write_text(MINE)
    (models / "bin").mkdir()
    (models / "bin" / "posenc").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m posenc "$@"\n')
    (models / "bin" / "posenc").chmod(0o755)
    paths = {"PATH": f"{models / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": f"{site}:{ROOT / 'src'}"}
    done = {
        command: subprocess.run(
            ["bash", "-c", command], cwd=models, env=os.environ | paths, capture_output=True, text=True, check=False
        )
        for command in COMMANDS
    }
    assert [one.returncode for one in done.values()] == [1, 1, 1, 1, 0, 0], done
    assert "config.json: 1 finding" in done[COMMANDS[0]].stdout
    assert len(json.loads((models / "posenc.sarif").read_text())["runs"][0]["results"]) == 1
    assert 'type="alibi.slopes.not_power_of_two"' in (models / "posenc.xml").read_text()
    assert done[COMMANDS[3]].stdout.startswith("::error file=mine.py,line=3,title=alibi.slopes.not_power_of_two::")
    assert "recency" in done[COMMANDS[4]].stdout
    assert "-sqrt(distance) (h + 1)" in done[COMMANDS[5]].stdout


@pytest.mark.slow
def test_the_tests_of_the_page_pass(tmp_path):
    (tmp_path / "test_positions.py").write_text(block("# test_positions.py"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "posenc.pytest_plugin", "."]
    paths = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=tmp_path, env=paths, capture_output=True, text=True, check=False)
    assert "1 passed, 1 xfailed" in done.stdout


def test_the_settings_of_the_page_are_those_of_the_files():
    (hook,) = yaml.safe_load(block("repos:"))["repos"][0]["hooks"]
    assert hook["id"] == HOOK["id"]
    assert [bool(re.search(hook["files"], name)) for name in ("models/a/config.json", "config.json")] == [True, False]
    steps = yaml.safe_load(block("jobs:"))["jobs"]["positions"]["steps"]
    (ours,) = [step for step in steps if "posenc@" in step["uses"]]
    assert set(ours["with"]) <= set(ACTION["inputs"])
    assert steps[-1]["with"]["sarif_file"] == f"${{{{ steps.{ours['id']}.outputs.{next(iter(ACTION['outputs']))} }}}}"


OUTSIDE = """
import sys, torch, posenc
from posenc import registry
assert "recency" in registry.names()
assert "recent" not in sys.modules and registry.card("rope").name == "rope" and "recent" not in sys.modules
card = registry.card("recency")
import torch
made = registry.create("recency", dims=registry.Dims(n_heads=8))
assert type(made).__module__ == "recent" and made.n_heads == 8 and registry.card_of(type(made)) is card
assert registry.names().count("recency") == 1
assert posenc.laws.run(made, ["traits"], dtype=torch.float32) == []
print(card.as_dict()["example"])
"""


def test_a_package_adds_an_encoding_that_is_imported_when_it_is_used(site):
    paths = os.environ | {"PYTHONPATH": f"{site}:{ROOT / 'src'}"}
    done = subprocess.run([sys.executable, "-c", OUTSIDE], env=paths, capture_output=True, text=True, check=False)
    assert done.stdout == "recent.Recency(n_heads=4)\n", done.stderr


@pytest.mark.parametrize(
    ("name", "both"),
    [("rope", r"posenc and mine \(mine:PE\)"), ("rotary", r"posenc and mine \(mine:PE\)"), ("recency", "mine.*recent")],
)
def test_a_name_is_given_once_and_both_packages_are_named(site, monkeypatch, name, both):
    monkeypatch.syspath_prepend(install(site, "mine", {name: "mine:PE"}))
    with pytest.raises(ValueError, match=rf"two packages have an encoding named {name!r}: .*Uninstall") as refused:
        registry.names()
    assert re.search(both, str(refused.value)) or re.search(r"recent.*mine", str(refused.value))
    assert registry.card("rope").name == "rope"  # what posenc has is not taken away


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("1 / 0", "the encoding 'recency' of recent (recent:Recency) cannot be loaded: ZeroDivisionError"),
        ("class Recency: pass", "recent (recent:Recency) must register its class as 'recency'"),
        ("raise SystemExit(0)", "cannot be loaded: SystemExit"),
    ],
)
def test_a_broken_package_is_named_and_hides_no_other_encoding(site, code, said):
    (site / "recent.py").write_text(code)
    command = [sys.executable, "-m", "posenc", "list", "re*"]
    paths = os.environ | {"PYTHONPATH": f"{site}:{ROOT / 'src'}"}
    done = subprocess.run(command, env=paths, capture_output=True, text=True, check=False)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert "retnet" in done.stdout
    assert done.returncode == 0
