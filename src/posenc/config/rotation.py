"""Read the rotation of one kind of layer from a configuration."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from posenc.config import kinds, misplaced, oddities, patterns, places, spelling, unrotated, values
from posenc.config.axes import axes
from posenc.config.defaults import parameters
from posenc.config.model import WHO, ConfigWarning, Model, open_model
from posenc.config.models import CLOCKWISE, LATENT, READS_INTERLEAVE, TYPES, Facts, Layout, Pairing, facts
from posenc.config.reading import Source
from posenc.config.scaling import scaling
from posenc.config.spelling import Spelling
from posenc.config.widths import Side, widths


@dataclass(frozen=True)
class Rotary:
    """The rotation of one kind of layer in a configuration; lengths in positions, widths in head dimensions.

    Args:
        model_type: The model's type; None if the file has none and the caller passed the pairing.
        layer_type: The kind of layer.
        base: The file's rope_theta.
        head_dim: Dimensions of a head; in multi-head latent attention both those that rotate and those that do not.
        rotary_dim: The number of head dimensions that rotate.
        rotary_side: Their side of the head: "last" in multi-head latent attention.
        pairing: The pairing of head dimensions.
        sections: Pairs of each axis of a position, time first; None if positions have one axis.
        layout: The axis of each pair: "blocks", "interleaved" or "time_last" as in `MRoPE`, or "doubled" for sections
            of the doubled table, by which the two dimensions of a pair read different axes (HunYuan-VL).
        rope_type: The type as named in transformers 5; "ntk_alpha" is HunYuan's fixed scaling of the base.
        factor: The factor by which texts get longer; None without scaling.
        original_max_len: The trained length, if the type or the file gives it.
        max_len: The maximum length in the file.
        parameters: The other parameters of the type by their names in the file, with defaults filled in.
        window: The number of positions that a layer sees, as in the file (ModernBERT counts both sides); None for all.
        scales_scores: Whether the model's attention multiplies all scores by the square of
            mscale(factor, mscale_all_dim), as DeepSeek's does.
        clockwise: Whether the model's code rotates clockwise, as if all frequencies were negated.
        spelling: The key of the parameters in the file.
        warnings: Problems with which the model still runs.
    """

    model_type: str | None
    layer_type: str
    base: float
    head_dim: int
    rotary_dim: int
    rotary_side: Side
    pairing: Pairing
    sections: tuple[int, ...] | None
    layout: Layout | None
    rope_type: str
    factor: float | None
    original_max_len: int | None
    max_len: int | None
    parameters: Mapping[str, Any] = field(hash=False)
    window: int | None
    scales_scores: bool
    clockwise: bool
    spelling: Spelling
    warnings: tuple[ConfigWarning, ...]


def rotary(source: Source, layer_type: str | None = None, *, pairing: Pairing | None = None) -> Rotary:
    """Return the rotation of one kind of layer in a model's configuration.

    It reads the keys that transformers 5.24 reads, in old and new spellings, with its defaults. There are two
    differences: problems that transformers only logs, such as a factor below 1, are errors here, and an odd number of
    dimensions is not rounded up.

    Args:
        source: A configuration, as for `read`.
        layer_type: The kind of layer, as in `layer_types`. None stands for full attention, or for the first kind that
            rotates, if all kinds share their parameters.
        pairing: The pairing of head dimensions; None for that of the model type.

    Raises:
        ValueError: The model type is unknown and no pairing is given, the kind does not rotate or must be given, or a
            value is missing or out of range.
        TypeError: A value has a wrong type.

    >>> llama = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "rope_theta": 5e5}
    >>> found = rotary(llama)
    >>> found.base, found.rotary_dim, found.pairing, found.rope_type
    (500000.0, 32, 'half', 'default')
    """
    model = open_model(source)
    if (other := unrotated.kind(model)) is not None:
        raise ValueError(
            f"config.rotary: {model.model_type} does not rotate by one position, so it has no pairing of dimensions; "
            f"positions enter by {other.means}. Use posenc.PerLayer.from_config, if posenc has its encodings."
        )
    known = facts(model.model_type, pairing, model.native)
    listed = kinds.layers(model, unknown=24)
    kind = _kind(model, listed, layer_type)
    found = spelling.spelled(model, kind)
    name = spelling.rope_type(model, found.own)
    base = spelling.base(model, found, kind, known, listed)
    first = listed.index(kind) if kind in listed else None
    width = widths(model, found.own, first, kind, name, known)
    max_len = model.size("max_len", None if name == "default" or model.native else known.max_len)
    scaled = scaling(model, found, name, width, max_len)
    sections, layout = axes(model, found.own, width)
    window = kinds.window(model, kind)
    oddities.note(model, found, kind, name, window, scaled, max_len)
    length = scaled.original_max_len
    places.note(model, found, misplaced.Read(kind, listed, base, width, name, length, max_len))
    return Rotary(
        model_type=model.model_type,
        layer_type=kind,
        base=base,
        head_dim=width.head_dim,
        rotary_dim=width.rotary_dim,
        rotary_side=width.side,
        pairing=_pairing(model, known, pairing),
        sections=sections,
        layout=layout,
        rope_type=name,
        factor=scaled.factor,
        original_max_len=scaled.original_max_len,
        max_len=max_len,
        parameters=scaled.parameters,
        window=window,
        scales_scores=model.name in LATENT or (model.name not in TYPES and width.side == "last"),
        clockwise=model.name in CLOCKWISE,
        spelling=found.key,
        warnings=tuple(model.warnings),
    )


def _kind(model: Model, listed: list[str], layer_type: str | None) -> str:
    """Return the requested kind of layer, or the default if it is unambiguous."""
    own = parameters(model.fields, model.name)
    nested = [key for key, value in own.items() if isinstance(value, dict)] if isinstance(own, dict) else []
    rotating = [kind for kind in dict.fromkeys(listed) if kinds.rotates(kind)]
    if layer_type is not None:
        if layer_type in rotating or layer_type in nested:
            return layer_type
        choice = ", ".join(values.short(kind) for kind in dict.fromkeys([*rotating, *nested])) or "none"
        raise ValueError(
            f"{WHO}: layer_type must be a kind that rotates, here {choice[:200]}; got {values.short(layer_type)}."
        )
    if not rotating:
        raise ValueError(f"{WHO}: no layer of this model rotates; got {', '.join(dict.fromkeys(listed))[:200]}.")
    if len(rotating) > 1 and (nested or model.name in spelling.FILLS_IN or patterns.UNSCALED in rotating):
        raise ValueError(
            f"{WHO}: layer_type must be given, because kinds of layers rotate differently; got None. "
            f"Pass one of {', '.join(map(values.short, rotating))[:200]}."
        )
    return kinds.FULL if kinds.FULL in rotating else rotating[0]


def _pairing(model: Model, known: Facts, pairing: Pairing | None) -> Pairing:
    """Return the caller's pairing, or the type's, which in some types depends on a flag."""
    if pairing is None and model.name in READS_INTERLEAVE and model.fields.get("rope_interleave") is not None:
        flag = values.flag(WHO, "rope_interleave", model.fields["rope_interleave"])
        return "interleaved" if flag else "half"
    return known.pairing
