"""Every law over every example and variant of every registered encoding, and the closed list of exceptions."""

import ast
import re
import shutil
from pathlib import Path

import pytest
import torch

import posenc
from posenc import definitions, laws
from posenc.laws.case import Case
from posenc.laws.exceptions import EXCEPTIONS, exemption
from posenc.laws.modules import compiled
from strategies import refuses

EXAMPLES = [example for name in posenc.names() for example in posenc.card(name).examples()]
ENCODINGS = Path(str(posenc.__file__)).parent / "encodings"
COMPOSED = [
    posenc.Compose(posenc.RoPE(head_dim=64), posenc.ALiBi(n_heads=4)),
    posenc.Compose(posenc.Sinusoidal(d_model=32), posenc.T5(n_heads=4, score_scale=1.0)),
    posenc.Compose(posenc.XPos(head_dim=8), posenc.TransformerXL(d_model=8, n_heads=2, head_dim=8)),
    posenc.OnAxes(posenc.KERPLE(n_heads=4), (1,), n_axes=2),
    posenc.OnAxes(posenc.RoPE(head_dim=64), (0,), n_axes=2),
]
LAYERED = [posenc.PerLayer([posenc.RoPE(head_dim=64), posenc.ALiBi(n_heads=4)])]


FIRST = [posenc.card(name).examples()[0] for name in posenc.names()]
VARIANTS = [variant for name in posenc.names() for variant in posenc.card(name).examples()[1:]]
COMPILES = [name for name, law in laws.LAWS.items() if law.compiles]


PLAIN = [name for name in laws.LAWS if name not in COMPILES]


@laws.parametrize(FIRST, PLAIN)
def test_law(encoding: posenc.Encoding, law: str, dtype: torch.dtype) -> None:
    assert laws.run(encoding, [law], dtype) == []


@pytest.mark.slow
@laws.parametrize(FIRST, COMPILES)
def test_law_of_compilers(encoding: posenc.Encoding, law: str, dtype: torch.dtype) -> None:
    assert laws.run(encoding, [law], dtype) == []


@pytest.mark.slow
@laws.parametrize(VARIANTS, PLAIN, [torch.float64])
def test_law_of_variants(encoding: posenc.Encoding, law: str, dtype: torch.dtype) -> None:
    assert laws.run(encoding, [law], dtype) == []


@pytest.mark.slow  # a variant has a formula of its own, which float64 shows, and the rounding of its example
@laws.parametrize(VARIANTS, [name for name in PLAIN if laws.LAWS[name].by_dtype], [torch.float32])
def test_law_of_variants_in_float32(encoding: posenc.Encoding, law: str, dtype: torch.dtype) -> None:
    assert laws.run(encoding, [law], dtype) == []


@pytest.mark.slow  # each takes seconds, and most variants compile as their example does
@laws.parametrize([*VARIANTS, *COMPOSED, *LAYERED], COMPILES)
def test_compiled_variants(encoding: posenc.Encoding, law: str, dtype: torch.dtype) -> None:
    assert laws.run(encoding, [law], dtype) == []


KEYED = [posenc.ALiBi(n_heads=4, sides="key", precision=precision) for precision in (None, "falcon-bfloat16")]


@pytest.mark.slow
@laws.parametrize(KEYED, [name for name in PLAIN if name != "traits"], [torch.float64])  # a shift moves whole rows
def test_law_of_biases_of_keys(encoding: posenc.Encoding, law: str, dtype: torch.dtype) -> None:
    assert laws.run(encoding, [law], dtype) == []


NEAR = COMPOSED[2]  # XPos: float32 ends far from its centre, as its exception says


@laws.parametrize(COMPOSED, PLAIN)
def test_law_of_composed_encodings(encoding: posenc.Encoding, law: str, dtype: torch.dtype) -> None:
    if law == "far positions" and encoding is NEAR:
        assert exemption(posenc.XPos(head_dim=8), law)
        return
    assert laws.run(encoding, [law], dtype) == []


@laws.parametrize(LAYERED, [name for name in PLAIN if name != "compose"])  # a Compose holds no PerLayer, and says so
def test_law_of_layers(encoding: posenc.Encoding, law: str, dtype: torch.dtype) -> None:
    assert laws.run(encoding, [law], dtype) == []


def missing_lines(folder: Path) -> list[str]:
    """Return what must be written for each file of encodings/ that lacks an export or a definition."""
    lines = []
    exported = (folder / "__init__.py").read_text()
    for path in sorted(folder.glob("[!_]*.py")):
        classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
        for node in classes:
            calls = [d for d in node.decorator_list if isinstance(d, ast.Call)]
            keys = [str(ast.literal_eval(d.args[0])) for d in calls if ast.unparse(d.func) == "register"]
            for key in keys:
                if key != path.stem:
                    lines.append(f"git mv encodings/{path.name} encodings/{key}.py")
                export = f"from posenc.encodings.{path.stem} import {node.name} as {node.name}"
                if export not in exported:
                    lines.append(f"encodings/__init__.py: {export}")
                if definitions.find(key) is None:
                    lines.append(f"definitions/: def {key}(...): ...  # from the paper")
    return lines


def test_every_encoding_has_its_export_its_definition_and_its_file() -> None:
    lines = missing_lines(ENCODINGS)
    assert not lines, "add:\n" + "\n".join(lines)


def test_the_missing_lines_are_named(tmp_path: Path) -> None:
    shutil.copy(ENCODINGS / "__init__.py", tmp_path)
    (tmp_path / "spiral.py").write_text('@register("spirals", year=1)\nclass Spiral(Encoding): ...\n')
    assert missing_lines(tmp_path) == [
        "git mv encodings/spiral.py encodings/spirals.py",
        "encodings/__init__.py: from posenc.encodings.spiral import Spiral as Spiral",
        "definitions/: def spirals(...): ...  # from the paper",
    ]


@pytest.mark.parametrize("name", posenc.names())
def test_every_name_is_exported(name: str) -> None:
    card = posenc.card(name)
    assert getattr(posenc, card.cls.__name__) is card.cls
    assert card.cls.__module__ == f"posenc.encodings.{name}"
    assert name == name.lower()
    assert name.isidentifier()


def test_every_file_is_registered() -> None:
    files = sorted(path.stem for path in ENCODINGS.glob("[!_]*.py"))
    assert files == posenc.names(), "export each file in encodings/__init__.py, and name it like its registry key"


@pytest.mark.parametrize(("cls", "law"), list(EXCEPTIONS))
def test_each_exception_is_needed(cls: type, law: str) -> None:
    examples = [example for example in EXAMPLES if type(example) is cls]
    assert examples, f"{cls} is no registered class"
    assert EXCEPTIONS[cls, law]
    assert exemption(examples[0], law) == EXCEPTIONS[cls, law]
    assert any(laws.LAWS[law](example) for example in examples), "the law holds; take the exception away"
    assert laws.run(examples[0], [law]) == []


def test_laws_refuse_what_is_no_law() -> None:
    with refuses(ValueError, "unknown law 'gravity'; the laws are definition, "):
        laws.run(posenc.NoPE(), ["gravity"])
    with refuses(ValueError, "dtype must be float64 or float32", "got torch.bfloat16"):
        laws.run(posenc.NoPE(), dtype=torch.bfloat16)


def test_laws_leave_the_encoding_alone() -> None:
    encoding = posenc.Learned(d_model=4, max_len=64).bfloat16()
    before = encoding.weight.detach().clone()
    assert laws.run(encoding, ["cache", "gradients", "meta", "far positions"]) == []
    assert encoding.weight.dtype == torch.bfloat16
    assert torch.equal(encoding.weight, before)


def test_a_violation_reads_as_a_sentence() -> None:
    law = laws.LAWS["copies"]
    assert str(laws.Violation("copies", "RoPE", "it broke")) == f"RoPE breaks 'copies' ({law.text}): it broke"
    assert law.text.endswith(".")


@pytest.mark.parametrize("name", list(laws.LAWS))
def test_each_law_is_stated(name: str) -> None:
    assert laws.LAWS[name].name == name
    assert len(laws.LAWS[name].text.split()) > 4
    assert laws.LAWS[name].text.endswith(".")


def test_a_law_turns_an_unexpected_exception_into_a_violation() -> None:
    class Raises(posenc.Encoding):
        def score_scale(self, head_dim: int) -> float:
            raise LookupError("no scale today")

    (violation,) = laws.run(Raises(), ["nothing there"])
    assert re.fullmatch(r"raised LookupError: no scale today \(in test_registry.py:\d+\)", violation.message)


@pytest.mark.compiles
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, while inductor is imported
@pytest.mark.skipif(shutil.which("c++") is None and shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", ["rope", "alibi", "t5"])
def test_inductor(name: str) -> None:
    for example in posenc.card(name).examples():
        assert list(compiled(Case(example, torch.float64), "inductor")) == []
