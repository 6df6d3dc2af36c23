"""What `import posenc` brings, and what it does not."""

import ast
import graphlib
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

import posenc
from posenc import registry

HEAVY = ("torch", "matplotlib", "click", "triton", "numpy", "pydantic", "jinja2")

# the names that design.md promises, as far as this issue goes
PROMISED = [
    "Encoding", "Placed", "Additive", "Rotary", "Bias", "ContentBias",
    "Compose", "OnAxes", "PerLayer", "attend", "explain", "create",
    "names", "card", "register", "Dims", "Card", "laws",
    "positions", "definitions", "frequencies", "registry", "nn", "RoPE",
    "ALiBi", "T5", "Sinusoidal", "Learned", "NoPE", "Binary",
    "KERPLE", "RelativeBias", "TransformerXL", "XPos",
    "measure", "figures", "Norm", "reuse_pages", "rephase", "move_keys",
]  # fmt: skip


def run(code: str) -> str:
    """Run code in a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_is_light() -> None:
    code = f"import sys, posenc, posenc.registry; print([m for m in {HEAVY} if m in sys.modules])"
    assert run(code) == "[]"


@pytest.mark.slow
def test_a_name_is_resolved_when_it_is_asked_for() -> None:
    code = "import sys, posenc; a = 'torch' in sys.modules; posenc.RoPE; print(a, 'torch' in sys.modules)"
    assert run(code) == "False True"


def test_definitions_and_registry_need_no_torch() -> None:
    code = "import sys, posenc; posenc.definitions.find('rope'); posenc.registry; print('torch' in sys.modules)"
    assert run(code) == "False"


def test_the_face_is_light() -> None:
    assert run("import sys, posenc.cli; print([m for m in ('torch', 'matplotlib') if m in sys.modules])") == "[]"


@pytest.mark.sample(40)
@pytest.mark.parametrize("name", PROMISED)
def test_promised_names(name: str) -> None:
    assert getattr(posenc, name) is not None
    assert name in dir(posenc)


def test_every_listed_name_is_there() -> None:
    assert [name for name in dir(posenc) if not hasattr(posenc, name)] == []


def test_every_encoding_is_listed() -> None:
    classes = {posenc.card(name).cls.__name__ for name in posenc.names()}
    assert classes | {"__version__", "__doc__"} <= set(dir(posenc))


def test_star_import_and_submodules() -> None:
    code = "from posenc import attention, kernels, encodings, laws; import posenc; print(posenc.attention.attend)"
    assert "function attend" in run(code)


@pytest.mark.parametrize("name", ["Rope", "no_such_name", "_private", "__wrapped__"])
def test_unknown_attributes(name: str) -> None:
    with pytest.raises(AttributeError, match=f"^module 'posenc' has no attribute '{name}'$"):
        getattr(posenc, name)
    assert not hasattr(posenc, name)


def test_names_are_the_same_objects_wherever_they_are_found() -> None:
    from posenc.encodings.rope import RoPE

    assert posenc.RoPE is RoPE
    assert posenc.registry is registry
    assert posenc.create is registry.create


def test_version() -> None:
    from importlib.metadata import version

    assert posenc.__version__ == version("posenc")


ROOMS = ("attention", "bench", "encodings", "families", "kernels", "measure")


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Everything in some code, functions included, but not what only type checkers read."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from statements(node)


def imports(code: str, files: Collection[str]) -> set[str]:
    found = []
    for node in statements(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            whole = (f"{node.module}.{alias.name}" for alias in node.names)
            found += [name if name in files else node.module for name in whole]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return {str(name) for name in found if name in files}


def test_files_import_one_another_in_no_circle() -> None:
    home = Path(posenc.__file__).parent
    paths = [path for room in ROOMS for path in (home / room).rglob("*.py")]
    files = {".".join(path.relative_to(home.parent).with_suffix("").parts): path for path in paths}
    files = {name.removesuffix(".__init__"): path for name, path in files.items()}
    graph = {name: imports(path.read_text(), files) for name, path in files.items()}
    assert len(graph) > 100
    graphlib.TopologicalSorter(graph).prepare()  # which names a circle
