"""The page on encodings of one's own: each of its classes works in every room of the library."""

import json
import re
import sys
import types
from pathlib import Path

import pytest
import torch

import command_line
import posenc
from posenc import laws, registry, verify
from posenc.explorer import views
from strategies import normal
from study.test_command import ONE_SEED, finish, start

PAGE = Path(__file__).parents[1] / "docs/guide/own.md"
*MODULE, USE = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
DIMS = posenc.Dims(d_model=32, n_heads=4, n_kv_heads=2, head_dim=8, max_len=128)
mypkg = types.ModuleType("mypkg")
exec(compile("\n\n".join(MODULE), "mypkg.py", "exec"), vars(mypkg))
NAMES = [name for name, found in vars(mypkg).items() if isinstance(found, type)]
OF_A_MODEL = [name for name in NAMES if name != "Resistance"]  # which needs the distances of a graph


def made(name):
    given = {"distances": torch.rand(128, 128)} if name == "Resistance" else {}
    return registry.construct(getattr(mypkg, name), DIMS, given)


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setitem(sys.modules, "mypkg", mypkg)


def test_each_family_has_an_example():
    families = {getattr(mypkg, name).family for name in NAMES}
    assert families >= {"additive", "embedded", "rotary", "bias", "content_bias", "score_map", "values"}
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)) == {
        base.__name__ for name in NAMES for base in getattr(mypkg, name).__bases__ if base.__module__ != "mypkg"
    }


@pytest.mark.parametrize("name", NAMES)
def test_verify_finds_nothing_wrong(name):
    """It runs all laws but the compiler's, and compares other ways to the same numbers."""
    report = verify.check(made(name), convention="encoding")
    assert (report.status, report.causes) == ("pass", ())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_compiler_keeps_one_graph(name):
    assert laws.run(made(name), ["compile"]) == []


def test_the_page_uses_what_it_defines():
    exec(compile(USE, str(PAGE), "exec"), vars(mypkg) | {"torch": torch, "posenc": posenc})


def test_readmes_own_example_passes(monkeypatch):
    """As a class, which is constructed with usual sizes."""
    readme = (PAGE.parents[2] / "README.md").read_text(encoding="utf-8")
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "class Recency" in b]
    monkeypatch.setitem(sys.modules, "readme", module := types.ModuleType("readme"))  # where pickle finds the class
    module.posenc = posenc
    exec(compile(block.partition("assert")[0], "README.md", "exec"), vars(module))
    assert verify.check(module.Recency, convention="encoding").status == "pass"


@pytest.mark.parametrize("name", OF_A_MODEL)
def test_show_and_the_explorer_draw_it(name):
    done = command_line.posenc("show", f"mypkg:{name}")
    assert (done.returncode, done.stderr) == (0, "")
    assert getattr(mypkg, name).__doc__.split()[0] in done.stdout
    assert "There is no picture" not in done.stdout
    views.allow(f"mypkg:{name}")
    for view in views.VIEWS.values():
        if view.fits(made(name)):
            short = {"length": "9"} if any(c["name"] == "length" for c in view.as_dict()["controls"]) else {}
            views.answer(view.id, {"a": f"mypkg:{name}"} | short)


def test_a_study_trains_them(tmp_path):
    text = tmp_path / "text"
    text.write_text("".join(map(chr, range(32, 127))) * 40)
    (tmp_path / "mypkg.py").write_text("\n\n".join(MODULE))
    names = ",".join(f"mypkg:{name}" for name in OF_A_MODEL)
    options = "--size", "16x1x2", "--steps", "2", "--json", "--out", "s"
    code, out, err = finish(start("--text", str(text), "--encodings", names, *ONE_SEED, *options, cwd=tmp_path))
    assert code == 0, err
    assert [cell["encoding"] for cell in json.loads(out)["results"]] == names.split(",")


def test_given_numbers_are_kept_as_they_are_given():
    distances = normal(5, 5)
    bias = mypkg.Resistance(n_heads=2, distances=distances).half().to("meta")
    assert torch.equal(bias.distances.table, distances)
    assert not bias.state_dict()
    got = mypkg.Resistance(n_heads=2, distances=distances.tolist()).dense(torch.arange(5), dtype=torch.float64)
    torch.testing.assert_close(got[0], -distances * torch.tensor([1.0, 2.0])[:, None, None], rtol=0, atol=0)
    with pytest.raises(TypeError, match="Table: needs numbers"):
        posenc.Table([[1.0], [1.0, 2.0]])


def test_a_position_beyond_the_last_is_refused_before_the_author_sees_it():
    rows = mypkg.Rows(d_model=4, max_len=8)
    for pos in (8, -1):
        with pytest.raises(ValueError, match=r"Rows: positions must lie in 0\.\.7, because it has max_len=8"):
            rows.place(torch.tensor([0, pos]))


def test_sharp_scores_and_results_in_float32_break_no_law():
    sharp = posenc.RoPE(head_dim=8, score_factor=16.0)
    assert laws.run(sharp, ["half precision", "far positions", "autocast"]) == []
