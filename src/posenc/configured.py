"""Construct the encodings of each layer of a model from its configuration."""

from typing import Any

from posenc import config, frequencies, registry
from posenc.config import kinds, models, unrotated, values
from posenc.config.growth import growth
from posenc.config.model import Model, open_model, stacks
from posenc.config.reading import Checked
from posenc.encoding import Encoding

# types whose layers without rotation have an encoding that is not one of a single layer
_INSTEAD = {"esm": "adds a learned table to the tokens (posenc.Learned)"}
# types whose list of bases has a base for each layer, not zeros for layers without rotation
_EACH_BASE = ("granite_swa", "granitemoe_swa")
_KEYS_ARE_VALUES = ("deepseek_v4",)  # they rotate once, as keys; outputs are rotated back

# patterns of layers by name, and the model type of each
_PRESETS = {"gemma4": "gemma4_text", "irope": "llama4_text", "rnope": "cohere2", "smollm3": "smollm3"}


def preset(name: str, n_layers: int, *, head_dim: int | None, base: float | None) -> dict[str, Any]:
    """Return the configuration of a model with a published pattern of layers.

    Args:
        name: The name of the pattern.
        n_layers: The number of layers.
        head_dim: Dimensions of one head, in all layers; None for those of the published model.
        base: The base of the layers without a window, or of all if they share it; None for the model's.

    Raises:
        ValueError: The pattern is unknown, or a number is out of range.
        TypeError: A number has a wrong type.

    >>> preset("smollm3", 4, head_dim=64, base=None)
    {'model_type': 'smollm3', 'num_hidden_layers': 4, 'head_dim': 64}
    """
    who = "PerLayer.preset"
    if name not in _PRESETS:
        raise ValueError(f"{who}: name must be one of {', '.join(_PRESETS)}; got {name!r}.")
    fields: dict[str, Any] = {
        "model_type": _PRESETS[name],
        "num_hidden_layers": values.integer(who, "n_layers", n_layers),
    }
    if head_dim is not None:
        fields["head_dim"] = values.integer(who, "head_dim", head_dim)
    if base is not None:
        fields["rope_theta"] = frequencies.check_base(base, who)
    if name != "gemma4":
        return fields
    full = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": fields.pop("rope_theta", 1e6)}
    kinds_of = {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    return {**fields, "global_head_dim": fields.get("head_dim", 512), "rope_parameters": kinds_of}


def by_layer(
    source: config.Source, *, pairing: config.Pairing | None, seq_len: int | None
) -> list[tuple[Encoding, ...]]:
    """Construct the encodings of each layer of a model, first to last; layers with equal encodings share one tuple.

    Args:
        source: A config.json, a directory that contains one, or a mapping.
        pairing: The pairing of head dimensions; None for that of the model type.
        seq_len: The longest text, in positions, if frequencies depend on it; None to `resolve` it later.

    Raises:
        ValueError: As for `config.rotary` and `config.layer_types`, or posenc does not have the encoding.
        TypeError: As for `config.rotary` and `config.layer_types`.

    >>> smollm3 = {"model_type": "smollm3", "num_hidden_layers": 4, "head_dim": 8}
    >>> [parts[0].name for parts in by_layer(smollm3, pairing=None, seq_len=None)]
    ['RoPE', 'RoPE', 'RoPE', 'NoPE']
    """
    fields, *more = stacks(source).values()
    if more:
        return [parts for one in (fields, *more) for parts in by_layer(one, pairing=pairing, seq_len=seq_len)]
    model = open_model(fields)
    if (other := unrotated.ways(model)) is not None:
        return _unrotated(other)
    models.facts(model.model_type, pairing, model.native)  # refuses unknown types without a pairing
    ways = _ways(model)
    made, chosen = dict[str, tuple[Encoding, ...]](), dict[tuple[str, Any], tuple[Encoding, ...]]()
    n_axes = 1  # that of the kinds that rotate, which come first; the others get the same positions
    for kind, base in sorted(kinds.distinct(ways), key=lambda way: not kinds.rotates(way[0])):
        if base is not None:
            fields = Checked({**model.fields, "model_type": model.model_type, "layer_rope_theta": [base] * len(ways)})
        parts = _of_kind(fields, kind, pairing, seq_len) or (registry.create("nope", n_axes=n_axes),)
        n_axes = max(part.n_axes for part in parts)
        options = [(part.name, part.options()) for part in parts]
        chosen[kind, base] = made.setdefault(repr(options), parts)  # repr has all digits of numbers
    return [chosen[way] for way in ways]


def _unrotated(ways: list[unrotated.Way]) -> list[tuple[Encoding, ...]]:
    """Construct the encodings of each layer of a model that does not rotate."""
    found: list[tuple[Encoding, ...]] = []
    for way in ways:
        added = registry.card(way.encoding).family == "additive"  # it applies only before the first layer
        n_own = 1 if added or way.shared else way.count
        names = {**way.also, way.encoding: way.options}
        made = [tuple(registry.create(name, **names[name]) for name in names) for _ in range(n_own)]
        found += made + [(registry.create("nope"),) if added else made[0]] * (way.count - n_own)
    return found


def _ways(model: Model) -> list[tuple[str, Any]]:
    """Return the kind of each layer, and its base if the model has one for each layer."""
    order, bases = kinds.layers(model), None
    if model.name in _EACH_BASE or model.name not in models.TYPES:
        bases = kinds.thetas(model, len(order))
    if model.name in _INSTEAD and kinds.NOPE in order:
        raise ValueError(
            f"PerLayer: layers of {model.name} without rotation are not without position: it {_INSTEAD[model.name]}; "
            f"got {order.count(kinds.NOPE)} such layers of {len(order)}. Construct the encodings one by one."
        )
    return list(zip(order, bases or [None] * len(order), strict=True))


def _of_kind(source: Checked, kind: str, pairing: config.Pairing | None, seq_len: int | None) -> tuple[Encoding, ...]:
    """Construct the encodings of one kind of layer, if it has any."""
    parts: list[Encoding] = []
    if kinds.rotates(kind):
        layout = config.rotary(source, kind, pairing=pairing).layout
        rotary: Any = registry.find_class("rope" if layout in (None, "doubled") else "mrope")
        parts.append(rotary.from_config(source, kind, pairing=pairing, seq_len=seq_len))
        if open_model(source).name in _KEYS_ARE_VALUES:
            own, same = parts[0].options(), ("head_dim", "base", "rotary_dim", "rotary_side", "pairing", "inv_freq")
            parts.append(registry.create("vo_rope", **{name: own[name] for name in same}))
    if (options := growth(source, kind, pairing=pairing)) is not None:
        parts.append(registry.create("query_temperature", **options))
    return tuple(parts)
