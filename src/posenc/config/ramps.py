"""Warnings about scalings: reversed ramps, and lengths that do not match."""

from typing import Any

from posenc.config.model import Model
from posenc.config.scaling import LENGTH, MAX_FACTOR, Scaling
from posenc.config.spelling import Spelled

# types whose published files have a step in place of llama3's ramp
_STEPS = {"llama4_text"}


def note(model: Model, found: Spelled, name: str, scaled: Scaling, max_len: int | None) -> None:
    """Add warnings.

    Args:
        model: The model, which collects them.
        found: The parameters of the kind of layer.
        name: The type of the rotation, as named in transformers 5.
        scaled: The scaling.
        max_len: The maximum length in the file.
    """
    if name == "yarn":
        _betas(model, scaled.parameters["beta_fast"], scaled.parameters["beta_slow"])
        _truncate(model, found)
    if name == "llama3":
        _freq_factors(model, scaled.parameters["low_freq_factor"], scaled.parameters["high_freq_factor"])
    if name == "dynamic":
        _dynamic(model, found.own.get(LENGTH, model.fields.get(LENGTH)), max_len)
    if name == "default" and max_len is not None and (length := scaled.original_max_len or max_len) < max_len:
        _unscaled(model, length, max_len)


def _betas(model: Model, fast: float, slow: float) -> None:
    """Add a warning about a ramp of YaRN that is empty or reversed."""
    if fast > slow or fast == slow == 1:
        return  # Kimi-K2 was trained with a step at one rotation
    high, low = (f"{slow:g}", f"{fast:g}") if fast < slow else ("32", "1")
    if fast < slow:
        code, does = "betas_swapped", "slow pairs stay as they are, and fast ones are divided by factor"
    else:
        code, does = "betas_equal", "a step instead of a ramp"
    model.warn(
        code,
        "beta_fast",
        f"beta_fast {fast:g} should be above beta_slow {slow:g}: the ramp is {'reversed' if fast < slow else 'empty'}.",
        value={"beta_fast": fast, "beta_slow": slow},
        allowed=f"beta_fast above beta_slow, both above 0 and at most {MAX_FACTOR:g}",
        meanings=(
            (f"beta_fast {fast:g}, beta_slow {slow:g}", does),
            (
                f"beta_fast {high}, beta_slow {low}",
                f"pairs that rotate more than {high} times over the trained length stay, those that rotate less than "
                f"{low} times are divided by factor",
            ),
        ),
        fix=f"Write beta_fast {high} and beta_slow {low}.",
    )


def _truncate(model: Model, found: Spelled) -> None:
    """Add a warning about a flag that is not read in its place."""
    if not found.nested or found.own.get("truncate") is None:
        return
    model.warn(
        "nested_truncate",
        "truncate",
        "truncate has no effect here: it is only read next to the kinds of layers.",
        value=found.own["truncate"],
        allowed="true or false, next to the kinds of layers",
        meanings=(
            ("inside a kind of layer", "not read: the ramp's ends are rounded to whole pairs"),
            ("next to the kinds of layers", "false keeps the ramp's ends between pairs, true rounds them"),
        ),
        fix="Move it up, next to the kinds of layers.",
    )


def _freq_factors(model: Model, low: float, high: float) -> None:
    """Add a warning about a ramp of Llama 3 that is empty or reversed."""
    if high > low or (model.name in _STEPS and high == low):
        return
    below, above = (f"{high:g}", f"{low:g}") if high < low else ("1", "4")
    model.warn(
        "turns_swapped" if high < low else "turns_equal",
        "high_freq_factor",
        f"high_freq_factor {high:g} should be above low_freq_factor {low:g}.",
        value={"low_freq_factor": low, "high_freq_factor": high},
        allowed=f"high_freq_factor above low_freq_factor, both above 0 and at most {MAX_FACTOR:g}",
        meanings=(
            (
                f"low_freq_factor {low:g}, high_freq_factor {high:g}",
                f"a step: pairs that rotate less than {low:g} times over the trained length are divided by factor",
            ),
            (
                f"low_freq_factor {below}, high_freq_factor {above}",
                f"pairs that rotate less than {below} times over the trained length are divided by factor, those that "
                f"rotate more than {above} times stay, with a ramp between",
            ),
        ),
        fix=f"Write low_freq_factor {below} and high_freq_factor {above}.",
    )


def _dynamic(model: Model, length: Any, max_len: int | None) -> None:
    """Add warnings about dynamic NTK."""
    model.warn(
        "dynamic_cache",
        "rope_type",
        "dynamic NTK rotates old and new keys of a cache with different frequencies.",
        value="dynamic",
        allowed="a type whose frequencies do not depend on the length of the text",
        meanings=(
            ("dynamic", "beyond max_position_embeddings each new token changes the base, and cached keys keep theirs"),
            ("yarn", "the same frequencies at every length, which cached keys share"),
        ),
        fix="Keep texts within max_position_embeddings, use no cache for longer texts, or use yarn.",
    )
    if length not in (None, max_len):
        model.warn(
            "original_unread",
            LENGTH,
            f"dynamic NTK in transformers reads {max_len} as the trained length.",
            value=length,
            allowed=f"{max_len}, which is max_position_embeddings, or left out",
            meanings=(
                (LENGTH, "not read with this type"),
                ("max_position_embeddings", f"read as the trained length: up to {max_len} nothing is scaled"),
            ),
            fix=f"If the model was trained on {length} positions, write that as max_position_embeddings.",
        )


def _unscaled(model: Model, length: int, max_len: int) -> None:
    """Add a warning about texts longer than in training without a scaling."""
    model.warn(
        "unscaled",
        "max_position_embeddings",
        f"max_position_embeddings {max_len} is above the trained length {length}, but nothing is scaled.",
        value=max_len,
        allowed=f"at most {length}, or a rope_type that scales",
        meanings=(
            (
                "rope_type default",
                f"from position {length} on, slow pairs rotate by angles that did not occur in training",
            ),
            (f"rope_type yarn, factor {max_len / length:g}", "slow pairs stay within the angles of training"),
        ),
        fix=f"Write max_position_embeddings {length}, or the right scaling.",
    )
