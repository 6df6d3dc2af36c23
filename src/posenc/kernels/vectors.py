"""Vector operations for numba, written in LLVM IR, since numba cannot prove enough to vectorise the loops itself.

Each function here makes a function that numba inlines. It works on 16 numbers, or on one at the end of a row, at
integer addresses. LLVM translates vectors of 16 to the machine's own vectors.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

WIDTH = 16
_I16, _I32 = ir.IntType(16), ir.IntType(32)
_WIDE = {"float32": ir.FloatType(), "float64": ir.DoubleType()}
_STORED = {"bfloat16": _I16, "float16": ir.HalfType(), **_WIDE}
UPPER = 0xFFFF0000
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}


class Kind(NamedTuple):
    """The dtype in memory, the dtype of the arithmetic, and the numbers in a vector."""

    stored: str
    wide: str
    width: int


def _of(element: ir.Type, width: int) -> ir.VectorType:
    return ir.VectorType(element, width)


def _load(b: ir.IRBuilder, address: ir.Value, element: str, width: int) -> ir.Value:
    found = b.load(b.inttoptr(address, _of(_STORED[element], width).as_pointer()))
    found.align = BYTES[element]
    return found


def _store(b: ir.IRBuilder, numbers: ir.Value, address: ir.Value, element: str) -> None:
    b.store(numbers, b.inttoptr(address, numbers.type.as_pointer())).align = BYTES[element]


def _same(number: int, width: int) -> ir.Constant:
    return ir.Constant(_of(_I32, width), [number] * width)


def _widen(b: ir.IRBuilder, numbers: ir.Value, kind: Kind) -> ir.Value:
    """Return stored numbers in the precision of the arithmetic."""
    stored, wide, width = kind
    if stored == "bfloat16":  # the upper half of a float32
        numbers = b.shl(b.zext(numbers, _of(_I32, width)), _same(16, width))
        numbers, stored = b.bitcast(numbers, _of(_WIDE["float32"], width)), "float32"
    return numbers if stored == wide else b.fpext(numbers, _of(_WIDE[wide], width))


def _narrow(b: ir.IRBuilder, numbers: ir.Value, kind: Kind) -> ir.Value:
    """Round numbers to the stored dtype, to nearest with ties to even."""
    stored, wide, width = kind
    if stored == wide:
        return numbers
    if stored != "bfloat16":
        return b.fptrunc(numbers, _of(_STORED[stored], width))
    return b.trunc(b.lshr(_round_upper(b, numbers, width), _same(16, width)), _of(_I16, width))


def _round_upper(b: ir.IRBuilder, numbers: ir.Value, width: int) -> ir.Value:
    """Return float32 bits whose upper half is the nearest bfloat16."""
    bits = b.bitcast(numbers, _of(_I32, width))
    odd = b.and_(b.lshr(bits, _same(16, width)), _same(1, width))
    rounded = b.add(b.add(bits, _same(0x7FFF, width)), odd)
    return b.select(b.fcmp_unordered("uno", numbers, numbers), _same(0x7FC00000, width), rounded)


def _pairs(b: ir.IRBuilder, address: ir.Value, gap: ir.Value, kind: Kind, half: bool) -> tuple[ir.Value, ir.Value]:
    """Return the first and the second numbers of some pairs."""
    if half:
        first, second = (_load(b, a, kind.stored, kind.width) for a in (address, b.add(address, gap)))
    elif kind.stored == "bfloat16":  # a pair is one word of 32 bits, so no shuffle is needed
        words = b.bitcast(_load(b, address, kind.stored, 2 * kind.width), _of(_I32, kind.width))
        halves = b.shl(words, _same(16, kind.width)), b.and_(words, _same(UPPER, kind.width))
        first, second = (b.bitcast(half, _of(_WIDE["float32"], kind.width)) for half in halves)
        return first, second
    else:
        both = _load(b, address, kind.stored, 2 * kind.width)
        none = ir.Constant(both.type, ir.Undefined)
        first, second = (
            b.shuffle_vector(both, none, ir.Constant(_of(_I32, kind.width), list(range(lane, 2 * kind.width, 2))))
            for lane in (0, 1)
        )
    return _widen(b, first, kind), _widen(b, second, kind)


def _put_pairs(
    b: ir.IRBuilder, pairs: tuple[ir.Value, ir.Value], address: ir.Value, gap: ir.Value, kind: Kind, half: bool
) -> None:
    if kind.stored == "bfloat16" and not half:
        low, high = (_round_upper(b, lanes, kind.width) for lanes in pairs)
        words = b.or_(b.lshr(low, _same(16, kind.width)), b.and_(high, _same(UPPER, kind.width)))
        _store(b, b.bitcast(words, _of(_I16, 2 * kind.width)), address, kind.stored)
        return
    first, second = (_narrow(b, lanes, kind) for lanes in pairs)
    if half:
        _store(b, first, address, kind.stored)
        _store(b, second, b.add(address, gap), kind.stored)
        return
    order = [lane for i in range(kind.width) for lane in (i, kind.width + i)]
    both = b.shuffle_vector(first, second, ir.Constant(_of(_I32, 2 * kind.width), order))
    _store(b, both, address, kind.stored)


def rotate(kind: Kind, half: bool) -> Callable[..., None]:
    """Make a function of (x, out, cos, sin, gap) that rotates pairs: (a, b) -> (a cos - b sin, b cos + a sin).

    The first four are addresses. The gap is the distance in bytes between the two numbers of a pair for pairing "half".
    Tables are in the precision of the arithmetic.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def made(typing: Any, x: Any, out: Any, cos: Any, sin: Any, gap: Any) -> Any:
        def generate(context: Any, b: ir.IRBuilder, signature: Any, args: Any) -> Any:
            x, out, cos, sin, gap = args
            c, s = (_load(b, address, kind.wide, kind.width) for address in (cos, sin))
            first, second = _pairs(b, x, gap, kind, half)
            rotated = (
                b.fsub(b.fmul(first, c), b.fmul(second, s)),
                b.fadd(b.fmul(second, c), b.fmul(first, s)),
            )
            _put_pairs(b, rotated, out, gap, kind, half)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), generate

    return made  # type: ignore[no-any-return]


def move(stored: str, width: int) -> Callable[..., None]:
    """Make a function of (x, out) that copies numbers."""

    @intrinsic  # type: ignore[untyped-decorator]
    def made(typing: Any, x: Any, out: Any) -> Any:
        def generate(context: Any, b: ir.IRBuilder, signature: Any, args: Any) -> Any:
            _store(b, _load(b, args[0], stored, width), args[1], stored)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return made  # type: ignore[no-any-return]


@intrinsic  # type: ignore[untyped-decorator]
def take(typing: Any, counter: Any) -> Any:
    """Return the number at a pointer and increase it by one, atomically across threads."""

    def generate(context: Any, b: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return b.atomic_rmw("add", args[0], ir.IntType(64)(1), "monotonic")

    return types.int64(types.CPointer(types.int64)), generate
