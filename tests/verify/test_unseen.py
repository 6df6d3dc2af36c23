"""Faults, twins and oddities by somebody who had seen neither the checks nor the corpus."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from posenc import verify

FILES = {path.stem: path for path in sorted((Path(__file__).parent / "unseen").glob("*.py"))}
RENAMED = {  # the same statement under the name that the checks have for it
    "fn_log_spaced": "rope.frequency.last_is_base",
    "hf_rows_of_batch": "rope.batch.rows_share",
}


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"unseen_{name}", FILES[name])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.sample(30)
@pytest.mark.parametrize("name", FILES)
def test_each_is_judged_as_its_author_expects(name):
    module = loaded(name)
    report = verify.check(module.build(), convention=module.STYLE, spec=module.SPEC)
    if module.EXPECT in ("pass", "equivalent"):
        assert report.status in ("pass", "equivalent"), report
    else:
        assert report.status == "fail", report
        assert report.causes[0].code == RENAMED.get(name, module.EXPECT), report
