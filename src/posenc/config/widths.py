"""The width of a head, and the dimensions of it that rotate."""

from dataclasses import dataclass
from typing import Any, Literal

from posenc.config import reads, values
from posenc.config.model import WHO, Model
from posenc.config.models import DERIVES_HEAD, GLOBAL_HEAD_DIM, LATENT, ROTARY_DIM, TYPES, Facts

Side = Literal["first", "last"]
MAX_HEAD_DIM = 8192
_SWA = {"head_dim": 256, "qk_nope_head_dim": 192}  # in Dots 3's layers with a window


@dataclass(frozen=True)
class Widths:
    """The dimensions of a head, the number and side of those that rotate, and the file's share of them with its key."""

    head_dim: int
    rotary_dim: int
    side: Side
    share: float
    key: str = ""


def widths(model: Model, own: dict[str, Any], first_layer: int | None, kind: str, name: str, facts: Facts) -> Widths:
    """Return the widths of a kind of layer.

    Args:
        model: The model.
        own: The parameters of the kind.
        first_layer: The number of the kind's first layer, for files with widths of single layers.
        kind: The kind of layer.
        name: The type of the rotation.
        facts: The defaults of the model type.

    Raises:
        TypeError: A width is not an integer, or a share is not a number.
        ValueError: A width is missing, out of range or odd, or more dimensions rotate than the head has.
    """
    single = _single(model, first_layer, kind)
    latent = _latent(model, single)
    if latent is not None:
        still, rotating = latent
        head_dim = rotating + still if still is not None else _head_dim(model, single, kind, facts)
        found = Widths(head_dim, rotating, "last", rotating / head_dim, "qk_rope_head_dim")
    else:
        head_dim = _head_dim(model, single, kind, facts)
        rotary_dim, share, key = _rotating(model, own, head_dim, name, facts)
        found = Widths(head_dim, rotary_dim, "first", share, key)
    _check(found)
    return found


def implied(model: Model, width: Widths, n_pairs: int) -> str | None:
    """Return the key and value with which `n_pairs` pairs would rotate, as in a file; None if there is none.

    >>> implied(Model({}, "phi3"), Widths(128, 128, "first", 1.0), 48)
    'partial_rotary_factor: 0.75'
    """
    rotary_dim = 2 * n_pairs
    if rotary_dim < 2 or rotary_dim == width.rotary_dim:
        return None
    if width.side == "last":
        return f"qk_rope_head_dim: {rotary_dim}"
    known = TYPES.get(model.name)
    if rotary_dim <= width.head_dim and (known is None or known.reads_share):
        key = (*reads.share_keys(model.name, True), "partial_rotary_factor")[0]
        return f"{key}: {rotary_dim / width.head_dim:.10g}"
    head_dim = rotary_dim * width.head_dim / width.rotary_dim
    return f"head_dim: {head_dim:g}" if head_dim.is_integer() and head_dim <= MAX_HEAD_DIM else None


def _check(found: Widths) -> None:
    if found.head_dim > MAX_HEAD_DIM:
        raise values.out_of_range(
            f"{WHO}: head_dim must be at most {MAX_HEAD_DIM}; got {found.head_dim}. Correct the file.",
            "head_dim",
            found.head_dim,
            f"at most {MAX_HEAD_DIM}",
        )
    if found.rotary_dim % 2 or not 2 <= found.rotary_dim <= found.head_dim:
        key, value = ("head_dim", found.head_dim)
        if found.side == "last":
            key, value = "qk_rope_head_dim", found.rotary_dim
        elif found.rotary_dim != found.head_dim:
            part = ("partial_rotary_factor", found.share), ("rotary_dim", found.rotary_dim)
            key, value = part[found.share == 1]  # type: ignore[assignment]
        even = max(2, min(found.rotary_dim, found.head_dim) // 2 * 2)
        raise values.out_of_range(
            f"{WHO}: the dimensions that rotate must be an even number from 2 to head_dim, because they rotate "
            f"in pairs; got {found.rotary_dim} of {found.head_dim}. Correct head_dim or the part that rotates.",
            key,
            value,
            f"values that give an even number of dimensions from 2 to {found.head_dim}",
            meanings=(
                (
                    f"{key} {value:g}",
                    f"{found.rotary_dim} of {found.head_dim} dimensions, which cannot be paired",
                ),
                (f"{even} dimensions", f"{even // 2} pairs rotate"),
            ),
            fix="Correct head_dim, or the part that rotates (partial_rotary_factor, rotary_pct or rotary_dim).",
        )


def _single(model: Model, first_layer: int | None, kind: str) -> dict[str, Any]:
    """Return the widths of a single layer: from its entry in the file, or from the keys of layers with a window."""
    singled = model.fields.get("per_layer_config")
    if isinstance(singled, dict) and first_layer is not None:
        layer = next((one for key, one in singled.items() if key.isdecimal() and int(key[:9]) == first_layer), None)
        return layer if isinstance(layer, dict) else {}
    if singled is None and model.name == "dots3_note_text" and kind == "sliding_attention":
        own = {key: model.fields.get(f"swa_{key}", default) for key, default in _SWA.items()}
        whole, still = (values.integer(WHO, f"swa_{key}", own[key], high=MAX_HEAD_DIM) for key in _SWA)
        rotating = model.fields.get("swa_qk_rope_head_dim", whole - still)
        return {**own, "qk_rope_head_dim": rotating}
    return {}


def _latent(model: Model, single: dict[str, Any]) -> tuple[int | None, int] | None:
    """Return the numbers of dimensions that do not rotate and that do in multi-head latent attention, else None."""
    if not reads.reads_width(model.name, "qk_rope_head_dim"):
        return None
    default = LATENT.get(model.name, (None, None))
    out: list[int | None] = []
    for key, usual in zip(("qk_nope_head_dim", "qk_rope_head_dim"), default, strict=True):
        value = single.get(key, model.fields.get(key))
        if value is None and usual is not None:
            model.assume(key, usual, f"from 0 to {MAX_HEAD_DIM}")
        out.append(usual if value is None else values.integer(WHO, key, value, low=0, high=MAX_HEAD_DIM))
    still, rotating = out
    return (still, rotating) if rotating else None


def _head_dim(model: Model, single: dict[str, Any], kind: str, facts: Facts) -> int:
    """Return the width of a head: the layer's own, the file's, or the model's width over its number of heads."""
    if single.get("head_dim") is not None:
        return values.integer(WHO, "per_layer_config.head_dim", single["head_dim"], high=MAX_HEAD_DIM)
    if kind == "full_attention" and model.fields.get("global_head_dim") is not None:
        return values.integer(WHO, "global_head_dim", model.fields["global_head_dim"], high=MAX_HEAD_DIM)
    if kind == "full_attention" and model.name in GLOBAL_HEAD_DIM and "per_layer_config" not in model.fields:
        model.assume("global_head_dim", 512, f"from 1 to {MAX_HEAD_DIM}")
        return 512
    if model.name not in DERIVES_HEAD and (given := model.size("head_dim")) is not None:
        return given
    if facts.head_dim is not None:
        return model.size("head_dim", facts.head_dim) or facts.head_dim
    hidden, heads = model.size("hidden_size", facts.hidden_size), model.size("n_heads", facts.n_heads)
    if hidden is None or heads is None:
        raise values.missing(
            f"{WHO}: the width of a head is missing; got neither head_dim nor both hidden_size and "
            f"num_attention_heads. Add head_dim.",
            "head_dim",
            None,
            f"from 1 to {MAX_HEAD_DIM}",
            meanings=(("head_dim", "the width itself"), ("hidden_size, num_attention_heads", "their quotient")),
        )
    return hidden // heads


def _rotating(model: Model, own: dict[str, Any], head_dim: int, name: str, facts: Facts) -> tuple[int, float, str]:
    """Return the number of first head dimensions that rotate, the share in the file, and its key."""
    share, key = _share(model, own)
    if share is None and reads.reads_width(model.name, "rotary_dim"):
        width = model.fields.get("rotary_dim")
        width = ROTARY_DIM.get(model.name) if width is None and "rotary_dim" not in model.fields else width
        if width is not None:
            return values.integer(WHO, "rotary_dim", width, high=MAX_HEAD_DIM), 1.0, "rotary_dim"
    share = facts.share if share is None else share
    if name == "proportional":
        return head_dim, share, key
    if share != 1 and not facts.reads_share:
        effect = "so the whole head rotates" if name == "default" else "but the frequencies of its scaling do"
        model.warn(
            "share_unread",
            key,
            f"{model.name} in transformers does not read {key}, {effect}.",
            value=share,
            allowed="1, or the key left out",
            meanings=(
                (
                    f"{share:g}",
                    f"for a type that reads it, {int(head_dim * share)} of {head_dim} dimensions would rotate",
                ),
                (
                    "1, or left out",
                    f"all {head_dim} dimensions rotate, as always for this type in transformers",
                ),
            ),
            fix="Remove it, or write a model_type that rotates a part of a head, such as stablelm or phi.",
        )
        share = 1.0 if name == "default" else share
    return int(head_dim * share), share, key


def _share(model: Model, own: dict[str, Any]) -> tuple[float | None, str]:
    """Return the share of a head that rotates in the file, and its key."""
    filled = any(model.fields.get(key) for key in reads.objects(model.name))
    outside = ((model.fields, key) for key in reads.share_keys(model.name, filled))
    for holder, key in ((own, "partial_rotary_factor"), *outside):
        if holder.get(key) is not None:
            return values.number(WHO, key, holder[key], low=0.0, high=1.0, above=True), key
    return None, ""
