"""docs/adopt.md shows the diffs of examples/adopt/, whose models compute the same before and after."""

import difflib
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
HERE = ROOT / "examples" / "adopt"
PAGE = (ROOT / "docs" / "adopt.md").read_text(encoding="utf-8")
MODELS = {"gpt": "GPT", "vit": "ViT"}
SMALL = {"width": 24, "n_heads": 2, "n_layers": 2}


def fenced(language):
    return dict(zip(MODELS, re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL), strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_the_page_shows_the_diff_of_the_files(name):
    before, after = ((HERE / f"{name}_{when}.py").read_text().splitlines() for when in ("before", "after"))
    assert fenced("diff")[name].splitlines() == list(difflib.unified_diff(before, after, lineterm="", n=1))[2:]


@pytest.mark.parametrize("name", MODELS)
def test_the_weights_load_by_the_page_and_outputs_stay(name):
    before, after = (
        runpy.run_path(HERE / f"{name}_{when}.py")[MODELS[name]](**SMALL).eval() for when in ("before", "after")
    )
    exec(fenced("python")[name], {"state": before.state_dict(), name: after})
    x = torch.randint(96, (2, 40)) if name == "gpt" else torch.randn(2, 3, 224, 224)
    torch.testing.assert_close(after(x), before(x), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_the_comparison_reports_equal_models_and_times():
    script = [sys.executable, "-W", "error", str(HERE / "compare.py")]
    done = subprocess.run(script, capture_output=True, encoding="utf-8", env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert (done.returncode, done.stderr) == (0, "")
    took = re.findall(r"^\w+: .* a step takes (\d\.\d\d)$", done.stdout, re.MULTILINE)
    assert len(took) == 2
    assert max(map(float, took)) < 1.3
