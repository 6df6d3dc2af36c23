"""Whatever kind of object code returns, a check ends in a status: the same numbers in another kind are judged alike."""

from collections.abc import Callable
from functools import cache, wraps
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.programs import cases as programs

from posenc import verify
from posenc.verify.conventions import CONVENTIONS
from posenc.verify.identity.identify import identify

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # nested and sparse tensors are prototypes


class Foreign:
    """An array of another library, as NumPy reads those of JAX."""

    def __init__(self, t):
        self.array = t.detach().numpy()
        self.shape, self.dtype = self.array.shape, self.array.dtype

    def __array__(self, dtype=None, copy=None):
        return np.array(self.array, dtype)


class Lent:
    """An array that only exchanges its memory."""

    def __init__(self, t):
        self.t = t.detach().clone()

    def __dlpack__(self, **options):
        return self.t.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.t.__dlpack_device__()


class Broken:
    """An array that fails when it is read."""

    shape = (1, 2)

    def __array__(self, dtype=None, copy=None):
        raise ValueError("evaluation failed")


class Lazy(torch.Tensor):
    """A tensor that fails in every operation."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError("evaluation failed")


class Kind(torch.Tensor):
    """A tensor of a class of its own."""


def looping(_):
    found = []
    found.append(found)
    return found


SAME = {
    "NumPy": lambda t: t.detach().numpy(),
    "reversed strides": lambda t: np.flip(np.flip(t.detach().numpy()).copy()),
    "objects": lambda t: t.detach().numpy().astype(object),
    "big-endian": lambda t: t.detach().numpy().astype(t.detach().numpy().dtype.newbyteorder(">")),
    "__array__": Foreign,
    "__dlpack__": Lent,
    "numpy()": lambda t: SimpleNamespace(numpy=t.detach().numpy().copy),
    "sparse": lambda t: t.to_sparse(),
    "every second number": lambda t: torch.stack((t, t), -1)[..., 0],
    "negated view": lambda t: torch._neg_view(-t),
    "subclass": lambda t: t.as_subclass(Kind),
}
NO_NUMBERS = {
    "meta": lambda t: t.to("meta"),
    "nested": lambda t: torch.nested.nested_tensor([t.reshape(-1)[:1], t.reshape(-1)[:2]]),
    "jagged": lambda t: torch.nested.nested_tensor([t.reshape(-1)[:1], t.reshape(-1)[:2]], layout=torch.jagged),
    "lazy": lambda t: t.as_subclass(Lazy),
    "broken": lambda t: Broken(),
    "texts": lambda t: t.detach().numpy().astype(str),
    "dates": lambda t: np.zeros(t.shape, "M8[s]"),
    "records": lambda t: np.zeros(t.shape, [("a", "f4")]),
    "objects of None": lambda t: np.full(t.shape, None),
    "None": lambda t: None,
    "str": lambda t: "0.5",
    "dict": lambda t: {"out": t},
    "set": lambda t: {1.0, 2.0},
    "class": lambda t: np.ndarray,
    "function": lambda t: lambda: t,
    "in itself": looping,
}
OTHER = {  # only a status is required
    **{name: lambda t, name=name: t.to(getattr(torch, name)) for name in ("bfloat16", "float16", "float8_e4m3fn")},
    **{name: lambda t, name=name: t.to(getattr(torch, name)) for name in ("bool", "uint32", "complex64", "int64")},
    "conjugated": lambda t: t.to(torch.complex64).conj(),
    "long double": lambda t: t.detach().numpy().astype(np.longdouble),
    "float16 of NumPy": lambda t: t.detach().numpy().astype(np.float16),
    "quantised": lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8),
    "sparse rows": lambda t: t.reshape(len(t) if t.ndim else 1, -1).to_sparse_csr(),
    "trainable": lambda t: torch.nn.Parameter(t.float().detach()),
    "expanded": lambda t: t[..., :1].expand(t.shape) if t.ndim else t,
    "NaN": lambda t: t.float() * torch.nan,
    "inf": lambda t: t.float() + torch.inf,
    "-inf": lambda t: t.float() - torch.inf,
    "huge": lambda t: t.double() * 1e300,
    "empty": lambda t: t[:0] if t.ndim else t.new_empty(0),
    "one number": lambda t: t.reshape(-1)[0],
    "list": lambda t: t.tolist(),
    "ragged": lambda t: [[1.0], [2.0, 3.0]],
    "huge integers": lambda t: [10**400] * 3,
    "tuple of one": lambda t: (t,),
    "tuple of five": lambda t: (t,) * 5,
    "generator": lambda t: (x for x in [t]),
    "tensors": lambda t: list(t) if t.ndim else [t],
}


def returning(convention: str, subject: object, change: Callable) -> object:
    """Return a subject whose results, or their parts, are changed; of a pair of functions those of the last."""

    def changed(found):
        if convention == "cached_model":
            return change(found[0]), *found[1:]
        if isinstance(found, tuple):
            return tuple(map(change, found))
        return change(found if isinstance(found, torch.Tensor) else torch.as_tensor(found))

    def around(function):
        return wraps(getattr(function, "forward", function))(lambda *args, **named: changed(function(*args, **named)))

    if convention in ("hf_rope", "meta_complex"):
        return subject[0], around(subject[1])
    if convention == "lucidrains":
        return SimpleNamespace(rotate_queries_or_keys=around(subject.rotate_queries_or_keys))
    return around(subject)


@cache
def right():
    """Return one correct program for each convention."""
    found = {}
    for name, case in programs().items():
        if name.startswith("programs/") and not case.is_fault:
            found.setdefault(case.load().STYLE, case)
    return found


def checked(convention, change):
    module = right()[convention].load()
    return verify.check(returning(convention, module.build(), change), convention=convention, spec=module.SPEC)


def test_each_convention_has_a_program():
    assert {*right(), "encoding"} == set(CONVENTIONS)


@pytest.mark.parametrize("convention", right())
@pytest.mark.parametrize("kind", SAME)
def test_the_same_numbers_in_another_kind_of_array(convention, kind):
    report = checked(convention, SAME[kind])
    assert report.status == right()[convention].expect, report


@pytest.mark.parametrize("convention", right())
@pytest.mark.parametrize("kind", NO_NUMBERS)
def test_no_numbers(convention, kind):
    if (convention, kind) == ("score_mod", "lazy"):
        pytest.skip("torch.vmap makes it an ordinary tensor")
    report = checked(convention, NO_NUMBERS[kind])
    assert [cause.code for cause in report.causes] == ["subject.result"], report


@pytest.mark.parametrize("convention", right())
@pytest.mark.parametrize("kind", OTHER)
def test_any_result_ends_in_a_status(convention, kind):
    assert checked(convention, OTHER[kind]).status in ("pass", "equivalent", "fail", "cannot_tell")


NOT_APPLIED = {  # their results are positions, row numbers, angles and slopes, which half precision does not hold
    *("slopes_fn", "bucket_fn", "relative_index_fn", "mrope_fn", "rope2d_table_fn"),
    *("mrope_positions_fn", "position_fn", "packed_position_fn", "learned_rows_fn"),
}


@pytest.mark.parametrize("convention", sorted({*right()} - NOT_APPLIED))
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_numbers_that_are_right_up_to_the_rounding_of_their_dtype(convention, dtype):
    report = checked(convention, OTHER[dtype])
    assert report.status == right()[convention].expect, report


def rope(x, positions, held):
    angle = positions.to(held).double()[:, None] * 10000.0 ** (-torch.arange(0, 64, 2).double() / 64)
    a, b = x.double().chunk(2, -1)
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1).bfloat16()


@pytest.mark.parametrize(("held", "status"), [(torch.int64, "pass"), (torch.bfloat16, "fail"), (torch.float16, "fail")])
def test_half_precision_of_positions_shows_in_half_precision(held, status):
    spec = {"encoding": "rope", "head_dim": 64, "base": 10000.0, "layout": "half"}
    report = verify.check(lambda x, positions: rope(x, positions, held), convention="rope_fn", spec=spec)
    assert report.status == status
    assert all(cause.code.startswith("rope.precision.positions_") for cause in report.causes), report
    assert any("what bfloat16 does not show" in line for line in report.not_judged)


@pytest.mark.parametrize("convention", ["rope_fn", "slopes_fn", "bucket_fn", "mrope_fn", "rope2d_table_fn", "hf_rope"])
@pytest.mark.parametrize("kind", SAME | NO_NUMBERS | OTHER)
def test_identify_ends_too(convention, kind):
    change = (SAME | NO_NUMBERS | OTHER)[kind]
    found = identify(returning(convention, right()[convention].load().build(), change), convention)
    assert found.unknown or kind not in NO_NUMBERS
