"""What a specification says of a sinusoid, and the readings that it leaves open."""

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from posenc.verify.families.added_faults import PAPER, ROUNDED_UP, T2T, T2T_CEIL

_T2T = re.compile("tensor2tensor|t2t|fairseq|m2m|halfminusone|half1|timingsignal")
_OF_THE_PAPER = re.compile(
    "paper|vaswani|original|standard|detr|loftr|norm|mae|vit|moco|raw|sin|cos|xl|espnet|conformer|interleaved|half|blocks|"
    "attention"
)
_ROWS_FIRST = re.compile(r"(yx|hw|ij|rows?|heights?|y|h|i)(first|major|col\w*|width)?$")
_COLUMNS_FIRST = re.compile(r"(xy|wh|ji|col(umn)?s?|widths?|x|w|j)(first|major|row\w*|height)?$")
_BLOCKS, _WOVEN = re.compile("half(?!minusone)|halves|block|concat|split"), re.compile("interleav|alternat|woven")
_WAVES = re.compile(f"{_BLOCKS.pattern}|{_WOVEN.pattern}|sin|cos")


@dataclass(frozen=True)
class Scaling:
    """How the number of a row or column becomes a position: (number + start) / over * scale - half.

    Args:
        start: Added first; a cumulative sum of ones has 1.
        over: "" for nothing, "size", "last" (size - 1 + start), "less" (size - 1), "other" (the other axis's size).
        scale: The factor after the division.
        half: Subtracted last.
    """

    start: float = 0.0
    over: str = ""
    scale: float = 1.0
    half: float = 0.0

    def __call__(self, number: Any, size: int, other: int) -> Any:
        """Return the positions of rows or columns of an axis of `size`, where the other axis is `other` long."""
        last = (size - 1 + self.start) or 1e-6  # of one cell only; programs add a tiny number to divide by
        divisor = {"": 1.0, "size": size, "last": last, "other": other, "less": max(size - 1, 1)}[self.over]
        return (number + self.start) / divisor * self.scale - self.half

    @property
    def words(self) -> str:
        """The formula of row i of n."""
        over = {"": "", "size": " / n", "last": " / (the last)", "other": " / (the other axis's n)"}
        plus, times = f" + {self.start:g}" * (self.start != 0), f" * {self.scale:.4g}" * (self.scale != 1)
        return f"(i{plus}){over.get(self.over, ' / (n - 1)')}{times}" + f" - {self.half:g}" * (self.half != 0)


def read(spec: Mapping[str, Any], *, image: bool) -> tuple[list[dict[str, Any]], bool, bool]:
    """Return every reading of a specification as parameters of the model, the likeliest first.

    Returns:
        The readings; whether the order of sines and cosines is declared (where it is not, another one only renames
        dimensions); whether the order of the axes is.

    Raises:
        ValueError: Its `order` is no order of sines and cosines, nor one of an image's axes.
    """
    variant = re.sub(r"[^a-z0-9]", "", str(spec.get("variant") or "").lower())
    if not image and axes(spec, of_waves=True) is not None:
        raise ValueError(f"verify: order {str(spec['order'])[:60]!r} names axes, and a text has one. Remove it.")
    dim = int(spec.get("dim") or spec.get("d_model") or spec.get("head_dim") or 0)
    orders, order_said = _orders(spec, variant)
    joins, join_said = _joins(spec, variant)
    starts = _starts(spec, variant, image=image)
    open_: dict[str, tuple[Any, ...]] = {"rule": _rules(variant, dim), "order": orders}
    open_ |= {"join": joins, "scaling": _scalings(spec, variant, starts)} if image else {"start": starts}
    base = float(spec.get("base") or spec.get("temperature") or 10000.0)
    readings = [{"base": base, **dict(zip(open_, v, strict=True))} for v in itertools.product(*open_.values())]
    return readings, order_said, join_said


def axes(spec: Mapping[str, Any], *, of_waves: bool = False) -> str | None:
    """Return which axis of an image the specification puts first, "yx" or "xy"; None where it says nothing of it.

    With `of_waves`, `order` may also say whether sines or cosines come first.

    Raises:
        ValueError: `order` says neither.

    >>> axes({"order": "rows first"}), axes({"order": "xy"}), axes({})
    ('yx', 'xy', None)
    """
    said = str(spec.get("order") or "").lower()
    for word in re.findall("[a-z]+", said):
        if _ROWS_FIRST.match(word):
            return "yx"
        if _COLUMNS_FIRST.match(word):
            return "xy"
    if not said or (of_waves and _WAVES.search(said)):
        return None
    which = "'yx' (rows first) or 'xy'" + (", or 'sin_cos' or 'cos_sin'" if of_waves else "")
    raise ValueError(f"verify: order cannot be {str(spec['order'])[:60]!r}, which names no axis. Use {which}.")


def _rules(variant: str, dim: int) -> tuple[str, ...]:
    if _T2T.search(variant):
        return (T2T, T2T_CEIL) if dim % 2 else (T2T,)
    if not variant:
        return (PAPER, ROUNDED_UP) if dim % 2 else (PAPER,)
    return (PAPER,) if _OF_THE_PAPER.search(variant) else (PAPER, T2T)  # of an unknown name: either is right


def _orders(spec: Mapping[str, Any], variant: str) -> tuple[tuple[str, ...], bool]:
    layout, order = (str(spec.get(word) or "").lower() for word in ("layout", "order"))
    said = f"{layout} {order} {variant}"
    cosines_first = re.search("(?m)^(interleaved|half|blocks)?_?cos", f"{layout}\n{order}") or "flip" in variant
    tail = "_cos" if cosines_first else ""
    if _BLOCKS.search(said):
        return (("half_cos",) if tail else ("half", "half_zero")), True
    if _WOVEN.search(said) or re.search("sin|cos", order):
        return (f"interleaved{tail}",), True
    if _T2T.search(variant) or re.search("mae|vit|moco|xl", variant):
        return ("half", "half_zero", "interleaved"), False
    return (f"interleaved{tail}",), False


def _joins(spec: Mapping[str, Any], variant: str) -> tuple[tuple[str, ...], bool]:
    said, woven = axes(spec, of_waves=True), "woven_" if "loftr" in variant else ""
    if said is not None or woven:
        return (woven + (said or "xy"),), said is not None
    if "mae" in variant:  # its "emb_h" is made of the columns: only the names are exchanged
        return ("xy", "yx"), True
    return ("yx",), "detr" in variant


def _starts(spec: Mapping[str, Any], variant: str, *, image: bool) -> tuple[float, ...]:
    said = spec.get("start", spec.get("offset"))
    if isinstance(said, int | float):
        return (float(said),)
    if said is None and re.search("fairseq|m2m", variant):
        return (0.0, 2.0)
    return (1.0,) if image and re.search("detr|maskformer|loftr", variant) else (0.0,)


def _scalings(spec: Mapping[str, Any], variant: str, starts: tuple[float, ...]) -> tuple[Scaling, ...]:
    said = spec.get("normalise", spec.get("normalize", spec.get("normalised", spec.get("normalized"))))
    plain = tuple(Scaling(start) for start in starts)
    if said is None and re.search("unnorm|notnorm|nonorm|raw|withoutnorm", variant):
        return plain
    detr, factor = re.search("detr|maskformer", variant), spec.get("scale")
    scale = float(factor) if isinstance(factor, int | float) else 2 * math.pi
    both = [(start, over) for start in starts for over in (("size", "last") if start else ("last", "size"))]
    divided = tuple(Scaling(*one, scale) for one in both if not (detr and one == (1, "last")))
    if said or (said is None and "norm" in variant):
        return divided
    # DETR's class divides only where it is asked to, and its model asks: the bare name leaves both open
    return plain + divided if detr and said is None else plain
