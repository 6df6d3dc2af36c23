"""Which pictures an encoding has: reported without running it, and the same as trying."""

import subprocess
import sys

import pytest

import posenc
from posenc import ALiBi, Compose, FoX, PerLayer, ReRoPE, RoPE, Sinusoidal, VORoPE, measure, registry
from posenc.explorer import start, views
from posenc.explorer.targets import Target
from posenc.explorer.views import fitting

MIXED = [
    Compose(),
    Compose(RoPE(head_dim=8), ALiBi(n_heads=2)),
    Compose(Sinusoidal(d_model=8), RoPE(head_dim=4)),
    Compose(RoPE(head_dim=4), RoPE(head_dim=4, base=100.0)),
    Compose(ReRoPE(head_dim=4, window=3), ALiBi(n_heads=2)),
    Compose(FoX(d_model=8, n_heads=2), RoPE(head_dim=4)),
    Compose(RoPE(head_dim=4), VORoPE(head_dim=4)),
    Compose(ALiBi(n_heads=2), VORoPE(head_dim=4)),
    Compose(VORoPE(head_dim=4), VORoPE(head_dim=4, base=100.0)),
    PerLayer([RoPE(head_dim=4), ALiBi(n_heads=2)]),
    PerLayer([ALiBi(n_heads=2), RoPE(head_dim=4)]),
]


def tried(ask):
    try:
        ask()
    except ValueError:
        return False
    return True


def check(encoding):
    """Hold what is reported against what a measurement answers; returns for how many pictures nothing is reported."""
    silent = 0
    for view in views.VIEWS.values():
        if view.suits is None:
            continue
        reported = view.suits(encoding)
        silent += reported is None
        assert reported in (None, view.refuses(encoding) is None), (encoding, view.id)
        assert view.fits(encoding) == (view.lacks(encoding) is None)
    for reported, ask in (
        (fitting.has_bias_curve(encoding), lambda: measure.bias_curve(encoding, [0])),
        (fitting.maps_distances(encoding), lambda: measure.effective_distance(encoding, 1)),
    ):
        assert reported in (None, tried(ask))
    return silent


@pytest.mark.sample(14)
@pytest.mark.parametrize("name", posenc.names())
def test_of_each_encoding_what_is_told_is_what_trying_says(name):
    for encoding in registry.card(name).examples():
        assert check(encoding) <= 1  # wavelengths of sines are found by looking at them


@pytest.mark.parametrize("encoding", MIXED, ids=lambda e: "+".join(type(m).__name__ for m in e.modules()))
def test_of_encodings_made_of_encodings_too(encoding):
    assert check(encoding) <= 1


def test_nothing_is_told_of_a_class_of_ones_own():
    class Quiet(RoPE):
        def bias(self, q, k, placed, k_placed):
            return None

    quiet = Quiet(head_dim=4)
    assert fitting.members(quiet) is None
    assert fitting.has_bias(quiet) is None
    assert not views.VIEWS["bias"].fits(quiet)
    assert views.VIEWS["heat"].fits(quiet)
    assert check(quiet) > 3


def test_every_view_of_an_encoding_but_precision_is_told_so():
    known = {view.id for view in views.VIEWS.values() if view.suits is not None}
    assert known == {view.id for view in views.VIEWS.values() if view.refuses is not None} - {"precision"}


def test_the_start_runs_no_encoding(monkeypatch):
    ran = []
    for name in ("heat_map", "profile", "bias_matrix", "bias_curve", "effective_distance"):
        monkeypatch.setattr(measure, name, lambda *given, **more: ran.append(given))
    found = start.late(Target("encoding", "rope"))
    assert len(found["encodings"]) == len(posenc.names())
    assert ran == []


@pytest.mark.slow
def test_the_start_imports_no_compiler():
    code = (
        "import sys; from posenc.explorer import start; from posenc.explorer.targets import Target;"
        "start.late(Target('encoding', 'rope'));"
        "print([name for name in ('numba', 'sympy', 'matplotlib') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
