"""Read and check the parameters of each type of scaling, with the defaults of transformers 5.24."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from posenc.config import reads, values
from posenc.config.axes import has_axes
from posenc.config.model import WHO, Model
from posenc.config.spelling import Spelled
from posenc.config.widths import Widths, implied

MAX_FACTOR = 1e4
LENGTH = "original_max_position_embeddings"
# types to whose files a publisher adds YaRN for long texts, and leaves max_position_embeddings as it is
_STRETCHED_IN_USE = {
    *("qwen2", "qwen2_moe", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_vl_text"),
    *("qwen3_vl_moe_text", "qwen3_5_text", "qwen3_5_moe_text"),
}
_LISTS = (
    ("short_factor", "divides the frequencies of texts up to the trained length"),
    ("long_factor", "divides those of longer texts"),
)


@dataclass(frozen=True)
class Scaling:
    """A scaling of frequencies; lengths in positions."""

    factor: float | None = None
    original_max_len: int | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)


def scaling(model: Model, found: Spelled, name: str, width: Widths, max_len: int | None) -> Scaling:
    """Return the parameters of a type.

    Args:
        model: The model, which collects warnings.
        found: The parameters of the kind of layer.
        name: The type, as named in transformers 5.
        width: The number of head dimensions that rotate, and the share in the file.
        max_len: The maximum length in the file.

    Raises:
        TypeError: A parameter has a wrong type.
        ValueError: A parameter without a default is missing, or one is out of range.
    """
    own = found.own
    if own.get("attn_factor") is not None:
        model.warn(
            "attn_factor",
            "attn_factor",
            "transformers does not read attn_factor, but attention_factor.",
            value=own["attn_factor"],
            allowed=f"attention_factor, above 0 and at most {MAX_FACTOR:g}",
            meanings=(
                ("attn_factor", "not read by transformers; some older YaRN code multiplies its own factor by it"),
                ("attention_factor", "multiplies cos and sin, so scores get its square; replaces the derived factor"),
            ),
            fix="Rename it to attention_factor, with the whole factor; or remove it.",
        )
    if name in ("yarn", "llama3", "longrope"):
        read = {"yarn": _yarn, "llama3": _llama3, "longrope": _longrope}[name]
        length = _original(model, found, max_len)
        factor = _factor(model, own, name, length, max_len)
        return Scaling(factor, length, read(model, found, width))
    stated = own.get(LENGTH, model.fields.get(LENGTH))
    length_or_none = None if stated is None else values.integer(WHO, LENGTH, stated, low=2)
    if name == "dynamic":
        return Scaling(_number(own, "factor"), _needed(max_len))
    if name == "linear":
        return Scaling(_number(own, "factor"), length_or_none)
    if name == "proportional":
        factor = _number(own, "factor") if own.get("factor") is not None else 1.0
        return Scaling(factor, length_or_none, {"share": width.share})
    if name == "ntk_alpha":
        return Scaling(_number(own, "alpha"), max_len)
    return Scaling(None, max_len if length_or_none is None else length_or_none)


def _lengths(own: dict[str, Any], max_len: int) -> values.Meanings:
    """Return the meanings of a trained length equal to the maximum length, and to that over the factor."""
    found = [(f"{LENGTH} {max_len}", f"the model was trained on all {max_len} positions")]
    factor = own.get("factor")
    if isinstance(factor, int | float) and not isinstance(factor, bool) and 1 < factor <= MAX_FACTOR:
        found.append((f"{LENGTH} {max_len / factor:g}", f"{max_len / factor:g} positions are stretched to {max_len}"))
    return tuple(found)


def _needed(max_len: int | None) -> int:
    if max_len is None:
        raise values.missing(
            f"{WHO}: max_position_embeddings is missing, and the scaling needs it; got None. Add it.",
            "max_position_embeddings",
            None,
            "an integer of at least 2",
            fix="Add max_position_embeddings.",
        )
    return max_len


def _number(own: dict[str, Any], key: str, low: float = 1.0, high: float = MAX_FACTOR, above: bool = False) -> float:
    if own.get(key) is None:
        raise values.missing(
            f"{WHO}: {key} is missing, and the scaling needs it; got None. Add it.",
            key,
            None,
            f"{'above' if above else 'at least'} {low:g} and at most {high:g}",
            fix=f"Add {key}.",
        )
    return values.number(WHO, key, own[key], low=low, high=high, above=above)


def _original(model: Model, found: Spelled, max_len: int | None) -> int:
    """Return the trained length: next to flat parameters, else among the parameters, else the maximum length."""
    stated = None if found.nested else model.fields.get(LENGTH)
    stated = found.own.get(LENGTH) if stated is None else stated
    if stated is None:
        stated = _needed(max_len)
        model.warn(
            "original_missing",
            LENGTH,
            f"{LENGTH} is missing; max_position_embeddings {max_len} is used instead.",
            value=None,
            allowed=f"from 2 to {max_len}",
            meanings=_lengths(found.own, stated),
            fix=f"Write {LENGTH}, the length of the training texts before the context was extended.",
        )
    elif stated == max_len and model.name not in _STRETCHED_IN_USE:
        model.warn(
            "original_is_max",
            LENGTH,
            f"{LENGTH} equals max_position_embeddings, so no text is longer than in training.",
            value=stated,
            allowed="below max_position_embeddings",
            meanings=_lengths(found.own, stated),
            fix=f"Raise max_position_embeddings to the stretched length if {LENGTH} is right, or correct {LENGTH}.",
        )
    return values.integer(WHO, LENGTH, stated, low=2)


def _factor(model: Model, own: dict[str, Any], name: str, length: int, max_len: int | None) -> float:
    """Return the factor in the file, or the maximum length over the trained length."""
    if own.get("factor") is not None or name == "llama3":
        factor = _number(own, "factor")
        counts_tokens = not has_axes(model, own)  # with M-RoPE, positions grow more slowly than the text
        if name == "yarn" and counts_tokens and max_len is not None and not _fits(model, max_len, length, factor):
            whole = f"{max_len / length:g}"
            model.warn(
                "factor_differs",
                "factor",
                f"factor {factor:g} is used, but the maximum over the trained length is {max_len} / {length}.",
                value=factor,
                allowed=f"{whole}, which is max_position_embeddings over the trained length",
                meanings=(
                    (f"factor {factor:g}", f"{length} trained positions are stretched to {factor * length:g}"),
                    (f"factor {whole}", f"{length} trained positions are stretched to {max_len}"),
                ),
                fix=f"Write factor {whole}, or max_position_embeddings {factor * length:g}.",
            )
        return factor
    if name == "yarn":
        model.warn(
            "factor_missing",
            "factor",
            "factor is missing; max_position_embeddings over the trained length is used.",
            value=None,
            allowed=f"at least 1 and at most {MAX_FACTOR:g}",
            meanings=(("left out", f"{_needed(max_len) / length:g} here; other programs may refuse the file"),),
            fix=f'Write "factor": {_needed(max_len) / length:g} into the file, if that is right.',
        )
    ratio = _needed(max_len) / length
    return values.number(WHO, "max_position_embeddings over the trained length", ratio, low=1.0, high=MAX_FACTOR)


def _fits(model: Model, max_len: int, length: int, factor: float) -> bool:
    if model.name in _STRETCHED_IN_USE:
        return length <= max_len <= factor * length
    return max_len in (length, factor * length)


def _yarn(model: Model, found: Spelled, width: Widths) -> dict[str, Any]:
    own = found.own
    fast, slow = (
        default if own.get(key) is None else values.number(WHO, key, own[key], low=0.0, high=MAX_FACTOR, above=True)
        for key, default in (("beta_fast", 32.0), ("beta_slow", 1.0))
    )
    truncate = found.around.get("truncate")
    out: dict[str, Any] = {"beta_fast": fast, "beta_slow": slow}
    out["truncate"] = True if truncate is None else values.flag(WHO, "truncate", truncate)
    for key in ("mscale", "mscale_all_dim"):
        if own.get(key) is not None:
            out[key] = values.number(WHO, key, own[key], low=0.0, high=MAX_FACTOR)
    return {**out, **_gain(own)}


def _llama3(model: Model, found: Spelled, width: Widths) -> dict[str, Any]:
    low, high = (_number(found.own, key, 0.0, MAX_FACTOR, True) for key in ("low_freq_factor", "high_freq_factor"))
    return {"low_freq_factor": low, "high_freq_factor": high}


def _longrope(model: Model, found: Spelled, width: Widths) -> dict[str, Any]:
    out: dict[str, Any] = {}
    n_pairs = width.rotary_dim // 2
    for key in ("short_factor", "long_factor"):
        if found.own.get(key) is None:
            model.warn(
                "list_missing",
                key,
                f"{key} is missing, but some lengths need it.",
                value=None,
                allowed=f"a list of {n_pairs} numbers",
                meanings=_LISTS,
                fix=f"Add {key}, one number for each pair; a list of ones leaves those lengths unscaled.",
            )
            continue
        listed = values.sequence(WHO, key, found.own[key], longest=4096)
        out[key] = tuple(values.number(WHO, f"{key}'s entry", x, low=1e-6, high=1e9) for x in listed)
    _lists(model, width, n_pairs, {key: len(own) for key, own in out.items()})
    for key in reads.MSCALES if reads.reads_mscales(model.name) else ():
        if found.own.get(key) is not None:
            out[key] = _number(found.own, key, 0.0, MAX_FACTOR, True)
    if model.name == "phimoe":
        model.warn(
            "long_unread",
            "long_factor",
            "PhiMoE in transformers 5.23 uses short_factor at every length.",
            value=None if found.own.get("long_factor") is None else list(out.get("long_factor", ())),
            allowed="a list, read by programs other than transformers",
            meanings=_LISTS,
            fix="The file is correct, but programs differ for texts beyond the trained length.",
        )
    return {**out, **_gain(found.own)}


def _lists(model: Model, width: Widths, n_pairs: int, lengths: dict[str, int]) -> None:
    """Add warnings about lists whose length is not the number of pairs, and the key that would explain it."""
    fits = implied(model, width, next(iter(lengths.values()), 0)) if len(set(lengths.values())) == 1 else None
    if fits is not None:
        (n, *_), (key, _, value) = lengths.values(), fits.partition(": ")
        wrong = "is missing" if width.key != key and model.fields.get(key) is None else "would fit"
        model.warn(
            "width_implied",
            key,
            f"{' and '.join(lengths)} have {n} entries, but {n_pairs} pairs rotate: {fits} {wrong}.",
            value=model.fields.get(key),
            allowed=f"{value}, with lists of this length",
            meanings=(
                (f"{n} entries", f"{2 * n} head dimensions would rotate"),
                (fits, f"{n} pairs rotate, one for each entry"),
            ),
            fix=f"Write {fits}, or lists of {n_pairs} entries.",
        )
        return
    for key, n in lengths.items():
        if n != n_pairs:
            model.warn(
                "list_length",
                key,
                f"{key} must have {n_pairs} entries, one for each pair, not {n}.",
                value=n,
                allowed=f"{n_pairs} entries",
                meanings=(
                    (f"{n_pairs} entries", "one for each pair of head dimensions that rotates"),
                    (f"{n} entries", f"{2 * n} head dimensions would rotate"),
                ),
                fix="Write the list of this model, or correct head_dim and the part that rotates.",
            )


def _gain(own: dict[str, Any]) -> dict[str, float]:
    """Return the attention factor, if the file has one."""
    if own.get("attention_factor") is None:
        return {}
    return {"attention_factor": _number(own, "attention_factor", 0.0, MAX_FACTOR, True)}
