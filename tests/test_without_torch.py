"""An environment that has what `pip install posenc` brings, and so no torch."""

import json
import os
import re
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import pytest

import posenc

ROOT = Path(__file__).parents[1]
Run = Callable[..., subprocess.CompletedProcess[str]]
LLAMA = {"model_type": "llama", "head_dim": 8, "num_hidden_layers": 2, "max_position_embeddings": 64}


def distributions(requirements: Sequence[str]) -> dict[str, metadata.Distribution]:
    """Return what requirements bring, by name; what another system needs is not here."""
    found: dict[str, metadata.Distribution] = {}
    waiting = list(requirements)
    while waiting:
        line = waiting.pop()
        name = re.match(r"[\w.-]+", line)
        if name is None or "extra ==" in line or name[0].lower() in found:
            continue
        try:
            distribution = metadata.distribution(name[0])
        except metadata.PackageNotFoundError:
            continue
        found[name[0].lower()] = distribution
        waiting += distribution.requires or []
    return found


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Make the environment of links to packages that are here; return what runs Python in it."""
    root = tmp_path_factory.mktemp("bare")
    venv.create(root, symlinks=True, with_pip=False)
    python = root / ("Scripts" if os.name == "nt" else "bin") / "python"
    asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
    (packages / "posenc").symlink_to(Path(posenc.__file__).parent)
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    for distribution in distributions(wanted).values():
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(str(distribution.locate_file(top)))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON") and k != "COLUMNS"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([python, *arguments], capture_output=True, text=True, env=environment, cwd=root)

    return run


def test_there_is_no_torch(bare: Run) -> None:
    done = bare("-c", "import numpy, click, safetensors, posenc; print(posenc.__version__); import torch")
    assert (done.stdout.strip(), done.returncode) == (posenc.__version__, 1)
    assert "No module named 'torch'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["list"], 0, ["textbook: teaching", "  rope    ", "  sinusoidal_nd"]),
        (["list", "ro*", "--json"], 0, ['"cls": "RoPE"', '"arxiv": "2104.09864"']),
        (["show", "rotary"], 0, ["score = q_iᵀ R((j - i)·ω) k_j", "base=10000.0", "posenc.RoPE(head_dim=64)"]),
        (["show", "graphormer"], 0, ["bias", "posenc.Graphormer(n_heads=4, max_distance=12, distances=('tree', 64))"]),
        (
            ["inspect", "llama-3.1-8b"],
            0,
            ["llama3, factor 8", "29 kept, 6 blended, 29 divided", "70 dimensions complete a period"],
        ),
        (["verify-config", "llama-3.1-8b"], 0, ["nothing found"]),
        (["rule", "rope.layout.mixed"], 0, ["Why it matters:", "How to fix it:"]),
        (["golden", "--config", "llama-3.1-8b", "--out", "llama"], 0, ["llama: full_attention (", "manifest.json"]),
        (["parity", "llama-3.1-8b"], 0, ["llamacpp", "vllm", "same    1.0000"]),
        (["plan", "llama-3-8b", "--target-len", "65536"], 0, ["Recommended without training: yarn", "posenc write"]),
        (["write", "qwen3-8b", "--method", "yarn", "--factor", "4", "--to", "llamacpp"], 0, ["--rope-scale 4 --yarn-"]),
        (["--version"], 0, [posenc.__version__]),
        (["doctor"], 1, ["posenc is not installed"]),  # of which there is no metadata there
    ],
)
def test_commands_that_need_none(bare: Run, arguments: list[str], code: int, said: list[str]) -> None:
    done = bare("-X", "utf8", "-m", "posenc", *arguments)
    assert (done.returncode, done.stderr) == (code, "")
    shown = re.sub(r"\s*\n\s+", " ", done.stdout) if arguments[0] == "show" else done.stdout
    assert [words for words in said if words not in shown] == []


def test_pictures_come_from_definitions(bare: Run) -> None:
    picture = json.loads(bare("-m", "posenc", "show", "alibi", "--json").stdout)["picture"]
    assert (picture["kind"], picture["series"][0]["values"][:3]) == ("bias", [0.0, -0.25, -0.5])


def test_a_picture_of_learned_numbers_is_left_out_with_one_line(bare: Run) -> None:
    shown = bare("-X", "utf8", "-m", "posenc", "show", "t5").stdout.splitlines()
    assert shown[-1] == "The picture, whose numbers are learned, needs torch: pip install 'posenc[torch]'"
    picture = json.loads(bare("-m", "posenc", "show", "t5", "--json").stdout)["picture"]
    assert (picture["kind"], picture["title"], picture["series"]) == ("none", shown[-1], [])


@pytest.mark.parametrize(
    "command",
    [
        "show rope --precision",
        "list --table",
        "study",
        "bench rotary",
        "golden --out new",
        "show json:loads",
        "convert new --pairing half --out other",
    ],
)
def test_commands_that_need_torch_say_so(bare: Run, command: str) -> None:
    done = bare("-m", "posenc", *command.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"posenc: `posenc {command}` needs torch: pip install 'posenc[torch]'\n"


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        (
            "posenc.definitions.find('alibi')(np.array([3]), np.array([1]), n_heads=1, bias_max=1.0).tolist()",
            [[[-1.0]]],
        ),
        ("posenc.frequencies.linear(np.array([1.0, 0.5]), factor=2.0).tolist()", [0.5, 0.25]),
        (f"posenc.frequencies.from_config({LLAMA} | {{'rope_theta': 1e4}}).inv_freq.tolist()", [1.0, 0.1, 0.01, 0.001]),
        (f"posenc.config.rotary({LLAMA}).rotary_dim", 8),
        (f"posenc.inspection.inspect({LLAMA})['layers'][0]['count']", 2),
        ("len(posenc.names()) == len([name for name in dir(posenc) if name in CLASSES])", True),
        ("[posenc.card('rope').options[0], posenc.card('RoPE').family]", ["head_dim", "rotary"]),
        ("posenc.registry.names('rop*')", ["rope", "rope_pp"]),
    ],
)
def test_python_that_needs_none(bare: Run, code: str, wanted: object) -> None:
    classes = {posenc.card(name).declared.cls_name for name in posenc.names()}
    done = bare("-c", f"import json, posenc, numpy as np; CLASSES = {classes}; print(json.dumps({code}))")
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found == (pytest.approx(wanted, rel=1e-15) if isinstance(wanted, list) and "from_config" in code else wanted)


@pytest.mark.parametrize(
    ("code", "who"),
    [
        ("posenc.RoPE", "posenc.RoPE"),
        ("posenc.attend", "posenc.attend"),
        ("from posenc import Encoding", "posenc.Encoding"),
        ("posenc.laws", "posenc.laws"),
        ("posenc.create('rope', head_dim=8)", "posenc.RoPE"),
        ("posenc.card('rope').examples()", "posenc.RoPE"),
        ("posenc.create('json:JSONDecoder')", "json:JSONDecoder"),
    ],
)
def test_python_that_needs_torch_says_so(bare: Run, code: str, who: str) -> None:
    done = bare("-c", f"import posenc\n{code}")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last == f"ModuleNotFoundError: {who} needs torch: pip install 'posenc[torch]'"


@pytest.mark.parametrize(
    ("command", "absent"),
    [
        ("--version", {"numpy", "rich"}),
        ("list", {"numpy", "rich"}),
        ("show rope", set()),
        ("show alibi --json", {"rich"}),
        ("inspect llama-3.1-8b", {"rich"}),
        ("verify-config llama-3.1-8b", {"numpy", "rich"}),
        ("rule rope.layout.mixed", {"numpy", "rich"}),
        ("parity llama-3.1-8b", {"rich"}),
        ("plan llama-3-8b --target-len 65536", {"rich"}),
        ("write qwen3-8b --method yarn --factor 4 --to vllm", {"rich"}),
        ("golden --config llama-3.1-8b --positions 0,1 --out new", {"rich"}),
    ],
)
def test_where_torch_is_installed_they_do_not_import_it(command: str, absent: set[str], tmp_path: Path) -> None:
    code = "import sys; from posenc.cli import run; run(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    call = [sys.executable, "-c", code, *command.split()]
    done = subprocess.run(call, capture_output=True, text=True, check=True, cwd=tmp_path)
    loaded = set(done.stderr.split())
    assert "posenc.cli" in loaded
    assert not loaded & ({"torch", "jaxtyping", "jinja2", "transformers", "pydantic"} | absent)
