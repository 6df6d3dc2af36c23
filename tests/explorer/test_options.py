import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, Optional

import pytest
import torch

import posenc
from posenc.explorer import options

EVERY = posenc.names()


class Mine:
    """Do something.

    With a second paragraph: it has a colon.

    Args:
        head_dim: Lanes of one head.
        base: A number, as in the paper:
            larger for longer contexts.
        window: Lengths and widths.

    Raises:
        ValueError: Never.
    """

    family = "rotary"

    def __init__(
        self,
        *,
        head_dim: int,
        max_len: int,
        base: float = 10000.0,
        factor: int | float = 2,
        pairing: Literal["half", "interleaved"] = "half",
        precision: Optional[Literal["a"]] = None,  # noqa: UP045
        slopes: Literal["authors"] | Sequence[float] = "authors",
        window: tuple[int, int] = (7, 7),
        heads: int | Sequence[int] | None = None,
        inv_freq: torch.Tensor | Sequence[float] | Callable[[torch.Tensor], torch.Tensor] | None = None,
        trainable: bool = False,
        inner: str = "rope",
        distances: torch.Tensor | Sequence[Any] | None = None,
        rotary_dim: int | None = None,
    ) -> None:
        pass


@pytest.fixture(scope="module")
def mine():
    found = options.controls(Mine, {"head_dim": 16, "max_len": 4_000_000, "base": 5.0})
    return {control["name"]: control for control in found}


@pytest.mark.parametrize(
    ("name", "kind", "default"),
    [
        ("head_dim", "int", 16),  # the example's, since it must be given
        ("base", "float", 10000.0),  # the constructor's, which the example does not replace
        ("factor", "float", 2),
        ("pairing", "choice", "half"),
        ("precision", "choice", None),
        ("slopes", "text", "authors"),
        ("window", "text", "7,7"),
        ("heads", "text", None),
        ("inv_freq", "text", None),
        ("trainable", "bool", False),
        ("inner", "text", "rope"),
        ("rotary_dim", "int", None),
    ],
)
def test_kinds_and_defaults_come_from_the_signature(mine, name, kind, default):
    assert (mine[name]["kind"], mine[name]["default"]) == (kind, default)


def test_what_cannot_be_written_has_no_control(mine):
    assert "distances" not in mine


def test_choices(mine):
    assert mine["pairing"]["choices"] == ["half", "interleaved"]
    assert mine["precision"]["choices"] == ["a", ""]  # "" is None
    assert mine["slopes"]["choices"] == ["authors"]  # or numbers


def test_what_must_be_given_is_marked(mine):
    assert [name for name, control in mine.items() if control["required"]] == ["head_dim", "max_len"]


def test_ranges(mine):
    assert (mine["base"]["log"], mine["base"]["min"]) == (True, 2)
    assert mine["max_len"]["max"] == 4_000_000  # widened to the default
    assert mine["head_dim"]["step"] == 2
    assert "min" not in mine["trainable"]


def test_help_comes_from_the_docstring(mine):
    assert mine["head_dim"]["help"] == "Lanes of one head."
    assert mine["base"]["help"] == "A number, as in the paper: larger for longer contexts."
    assert mine["window"]["help"] == "Lengths and widths."
    assert mine["inner"]["help"] == ""
    assert options.helps_of(type("Bare", (), {})) == {}


def test_a_whole_example_stands_where_the_constructors_own_values_do_not_fit():
    class Sections:
        """Share pairs out."""

        def __init__(self, *, head_dim: int, sections: Sequence[int] = (16, 24, 24)) -> None:
            if 2 * sum(sections) != head_dim:
                raise ValueError

    example = {"head_dim": 64, "sections": (8, 12, 12)}
    assert options.defaults(Sections, example) == example
    assert options.defaults(Sections, {"head_dim": 128, "sections": (32, 16, 16)}) == {"head_dim": 128}
    assert [control["default"] for control in options.controls(Sections, example)] == [64, "8,12,12"]


def test_what_cannot_be_written_stands_as_in_the_example():
    card = posenc.card("graphormer")
    assert options.defaults(card.cls, card.example)["distances"] is card.example["distances"]


@pytest.mark.parametrize("name", EVERY)
def test_every_encoding_is_made_of_what_its_controls_show(name):
    card = posenc.card(name)
    shown = {control["name"]: control["default"] for control in options.controls(card.cls, card.example)}
    made = options.defaults(card.cls, card.example)
    card.cls(**made)
    parameters = inspect.signature(card.cls).parameters
    assert set(parameters) - set(shown) <= {"distances", "viewmats", "intrinsics", "matrix"}
    for option, default in shown.items():
        meant = made.get(option, parameters[option].default)
        written = ",".join(map(str, meant)) if isinstance(meant, tuple) else meant
        assert default == written


@pytest.mark.parametrize("name", EVERY)
def test_every_option_is_explained_and_its_slider_holds_its_default(name):
    card = posenc.card(name)
    for control in options.controls(card.cls, card.example):
        assert control["help"], control
        if "min" in control and control["default"] is not None:
            assert control["min"] <= control["default"] <= control["max"]
        if control["kind"] == "choice":
            assert (control["default"] or "") in control["choices"]
        if control.get("log"):
            assert control["min"] > 0


@pytest.mark.parametrize("name", EVERY)
def test_what_the_controls_show_is_what_a_question_without_options_means(name):
    from posenc.explorer.views.subjects import read_subject

    card = posenc.card(name)
    asked = {"a": name}
    for control in options.controls(card.cls, card.example):
        if control["default"] is not None:
            asked[f"a.{control['name']}"] = str(control["default"])
    plainly, spelled = (read_subject(query, 0).encoding for query in ({"a": name}, asked))
    assert repr(plainly) == repr(spelled)


def test_a_class_of_ones_own_has_controls_too():
    found = options.describe_class("my.pe:Mine", Mine, ["heat"])
    assert (found["cls"], found["family"], found["summary"]) == ("Mine", "rotary", "Do something.")
    assert found["views"] == ["heat"]
    assert set(found) == set(options.describe(posenc.card("rope"), []))
    assert found["options"][0]["default"] == options.EXAMPLE["head_dim"]
