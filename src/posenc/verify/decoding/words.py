"""What a model with a cache may do wrong, in words."""

FAMILIES = ("rope", "xpos", "alibi", "t5", "sinusoidal", "learned")
_OFFSET = "Let new tokens begin at the number of tokens in the cache: arange(seq) + past_len, for q and k alike."
_COUNT = "Read the number of cached tokens once, before anything is appended, and give it to every layer."
_MASK = "Row i of a part that begins at token n may see keys 0..n + i: tril(ones(seq, n + seq), diagonal=n)."
# fault: the code behind the family, what it does, how to mend it
WORDS: dict[str, tuple[str, str, str]] = {
    "not_causal": (
        "decode.not_causal",
        "lets a token see later ones in one pass, which no cache can give it",
        "Mask keys ahead of the query.",
    ),
    "length": (
        "decode.length_dependent",
        "gives the first tokens other outputs when more tokens follow them",
        "Nothing may depend on the length of the call: fix frequencies, scales and centres.",
    ),
    "not_applied": (
        "not_applied",
        "does not see the order of the tokens: exchanging two earlier ones leaves the last output as it is",
        "Turn q and k (or add the bias) by positions along the sequence.",
    ),
    "batch": ("axis.batch", "lets the rows of a batch change one another", "Index the sequence, not the batch."),
    "cache_unused": (
        "kv_cache.past_not_seen",
        "does not see tokens that are in the cache",
        "Join the cached keys and values with the new ones before the scores.",
    ),
    "chunk_mask": (
        "decode.chunk_mask",
        "hides keys from a part of several tokens that one pass shows them",
        _MASK,
    ),
    "chunk_ahead": (
        "decode.chunk_not_causal",
        "lets tokens of a part see later tokens of the same part",
        _MASK,
    ),
    "single": (
        "decode.single_token_path",
        "is right for parts of several tokens and wrong for a part of one token",
        "Let one token go the same way as several: its position is past_len, in all rows of the batch.",
    ),
    "chunk": (
        "decode.chunk_positions",
        "is right for single tokens and wrong for a part of several tokens",
        _OFFSET,
    ),
    "constant": (
        "window.positions_constant",
        "gives all tokens of a part of several one position, where each should stand one further than the one before",
        "Add 0, 1, 2, .. to the start, one for each token: arange(past_len, past_len + seq).",
    ),
    "past_constant": (
        "kv_cache.past_constant",
        "places what follows the first call behind the same number of tokens, whatever the cache holds, as where its "
        "length is read off the axis of the batch or of the heads",
        _OFFSET,
    ),
    "eviction": (
        "kv_cache.eviction_offset",
        "places new tokens by the number of keys that are left in the cache, not by the number of tokens seen",
        "Count all tokens ever seen beside the cache, or turn the kept keys anew by their place in the cache.",
    ),
    "count_early": (
        "kv_cache.count_too_early",
        "is right when all parts are equally long and wrong when they are not: the cache's length is read when it "
        "already holds the new tokens",
        _COUNT,
    ),
    "count_early_deep": (
        "kv_cache.count_too_early",
        "keeps the new tokens in order among themselves but at a wrong distance from those of the first call, in a "
        "model of several layers: a later layer reads the cache's length when an earlier one has already grown it",
        _COUNT,
    ),
    "calls": (
        "kv_cache.counts_calls",
        "is right when all parts have one token and wrong when they have several: it counts calls, not tokens",
        _OFFSET,
    ),
    "double": (
        "kv_cache.offset_double_counted",
        "is right in the first part after the prefill and wrong from the second on: tokens are counted again",
        "Add the length of this call alone to the offset.",
    ),
    "table": (
        "offset.ignored_by_cache",
        "is right the first time and takes the angles of that time again at another offset: a table is kept "
        "under the length alone",
        "Keep the table of all positions and slice it, or put the offset into its key.",
    ),
    "state": (
        "kv_cache.state_kept",
        "gives another result the second time: something is kept from one sequence to the next",
        "Begin anew where the cache is None, or keep the count in the cache.",
    ),
    "offset": (
        "kv_cache.offset_ignored",
        "lets every part begin at position 0, whatever is in the cache",
        _OFFSET,
    ),
    "off_by": (
        "kv_cache.off_by_one",
        "keeps the new tokens in order among themselves but at a wrong distance from those of the first call",
        _OFFSET,
    ),
    "again": (
        "kv_cache.rotated_then_rotated_again",
        "turns keys that come out of the cache a second time",
        "Keep keys before the turn and turn all of them, or turn the new ones only and keep those.",
    ),
    "query": (
        "kv_cache.query_offset_missing",
        "puts the query and the key of one token at different positions when there is a cache",
        "Give q and k of the new tokens the same positions, past_len .. past_len + seq - 1.",
    ),
    "query_off": (
        "query.off_by_one",
        "puts the query one position beside the key of the same token when there is a cache",
        "Give q and k of the new tokens the same positions, past_len .. past_len + seq - 1.",
    ),
    "centre": (
        "kv_cache.centre_moves",
        "scales keys about a centre that moves with the length: cached keys keep an older one than new queries",
        "Fix the centre (0 will do): scores do not depend on it while q and k share it.",
    ),
    "bias_zero": (
        "kv_cache.bias_zero",
        "adds no bias to a single new token: all cached keys count alike, in whatever order they came",
        "Form the bias over all cached keys, with the query at past_len.",
    ),
    "bias_dropped": (
        "decode.bias_dropped",
        "adds no bias to a single new token: all cached keys count alike, in whatever order they came",
        "Form the bias over all cached keys, with the query at past_len.",
    ),
    "mismatch": (
        "decode.mismatch",
        "gives other outputs with a cache than in one pass, in no way that is known here",
        _OFFSET,
    ),
}
# families in which a fault has a name of its own
ELSEWHERE: dict[tuple[str, str], str] = {
    ("alibi", "query"): "kv_cache.query_from_zero",
    ("t5", "query"): "kv_cache.query_from_zero",
    ("alibi", "query_off"): "kv_cache.query_off_by_one",
    **{(f, "query_off"): "kv_cache.off_by_one" for f in ("xpos", "t5", "sinusoidal", "learned")},
    **{(f, "query"): "kv_cache.offset_ignored" for f in ("sinusoidal", "learned")},
    **{(f, "again"): "decode.mismatch" for f in ("alibi", "t5", "sinusoidal", "learned")},
    **{(f, "constant"): "decode.chunk_positions" for f in FAMILIES if f != "rope"},
}
