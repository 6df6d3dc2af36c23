"""Find the rotary parameters in a configuration, in old and new spellings, flat or nested by kind of layer."""

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

from posenc.config import kinds, patterns, reads, values
from posenc.config.defaults import COMPLETED, DEFAULTS
from posenc.config.model import WHO, Model
from posenc.config.models import (
    BASE_OF_DEFAULTS,
    FILLS_IN,
    FIXED_BASE,
    LABELS,
    LOCAL_BASE,
    MERGES,
    SCALES_FULL_ONLY,
    TYPES,
    Facts,
)

Spelling = Literal["rope_parameters", "rope_scaling", "top level"]
SCALED = ("linear", "dynamic", "yarn", "longrope", "llama3")
KNOWN = ("default", *SCALED, "proportional", "ntk_alpha")
MAX_BASE = 1e12
# short descriptions of the types
MEANINGS = {
    "default": "nothing is scaled",
    "linear": "all frequencies are divided by factor",
    "dynamic": "the base grows with the text, once it is longer than max_position_embeddings",
    "yarn": "fast pairs stay, slow ones are divided by factor, with a ramp between that is linear in the pair's index",
    "llama3": "fast pairs stay, slow ones are divided by factor, with a ramp between that is linear in frequency",
    "longrope": "each pair is divided by its own factor, from one list up to the trained length and another beyond",
    "proportional": "a share of the pairs rotates, with the frequencies of a rotation of all pairs",
}


@dataclass(frozen=True)
class Spelled:
    """The parameters of one kind of layer in a file: its own, and those around them if they are nested.

    `left_out` is True if other kinds of layers have an entry and this one has none.
    """

    own: dict[str, Any]
    around: dict[str, Any]
    key: Spelling
    nested: bool
    left_out: bool = False


def spelled(model: Model, kind: str) -> Spelled:
    """Return the parameters of a kind of layer.

    Raises:
        TypeError: They are not an object.
        ValueError: There are none for this kind, although other kinds have some.
    """
    key, around = _read_object(model)
    nested = _is_nested(around)
    if kind == patterns.UNSCALED and not nested:
        return Spelled({name: around[name] for name in ("rope_theta",) if name in around}, around, key, False)
    if not nested:
        if around and model.name in FILLS_IN and not reads.spreads(model.name, key):
            return Spelled({}, around, key, False, left_out=True)  # transformers uses its defaults; `places` warns
        full_only = model.name in SCALES_FULL_ONLY and kind == kinds.SLIDING
        typed = reads.reads_type(model.name, key)
        read = around if typed else {name: value for name, value in around.items() if name != "type"}
        return Spelled({} if full_only else read, around, key, False)
    label = LABELS.get(model.name, {}).get(kind, kind)
    if label not in around and model.name not in FILLS_IN:
        inner = [values.short(name) for name, value in around.items() if isinstance(value, dict)][:8]
        raise values.missing(
            f"{WHO}: {key} must have an entry for each kind of layer; got {', '.join(inner)} but none for {kind}. "
            f"Pass one of these as layer_type, or add the entry.",
            f"{key}.{values.short(label)[1:-1]}",
            None,
            "an object",
            fix=f"Add an entry for {kind} to {key}.",
        )
    own = around.get(label)
    entry = values.mapping(WHO, f"{key}.{label}", {} if own is None else own)
    if model.name in COMPLETED:
        entry = {**DEFAULTS[model.name].get(label, {}), **entry}
    return Spelled(entry, around, key, True, own is None)


def _default(model: Model) -> dict[str, Any]:
    """Return the parameters of a type for a file that has none, with a warning."""
    own = DEFAULTS.get(model.name, {})
    if own:
        text = f"rope_parameters is missing; those that transformers has for {model.name} are used."
        meanings = (("left out", "the default of transformers; other programs may use another"),)
        fix = "Write the parameters into the file."
        model.warn("assumed", "rope_parameters", text, value=None, allowed="an object", meanings=meanings, fix=fix)
    return own


def _read_object(model: Model) -> tuple[Spelling, dict[str, Any]]:
    """Return the object of parameters that is read, and its key; some types read both objects if a file has both."""
    seen = reads.objects(model.name)
    old, new = (values.mapping(WHO, key, model.fields.get(key) or {}) if key in seen else {} for key in reads.SCALINGS)
    if not old or not new:
        return ("rope_scaling", old) if old else ("rope_parameters", new) if new else ("top level", _default(model))
    kinds_of = MERGES.get(model.name, ()) if _is_nested(new) else ()
    around = {key: {**own, **old} if key in kinds_of and own else own for key, own in new.items()} if kinds_of else old
    if _normal(model, around) != _normal(model, new):
        model.warn(
            "two_spellings",
            "rope_scaling",
            "rope_scaling and rope_parameters differ; rope_scaling is used.",
            value={"rope_scaling": old, "rope_parameters": new},
            allowed="one of the two, or both alike",
            meanings=(("rope_scaling", f"{summary(old)}, which is used"), ("rope_parameters", summary(new))),
            fix="Remove the wrong one; transformers 5 writes only rope_parameters.",
        )
    return "rope_parameters" if kinds_of else "rope_scaling", around


def _is_nested(around: dict[str, Any]) -> bool:
    return any(isinstance(value, dict) for value in around.values())


def _normal(model: Model, own: dict[str, Any]) -> dict[str, Any]:
    """Return parameters in one spelling and with the values next to them, so that two objects can be compared."""
    if _is_nested(own):
        return {key: _normal(model, one) for key, one in own.items() if isinstance(one, dict)}
    out = {key: value for key, value in own.items() if key not in ("type", "rope_type") and value is not None}
    name = own.get("rope_type") or own.get("type") or "default"
    out["rope_type"] = {"su": "longrope", "mrope": "default"}.get(name, name) if isinstance(name, str) else name
    outside = {
        "rope_theta": reads.base_keys(model.name, False, True),
        "partial_rotary_factor": reads.share_keys(model.name, True),
        "original_max_position_embeddings": reads.LENGTHS[::-1],
    }
    for key, places in outside.items():
        found = (model.fields[place] for place in places if model.fields.get(place) is not None)
        if key != "original_max_position_embeddings" or out["rope_type"] != "default":
            out.setdefault(key, next(found, None))
    known = TYPES.get(model.name)
    if out["rope_theta"] is None:
        out["rope_theta"] = known.base if known else 1e4
    if out["partial_rotary_factor"] in (None, known.share if known else 1.0):
        del out["partial_rotary_factor"]
    return out


def rope_type(model: Model, own: dict[str, Any]) -> str:
    """Return the type of the rotation as named in transformers 5; an unknown one stays, with a warning.

    Raises:
        TypeError: It is not a string.
    """
    name = own.get("rope_type")
    name = own.get("type") if name is None else name
    name = "default" if name is None else values.text(WHO, "rope_type", name)
    if name == "deepseek_yarn" and model.name == "sarvam_mla":
        return "yarn"
    if name == "su" or (name == "yarn" and model.name in ("phi3", "phi4_multimodal")):
        return "longrope"  # Phi-3's names from before the paper
    if name == "mrope":
        return "default"
    if name == "dynamic" and own.get("alpha") and model.name.startswith("hunyuan"):
        return "ntk_alpha"  # a fixed scaling of the base, in spite of the name
    if name not in KNOWN:
        near = get_close_matches(name[:64].lower(), MEANINGS, n=1)
        model.warn(
            "unknown_type",
            "rope_type",
            f"rope_type {values.short(name)} is unknown, so its frequencies are unknown.",
            value=name,
            allowed=", ".join(MEANINGS),
            meanings=tuple(MEANINGS.items()),
            fix=f"Write the right type{f' ({near[0]} is the nearest)' if near else ''}, or compute the frequencies by "
            "other means.",
        )
    return name


def summary(own: Any) -> str:
    """Return parameters in one short line."""
    if not isinstance(own, dict):
        return values.short(own)
    parts = [f"{values.short(key)[1:-1]} {values.short(value)}" for key, value in list(own.items())[:6]]
    return ", ".join(parts) + (", ..." if len(own) > 6 else "")


def base(model: Model, found: Spelled, kind: str, facts: Facts, listed: list[str]) -> float:
    """Return the base, rope_theta in most files.

    Args:
        model: The model.
        found: The parameters of the kind.
        kind: The kind of layer.
        facts: The defaults of the model type.
        listed: The kind of each layer, for files with a base for each layer.

    Raises:
        TypeError: It is not a number.
        ValueError: It is not above 1 and at most 1e12, or differs between layers of a kind.
    """
    if (each := kinds.thetas(model, len(listed))) is not None:
        own = {theta for theta, name in zip(each, listed, strict=True) if name == kind}
        if len(own) > 1:
            raise values.out_of_range(
                f"{WHO}: layer_rope_theta must agree among layers of {kind}; got {len(own)} bases. Correct the file.",
                "layer_rope_theta",
                each,
                f"one base for all layers of {kind}, and 0 for layers without rotation",
            )
        if own:
            return _checked("layer_rope_theta", own.pop())
    if found.own.get("rope_theta") is not None:
        return _checked("rope_theta", found.own["rope_theta"])
    local = kind == kinds.SLIDING and not reads.has_one_base(model.name, found.key != "top level" and not found.nested)
    keys = reads.base_keys(model.name, local, bool(found.around))
    default = LOCAL_BASE[model.name][1] if local and model.name in LOCAL_BASE else facts.base
    if found.key != "top level" and model.name in BASE_OF_DEFAULTS:
        default = 1e4
    for key in keys:
        if model.fields.get(key) is not None:
            return _checked(key, model.fields[key])
    if not keys and local and model.name in LOCAL_BASE:
        _unread_base(model, default)
    elif model.name not in FIXED_BASE and not found.left_out:
        keys, others = keys or ("rope_theta",), "" if default == 1e4 else "; other programs use 10000"
        model.warn(
            "theta_missing",
            keys[0],
            f"{keys[0]} is missing; {default:g} is used.",
            value=None,
            allowed=f"above 1 and at most {MAX_BASE:g}",
            meanings=(
                ("left out", f"the base is {default:g}, the default of transformers{others}"),
                *((key, "the base of the frequencies") for key in keys),
            ),
            fix=f'Write "{keys[0]}": {default:.1f} into the file, or the base of the training.',
        )
    return default


def _unread_base(model: Model, default: float) -> None:
    """Add a warning about a base that layers with a window do not read, unless it is theirs."""
    given = model.fields.get("rope_theta")
    if given not in (None, default):
        model.warn(
            "unread",
            "rope_theta",
            f"rope_theta {values.short(given)} is not read for layers with a window: the base is {default:g}.",
            value=given,
            allowed="the base of each kind of layer, in rope_parameters",
            meanings=(("rope_theta", f"the base of full attention; layers with a window have {default:g}"),),
            fix='Write it for each kind: "rope_parameters": {"sliding_attention": {"rope_theta": ...}, ...}.',
        )


def _checked(key: str, value: object) -> float:
    return values.number(WHO, key, value, low=1.0, high=MAX_BASE, above=True)
