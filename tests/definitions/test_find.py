"""How definitions are found, and that they stand alone."""

from __future__ import annotations

import ast
import inspect
from types import ModuleType

import pytest

from posenc import definitions
from posenc.definitions import additive, bias, embedded, features, rotary

ADDITIVE = """integer normalised sine sinusoidal learned binary time2vec tape cape
sinusoidal_nd learned_2d hierarchical"""


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (additive, ADDITIVE.split()),
        (features, ["learnable_fourier", "gaussian_fourier", "nerf_fourier"]),
        (embedded, ["complex_order", "cpvt"]),
        (rotary, ["rope", "xpos", "axial_rope"]),
        (
            bias,
            ["nope", "alibi", "t5", "kerple", "kerple_power", "sandwich", "relative_bias", "shaw", "transformer_xl"],
        ),
    ],
)
def test_find(module: ModuleType, names: list[str]) -> None:
    for name in names:
        assert definitions.find(name) is getattr(module, name)
    for name in ("math", "np", "Array", "Fraction", "cache", "_t5_bucket", "no_such_encoding", ""):
        assert definitions.find(name) is None


def test_find_leaves_helpers_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def helper() -> None: ...

    helper.__module__ = bias.__name__
    for name in ("helper", "_helper"):
        monkeypatch.setattr(bias, name, helper, raising=False)
    assert definitions.find("helper") is helper
    assert definitions.find("_helper") is None


@pytest.mark.parametrize("module", [definitions, additive, features, embedded, rotary, bias])
def test_no_torch(module: ModuleType) -> None:
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Import):
            assert not any(alias.name.split(".")[0] == "torch" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] != "torch"
