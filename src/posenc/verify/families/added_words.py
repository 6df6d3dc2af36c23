"""How the words of a specification define a sinusoid, and the readings that they leave open."""

import itertools
import math
import re
from collections.abc import Mapping
from typing import Any

from posenc.verify.families.added_faults import JOINS, ORDERS, PAPER, ROUNDED_UP, T2T, T2T_CEIL
from posenc.verify.spec import FORMULAS

_HALF_MINUS_ONE = {"tensor2tensor", "t2t", "fairseq", "m2m100"}  # k/(d/2 - 1)
_IN_BLOCKS = {*_HALF_MINUS_ONE, "mae", "moco", "vit", "xl"}  # all sines first, if no order is declared
_PADDED = {"fairseq", "m2m100"}  # count from padding_idx + 1
_DETR = {"detr", "maskformer"}
_IMAGES_IN_BLOCKS = {"mae", "moco"}  # in each axis
_VARIANTS = {*FORMULAS.split()}
_ROWS_FIRST = re.compile(r"(yx|hw|ij|rows?|heights?|y|h|i)(first|major|col\w*|width)?$")
_COLUMNS_FIRST = re.compile(r"(xy|wh|ji|col(umn)?s?|widths?|x|w|j)(first|major|row\w*|height)?$")
_BLOCKS, _WOVEN = re.compile("half|halves|block|concat|split"), re.compile("interleav|alternat|woven|sin|cos")
_COSINES_FIRST = re.compile("(?m)^(interleaved|half|blocks)?_?cos")


def read(spec: Mapping[str, Any], *, image: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]], bool]:
    """Return every reading of a specification as parameters of the model, the likeliest first.

    Returns:
        The readings; the orders of dimensions that it does not exclude; whether any order is allowed.

    Raises:
        ValueError: One of its words has an unknown value.
    """
    variant = _variant(spec)
    if not image and axes(spec, of_waves=True) is not None:
        raise ValueError(f"verify: order {str(spec['order'])[:60]!r} names axes, but a text has only one. Remove it.")
    dim = int(spec.get("dim") or spec.get("d_model") or spec.get("head_dim") or 0)
    odd = dim % 4 == 2 if image else dim % 2  # whether an axis may have an odd number of dimensions
    rules = ((T2T, T2T_CEIL) if variant & _HALF_MINUS_ONE else (PAPER, ROUNDED_UP))[: 1 + dim % 2]
    orders, order_said = _orders(spec, variant, image=image)
    orders, others = (tuple(name for name in some if odd or name != "half_zero") for some in (orders, ORDERS))
    joins, join_said = _joins(spec, variant) if image else (("",), False)
    starts = _starts(spec, variant, image=image)
    scalings = _scalings(spec, variant, starts[0]) if image else (("", 1.0),)
    base = float(spec.get("base") or spec.get("temperature") or 10000.0)
    readings = [
        {"base": base, "rule": rule, "order": order, "start": start, "join": join, "over": over, "scale": scale}
        for rule, order, join, start, (over, scale) in itertools.product(rules, orders, joins, starts, scalings)
    ]
    first = {join[-2:] for join in joins}  # if only the order of the axes is declared, they may also alternate
    turns = [j for j in JOINS if not join_said or (j in joins if order_said else j[-2:] in first)] if image else [""]
    left = itertools.product(turns, orders if order_said else others)
    moved = [{"order": order, "join": join} for join, order in left if order not in orders or join not in joins]
    return readings, moved, not order_said and not join_said


def _variant(spec: Mapping[str, Any]) -> set[str]:
    """Return the names in a variant, such as "detr" and "normalised"."""
    said = str(spec.get("variant") or "")
    names = set(re.findall("[a-z0-9]+", said.lower().replace("z", "s")))
    if unknown := names - _VARIANTS:
        raise ValueError(
            f"verify: variant cannot be {said[:60]!r} of a sinusoid: {min(unknown)!r} is unknown. Use one of "
            f"{', '.join(sorted(_VARIANTS))}, or two of them, as in 'detr_normalised'."
        )
    return names


def axes(spec: Mapping[str, Any], *, of_waves: bool = False) -> str | None:
    """Return which axis of an image the specification puts first, "yx" or "xy"; None if it declares no order.

    With `of_waves`, `order` may also declare whether sines or cosines come first.

    Raises:
        ValueError: `order` does neither.

    >>> axes({"order": "rows first"}), axes({"order": "xy"}), axes({})
    ('yx', 'xy', None)
    """
    said = str(spec.get("order") or "").lower()
    for word in re.findall("[a-z]+", said):
        if _ROWS_FIRST.match(word):
            return "yx"
        if _COLUMNS_FIRST.match(word):
            return "xy"
    if not said or (of_waves and (_BLOCKS.search(said) or _WOVEN.search(said))):
        return None
    which = "'yx' (rows first) or 'xy'" + (", or 'sin_cos' or 'cos_sin'" if of_waves else "")
    raise ValueError(f"verify: order cannot be {str(spec['order'])[:60]!r}, which names no axis. Use {which}.")


def _orders(spec: Mapping[str, Any], variant: set[str], *, image: bool) -> tuple[tuple[str, ...], bool]:
    """Return the orders of sines and cosines, and whether one is declared."""
    layout, order = (str(spec.get(word) or "").lower() for word in ("layout", "order"))
    tail = "_cos" if _COSINES_FIRST.search(f"{layout}\n{order}") else ""
    if _BLOCKS.search(f"{layout} {order}"):
        return (("half_cos",) if tail else ("half", "half_zero")), True
    if _WOVEN.search(f"{layout} {order}"):
        return (f"interleaved{tail}",), True
    if image and variant & (_IMAGES_IN_BLOCKS | _DETR):
        return (("half", "half_zero") if variant & _IMAGES_IN_BLOCKS else ("interleaved",)), True
    return ("half", "half_zero") if variant & _IN_BLOCKS else ("interleaved",), False


def _joins(spec: Mapping[str, Any], variant: set[str]) -> tuple[tuple[str, ...], bool]:
    """Return the orders of the axes, and whether one is declared."""
    said, woven = axes(spec, of_waves=True), "woven_" if "loftr" in variant else ""
    if said is not None or woven:
        return (woven + (said or "xy"),), said is not None
    if "mae" in variant:  # its "emb_h" encodes the columns: only the names are exchanged
        return ("xy", "yx"), True
    return ("yx",), bool(variant & _DETR)


def _starts(spec: Mapping[str, Any], variant: set[str], *, image: bool) -> tuple[float, ...]:
    said, padding = spec.get("start", spec.get("offset")), spec.get("padding_idx")
    if isinstance(said, int | float):
        return (float(said),)
    if said is None and variant & _PADDED:
        return (2.0, 0.0) if padding is None else (padding + 1.0,)
    return (1.0,) if image and variant & {"loftr", *_DETR} else (0.0,)


def _scalings(spec: Mapping[str, Any], variant: set[str], start: float) -> tuple[tuple[str, float], ...]:
    """Return the divisor and the factor of the positions."""
    words = ("normalise", "normalize", "normalised", "normalized")
    said = next((spec[word] for word in words if spec.get(word) is not None), None)
    factor, plain = spec.get("scale"), (("", 1.0),)
    scale = float(factor) if isinstance(factor, int | float) else 2 * math.pi
    divided = tuple((over, scale) for over in (("size", "last") if start else ("last", "size")))
    if said or (said is None and "normalised" in variant):
        return divided
    # DETR's class divides only on request, and its model requests it: the bare name leaves both open
    return plain + divided if said is None and variant & _DETR and "unnormalised" not in variant else plain
