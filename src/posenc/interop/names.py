"""What a tensor is, by its name: rows of queries or keys, lanes of their norm, something that stays, or unknown."""

import re
from dataclasses import dataclass, replace
from typing import Literal

from posenc.interop.layouts import EXTRA_STACKS, NORMS, STACKS, STILL, Layout, Parts

Role = Literal["rows", "lanes", "columns", "still", "left", "unknown"]

# Below a projection: the weight and bias, what PEFT makes of them, and its factors. A is (rank, in), B is (out, rank),
# and a magnitude (DoRA) is one number a row.
_ROWS = re.compile(
    r"(?:base_layer\.|linear\.)?(?:weight|bias)|lora_B(?:\.\w+)?\.(?:weight|bias)|lora_magnitude_vector(?:\.\w+)*"
)
_FACTOR_A = re.compile(r"lora_A(?:\.\w+)?\.weight")
_COLUMNS = re.compile(r"(?:base_layer\.)?weight|lora_A(?:\.\w+)?\.weight")
_NORM = re.compile(r"(?:norms\.\d+\.)?(?:weight|bias)")
_BASE = re.compile(r"(?:base_layer\.|linear\.)?weight")
_QUANTIZED = re.compile(r"scale|zero|qweight|g_idx|absmax|quant|SCB|packed|weight_shape")
_TOWER = re.compile(
    r"vision|visual|audio|image|video|speech|sound|(?:^|_)vit(?:_|$)|vqmodel|projector|resampler|perceiver|qformer"
)
_ATTENTION = re.compile(r"(?!(?:ln|norm|pre|post|input)_)(?:\w+_)?(?:attn|attention)")
_QK = {"q", "k", "qk", "qkv", "kv", "query", "key", "queries", "keys", "wq", "wk", "wqkv", "wkv", "qkvz", "pack"}


@dataclass(frozen=True)
class Where:
    """Where in a model a tensor is.

    Args:
        layer: The number of its layer.
        extra: Whether that layer is counted apart.
        module: The path of the attention.
    """

    layer: int
    extra: bool
    module: str = ""


@dataclass(frozen=True)
class Found:
    """What a name says.

    Args:
        role: rows of a projection, lanes of a norm, or columns of what reads the values; still for what a turn of
            lanes does not concern, left for queries and keys that do not turn with the others.
        why: For left, the reason; for unknown, what is wrong.
        where: None outside layers.
        parts: Of rows: their order.
        base: Whether it is the weight of a projection itself, and no factor that is added to it.
    """

    role: Role
    why: str = ""
    where: Where | None = None
    parts: Parts | None = None
    base: bool = False


class Reader:
    """Reads names as a layout has them."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._layer = re.compile(rf"(?P<before>(?:[^.]+\.)*?){layout.layers}\.(?P<number>\d{{1,5}})\.(?P<rest>.+)")
        self._attention = re.compile(rf"(?P<module>{layout.attention})\.(?P<inside>.+)")
        children = {*layout.projections, *layout.still, *STILL, *NORMS}
        self._children = sorted(children, key=len, reverse=True)

    def read(self, name: str) -> Found:
        """Return what a name says; nothing is looked at but the name."""
        path = name.split(".")
        found = self._layer.fullmatch(name)
        before = found["before"].split(".")[:-1] if found else path[:-1]
        if any(_TOWER.search(part) for part in before):
            return Found("left", "in a tower for images or sound") if _suspicious(path) else Found("still")
        if self._layout.left.intersection(path):
            return Found("left", "in cross-attention, which does not rotate")
        if found is None:
            return Found("unknown", "stands in no layer") if _suspicious(path) else Found("still")
        return self._in_layer(found, before)

    def _in_layer(self, found: re.Match[str], before: list[str]) -> Found:
        """Return what stands in a layer of the language model."""
        path = found.string.split(".")
        where = Where(int(found["number"]), any(part in EXTRA_STACKS for part in before))
        attention = self._attention.fullmatch(found["rest"])
        strange = [part for part in before if part not in STACKS | EXTRA_STACKS | self._layout.stacks]
        if attention is None or strange:
            if not (attention or _suspicious(path)):
                return Found("still")
            if strange:  # another stack, whose layers are not counted with these
                return Found("unknown", f"in a part that this type does not have: {strange[0]}")
            return Found("unknown", "not in its attention", where)
        inside = attention["inside"]
        where = replace(where, module=found.string[: -len(inside) - 1])
        child = next((one for one in self._children if inside == one or inside.startswith(one + ".")), None)
        if child is None:
            return Found("unknown", "not known in the attention of this type", where)
        return self._inside(child, inside[len(child) + 1 :], where)

    def _inside(self, child: str, rest: str, where: Where) -> Found:
        """Return what is below a child of the attention."""
        parts = self._layout.projections.get(child)
        if parts is not None:
            if _FACTOR_A.fullmatch(rest):
                return Found("still")
            if _ROWS.fullmatch(rest):
                return Found("rows", "", where, parts, bool(_BASE.fullmatch(rest)))
            return Found("unknown", "quantized" if _QUANTIZED.search(rest) else "not known below a projection", where)
        if child in NORMS:
            known = _NORM.fullmatch(rest)
            return Found("lanes", "", where) if known else Found("unknown", "not known below a norm", where)
        if child == "o_proj" and _COLUMNS.fullmatch(rest):
            return Found("columns", "", where)
        return Found("still")


def _suspicious(path: list[str]) -> bool:
    """Return whether a name looks like queries or keys, or stands in attention."""
    if any(_ATTENTION.fullmatch(part) for part in path[:-1]):
        return True
    words = {re.sub(r"\d+", "", word).lower() for part in path for word in part.split("_")}
    return bool(words & _QK)
