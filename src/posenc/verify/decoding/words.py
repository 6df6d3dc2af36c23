"""What a model with a cache may do wrong, in words."""

FAMILIES = ("rope", "xpos", "alibi", "t5", "sinusoidal", "learned")
_OFFSET = "Let new tokens begin at the number of tokens in the cache: arange(seq) + past_len, for q and k alike."
_ALIKE = "Give q and k of the new tokens the same positions, past_len .. past_len + seq - 1."
_ROWS = "Give new tokens the rows that begin at the number of tokens in the cache: table[past_len : past_len + seq]."
_BIAS = "Form the bias of queries at past_len + arange(seq) over all keys, arange(past_len + seq)."
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
        _ALIKE,
    ),
    "query_off": (
        "query.off_by_one",
        "puts the query one position beside the key of the same token when there is a cache",
        _ALIKE,
    ),
    "centre": (
        "kv_cache.centre_moves",
        "scales keys about a centre that moves with the length: cached keys keep an older one than new queries",
        "Fix the centre (0 will do): scores do not depend on it while q and k share it.",
    ),
    "bias_zero": (
        "kv_cache.bias_zero",
        "adds no bias to a single new token: all cached keys count alike, in whatever order they came",
        _BIAS,
    ),
    "bias_dropped": (
        "decode.bias_dropped",
        "adds no bias to a single new token: all cached keys count alike, in whatever order they came",
        _BIAS,
    ),
    "capped": (
        "kv_cache.position_capped",
        "places all new tokens beyond some position at that one",
        "Let positions grow with the text; where a table ends, raise an error or make the table longer.",
    ),
    "wraps": (
        "kv_cache.position_wraps",
        "begins again at position 0 beyond some position",
        "Let positions grow with the text: the place of a key in a buffer is not its position.",
    ),
    "mismatch": (
        "decode.mismatch",
        "gives other outputs with a cache than in one pass, in no way that is known here",
        _OFFSET,
    ),
}
# what is no family's: masks, and what belongs to a cache; fault: its whole code, what it does, how to mend it
WHOLE: dict[str, tuple[str, str, str]] = {
    "top_left": (
        "decode.mask.top_left",
        "aligns its causal mask with the top left corner: token i of a part sees keys 0..i alone, whatever the cache "
        "holds, so that a single new token sees the first key only",
        "is_causal=True of scaled_dot_product_attention does that where there are more keys than queries. Beside a "
        "cache pass attn_mask=torch.ones(n, past + n, dtype=torch.bool).tril(past), or "
        "torch.nn.attention.bias.causal_lower_right(n, past + n).",
    ),
    "top_left_parts": (
        "decode.mask.top_left",
        "aligns the causal mask of a part of several tokens with the top left corner: token i of the part sees keys "
        "0..i alone, whatever the cache holds",
        "is_causal=n > 1 of scaled_dot_product_attention does that. Beside a cache pass "
        "attn_mask=torch.ones(n, past + n, dtype=torch.bool).tril(past), or "
        "torch.nn.attention.bias.causal_lower_right(n, past + n); or raise an error for more than one token.",
    ),
    "part_ahead": (
        "decode.mask.missing",
        "lets tokens of a part of several see later tokens of the same part",
        f"{_MASK} Or raise an error for more than one token beside a cache.",
    ),
    "part_hides": (
        "decode.mask.hides_keys",
        "hides keys from a part of several tokens that one pass shows them",
        f"{_MASK} Or raise an error for more than one token beside a cache.",
    ),
    "hides": (
        "decode.mask.hides_keys",
        "hides keys that are in the cache from a single new token, to which one pass shows them",
        "A single new token may see all keys that its place in one pass may see.",
    ),
    "window_short": (
        "decode.window.short",
        "keeps fewer keys in the cache than one pass lets a token see",
        "Keep the last window - 1 keys before a step, window with the new one.",
    ),
    "window_long": (
        "decode.window.long",
        "lets a new token see older keys in the cache than one pass does",
        "Hide keys at a distance of window or more, or drop them: keep the last window - 1 before a step.",
    ),
    "by_turns": (
        "decode.cache.shared",
        "is right for one sequence and wrong when the steps of two go by turns, each with its own cache: something "
        "that belongs to the cache, such as the number of tokens seen, is kept on the model",
        "Keep everything that a sequence needs in its cache, the number of tokens seen as well.",
    ),
    "used_again": (
        "decode.cache.not_rolled_back",
        "is wrong when steps are rolled back: from a copy of an older cache it goes on as if the dropped tokens had "
        "been there, so that something which belongs to the cache is kept on the model",
        "Keep everything that a sequence needs in its cache, the number of tokens seen as well.",
    ),
}
OF_PARTS = ("top_left_parts", "part_ahead", "part_hides")
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
# families that are mended elsewhere than at q and k
MENDS: dict[tuple[str, str], str] = {
    **{(family, mend): _ROWS for family in ("sinusoidal", "learned") for mend in (_OFFSET, _ALIKE)},
    **{(family, mend): _BIAS for family in ("alibi", "t5") for mend in (_OFFSET, _ALIKE)},
}
