"""Cards that are read from files without importing them, next to the classes that stand there."""

from pathlib import Path

import pytest

import posenc
from posenc import declared, registry
from posenc.declared import Declared
from strategies import refuses

FILE = '''
from posenc.families import Additive, OfLength
from posenc.encodings.rope import RoPE

@register("spiral", year=1999, traits={"smooth": True, "longest": -1}, used_by=("A", "B"))
class Spiral(%s):
    """Wind around.

    Args:
        d_model: Width.
    """

    def __init__(self, *, d_model: int, turns: float = -2.0, word: str = "a") -> None: ...
'''


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "rope.py").write_bytes((Path(declared.__file__).parent / "encodings" / "rope.py").read_bytes())
    monkeypatch.setattr(declared, "_FOLDER", tmp_path)
    return tmp_path / "spiral.py"


@pytest.mark.parametrize("name", posenc.names())
def test_a_file_declares_what_its_class_has(name: str) -> None:
    found, facts = declared.read(name)
    cls = getattr(posenc, found.cls_name)
    assert found.load() is cls
    assert found == Declared.of(cls)
    registered = registry._CARDS[name]
    assert {fact: getattr(registered, fact) for fact in facts} == facts
    assert registry.Card(name=name, declared=found, **facts) == registered


def test_facts_options_and_summary_are_read(written: Path) -> None:
    written.write_text(FILE % "OfLength, Additive")
    found, facts = declared.read("spiral")
    assert facts == {"year": 1999, "traits": {"smooth": True, "longest": -1}, "used_by": ("A", "B")}
    assert found.options == ("d_model", "turns=-2.0", "word='a'")
    assert (found.module, found.cls_name, found.family) == ("posenc.encodings.spiral", "Spiral", "additive")
    assert found.docstring == "Wind around.\n\nArgs:\n    d_model: Width."


def test_a_family_comes_from_another_encoding_or_from_the_class_itself(written: Path) -> None:
    written.write_text(FILE % "OfLength, RoPE")
    assert declared.read("spiral")[0].family == "rotary"
    written.write_text((FILE % "Budgeted").replace("    def __init__", '    family = "bias"\n\n    def __init__'))
    assert declared.read("spiral")[0].family == "bias"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("year=1999", "year=now()", ["spiral.py", "must be literals", "got now()", "Write the value out."]),
        ('word: str = "a"', "word: str = WORD", ["spiral.py", "must be literals", "got WORD"]),
        ('"spiral"', '"helix"', ["spiral.py must register one class", "@register('spiral', ...)"]),
        ("OfLength, Additive)", "OfLength)", ["Spiral: one of its bases must be a family", "got OfLength"]),
        ("def __init__", "def setup", ["Spiral: must define its own __init__"]),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(written: Path, old: str, new: str, words: list[str]) -> None:
    text = FILE % "OfLength, Additive"
    assert old in text
    written.write_text(text.replace(old, new))
    with refuses(ValueError, *words):
        declared.read("spiral")


def test_a_class_of_ones_own_declares_itself() -> None:
    class Own(posenc.Additive):
        """Add nothing."""

        def __init__(self, *, d_model: int, loud: bool = False) -> None:
            super().__init__(d_model=d_model)

    found = Declared.of(Own)
    assert (found.family, found.options, found.docstring) == ("additive", ("d_model", "loud=False"), "Add nothing.")
    assert found.load() is Own
