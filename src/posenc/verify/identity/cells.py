"""Find the rotation of an image's cells, by sines and cosines that are cached for each, or by learned frequencies."""

import math
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from itertools import product
from typing import Any

import torch
from torch import Tensor

from posenc import positions
from posenc.verify.identity.held import HEADS, NEAR, Held, base_of, functions, repeats, turns
from posenc.verify.identity.identify import Identification
from posenc.verify.identity.lines import Code, assumed, call, unless

STILL = 1e-9  # radians: between cells that share the coordinate of a pair


def of_cells(held: Held, sines: Tensor, cosines: Tensor) -> Identification | None:
    """Read (cells, dimensions), each number for both dimensions of a pair, or (cells, pairs) of complex numbers."""
    angles, is_complex = torch.atan2(sines.double(), cosines.double()), held.tensor.is_complex()
    is_exact = sines.dtype in (torch.float32, torch.float64)
    pairing = "interleaved" if is_complex else repeats(angles)
    if pairing is None or (sines.double() ** 2 + cosines.double() ** 2 - 1).abs().max() > 0.02:
        return None
    if not is_complex:
        angles = angles.chunk(2, -1)[0] if pairing == "half" else angles[:, ::2]
    n, side = angles.shape[1], _side(held, angles)
    if side is None or n % 2 or (order := _order(angles.unflatten(0, side))) is None:
        return None
    steps = torch.stack([angles[side[1] ** (1 - axis)] - angles[0] for axis in order])
    freq, options = _frequencies(held, _within(steps[0, : n // 2]))
    if (where := _coordinates(angles, steps, positions.grid(*side)[:, order].double(), freq, is_exact)) is None:
        return None
    is_shown = is_complex or _rotates(held, sines, cosines, angles, pairing)
    words = f"positions.grid{side}" + ".flip(-1)" * (order == [1, 0]) + where
    line = call("AxialRoPE", head_dim=2 * n, **options, pairing=unless(pairing, "half"))
    found = Identification("module", "table", line=f"{line}  # at {words}")
    return assumed(found, (pairing, "counterclockwise" if is_shown else None))


def _side(held: Held, numbers: Tensor) -> tuple[int, int] | None:
    """Return rows and columns: those that a module around names, or those after which numbers of a row change."""
    cells = len(numbers)
    for owner in held.owners:
        side = getattr(owner, "feat_shape", None)
        if isinstance(side, list | tuple) and len(side) == 2 and math.prod(side) == cells:
            return int(side[0]), int(side[1])
    for half in numbers.chunk(2, 1):
        changes = (half != half[0]).any(1).nonzero().flatten()
        if len(changes) and (columns := int(changes[0])) > 1 and cells % columns == 0:
            return cells // columns, columns
    return None


def _within(angles: Tensor) -> Tensor:
    """Return angles from -pi to pi."""
    return torch.remainder(angles + math.pi, 2 * math.pi) - math.pi


def _order(angles: Tensor) -> list[int] | None:
    """Return the axis that the first half of pairs follows, and that of the second, if each half follows one."""
    moves = [_within(moved - angles[0, 0]).abs() > STILL for moved in (angles[1, 0], angles[0, 1])]
    order = [axis for half in (0, 1) for axis in (0, 1) if moves[axis].chunk(2)[half].all()]
    is_alone = len(order) == 2 and not any(moves[1 - axis].chunk(2)[half].any() for half, axis in enumerate(order))
    return order if is_alone and len({*order}) == 2 else None


def _frequencies(held: Held, step: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """Return the frequencies of one axis and the options that give them: a formula's, or the module's own."""
    bands, n = getattr(held.owners[0], "bands", None), len(step)
    given = bands.double() if isinstance(bands, Tensor) and bands.shape == step.shape else step / step[0]
    if (base := base_of(given.numpy())) is not None:
        return base ** (-torch.arange(n).double() / n), {"base": base}
    return given, {"inv_freq": Code(f"old.{held.next_to('bands')}")}


def _coordinates(angles: Tensor, steps: Tensor, grid: Tensor, freq: Tensor, is_exact: bool) -> str | None:
    """Return the factor and the offset of the cells' numbers, in words; None if they do not give the angles."""
    slow, limit = torch.tensor([0, len(freq)]) + freq.argmin(), 1024 if is_exact else 64
    scales, first = _within(steps[[0, 1], slow]), angles[0, slow]
    for start in (first, first - 2 * math.pi):  # half a rotation may be read as that of the other side
        both = [[Fraction(float(v)).limit_denominator(limit) for v in each / freq.min()] for each in (scales, start)]
        times, plus = torch.tensor([[float(v) for v in each] for each in both], dtype=torch.float64)
        off = _within(((grid * times + plus)[..., None] * freq).flatten(1) - angles)
        if off.abs().max() < (NEAR if is_exact else 0.05):
            return _affine(*both)
    return None


def _rotates(held: Held, sines: Tensor, cosines: Tensor, angles: Tensor, pairing: str) -> bool:
    """Return whether a rotation around the tables is counterclockwise."""
    if turns(held, sines.shape[1]) == (pairing, "counterclockwise"):
        return True
    x = torch.randn(sines.shape, generator=torch.Generator().manual_seed(0))
    a, b = x.chunk(2, -1) if pairing == "half" else (x[:, ::2], x[:, 1::2])
    cos, sin = angles.cos(), angles.sin()
    parts = a * cos - b * sin, b * cos + a * sin
    want = torch.cat(parts, -1) if pairing == "half" else torch.stack(parts, -1).flatten(1)
    rotations: list[Callable[..., Tensor]] = [held.owners[0], *functions(held)]
    for rotate, named in product(rotations, ({}, {"half": True})):
        for args in ((x,), (x, torch.cat((sines, cosines), -1)), (x, sines, cosines)):
            with suppress(Exception):
                if torch.allclose(rotate(*args, **named).double(), want, atol=0.05, rtol=0):
                    return True
    return False


def _affine(times: list[Fraction], plus: list[Fraction]) -> str:
    """Return a product and a sum in words: numbers, or tensors where the axes differ."""

    def number(pair: list[Fraction]) -> str:
        one, other = pair
        return str(one).replace("/", " / ") if one == other else f"torch.tensor([{float(one)}, {float(other)}])"

    scaled, moved = f" * {number(times)}" * (times != [1, 1]), f" + {number(plus)}" * any(plus)
    return scaled.replace("* 1 /", "/") + moved.replace("+ -", "- ")


def of_mixed(held: Held) -> Identification | str | None:
    """Read RoPE-Mixed's parameter: (2, layers, heads, pairs), (2, layers, heads * pairs) or (2, heads, pairs)."""
    shape, heads, head_dim = held.tensor.shape, held.fact(HEADS), held.head_dim()
    own, is_deep = f"old.{held.path}", len(shape) == 4
    if len(shape) == 4:
        heads, pairs = shape[2:]
    elif heads and shape[1] == heads and head_dim in (None, 2 * shape[2]):
        pairs = shape[2]
    elif heads and shape[2] % heads == 0:
        pairs, is_deep = shape[2] // heads, True
    else:
        return Identification("module", unknown=(f"heads of {own}, of which no module around shows the number",))
    own += "[:, i]" * is_deep + f".unflatten(-1, ({heads}, -1))" * (is_deep and len(shape) == 3) + ".transpose(0, 1)"
    x = next((t for name in ("t_x", "freqs_t_x") if isinstance(t := getattr(held.owners[0], name, None), Tensor)), None)
    side = getattr(held.owners[0], "feat_shape", None)
    order = "" if x is not None and x[0] == x[1] else ".flip(-1)"  # the first axis is the column
    words = f"positions.grid{tuple(side or ()) or '(rows, columns)'}{order}" + ", if that is their order" * (x is None)
    line = call("MixedRoPE", n_kv_heads=heads, head_dim=2 * pairs, pairing="interleaved")
    return f"{line}  # at {words}; {'layer i: ' * is_deep}inv_freq = {own}"
