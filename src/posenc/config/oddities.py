"""Warnings about files whose parameters are valid one by one: misspelt keys, and values that contradict others."""

from difflib import get_close_matches
from typing import Any

from posenc.config import kinds, ramps, reads, values
from posenc.config.defaults import DEFAULTS
from posenc.config.model import Model
from posenc.config.models import CLOCKWISE, ROTATES_IN_WINDOWS_ONLY
from posenc.config.scaling import MAX_FACTOR, Scaling
from posenc.config.spelling import MEANINGS, SCALED, Spelled, summary

# parameters of a scaling
_OF_SCALING = ("factor", "low_freq_factor", "high_freq_factor", "short_factor", "long_factor", "beta_fast", "beta_slow")
_PARAMETERS = {
    *(*_OF_SCALING, "rope_type", "type", "rope_theta", "alpha", "partial_rotary_factor", "attention_factor"),
    *("attn_factor", "original_max_position_embeddings", "mscale", "mscale_all_dim", "truncate", "mrope_section"),
    *("mrope_interleaved", "short_mscale", "long_mscale", "max_position_embeddings", "finetuned"),
}
_TOP = ("rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings", "partial_rotary_factor")
# types whose layers without a window do not rotate, so that their scaling is for windows
_SCALES_WINDOWS = {*ROTATES_IN_WINDOWS_ONLY, "llama4_text"}
_OLD_NAMES = {"su": "longrope", "mrope": "default"}


def note(
    model: Model, found: Spelled, kind: str, name: str, window: int | None, scaled: Scaling, max_len: int | None
) -> None:
    """Add warnings.

    Args:
        model: The model, which collects them.
        found: The parameters of the kind of layer.
        kind: The kind of layer.
        name: The type of the rotation, as named in transformers 5.
        window: The number of positions that the layers see, None for all.
        scaled: The scaling.
        max_len: The maximum length in the file.
    """
    _types(model, found.own, name)
    _misspelt(model, found)
    if name == "yarn":
        _mscale(model, found.own)
    if name in SCALED and (window is not None or kind == kinds.SLIDING):
        _window(model, found, kind, window, scaled, max_len)
    ramps.note(model, found, name, scaled, max_len)
    _of_type(model)


def _types(model: Model, own: dict[str, Any], name: str) -> None:
    """Add a warning about a missing type with parameters of a scaling, or about two types that differ."""
    new, old = own.get("rope_type"), own.get("type")
    if isinstance(new, str) and isinstance(old, str) and _OLD_NAMES.get(new, new) != _OLD_NAMES.get(old, old):
        model.warn(
            "two_types",
            "rope_type",
            f"rope_type {values.short(new)} and type {values.short(old)} differ; rope_type is used.",
            value={"rope_type": new, "type": old},
            allowed="one of the two, or both alike",
            meanings=tuple((f"{key} {one}"[:80], MEANINGS.get(_OLD_NAMES.get(one, one), "unknown"))
                           for key, one in (("rope_type", new), ("type", old))),
            fix="Remove type, which is the old spelling of rope_type, or make both alike.",
        )  # fmt: skip
    given = {key: own[key] for key in _OF_SCALING if own.get(key) not in (None, 1)}
    if new is None and old is None and name == "default" and given:
        model.warn(
            "type_missing",
            "rope_type",
            f"rope_type is missing, so nothing is scaled, but the file has {summary(given)}.",
            value=None,
            allowed=", ".join(MEANINGS),
            meanings=(("left out", MEANINGS["default"]), *((one, MEANINGS[one]) for one in SCALED)),
            fix="Write the right rope_type, or remove the parameters of a scaling.",
        )


def _misspelt(model: Model, found: Spelled) -> None:
    """Add warnings about keys that are not read and resemble one that is."""
    holders = [(found.own, _PARAMETERS, 0.85)]
    if model.is_known:  # other code may read any key of its own
        holders.append((model.fields, set(_TOP), 0.92))
    for holder, known, likeness in holders:
        for key in holder:
            if key in known or key in reads.ELSEWHERE or len(key) > 64:
                continue
            near = get_close_matches(key.lower().replace("-", "_"), known, n=1, cutoff=likeness)
            if not near or holder.get(near[0]) is not None or found.own.get(near[0]) is not None:
                continue
            model.warn(
                "misspelt",
                key,
                f"{values.short(key)[1:-1]} is not read, and the similar key {near[0]} is not in the file.",
                value=holder[key],
                allowed=near[0],
                meanings=((key, "not read"), (near[0], f"{values.short(holder[key])} is used")),
                fix=f"Rename it to {near[0]}, or remove it.",
            )


def _mscale(model: Model, own: dict[str, Any]) -> None:
    """Add a warning about mscale without mscale_all_dim, without which transformers does not read it."""
    if own.get("mscale") in (None, 0, 1) or own.get("mscale_all_dim") or own.get("attention_factor") is not None:
        return
    model.warn(
        "mscale_alone",
        "mscale",
        "mscale has no effect without mscale_all_dim: the gain is 0.1 ln(factor) + 1.",
        value=own["mscale"],
        allowed=f"with mscale_all_dim above 0 and at most {MAX_FACTOR:g}, or left out",
        meanings=(
            ("transformers", "not read without mscale_all_dim"),
            ("DeepSeek's own code", f"the gain is 0.1 * {values.short(own['mscale'])} * ln(factor) + 1"),
        ),
        fix="Write attention_factor with the right gain, or remove mscale.",
    )


def _window(model: Model, found: Spelled, kind: str, window: int | None, scaled: Scaling, max_len: int | None) -> None:
    """Add a warning about layers that are scaled although their window is no longer than the trained length."""
    if ("factor" in DEFAULTS.get(model.name, {}) or model.name in _SCALES_WINDOWS) and not found.nested:
        return  # all of its layers were trained with the scaling
    trained = scaled.original_max_len
    if trained is None and max_len is not None and scaled.factor is not None:
        trained = int(max_len / scaled.factor)
    if window is not None and trained is not None and window > trained:
        return
    model.warn(
        "window_scaled",
        "sliding_window",
        f"{kind} never sees beyond {window or 'its window'}, but it is scaled.",
        value=window,
        allowed="a scaling for kinds of layers without a window, and none for those with a window",
        meanings=(
            (
                "one set of parameters",
                "layers with a window rotate by scaled frequencies although they never see far",
            ),
            ("a set for each kind", "only layers without a window are scaled"),
        ),
        fix=f'If layers with a window were trained without scaling, nest: "rope_parameters": {{"{kind}": '
        f'{{"rope_type": "default", ...}}, "full_attention": {{...}}}}.',
    )


def _of_type(model: Model) -> None:
    """Add warnings about model types that differ from all others."""
    if model.name in CLOCKWISE:
        model.warn(
            "clockwise",
            "model_type",
            f"{model.name} rotates clockwise, as if all frequencies were negated.",
            value=model.model_type,
            allowed="any; this is a property of the type, not a fault of the file",
            meanings=(
                ("q and k both clockwise", "the same scores as both counter-clockwise"),
                ("only one of the two", "scores depend on the sum of positions, and the model fails"),
            ),
            fix="Nothing in the file. Do not mix in cached keys of code that rotates counter-clockwise.",
        )
    if model.name == "mistral_large4_text":
        model.warn(
            "learned",
            "model_type",
            "mistral_large4 learns factors of its frequencies and of its queries, which are only in its weights.",
            value=model.model_type,
            allowed="any; this is a property of the type, not a fault of the file",
            meanings=(("the file", "frequencies before training"), ("the weights", "factors of frequencies, queries")),
            fix="Nothing in the file. Read the frequencies from the checkpoint.",
        )
