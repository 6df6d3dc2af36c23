"""Context extension of a model as a configuration of transformers 5."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from posenc import config, frequencies
from posenc.config import kinds, reads, spelling
from posenc.config.misplaced import label
from posenc.config.model import open_model
from posenc.config.reading import Checked
from posenc.config.rotation import Rotary
from posenc.parity.compare import Meaning, mean

WHO = "extend"
LENGTH, ORIGINAL = reads.LENGTHS
OLD = frozenset({*reads.SCALINGS, *reads.BASES, *reads.LOCAL_BASES, ORIGINAL})  # older spellings of rope_parameters
_MOST = 1e4


@dataclass(frozen=True)
class Method:
    """A context extension method.

    Args:
        name: Its name in options.
        title: Its name in the literature.
        rope_type: Its rope_type in transformers 5; None if no configuration can express it.
        needs: Required parameters, named as in the file.
        takes: Optional parameters.
    """

    name: str
    title: str
    rope_type: str | None
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()


_YARN = ("attention_factor", "beta_fast", "beta_slow", "truncate", "mscale", "mscale_all_dim")
METHODS: Mapping[str, Method] = {
    one.name: one
    for one in (
        Method("linear", "position interpolation", "linear"),
        Method("ntk", "NTK-aware base", "default"),
        Method("dynamic", "dynamic NTK", "dynamic"),
        Method("yarn", "YaRN", "yarn", takes=_YARN),
        Method("llama3", "Llama 3's scaling", "llama3", takes=("low_freq_factor", "high_freq_factor")),
        Method("base", "larger base", "default", needs=("rope_theta",)),
        Method("longrope", "LongRoPE", "longrope", ("short_factor", "long_factor"), ("attention_factor",)),
        Method("dual-chunk", "dual chunk attention", None),
        Method("self-extend", "Self-Extend", None),
        Method("drope", "dropping positions with recalibration", None),
    )
}
_DEFAULTS = {"llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0}}


@dataclass(frozen=True)
class Stretched:
    """A configuration with a longer context; lengths in positions.

    Args:
        method: The method.
        factor: The target length / the trained length.
        trained_len: The trained length.
        target_len: The wanted length.
        kind: The kind of layer that is extended; layers with a window do not change.
        parameters: The rope_parameters of that kind in transformers 5, with the base.
        override: The changed fields: the length and rope_parameters, for every kind of layer if kinds differ.
        fields: The language model's fields with the override, without older spellings of the same.
        before: The meaning of the original configuration, by kind of layer; the extended kind first.
        after: The meaning of the new configuration, likewise.
    """

    method: Method
    factor: float
    trained_len: int
    target_len: int
    kind: str
    parameters: Mapping[str, Any] = field(hash=False)
    override: Mapping[str, Any] = field(hash=False)
    fields: Mapping[str, Any] = field(hash=False)
    before: tuple[Meaning, ...] = field(hash=False)
    after: tuple[Meaning, ...] = field(hash=False)


def stretch(
    source: config.Source,
    method: str,
    *,
    factor: float | None = None,
    target_len: int | None = None,
    trained_len: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Stretched:
    """Extend a configuration's context; if kinds of layers differ, only full attention changes.

    Args:
        source: A configuration, as for `config.read`.
        method: A name of `METHODS`.
        factor: The target / the trained length, at least 1; None takes it from target_len.
        target_len: The wanted length in positions; None takes the factor times the trained length.
        trained_len: The trained length; None takes that of the configuration.
        options: Parameters of the method, named as in transformers: beta_fast, rope_theta, long_factor, ...

    Raises:
        ValueError: The method is unknown or no configuration can express it, it has no such option, neither factor
            nor length is given, the factor is below 1, a value is out of range, or the model type has another meaning
            for the method's name.
        TypeError: A value has a wrong type.

    >>> qwen = {"model_type": "qwen3", "head_dim": 128, "max_position_embeddings": 40960, "rope_theta": 1e6}
    >>> longer = stretch(qwen, "yarn", factor=4, trained_len=32768)
    >>> longer.target_len, longer.parameters["rope_theta"], longer.parameters["original_max_position_embeddings"]
    (131072, 1000000.0, 32768)
    """
    chosen, given = _method(method), dict(options or {})
    _check_options(chosen, given)
    fields = Checked(config.read(source))
    before = tuple(mean(fields))
    main, model = before[0].rotary, open_model(fields)
    trained = trained_length(before[0], trained_len)
    factor, target = lengths(factor, target_len, trained)
    if main.rope_type == "proportional":
        raise ValueError(
            f"{WHO}: transformers has no {chosen.title} for a proportional rotation, in which some pairs do not "
            "rotate; it only divides by the type's own factor. Write that factor into the file."
        )
    own = _rotation(chosen, given, factor, trained, before[0])
    found = spelling.spelled(model, main.layer_type)
    own = {**{key: found.own[key] for key in reads.KEPT if key in found.own}, **own}
    if main.rotary_side == "first" and main.rotary_dim != main.head_dim:
        own["partial_rotary_factor"] = main.rotary_dim / main.head_dim
    length = trained if chosen.rope_type == "dynamic" else target  # dynamic NTK reads it as the trained length
    override = {LENGTH: length, "rope_parameters": _by_kind(own, main.layer_type, fields, found.nested)}
    stretched = {key: value for key, value in model.fields.items() if key not in OLD} | override
    stretched.setdefault("model_type", model.model_type)
    after = tuple(mean(Checked(config.read(stretched))))
    if (found_type := after[0].rotary.rope_type) != chosen.rope_type:  # Phi-3 used a name before the paper did
        raise ValueError(
            f"{WHO}: transformers reads {chosen.rope_type} of {model.model_type} as {found_type}. "
            "Use another method, such as longrope or ntk."
        )
    return Stretched(chosen, factor, trained, target, main.layer_type, own, override, stretched, before, after)


def trained_length(meaning: Meaning, given: int | None = None) -> int:
    """Return the trained length in positions: the given one, the file's original length, or its longest text.

    Raises:
        ValueError: The length is below 2, or neither given nor in the file.
    """
    rotary = meaning.rotary
    if given is not None:
        if given < 2:
            raise ValueError(f"{WHO}: the trained length must be at least 2 positions; got {given}.")
        return given
    if rotary.rope_type == "linear" and rotary.max_len and rotary.original_max_len is None:
        return round(rotary.max_len / (rotary.factor or 1.0))  # Llama 2 with 32K gives only the extended length
    found = rotary.original_max_len or rotary.max_len
    if found is None:
        raise ValueError(f"{WHO}: the configuration gives no length. Give the trained length.")
    return found


def plain_base(rotary: Rotary) -> float:
    """Return the base without a scaling; HunYuan's alpha is included, because the model was trained with it."""
    if rotary.rope_type != "ntk_alpha" or rotary.factor is None:
        return rotary.base
    return frequencies.ntk_base(rotary.base, width=rotary.rotary_dim, factor=rotary.factor)


def _method(name: str) -> Method:
    if name not in METHODS:
        raise ValueError(f"{WHO}: unknown method {name[:60]!r}. Known: {', '.join(METHODS)}.")
    if METHODS[name].rope_type is None:
        raise ValueError(
            f"{WHO}: no configuration can express {METHODS[name].title}, because it changes attention and not "
            "frequencies. The nearest method is yarn."
        )
    return METHODS[name]


def _check_options(method: Method, given: Mapping[str, Any]) -> None:
    known = (*method.needs, *method.takes)
    if unknown := sorted(given.keys() - set(known)):
        raise ValueError(
            f"{WHO}: {method.name} has no parameter {', '.join(unknown)[:200]}. Known: {', '.join(known) or 'none'}."
        )
    if missing := [key for key in method.needs if key not in given]:
        raise ValueError(f"{WHO}: {method.name} needs {' and '.join(missing)}; got {', '.join(given) or 'none'}.")


def lengths(factor: float | None, target: int | None, trained: int) -> tuple[float, int]:
    """Return the factor and the wanted length."""
    if factor is None and target is None:
        raise ValueError(f"{WHO}: neither a factor nor a target length is given. Give one of them.")
    if target is not None and target < trained:
        raise ValueError(
            f"{WHO}: the target length must be at least the trained length {trained}; got {target}. "
            "A shorter text needs no scaling."
        )
    factor = target / trained if factor is None and target is not None else float(factor or 0.0)
    if not 1.0 <= factor <= _MOST:
        raise ValueError(f"{WHO}: the factor must be from 1 to {_MOST:g}; got {factor:g}.")
    return factor, round(factor * trained) if target is None else target


def _rotation(
    method: Method, given: Mapping[str, Any], factor: float, trained: int, meaning: Meaning
) -> dict[str, Any]:
    """Return the parameters of the rotation, with the base."""
    rotary, base = meaning.rotary, plain_base(meaning.rotary)
    own = {"rope_type": method.rope_type, "rope_theta": base, **_DEFAULTS.get(method.name, {})}
    if rotary.rope_type == method.rope_type:  # the model was trained with this ramp and mscale
        shipped = spelling.spelled(open_model(meaning.source), rotary.layer_type)
        both = {**shipped.around, **shipped.own}
        own |= {key: both[key] for key in method.takes if key in both and key != "attention_factor"}
    own |= given
    if method.name == "ntk":
        own["rope_theta"] = frequencies.ntk_base(base, width=rotary.rotary_dim, factor=factor)
    if method.rope_type in ("linear", "dynamic", "yarn", "llama3"):
        own["factor"] = factor
    if method.rope_type in ("yarn", "llama3", "longrope"):
        own[ORIGINAL] = trained
    return own


def _by_kind(own: dict[str, Any], stretched: str, source: Checked, nested: bool) -> dict[str, Any]:
    """Return one object, or one for each kind of layer if the model has kinds with their own."""
    model = open_model(source)
    if not nested and model.name not in reads.BY_KIND:
        return own
    rotating = [kind for kind in dict.fromkeys(kinds.layers(model, unknown=24)) if kinds.rotates(kind)]
    around = {"truncate": own.pop("truncate")} if "truncate" in own else {}  # transformers reads it there
    inner = {label(model, kind): own if kind == stretched else spell(config.rotary(source, kind)) for kind in rotating}
    return around | inner


def spell(rotary: Rotary) -> dict[str, Any]:
    """Return a kind's rotation as rope_parameters of transformers 5."""
    own: dict[str, Any] = {"rope_type": rotary.rope_type, "rope_theta": rotary.base, **rotary.parameters}
    if rotary.rope_type != "default":
        own["factor"] = rotary.factor
    if rotary.rope_type in ("yarn", "llama3", "longrope"):
        own[ORIGINAL] = rotary.original_max_len
    if own.pop("share", 1.0) != 1.0 or (rotary.rotary_side == "first" and rotary.rotary_dim != rotary.head_dim):
        own["partial_rotary_factor"] = rotary.parameters.get("share", rotary.rotary_dim / rotary.head_dim)
    return own
