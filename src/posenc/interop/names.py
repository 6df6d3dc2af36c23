"""The role of a tensor by its name: rows of queries or keys, entries of their norm, unaffected, or unknown."""

import re
from typing import NamedTuple

from posenc.interop.layouts import EXTRA, NORMS, STACKS, STILL, Layout, Parts

AFTER = 1 << 20  # stands for the number of a layer for multi-token prediction; other numbers have at most five digits

# The names below a child of attention: the weight and bias, PEFT's names for them, and its factors. A is (rank, in),
# B is (out, rank), and a magnitude (DoRA) is one number for each row. The name of a group is the role.
_BELOW = {
    "projection": re.compile(
        r"(?P<weight>(?:base_layer\.|linear\.)?weight)|(?P<still>lora_A(?:\.\w+)?\.weight)|"
        r"(?P<rows>(?:base_layer\.|linear\.)?bias|lora_B(?:\.\w+)?\.(?:weight|bias)|lora_magnitude_vector(?:\.\w+)*)"
    ),
    "norm": re.compile(r"(?P<lanes>(?:norms\.\d+\.)?(?:weight|bias))"),
    "o_proj": re.compile(r"(?P<columns>(?:base_layer\.)?weight|lora_A(?:\.\w+)?\.weight)|(?P<still>.*)"),
    "still": re.compile(r"(?P<still>.*)"),
}
_QUANTIZED = re.compile(r"scale|zero|qweight|g_idx|absmax|quant|SCB|packed|weight_shape")
_TOWER = re.compile(
    r"vision|visual|audio|image|video|speech|sound|(?:^|_)vit(?:_|$)|vqmodel|projector|resampler|perceiver|qformer"
)
_ATTENTION = re.compile(r"(?!(?:ln|norm|pre|post|input)_)(?:\w+_)?(?:attn|attention)")
_QK = {"q", "k", "qk", "qkv", "kv", "query", "key", "queries", "keys", "wq", "wk", "wqkv", "wkv", "qkvz", "pack"}


class Found(NamedTuple):
    """The role of a tensor.

    The roles are: weight or rows of a projection, lanes of a norm, columns of a projection that reads values, still
    (a permutation does not affect it), left (queries and keys that do not rotate), and unknown.
    """

    role: str
    why: str = ""  # the reason for left or unknown
    layer: int | None = None  # its number; None outside layers
    module: str = ""  # the path of the attention
    parts: Parts | None = None  # for a projection, the order of its rows


def read(name: str, layout: Layout) -> Found:
    """Return the role of the tensor with this name in a layout."""
    path = name.split(".")
    in_layer = re.fullmatch(rf"((?:[^.]+\.)*?){layout.layers}\.(\d{{1,5}})\.(.+)", name)
    before = in_layer[1].split(".")[:-1] if in_layer else path[:-1]
    if any(_TOWER.search(part) for part in before):
        return Found("left", "in a tower for images or sound") if _suspicious(path) else Found("still")
    if layout.left in path:
        return Found("left", "in cross-attention, which does not rotate")
    if in_layer is None:
        return Found("unknown", "is not in a layer") if _suspicious(path) else Found("still")
    inside = re.compile(rf"{layout.attention}\.((?:self\.)?[^.]+)(?:\.(.+))?").fullmatch(name, in_layer.start(3))
    if inside is None and not _suspicious(path):
        return Found("still")
    # layers of other stacks have their own numbers
    if strange := next((part for part in before if part not in f"{STACKS} {layout.stacks}".split()), None):
        return Found("unknown", f"is in a part that this type does not have: {strange}")
    layer = AFTER if EXTRA in before else int(in_layer[2])
    if inside is None:
        return Found("unknown", "is not in the attention", layer)
    child, below = inside[1], inside[2] or ""
    parts = layout.projections.get(child)
    still = child if child in _BELOW else "still" if child in f"{STILL} {layout.still}".split() else ""
    if not (kind := "projection" if parts else "norm" if child in NORMS.split() else still):
        return Found("unknown", "is not known in the attention of this type", layer)
    if (known := _BELOW[kind].fullmatch(below)) is None:
        why = "quantized" if _QUANTIZED.search(below) else f"is not known below a {kind}"
        return Found("unknown", why, layer)
    return Found(str(known.lastgroup), "", layer, name[: inside.start(1) - 1], parts)


def _suspicious(path: list[str]) -> bool:
    """Return whether a name looks like queries or keys, or is inside an attention module."""
    if any(_ATTENTION.fullmatch(part) for part in path[:-1]):
        return True
    words = {re.sub(r"\d+", "", word).lower() for part in path for word in part.split("_")}
    return bool(words & _QK)
