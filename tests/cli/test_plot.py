import subprocess
import sys
from xml.etree import ElementTree

import pytest
from PIL import Image

import posenc
from posenc import figures
from posenc.cli import plot, run
from posenc.families import Additive


class Ramp(Additive):
    """Add the position to every lane."""

    def __init__(self, *, d_model, slope=1.0):
        super().__init__()
        self.d_model, self.slope = d_model, slope

    def vectors(self, pos):
        return (pos[..., None] * self.slope).expand(*pos.shape, self.d_model).double()


def text_of(path):
    """Return the words of a figure's file, which stand in comments of its SVG."""
    return path.read_text("utf-8")


def refused(capsys, *arguments):
    """Run, and return the one line that says what is wrong."""
    assert run(["plot", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_a_file_is_written_that_opens(suffix, tmp_path, capsys):
    out = tmp_path / f"alibi.{suffix}"
    assert run(["plot", "alibi", "-o", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: bias of ALiBi(n_heads=8)\n"
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
    if suffix == "svg":
        assert ElementTree.parse(out).getroot().tag.endswith("}svg")
        assert "Bias of each head: ALiBi(n_heads=8)" in text_of(out)
    elif suffix == "png":
        with Image.open(out) as image:
            image.verify()
    else:
        assert out.read_bytes().startswith(b"%PDF-")


def test_a_kind_and_options_are_taken(tmp_path, capsys):
    out = tmp_path / "a.svg"
    assert (
        run(["plot", "rope", "--kind", "wavelengths", "--with", "base=5e5", "--with", "head_dim=32", "-o", str(out)])
        == 0
    )
    assert "wavelengths of RoPE(head_dim=32, base=500000.0)" in capsys.readouterr().out
    assert "Wavelength of each pair: RoPE(head_dim=32, base=500000.0)" in text_of(out)


def test_learned_numbers_are_the_same_each_time_and_said_to_be_fresh(tmp_path):
    first, second, fixed = (tmp_path / name for name in ("a.svg", "b.svg", "c.svg"))
    for out, name in ((first, "t5"), (second, "t5"), (fixed, "alibi")):
        assert run(["plot", name, "-o", str(out)]) == 0
    assert first.read_bytes() == second.read_bytes()
    assert "freshly initialised (seed 0)" in text_of(first)
    assert "freshly initialised" not in text_of(fixed)


def test_labels_are_chinese_where_a_font_has_the_glyphs(tmp_path, monkeypatch):
    out = tmp_path / "a.svg"
    monkeypatch.setattr(figures.fonts, "find_chinese", lambda: figures.fonts.PLAIN)
    with pytest.warns(UserWarning, match="missing from"):  # the glyphs, of that font
        assert run(["plot", "t5", "--lang", "zh", "-o", str(out)]) == 0
    assert "各头的偏置：T5(n_heads=8)" in text_of(out)
    assert "随机种子 0" in text_of(out)


@pytest.mark.filterwarnings("default")
def test_without_a_font_one_line_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(figures.fonts, "CHINESE", ("No Such Font",))
    assert run(["plot", "alibi", "--lang", "zh", "-o", str(tmp_path / "a.svg")]) == 0
    said = capsys.readouterr().err
    assert said.startswith("posenc: plot: no font with Chinese glyphs is installed, so the labels stay English.")
    assert "Warning" not in said
    assert ".py" not in said


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "name", ["longrope", "swin", "self_extend", "nope", "graphormer", "prope", "gta", "tests.cli.test_plot:Ramp"]
)
def test_what_needs_more_than_sizes_is_drawn_too(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tests.cli.test_plot", sys.modules[__name__])
    assert run(["plot", name, "-o", str(tmp_path / "a.png")]) == 0
    assert (tmp_path / "a.png").stat().st_size > 5_000


def test_kinds_are_those_of_the_figures():
    assert set(plot.KINDS) == set(figures.KINDS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("alibi", "--kind", "heatmap", "-o", "a.png"), "'heatmap' does not fit ALiBi. These fit ALiBi: bias, "),
        (("alibi", "--kind", "x", "-o", "a.png"), "'x' is not a kind of figure. These fit ALiBi: bias, bias-matrix, "),
        (("alibi", "-o", "a.doc"), "must end in one of .avif"),
        (("alibi", "-o", "a"), "must end in one of .avif"),
        (("alibo", "-o", "a.png"), "did you mean 'alibi'?"),
        (("rope", "--with", "base=-1", "-o", "a.png"), "base must be a finite number greater than 1"),
        (("rope", "--with", "bas=3", "-o", "a.png"), "did you mean 'base'?"),
        (("rope", "--with", "base", "-o", "a.png"), "--with must be OPTION=VALUE"),
        (("alibi", "-o", "no/such/folder/a.png"), "No such file or directory"),
        (("alibi",), "Missing option '-o'"),
        (("alibi", "--lang", "fr", "-o", "a.png"), "'fr' is not one of 'en', 'zh'"),
    ],
)
def test_errors_are_one_sentence(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, *arguments)
    assert not list(tmp_path.iterdir())


def test_matplotlib_that_is_missing_is_named(tmp_path):
    code = (
        "import sys; sys.modules['matplotlib'] = None; from posenc.cli import run;"
        f"sys.exit(run(['plot', 'alibi', '-o', {str(tmp_path / 'a.png')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "needs matplotlib" in done.stderr
    assert "pip install 'posenc[plot]'" in done.stderr


def test_what_was_there_stays_if_writing_fails_half_way(tmp_path, monkeypatch, capsys):
    out = tmp_path / "a.png"
    out.write_text("before")

    def break_off(figure, place, **options):
        place.write_text("half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figures.Drawing, "savefig", break_off)
    assert "No space left on device" in refused(capsys, "alibi", "-o", out)
    assert out.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real.svg").write_text("before")
    (tmp_path / "link.svg").symlink_to(tmp_path / "real.svg")
    assert run(["plot", "alibi", "-o", str(tmp_path / "link.svg")]) == 0
    assert (tmp_path / "link.svg").is_symlink()
    assert "<svg" in (tmp_path / "real.svg").read_text()


def test_the_command_line_starts_without_what_draws():
    code = "import sys, posenc.cli; print([m for m in ('torch', 'matplotlib', 'numpy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_the_global_seed_is_left_alone(tmp_path):
    import torch

    torch.manual_seed(5)
    wanted = torch.rand(1)
    torch.manual_seed(5)
    assert run(["plot", "learned", "-o", str(tmp_path / "a.png")]) == 0
    assert torch.rand(1) == wanted
    assert posenc.Learned(d_model=2, max_len=2).weight.requires_grad
