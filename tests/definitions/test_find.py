"""How definitions are found, and that they stand alone."""

from __future__ import annotations

import ast
import inspect
from types import ModuleType

import numpy as np
import pytest

from posenc import definitions
from posenc.definitions import additive, bias, embedded, features, rotary, rotations, versions

ADDITIVE = """integer normalised sine sinusoidal learned binary time2vec tape cape
sinusoidal_nd learned_2d hierarchical"""
ROTATIONS = "stretched_rope mixed_rope retnet fope pope grape_m liere dynamic_ntk longrope"


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (additive, ADDITIVE.split()),
        (features, ["learnable_fourier", "gaussian_fourier", "nerf_fourier"]),
        (embedded, ["complex_order", "cpvt"]),
        (rotary, ["rope", "xpos", "axial_rope"]),
        (rotations, ROTATIONS.split()),
        (
            bias,
            ["nope", "alibi", "t5", "kerple", "kerple_power", "sandwich", "relative_bias", "shaw", "transformer_xl"],
        ),
    ],
)
def test_find(module: ModuleType, names: list[str]) -> None:
    for name in names:
        assert definitions.find(name) is getattr(module, name)
    for name in ("math", "np", "Array", "Fraction", "cache", "_t5_bucket", "dynamic_base", "no_such_encoding", ""):
        assert definitions.find(name) is None


def test_find_leaves_helpers_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def helper() -> None: ...

    helper.__module__ = bias.__name__
    for name in ("helper", "_helper"):
        monkeypatch.setattr(bias, name, helper, raising=False)
    assert definitions.find("helper") is helper
    assert definitions.find("_helper") is None


@pytest.mark.parametrize("module", [definitions, additive, features, embedded, rotary, rotations, bias])
def test_no_torch(module: ModuleType) -> None:
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Import):
            assert not any(alias.name.split(".")[0] == "torch" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] != "torch"


def test_versions_of_a_bias_are_found() -> None:
    for name in versions.BIASES:
        assert definitions.find(name) is versions.BIASES[name]
    for name in ("alibi@", "alibi@unknown", "@falcon"):
        assert definitions.find(name) is None


def test_versions_of_alibi_part_where_they_say() -> None:
    pos, far = np.arange(6.0), np.array([300.0])
    names = ("alibi@authors", "alibi@geometric", "alibi@one-sided", "alibi@falcon")
    of = {name: versions.BIASES[name](pos, pos, n_heads=2) for name in names}
    ahead = np.triu(np.ones((6, 6), dtype=bool), 1)
    assert np.array_equal(of["alibi@authors"], of["alibi@geometric"])  # a power of two
    assert not of["alibi@one-sided"][:, ahead].any()
    assert (of["alibi@authors"][:, ahead] < 0).all()
    assert np.array_equal(of["alibi@one-sided"][:, ~ahead], of["alibi@authors"][:, ~ahead])
    # two heads have the slopes 1/16 and 1/256: nothing is rounded yet, and each row has slope * q_pos more
    row = np.array([1 / 16, 1 / 256])[:, None, None] * pos[:, None]
    assert np.array_equal((of["alibi@falcon"] - row)[:, ~ahead], of["alibi@authors"][:, ~ahead])
    three = [versions.BIASES[name](far, np.array([0.0]), n_heads=3) for name in names[:2]]
    assert not np.array_equal(*three)
    # of 257 and 256 keys, which bfloat16 does not tell apart
    apart = versions.BIASES["alibi@falcon"](far, np.array([256.0, 257.0]), n_heads=2)
    assert (apart[..., 0] == apart[..., 1]).all()
