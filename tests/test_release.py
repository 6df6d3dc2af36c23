"""The pages and files of a release agree with the code: version, API.md, SECURITY.md, the forge's CI."""

import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import yaml

import posenc
from posenc import definitions
from posenc.cli import COMMANDS
from posenc.config import reading

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", (ROOT / "API.md").read_text(), re.MULTILINE | re.DOTALL))
SECURITY = (ROOT / "SECURITY.md").read_text()
JOBS = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]

# Written by hand from the design, so that a name that leaves API.md is missed.
PROMISED = """
Encoding Placed Additive Rotary Bias ContentBias ScoreMap Compose PerLayer OnAxes Mapped Piecewise attend explain create
names card register Dims Card positions.arange positions.continued positions.left_padded positions.packed positions.grid
frequencies.from_config definitions.find laws.run laws.parametrize hf.use Encoding.place Encoding.embed Encoding.rotate
Encoding.bias Encoding.score_scale Encoding.resolve Rotary.rotate_ Bias.dense Bias.score_mod Placed.cat Placed.last
"""


def listed(section: str) -> list[str]:
    return re.findall(r"`posenc\.([\w.]+)`", SECTIONS[section])


def resolve(name: str) -> object:
    found: object = posenc
    for part in name.split("."):
        found = getattr(found, part) if hasattr(found, part) else import_module(f"posenc.{name}")
    return found


def test_every_stable_name_is_there() -> None:
    names = listed("Stable")
    assert set(PROMISED.split()) <= set(names)
    assert len(names) == len(set(names))
    for name in names:
        if name != "encodings":  # the group of entry points
            assert resolve(name) is not None


def test_every_provisional_and_internal_name_is_there() -> None:
    for name in listed("Provisional") + listed("Internal"):
        assert resolve(name) is not None
    # of these two modules the listed functions are stable, and the others are not
    assert set(listed("Provisional")) & set(listed("Stable")) == {"frequencies", "positions"}


def test_every_encoding_is_public_and_has_the_definition_of_its_name() -> None:
    for name in posenc.names():
        assert resolve(posenc.card(name).declared.cls_name) is posenc.card(name).cls
        assert name == "nope" or definitions.find(name) is not None, name


def test_the_version_stands_in_one_place() -> None:
    assert PROJECT["dynamic"] == ["version"]
    assert "version" not in PROJECT
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert posenc.__version__ == cited["version"] == newest[1]


def test_the_page_about_the_interface_has_the_lowest_versions() -> None:
    versions = SECTIONS["Versions of Python and torch"]
    extras = PROJECT["optional-dependencies"]
    lowest = [
        PROJECT["requires-python"],
        extras["torch"][0].removeprefix("torch"),
        extras["hf"][1][len("transformers") :],
    ]
    said = re.findall(r"(?:Python|torch|transformers) ([\d.]+\d) or later", versions)
    assert [f">={version}" for version in said] == lowest


@pytest.mark.parametrize("page", ["API.md", "SECURITY.md"])
def test_links_lead_somewhere_and_the_readme_has_the_page(page: str) -> None:
    for name in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()):
        assert (ROOT / name).exists(), f"{page} names {name}"
    assert f"({page})" in (ROOT / "README.md").read_text()


def test_the_commands_and_limits_of_the_security_page_are_those_of_the_code() -> None:
    from posenc.explorer import launch, security
    from posenc.verify import child

    assert set(re.findall(r"`posenc (\w[\w-]*)`", SECURITY)) <= set(COMMANDS)
    assert f"({child.TIME_LIMIT:g} s) and memory ({child.MEMORY_LIMIT >> 30} GiB" in SECURITY
    assert f"{reading.MAX_BYTES >> 20} MiB, {reading.MAX_DEPTH} levels" in SECURITY
    assert f"{reading.MAX_STRING:,} characters" in SECURITY
    assert f"at most {security.MAX_BODY >> 20} MiB" in SECURITY
    assert f"listens on {launch.HOST}" in SECURITY


def test_no_code_of_the_package_opens_a_connection_or_a_pickle() -> None:
    clients = r"urllib\.request|urllib import .*request|http\.client|requests|httpx|aiohttp|huggingface_hub"
    outward = rf"^\s*(?:import|from) (?:{clients})\b"
    pickles = r"\bpickle\.(?:loads?|Unpickler)\(|torch\.load\(|allow_pickle=True|trust_remote_code=True"
    sources = {path.relative_to(ROOT / "src"): path.read_text() for path in (ROOT / "src").rglob("*.py")}
    found = [str(path) for path, code in sources.items() if re.search(outward, code, re.MULTILINE)]
    found += [str(path) for path, code in sources.items() if re.search(pickles, code)]
    assert found == ["posenc/laws/modules.py"]  # a law copies a module by a pickle that it has just made


def test_the_forge_runs_lint_types_tests_wheel_and_docs() -> None:
    run = [step["run"] for job in JOBS.values() for step in job["steps"] if "run" in step]
    assert run == ["make lint", "make types", "make test", "make wheel", "make docs"]
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {line.removeprefix("make ") for line in run} <= set(targets)
    lowest = tuple(map(int, PROJECT["requires-python"].removeprefix(">=").split(".")))
    tried = [tuple(map(int, version.split("."))) for version in JOBS["check"]["strategy"]["matrix"]["python"]]
    assert min(tried) == lowest
    assert "${{" not in "".join(run)
