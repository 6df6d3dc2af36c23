"""The allowed values of each word of a specification."""

from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

_DTYPES_MEANT = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}


def _is_whole(said: Any, low: int = -(1 << 40), high: int = 1 << 40) -> bool:
    return not isinstance(said, bool) and isinstance(said, Integral) and low <= int(said) <= high


def is_number(said: Any, low: float = -1e30) -> bool:
    """Return whether a value is a number of a size that occurs in position encodings."""
    is_one = not isinstance(said, bool) and isinstance(said, Real)
    return is_one and low <= said <= 1e30  # not NaN


def _is_list(said: Any, fits: Callable[[Any], bool] = _is_whole) -> bool:
    return isinstance(said, list | tuple) and all(map(fits, said))


def _is_axes(said: Any) -> bool:
    return bool(said) and _is_list(said, lambda axis: axis is None or _is_whole(axis, 0, 7))


def _is_extent(said: Any) -> bool:
    pair = list(said) if isinstance(said, list | tuple) and len(said) == 2 else [said]
    return all(_is_whole(one, 1) for one in pair)


# allowed values of each word: a kind, one of a few names, or either; a convention may have its own
_KINDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    word: (must_be, fits)
    for words, must_be, fits in (
        (
            "heads head_dim dim d_model rotary_dim layers num_buckets",
            *("a whole number from 1 to 65,536", lambda said: _is_whole(said, 1, 1 << 16)),
        ),
        (
            "max_distance table_rows max_positions original_max_position_embeddings attention.window "
            "cached_model.window",
            *("a whole number from 1 on", lambda said: _is_whole(said, 1)),
        ),
        ("padding padding_idx offset", "a whole number", _is_whole),
        ("base temperature scale_base bias_max", "a number above 0", lambda said: is_number(said, 1e-30)),
        (
            "start scale gamma factor low_freq_factor high_freq_factor attention_factor beta_fast beta_slow mscale "
            "mscale_all_dim alpha",
            *("a number", is_number),
        ),
        (
            "causal bidirectional chunked interleaved packed cls truncate normalize normalise normalized normalised",
            *("true or false", lambda said: isinstance(said, int) and said in (0, 1)),
        ),
        ("window", "the number of keys that a query sees, or rows and columns", _is_extent),
        ("grid pretrained_window", "rows and columns of an image", _is_extent),
        ("section widths", "a list of whole numbers", _is_list),
        ("n_axes", "a whole number from 1 to 8", lambda said: _is_whole(said, 1, 8)),
        ("axes", "a word, or a list with the axis of each pair", lambda said: isinstance(said, str) or _is_axes(said)),
        (
            "mrope_fn.base rope_axes_fn.base",
            *("a number above 0, or a list of them", lambda said: is_number(said, 1e-30) or _is_list(said, is_number)),
        ),
        ("short_factor long_factor", "a list of numbers", lambda said: _is_list(said, is_number)),
        ("config", "a dict", lambda said: isinstance(said, Mapping)),
        ("scaling interpolation", "a word or a dict", lambda said: isinstance(said, str | Mapping)),
        ("encoding layout variant order ladder next_after coordinates", "a word", lambda said: isinstance(said, str)),
    )
    for word in words.split()
}
_ALIBIS = "authors geometric paper falcon"
_NAMES = {
    "kind": "positions decode_equivalence",
    "padding": "left right both none",
    "rotary_side": "first last",
    "slopes": _ALIBIS,
    **dict.fromkeys(
        ("slopes_fn.variant", "bias_fn.variant", "score_mod.variant"), f"{_ALIBIS} learned symmetric one-sided"
    ),
    **dict.fromkeys(("direction", "origin", "attention.order", "cached_model.order"), "any"),
    "scores_fn.variant": "c2p|p2c p2c|c2p c2p p2c",
    "scores_fn.direction": "any key-query query-key",
    "activation_dtype": "float32 float64 bfloat16 float16",
}


def allowed(word: str, convention: str = "") -> tuple[list[str], str]:
    """Return the names that a word may have, and what else it may be.

    >>> allowed("padding_idx"), allowed("direction")
    (([], 'a whole number'), (['any'], ''))
    """
    own = f"{convention}.{word}"
    return _NAMES.get(own, _NAMES.get(word, "")).split(), _KINDS.get(own, _KINDS.get(word, ("", bool)))[0]


def checked(word: str, value: Any, convention: str) -> Any:
    """Return the value of a word in our words; refuse an impossible one."""
    own = f"{convention}.{word}"
    names, must_be = allowed(word, convention)
    _, fits = _KINDS.get(own, _KINDS.get(word, ("", bool)))
    if names:
        name = str(value).lower().removeprefix("torch.")
        name = _DTYPES_MEANT.get(name, name)
        if name.removeprefix("alibi@") in names:
            return name
        listed = f"one of {', '.join(map(repr, names))}"
        must_be, fits = (f"{listed}, or {must_be}", fits) if word == "padding" else (listed, lambda said: False)
    if not fits(value):
        raise ValueError(f"verify: {word} must be {must_be}; got {value!r:.60}.")
    return bool(value) if must_be == "true or false" else value
