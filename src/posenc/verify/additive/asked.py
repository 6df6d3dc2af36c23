"""What was asked of an additive code: a spec's foreign words, and the readings that they leave open."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from posenc.verify.additive.grid import Scaling
from posenc.verify.additive.waves import PAPER, ROUNDED_UP, T2T, T2T_CEIL, Rule

FAMILIES = {
    "additive_module": "sinusoidal",
    "additive_2d_module": "sinusoidal2d",
    "relative_table_fn": "relative_sinusoid",
}
_T2T = ("tensor2tensor", "t2t", "fairseq", "m2m", "halfminusone", "half1", "timingsignal")


@dataclass(frozen=True)
class Asked:
    """What the code should be; tuples hold every reading that the spec allows, the likeliest first.

    Args:
        family: "sinusoidal", "sinusoidal2d", "relative_sinusoid", "learned", ...
        dim: Lanes, or None where the spec does not say.
        base: The base of the frequencies.
        rules: Formulas of the frequencies.
        layouts: Names of lane orders in `layouts`.
        joins: How two axes share the lanes: "yx", "xy", "woven_yx", "woven_xy".
        layout_said: The order of sines and cosines was declared; where not, another one only renames lanes.
        join_said: The order of the axes was declared.
        starts: The first position.
        scalings: Of an image's rows and columns.
        origin_free: Any first position will do.
        direction_free: Distances may be counted either way.
        said: The spec as it came.
    """

    family: str
    dim: int | None
    base: float
    rules: tuple[Rule, ...]
    layouts: tuple[str, ...]
    joins: tuple[str, ...]
    layout_said: bool
    join_said: bool
    starts: tuple[float, ...]
    scalings: tuple[Scaling, ...]
    origin_free: bool
    direction_free: bool
    said: Mapping[str, Any] = field(default_factory=dict)

    @property
    def max_positions(self) -> int | None:
        """The longest sequence that must work, where the spec says so."""
        found = self.said.get("max_positions")
        return int(found) if isinstance(found, int | float) and found > 0 else None

    @property
    def name(self) -> str:
        """The definition with its version, as reports name it."""
        versions = {PAPER: "vaswani", T2T: "tensor2tensor"}
        version = versions.get(self.rules[0], "vaswani")
        return f"{self.family}@{'detr' if self.scalings[0].over else version}"


def read(spec: Mapping[str, Any], convention: str) -> Asked:
    """Return what a spec asks of a subject with this calling convention."""
    word = str(spec.get("encoding") or FAMILIES[convention]).lower()
    family = word if word.startswith("learned") else FAMILIES[convention]
    variant = re.sub(r"[^a-z0-9]", "", str(spec.get("variant") or "").lower())
    dim = spec.get("dim", spec.get("d_model", spec.get("head_dim")))
    names, lanes_said = _layouts(spec, variant)
    joins, joins_said = _joins(spec, variant)
    if family != "sinusoidal2d":
        joins, joins_said = ("yx",), True
    detr = "detr" in variant or "maskformer" in variant
    start = spec.get("start", spec.get("offset"))
    counts_from_one = family == "sinusoidal2d" and (detr or "loftr" in variant)
    starts: tuple[float, ...] = (
        (float(start),) if isinstance(start, int | float) else ((1.0,) if counts_from_one else (0.0,))
    )
    if start is None and ("fairseq" in variant or "m2m" in variant):
        starts = (0.0, 2.0)
    return Asked(
        family=family,
        dim=int(dim) if dim else None,
        base=float(spec.get("base") or spec.get("temperature") or 10000.0),
        rules=_rules(variant, int(dim) if dim else 0),
        layouts=names,
        joins=joins,
        layout_said=lanes_said,
        join_said=joins_said,
        starts=starts,
        scalings=_scalings(spec, variant, detr, starts),
        origin_free=spec.get("origin") == "any",
        direction_free=spec.get("direction") == "any",
        said=dict(spec),
    )


def _rules(variant: str, dim: int) -> tuple[Rule, ...]:
    if any(name in variant for name in _T2T):
        return (T2T, T2T_CEIL) if dim % 2 else (T2T,)
    if dim % 2 and not variant:
        return (PAPER, ROUNDED_UP)
    known = ("", "paper", "vaswani", "original", "standard", "detr", "loftr", "norm", "mae", "vit", "moco", "raw",
             "sin", "cos", "xl", "espnet", "conformer", "interleaved", "half", "blocks", "attention")  # fmt: skip
    if any(name in variant if name else not variant for name in known):
        return (PAPER,)
    return (PAPER, T2T)  # a variant of an unknown name: whichever of the two it is, it is right


def _layouts(spec: Mapping[str, Any], variant: str) -> tuple[tuple[str, ...], bool]:
    layout, order = str(spec.get("layout") or "").lower(), str(spec.get("order") or "").lower()
    blocks = next((w for w in (layout, order, variant) if re.search("half|halves|block|concat|split", w)), "")
    woven = next((w for w in (layout, order, variant) if re.search("interleav|alternat|woven", w)), "")
    cos_first = any(re.match("(interleaved|half|blocks)?_?cos", w) for w in (layout, order)) or "flip" in variant
    tail = "_cos" if cos_first else ""
    if blocks and "halfminusone" not in blocks:
        return tuple(n + tail for n in ("half", "half_zero")[: 1 if tail else 2]), True
    if woven or re.search("sin|cos", order):
        return ("interleaved" + tail,), True
    if any(name in variant for name in (*_T2T, "mae", "vit", "moco", "xl")):
        return ("half", "half_zero", "interleaved"), False
    return ("interleaved" + tail,), False


def _joins(spec: Mapping[str, Any], variant: str) -> tuple[tuple[str, ...], bool]:
    order = re.sub(r"[^a-z]", "", str(spec.get("order") or "").lower())
    for words, join in (
        (("yx", "hw", "rowcol", "heightwidth", "ij"), "yx"),
        (("xy", "wh", "colrow", "widthheight", "ji"), "xy"),
    ):
        if any(w in order for w in words):
            return ((f"woven_{join}",) if "loftr" in variant else (join,)), True
    if "loftr" in variant:
        return ("woven_xy",), False
    if "mae" in variant:  # whose "emb_h" is made of the columns: only the names are swapped
        return ("xy", "yx"), True
    return ("yx",), "detr" in variant


def _scalings(spec: Mapping[str, Any], variant: str, detr: bool, starts: tuple[float, ...]) -> tuple[Scaling, ...]:
    said = spec.get("normalise", spec.get("normalize", spec.get("normalised", spec.get("normalized"))))
    plain = tuple(Scaling(start) for start in starts)
    if said is None and re.search("unnorm|notnorm|nonorm|raw|withoutnorm", variant):
        return plain
    asked = bool(said) if said is not None else "norm" in variant
    factor = spec.get("scale", 2 * math.pi)
    scale = float(factor) if isinstance(factor, int | float) else 2 * math.pi
    overs = [(s, over) for s in starts for over in (("size", "last") if s else ("last", "size"))]
    divided = tuple(Scaling(s, over, scale) for s, over in overs if not (detr and s == 1 and over == "last"))
    if asked:
        return divided
    # DETR's class does not normalise unless told to, its model tells it to: the bare name leaves both open
    return plain + divided if detr and said is None else plain


# what goes wrong alike in sequences, images and tables of distances has the codes of the plain sinusoid
_SHARED = ("frequency.", "layout.", "axis.", "slice.", "width.", "position.", "table.", "precision.", "input.", "grad.")
_SHARED_WHOLE = {"temperature_hardwired", "added_twice", "scaled", "not_used", "sign", "random", "dropout_in_eval",
                 "trainable", "state_kept"}  # fmt: skip


def coded(family: str, code: str) -> str:
    """Return a code with the family that it is listed under."""
    shared = not family.startswith("learned") and (code.startswith(_SHARED) or code in _SHARED_WHOLE)
    return f"{'sinusoidal' if shared else family}.{code}"
