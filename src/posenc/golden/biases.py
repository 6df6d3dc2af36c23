"""The arrays of one kind of layer with ALiBi or T5's buckets."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posenc.definitions.bias import alibi, t5

Array = NDArray[Any]
LENGTH = 16  # queries and keys of one text
REACH = 512  # distances on each side that are listed individually
MAX_BUCKETS = 512
MAX_HEADS = 4096
MEANINGS = {
    "q_positions": "positions of the queries (q_len,)",
    "k_positions": "positions of the keys (k_len,)",
    "slopes": "decrease of the bias per position, one for each head (n_heads,)",
    "bias": "added to the scaled scores before the softmax (n_heads, q_len, k_len); no causal mask",
    "relative_positions": "key position - query position (n_distances,)",
    "buckets": "the row of the trained table for each of relative_positions (n_distances,)",
    "bias_indices": "the row of the trained table for each query and key (q_len, k_len)",
}
LAWS = {
    "alibi": "score[h, i, j] = <q[h, i], k[h, j]> / sqrt(head_dim) + bias[h, i, j]. A constant added to a whole row "
    "does not change the softmax.",
    "t5": "score[h, i, j] = <q[h, i], k[h, j]> + table[bias_indices[i, j], h], without division by sqrt(head_dim).",
}


def arrays(encoding: str, options: Mapping[str, Any]) -> dict[str, Array]:
    """Return the arrays of ALiBi or T5 with the options of its constructor.

    Raises:
        ValueError: There are too many heads or buckets.
    """
    for name, most in (("n_heads", MAX_HEADS), ("n_buckets", MAX_BUCKETS)):
        if options.get(name, 0) > most:
            raise ValueError(f"golden: {name} may be at most {most:,}; got {options[name]:,}. Correct the file.")
    pos = np.arange(LENGTH)
    found = {"q_positions": pos, "k_positions": pos}
    return found | (_alibi if encoding == "alibi" else _t5)(options, pos)


def _alibi(options: Mapping[str, Any], pos: Array) -> dict[str, Array]:
    given = {name: value for name, value in options.items() if name != "scale"}
    step = alibi(np.ones(1), np.arange(2), **given)[:, 0]  # the query at 1: its own key, and the one before it
    slopes = np.abs(step[:, 1] - step[:, 0])
    return {"slopes": slopes, "bias": alibi(pos, pos, **options)}


def _t5(options: Mapping[str, Any], pos: Array) -> dict[str, Array]:
    rows = np.arange(options["n_buckets"], dtype=np.float64)[:, None]  # each entry is the number of its row
    rule = {key: options[key] for key in ("n_buckets", "max_distance", "bidirectional")}
    far = {d for i in range(10, 41) for d in (2**i, options["max_distance"] * (i - 8))}
    side = [*range(1, REACH + 1), *sorted(d for d in far if d > REACH)]
    relative = np.array([*(-d for d in reversed(side)), 0, *side])
    buckets, indices = (
        t5(np.atleast_1d(q), k, n_heads=1, weight=rows, **rule)[0].astype(np.int64)
        for q, k in ((np.zeros(1, np.int64), relative), (pos, pos))
    )
    return {"relative_positions": relative, "buckets": buckets[0], "bias_indices": indices}
