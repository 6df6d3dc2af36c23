"""The additive definitions, against numbers typed from the literature and against second forms."""

from __future__ import annotations

import ast
import inspect
import math
from types import ModuleType
from typing import Any

import mpmath
import numpy as np
import pytest

from posenc import definitions
from posenc.definitions import additive, bias, rotary

# section 3.5 of arXiv 1706.03762 for d_model = 4: sin p, cos p, sin p/100, cos p/100
TABLE_4 = [
    [0.0000000000, 1.0000000000, 0.0000000000, 1.0000000000],
    [0.8414709848, 0.5403023059, 0.0099998333, 0.9999500004],
    [0.9092974268, -0.4161468365, 0.0199986667, 0.9998000067],
    [0.1411200081, -0.9899924966, 0.0299955002, 0.9995500337],
]
POS = np.array([0.0, 1.0, 2.5, 17.0, -3.0, 1000.0])


def waves(angles: list[float]) -> list[tuple[float, float]]:
    """(sin, cos) of each angle as the parts of exp(i angle), in 30 digits."""
    with mpmath.workdps(30):
        turned = [mpmath.expj(angle) for angle in angles]
        return [(float(z.imag), float(z.real)) for z in turned]


def test_sinusoidal_typed_table() -> None:
    np.testing.assert_allclose(additive.sinusoidal(np.arange(4), d_model=4), TABLE_4, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("d_model", "exponent", "omega"),
    [
        (8, "paper", [1.0, 0.1, 0.01, 0.001]),
        (4, "paper", [1.0, 0.01]),
        (8, "tensor2tensor", [1.0, 10000 ** (-1 / 3), 10000 ** (-2 / 3), 0.0001]),
        (6, "tensor2tensor", [1.0, 0.01, 0.0001]),
        (10, "tensor2tensor", [1.0, 0.1, 0.01, 0.001, 0.0001]),
        (2, "paper", [1.0]),
        (2, "tensor2tensor", [1.0]),
        (5, "paper", [1.0, 0.025118864315095794, 0.000630957344480193]),  # 10**-1.6, 10**-3.2
        (5, "tensor2tensor", [1.0, 0.01, 0.0001]),
        (1, "paper", [1.0]),
        (1, "tensor2tensor", [1.0]),
    ],
)
@pytest.mark.parametrize("order", ["alternating", "concatenated"])
def test_sinusoidal_lanes(d_model: int, exponent: Any, omega: list[float], order: Any) -> None:
    got = additive.sinusoidal(POS, d_model=d_model, exponent=exponent, order=order)
    assert got.shape == (len(POS), d_model)
    assert got.dtype == np.float64
    for row, p in zip(got, POS, strict=True):
        pairs = waves([p * w for w in omega])
        if order == "alternating":
            want = [lane for pair in pairs for lane in pair][:d_model]
        else:
            want = ([s for s, _ in pairs] + [c for _, c in pairs])[:d_model]
        np.testing.assert_allclose(row, want, rtol=0, atol=1e-12)


def test_sinusoidal_other_base() -> None:
    got = additive.sinusoidal(np.array([3.0]), d_model=4, base=400.0)
    np.testing.assert_allclose(got[0, 2:], [math.sin(0.15), math.cos(0.15)], rtol=1e-14)


def test_sinusoidal_given_inv_freq() -> None:
    got = additive.sinusoidal(np.array([2.0]), d_model=3, base=7.0, inv_freq=np.array([0.25, 3.0]))
    np.testing.assert_allclose(got, [[math.sin(0.5), math.cos(0.5), math.sin(6.0)]], rtol=1e-14)


def test_sinusoidal_wavelengths() -> None:
    """2 pi to 10000 * 2 pi by the code's exponent; by the paper's formula the last is a step short of it."""
    longest = {"tensor2tensor": 10000.0, "paper": 1000.0}  # d_model 8: 10000**(6/8)
    for exponent, reach in longest.items():
        quarter = 2 * math.pi * np.array([1.0, reach]) / 4
        got = additive.sinusoidal(quarter, d_model=8, exponent=exponent)  # type: ignore[arg-type]
        np.testing.assert_allclose(got[0, :2], [1.0, 0.0], atol=1e-12)
        np.testing.assert_allclose(got[1, 6:], [1.0, 0.0], atol=1e-12)


@pytest.mark.parametrize("step", [1.0, 5.0, -2.5])
def test_sinusoidal_shift_is_linear(step: float) -> None:
    """The paper's claim that PE(p + k) is one linear map T(k) of PE(p), the same at every p."""
    shift = np.zeros((8, 8))
    for lane, omega in zip((0, 2, 4, 6), (1.0, 0.1, 0.01, 0.001), strict=True):
        cos, sin = math.cos(step * omega), math.sin(step * omega)
        shift[lane : lane + 2, lane : lane + 2] = [[cos, sin], [-sin, cos]]
    here, there = (additive.sinusoidal(p, d_model=8) for p in (POS, POS + step))
    np.testing.assert_allclose(there, here @ shift.T, atol=1e-12)


def test_learned_reads_rows() -> None:
    weight = np.array([[9.0, 9.5], [8.0, 8.5], [1.0, 1.5], [2.0, 2.5], [3.0, 3.5]])
    got = additive.learned(np.array([2, 0, 1, 0]), d_model=2, max_len=3, weight=weight, offset=2)
    np.testing.assert_array_equal(got, [[3.0, 3.5], [1.0, 1.5], [2.0, 2.5], [1.0, 1.5]])
    one_hot = np.eye(5)[[4, 1]] @ weight  # second form: a one-hot row times the table
    np.testing.assert_array_equal(additive.learned(np.array([4, 1]), d_model=2, max_len=5, weight=weight), one_hot)


@pytest.mark.parametrize("pos", [-1, 3])
def test_learned_outside_the_table(pos: int) -> None:
    with pytest.raises(IndexError, match=r"outside 0\.\.2"):
        additive.learned(np.array([pos]), d_model=1, max_len=3, weight=np.ones((5, 1)), offset=2)


@pytest.mark.parametrize("d_model", [1, 4, 7])
def test_binary_is_format_b(d_model: int) -> None:
    pos = np.arange(2**d_model)
    want = [[float(digit) for digit in format(n, f"0{d_model}b")] for n in pos.tolist()]
    got = additive.binary(pos, d_model=d_model)
    np.testing.assert_array_equal(got, want)
    assert got.dtype == np.float64


def test_binary_typed() -> None:
    np.testing.assert_array_equal(additive.binary(np.array([6]), d_model=4), [[0.0, 1.0, 1.0, 0.0]])
    np.testing.assert_array_equal(additive.binary(np.array([17]), d_model=4), [[0.0, 0.0, 0.0, 1.0]])
    assert additive.binary(np.array([], dtype=int), d_model=4).shape == (0, 4)


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (additive, ["sinusoidal", "learned", "binary"]),
        (rotary, ["rope", "xpos"]),
        (bias, ["nope", "alibi", "t5", "kerple", "relative_bias", "transformer_xl"]),
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


@pytest.mark.parametrize("module", [definitions, additive, rotary, bias])
def test_no_torch(module: ModuleType) -> None:
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Import):
            assert not any(alias.name.split(".")[0] == "torch" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] != "torch"
