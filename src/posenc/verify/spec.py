"""The words of a specification, as other projects use them."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

WORDS = {
    *("encoding", "kind", "variant", "layout", "base", "config", "scaling", "factor", "activation_dtype"),
    *("head_dim", "rotary_dim", "rotary_side", "dim", "heads", "layers", "start", "offset", "origin", "direction"),
    *("causal", "bidirectional", "num_buckets", "max_distance", "window", "section", "interleaved", "scale_base"),
    *("gamma", "order", "table_rows", "max_positions", "padding", "packed", "temperature", "normalize", "scale"),
    *("original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "slopes", "padding_idx", "kv_heads"),
    *("score_scale", "bias_max", "cls", "grid", "eps"),
}


def read(spec: Mapping[str, Any] | None) -> tuple[dict[str, Any], list[str]]:
    """Return a specification as a dict, and a sentence for each word that nothing reads.

    Raises:
        TypeError: It is no mapping of words.

    >>> read({"encoding": "rope", "rotary_dims": 32})[1]
    ["'rotary_dims' is not read; did you mean 'rotary_dim'?"]
    """
    if spec is None:
        return {}, []
    if not isinstance(spec, Mapping) or not all(isinstance(word, str) for word in spec):
        raise TypeError(f"verify: the spec must be a dict of words; got {type(spec).__name__}. Give a JSON object.")
    unread = []
    for word in spec:
        if word not in WORDS:
            near = get_close_matches(word, sorted(WORDS), 1)
            unread.append(f"{word!r} is not read" + (f"; did you mean {near[0]!r}?" if near else ""))
    return dict(spec), unread
