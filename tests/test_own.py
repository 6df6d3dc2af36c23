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
OF_A_TEXT = [name for name in OF_A_MODEL if getattr(mypkg, name).n_axes == 1]


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
    names = ",".join(f"mypkg:{name}" for name in OF_A_TEXT)
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


class Fades(posenc.ContentBias):
    """Subtract the distance times a gate of the key, which is computed in float32 and for each key head."""

    def __init__(self, *, n_heads, n_kv_heads, head_dim):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, head_dim
        self.weight = torch.nn.Parameter(torch.zeros(n_kv_heads, head_dim))

    def bias(self, q, k, placed, k_placed):
        self.check_heads(q)
        gate = torch.sigmoid((k.float() * self.weight.float()[:, None]).sum(-1))
        distance = (placed.pos[..., :, None] - k_placed.pos[..., None, :]).abs()[..., None, :, :]
        return -gate.repeat_interleave(q.shape[1] // k.shape[1], 1)[:, :, None] * distance

    def reset_parameters(self):
        torch.nn.init.zeros_(self.weight)


class Window(posenc.Bias):
    """Hide keys beyond a distance."""

    def at(self, h, q, k):
        return torch.where((q - k).abs() <= 8 * (h + 1), 0.0, -torch.inf)


class Shared(posenc.Bias):
    """Subtract the distance, a whole number and the same for all heads."""

    by_distance = True

    def at(self, h, q, k):
        return -(q - k).abs()


class GatesValues(posenc.Encoding):
    """Multiply values by a number for each key head, and outputs by nothing."""

    n_heads, n_kv_heads, head_dim = 4, 2, 8

    def rotate_v(self, v, placed):
        return v * torch.tensor([1.0, -1.0], dtype=v.dtype, device=v.device)[:, None, None]

    def unrotate_out(self, out, placed):
        return out * torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=out.dtype, device=out.device)[:, None, None]


class AtOnce(posenc.Bias):
    """Subtract tuples, as an author of a bias on one axis would."""

    n_axes = 2

    def at(self, h, q, k):
        return -(q - k).abs()


class Colour(posenc.Bias):
    """Have an argument that no model gives."""

    def __init__(self, *, n_heads, colour):
        super().__init__(n_heads=n_heads)


@pytest.mark.parametrize("cls", [Fades, Window, Shared, GatesValues])
def test_encodings_of_other_kinds_pass(cls):
    encoding = registry.construct(cls, DIMS, {})
    assert verify.check(encoding, convention="encoding").causes == ()
    assert laws.run(encoding, ["compile"]) == []


@pytest.mark.parametrize("cls", [Fades, Window, Shared])
def test_show_and_the_explorer_draw_them(cls):
    done = command_line.posenc("show", f"test_own:{cls.__name__}", cwd=Path(__file__).parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert "There is no picture" not in done.stdout
    encoding = registry.construct(cls, DIMS, {})
    assert all(view.fits(encoding) in (True, False) for view in views.VIEWS.values())


def test_the_error_of_an_author_is_reported_with_its_line():
    line = r"TypeError: unsupported operand type\(s\) for -: 'tuple' and 'tuple' \(in test_own.py:\d+\)"
    (cause,) = verify.check(AtOnce(n_heads=2), convention="encoding").causes
    assert cause.code == "laws.raised"
    assert re.search(line, cause.message)
    done = command_line.posenc("show", "test_own:AtOnce", cwd=Path(__file__).parent)
    assert done.returncode == 0
    assert re.search(f"AtOnce raised {line}", " ".join(done.stdout.split()))


def test_a_class_that_needs_more_than_sizes_is_named_with_the_argument():
    (cause,) = verify.check(Colour, convention="encoding").causes
    assert (cause.code, "Colour needs colour" in cause.message) == ("laws.no_encoding", True)


class FloatVectors(posenc.Additive):
    def vectors(self, pos):
        return pos.float()


class FlatFrequencies(posenc.Rotary):
    def frequencies(self):
        return torch.ones(self.rotary_dim // 2)


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        (FloatVectors(d_model=8), r"FloatVectors: vectors\(pos\) must return \(5, 8\), .*; got \(5,\)"),
        (FlatFrequencies(head_dim=8), r"FlatFrequencies: frequencies\(\) must return .* = \(1, 4\), .*; got \(4,\)"),
    ],
)
def test_results_of_another_shape_are_refused(encoding, message):
    with pytest.raises(ValueError, match=message):
        encoding.place(torch.arange(5))


def test_a_content_bias_without_bias_or_vectors_is_refused():
    encoding, q = posenc.ContentBias(), torch.ones(1, 1, 2, 4)
    with pytest.raises(NotImplementedError, match=r"must define bias\(q, k, placed, k_placed\), or vectors"):
        posenc.attend(q, q, q, encoding, torch.arange(2))


def test_sharp_scores_and_results_in_float32_break_no_law():
    sharp = posenc.RoPE(head_dim=8, score_factor=16.0)
    assert laws.run(sharp, ["half precision", "far positions", "autocast"]) == []
