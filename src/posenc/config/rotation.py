"""What a configuration says of the rotation in one kind of layer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from posenc.config import kinds, misplaced, oddities, patterns, places, spelling, unrotated, values
from posenc.config.axes import axes
from posenc.config.model import WHO, ConfigWarning, Model, open_model
from posenc.config.models import CLOCKWISE, LATENT, READS_INTERLEAVE, TYPES, Facts, Layout, Pairing, facts
from posenc.config.reading import Source
from posenc.config.scaling import scaling
from posenc.config.spelling import Spelling
from posenc.config.widths import Side, widths


@dataclass(frozen=True)
class Rotary:
    """What a configuration says of the rotation in one kind of layer; lengths in positions, widths in head dimensions.

    Args:
        model_type: The model's type; None where the file has none and the caller gave the pairing.
        layer_type: The kind of layer.
        base: The file's rope_theta.
        head_dim: Dimensions of a head; in multi-head latent attention those that stay and those that rotate.
        rotary_dim: How many head dimensions rotate.
        rotary_side: Which: "last" in multi-head latent attention.
        pairing: Which head dimensions rotate together.
        sections: Pairs of each axis of a position, time first; None where positions have one axis.
        layout: Which pair reads which: "blocks", "interleaved" or "time_last", as `MRoPE` has them, or "doubled":
            sections of the doubled table, by which the two lanes of a pair read different axes (HunYuan-VL).
        rope_type: The type in the words of transformers 5; "ntk_alpha" is HunYuan's fixed stretch of the base.
        factor: How many times longer the texts get; None where nothing is scaled.
        original_max_len: The trained length, as far as the type or the file names one.
        max_len: The longest text that the file allows.
        parameters: The other parameters of the type, in the file's words, with defaults filled in.
        window: How many positions a layer sees, as the file writes it (ModernBERT's counts both sides); None for all.
        scales_scores: Whether the model's attention multiplies all scores by the square of
            mscale(factor, mscale_all_dim), as DeepSeek's does.
        clockwise: Whether the model's code rotates the other way round, as with all frequencies negated.
        spelling: Under which key the parameters stood.
        warnings: What is odd, though the model runs.
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
    """Return what a model's configuration says of the rotation in one kind of layer.

    Reads what transformers 5.23 reads, in old and new spellings, and takes its defaults. Two departures: what it
    only logs, such as a factor below 1, is an error here, and an odd number of dimensions is not rounded up.

    Args:
        source: A configuration, as for `read`.
        layer_type: The kind of layer, as in `layer_types`; None takes full attention, or the first kind that rotates,
            where all kinds share their parameters.
        pairing: Which head dimensions rotate together; None takes what the model type does.

    Raises:
        ValueError: The model type is unknown and there is no pairing, the kind does not rotate or must be named, or a
            value is missing or out of range.
        TypeError: A value is of a wrong kind.

    >>> llama = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "rope_theta": 5e5}
    >>> found = rotary(llama)
    >>> found.base, found.rotary_dim, found.pairing, found.rope_type
    (500000.0, 32, 'half', 'default')
    """
    model = open_model(source)
    if (other := unrotated.kind(model)) is not None:
        raise ValueError(
            f"config.rotary: {model.model_type} does not rotate by one position, so it has no pairing of dimensions; "
            f"positions enter by {other.said}. posenc.PerLayer.from_config constructs what posenc has of it."
        )
    known = facts(model.model_type, pairing)
    listed = kinds.layers(model, unknown=24)
    kind = _kind(model, listed, layer_type)
    found = spelling.spelled(model, kind)
    name = spelling.rope_type(model, found.own)
    base = spelling.base(model, found, kind, known, listed)
    first = listed.index(kind) if kind in listed else None
    width = widths(model, found.own, first, kind, name, known)
    max_len = model.size("max_len", None if name == "default" else known.max_len)
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
    """Return the kind that is asked for, or the only one that can be meant."""
    own = model.fields.get("rope_scaling") or model.fields.get("rope_parameters")
    nested = [key for key, value in own.items() if isinstance(value, dict)] if isinstance(own, dict) else []
    turning = [kind for kind in dict.fromkeys(listed) if kinds.turns(kind)]
    if layer_type is not None:
        if layer_type in turning or layer_type in nested:
            return layer_type
        choice = ", ".join(values.short(kind) for kind in dict.fromkeys([*turning, *nested])) or "none"
        raise ValueError(
            f"{WHO}: layer_type must be a kind that rotates, here {choice[:200]}; got {values.short(layer_type)}."
        )
    if not turning:
        raise ValueError(f"{WHO}: no layer of this model rotates; got {', '.join(dict.fromkeys(listed))[:200]}.")
    if len(turning) > 1 and (nested or model.name in spelling.FILLS_IN or patterns.UNSCALED in turning):
        raise ValueError(
            f"{WHO}: layer_type must be given, because kinds of layers rotate differently; got None. "
            f"Pass one of {', '.join(map(values.short, turning))[:200]}."
        )
    return kinds.FULL if kinds.FULL in turning else turning[0]


def _pairing(model: Model, known: Facts, pairing: Pairing | None) -> Pairing:
    """Return the caller's pairing, or the type's with the flag that some types read."""
    if pairing is None and model.name in READS_INTERLEAVE and model.fields.get("rope_interleave") is not None:
        flag = values.flag(WHO, "rope_interleave", model.fields["rope_interleave"])
        return "interleaved" if flag else "half"
    return known.pairing
