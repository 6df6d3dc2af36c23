"""The words of a specification, as other projects use them, and what they may say.

Words of other libraries are translated. What is misspelt is refused: code with another base would pass under a misspelt
one. Any other word that no convention reads is reported.
"""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

# what describes a model or a test and changes nothing of what is right where a convention does not read it
DESCRIBE = {
    *("encoding", "kind", "direction", "origin", "heads", "head_dim", "dim", "d_model", "layers", "causal"),
    *("max_positions", "activation_dtype", "chunked", "bidirectional"),
}
_ROTATION = (
    "head_dim dim rotary_dim rotary_side base layout config scaling factor original_max_position_embeddings "
    "low_freq_factor high_freq_factor max_positions activation_dtype"
)
_SCALED = (
    f"{_ROTATION} attention_factor beta_fast beta_slow mscale mscale_all_dim truncate short_factor long_factor alpha"
)
_AXES = "head_dim dim rotary_dim base layout interleaved max_positions activation_dtype"
_ADDED = "dim d_model head_dim base temperature layout variant start offset order origin"
_OF_A_TEXT = "table_rows max_positions padding padding_idx activation_dtype"
_OF_AN_IMAGE = "grid cls scale normalize normalise normalized normalised"
_MODEL = (
    f"{_ROTATION} heads layers causal window chunked scale_base gamma num_buckets max_distance bidirectional slopes "
    "bias_max variant start offset order interleaved section"
)
_SCORES = (
    f"{_ROTATION} heads layers causal bidirectional window scale_base gamma order direction num_buckets max_distance"
)
_BIAS = "heads head_dim causal bidirectional window num_buckets max_distance variant slopes bias_max order config"
READS = {  # words that change what is right, by convention
    **dict.fromkeys(["hf_rope", "meta_complex", "rope_fn", "rope_offset_fn", "lucidrains", "bshd_module"], _SCALED),
    "xpos_fn": f"{_SCALED} scale_base gamma",
    "mrope_fn": f"{_AXES} config scaling section",
    **dict.fromkeys(("rope2d_table_fn", "rope_axes_fn"), f"{_AXES} order ladder"),
    "mrope_positions_fn": "next_after",
    "additive_module": f"{_ADDED} {_OF_A_TEXT}",
    "additive_2d_module": f"{_ADDED} {_OF_AN_IMAGE}",
    "relative_table_fn": f"{_ADDED} direction",
    "relative_index_fn": "window table_rows",
    "slopes_fn": _BIAS,
    "bias_fn": _BIAS,
    "score_mod": _BIAS,
    "bucket_fn": "num_buckets max_distance bidirectional causal direction",
    "position_fn": "padding packed origin start max_positions",
    "packed_position_fn": "packed padding origin start max_positions",
    "learned_rows_fn": "offset start padding padding_idx table_rows max_positions origin",
    "cached_model": _MODEL,
    "attention": _SCORES,
}
WORDS = {"encoding", "kind", *(word for words in READS.values() for word in words.split())}
READS["encoding"] = " ".join(sorted(WORDS))
ENCODINGS = {
    *("rope", "rope2d", "mrope", "xpos", "sinusoidal", "sinusoidal2d", "relative_sinusoid", "relative_sinusoidal"),
    *("alibi", "t5", "swin_bias", "swin", "relative_bias", "deberta", "learned", "learned2d", "additive", "sin"),
    *("nope", "none"),
}
KINDS = {"positions", "decode_equivalence"}
LAYOUTS = {"half", "interleaved"}
PADDINGS = {"left", "right", "both", "none"}
SCALINGS = {"none", "default", "linear", "dynamic", "ntk", "yarn", "llama3", "longrope", "su", "proportional"}
ONLY_CONFIG = {"mrope", "ntk_alpha"}  # a scaling that has parameters, which only a configuration gives
_BY_BEGINNING = re.compile("learned|sinusoid|relative_sinusoid")  # whatever comes after it, as in "learned_1d"
_MEANT = {  # what others call our words
    **dict.fromkeys(("theta", "rope_theta", "rotary_base"), "base"),
    **dict.fromkeys(("n_heads", "num_heads", "num_attention_heads", "nheads"), "heads"),
    **dict.fromkeys(("n_buckets", "relative_attention_num_buckets"), "num_buckets"),
    "pairing": "layout",
    **dict.fromkeys(("max_position_embeddings", "max_len", "max_seq_len"), "max_positions"),
    **dict.fromkeys(("rope_scaling", "rope_type"), "scaling"),
    **dict.fromkeys(("sliding_window", "window_size"), "window"),
    "mrope_section": "section",
    "mrope_interleaved": "interleaved",
    "rope_parameters": "scaling",
}
SHARES = {"partial_rotary_factor", "rotary_pct", "rotary_percent"}  # of head_dim, which others say for rotary_dim
_LAYOUTS_MEANT = {
    **dict.fromkeys(("neox", "gpt_neox", "gpt-neox", "rotate_half", "halves", "split"), "half"),
    **dict.fromkeys(
        ("gptj", "gpt_j", "gpt-j", "meta", "complex", "pairs", "adjacent", "rotate_every_two"), "interleaved"
    ),
}
_ENCODINGS_MEANT = {
    **dict.fromkeys(("rotary", "rope1d"), "rope"),
    **dict.fromkeys(("rope_2d", "rope-2d"), "rope2d"),
    **dict.fromkeys(("m_rope", "m-rope"), "mrope"),
}
_OTHERS = {"kv_heads", "n_kv_heads", "num_kv_heads", "num_key_value_heads"}  # near ours, and no misspelt ones
_NEAR = 0.75  # of two words, from which on one is taken for the other misspelt
# as people name the lanes of sinusoids: sines and cosines in two blocks or taking turns, either of them first
_SINUSOIDS = ("additive_module", "additive_2d_module", "relative_table_fn")
_WAVES = re.compile("half|halves|block|concat|split|interleav|alternat|woven|^_?cos")


def read(spec: Mapping[str, Any] | None, convention: str = "") -> tuple[dict[str, Any], list[str]]:
    """Return a specification in our words, and a sentence for each that nothing reads.

    Args:
        spec: Its words; None for none.
        convention: How the subject is called: sinusoids have more layouts than rotations.

    Raises:
        TypeError: It is no mapping of words.
        ValueError: A word, or what an encoding, a kind, a layout, a scaling or a padding is called, is misspelt, said
            twice, or says what cannot be judged by.

    >>> read({"encoding": "rope", "theta": 10000.0, "comment": "ours"})
    ({'encoding': 'rope', 'base': 10000.0}, ["'comment' of the specification, which is no word that posenc reads"])
    >>> read({"encoding": "rope", "rotary_dims": 32})
    Traceback (most recent call last):
    ...
    ValueError: verify: the spec has a word 'rotary_dims'. Did you mean 'rotary_dim'?
    """
    if spec is None:
        return {}, []
    if not isinstance(spec, Mapping) or not all(isinstance(word, str) for word in spec):
        raise TypeError(f"verify: the spec must be a dict of words; got {type(spec).__name__}. Give a JSON object.")
    asked, notes = _translated(spec)
    for word, known in (("kind", KINDS), ("padding", PADDINGS)):
        if isinstance(said := asked.get(word), str) and said.lower() not in known:  # padding may be a row's number
            notes += _unknown(f"{word} cannot be", said, known)
    _share(asked, spec)
    if "layout" in asked:
        asked["layout"] = _layout(asked, convention)
    _scaling(asked)
    return asked, notes + _encoding(asked) + _unread(asked, convention)


def _unread(asked: Mapping[str, Any], convention: str) -> list[str]:
    """Report the words of ours that a convention does not read.

    Raises:
        ValueError: One of them changes what is right: a check that leaves it out would judge something else.
    """
    if convention not in READS:
        return []
    reads = {*READS[convention].split(), "encoding", "kind"}
    unread = [word for word, said in asked.items() if word in WORDS and word not in reads and not _is_nothing(said)]
    for word in unread:
        if word not in DESCRIBE:
            others = [name for name, words in READS.items() if word in words.split() and name != "encoding"]
            raise ValueError(
                f"verify: {convention} does not read {word!r}, which changes what is right; got {asked[word]!r:.60}. "
                f"Remove it, or use a convention that reads it: {', '.join(others) or 'none does'}."
            )
    return [f"{word!r} of the specification, which {convention} does not read" for word in unread]


def _is_nothing(said: Any) -> bool:
    return said is None or said in ("none", "default")


def _translated(spec: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return what our words say, and what others are there.

    Raises:
        ValueError: A word is misspelt, or said twice.
    """
    asked: dict[str, Any] = {}
    notes: list[str] = []
    for word, said in spec.items():
        ours = word if word in WORDS else _MEANT.get(word, word)
        if word in SHARES:
            continue
        if ours not in WORDS:
            notes += _unknown("the spec has a word", word, WORDS)
        elif ours in asked and asked[ours] != said:
            raise ValueError(f"verify: the spec says {ours!r} twice, also as {word!r}. Say it once.")
        else:
            asked[ours] = said
    return asked, notes


def _share(asked: dict[str, Any], spec: Mapping[str, Any]) -> None:
    """Put the share of dimensions that rotate into our words, as their number.

    Raises:
        ValueError: There is no head_dim, or another rotary_dim.
    """
    for word in SHARES & set(spec):
        whole, share = asked.get("head_dim"), spec[word]
        if not isinstance(whole, int) or not isinstance(share, float | int) or not 0 < share <= 1:
            raise ValueError(
                f"verify: {word} must be a share of head_dim, from 0 to 1; got {share!r:.40} of {whole!r}."
            )
        if asked.setdefault("rotary_dim", int(whole * share)) != int(whole * share):
            raise ValueError(f"verify: {word}={share!r} is not rotary_dim={asked['rotary_dim']!r}. Say one of them.")


def _unknown(what: str, said: str, known: Iterable[str]) -> list[str]:
    """Report a word that nothing reads.

    Raises:
        ValueError: It is nearly one that is read.
    """
    near = [] if said in _OTHERS else get_close_matches(said[:100].lower(), sorted(known), 2, _NEAR)
    if near:
        raise ValueError(f"verify: {what} {said[:100]!r}. Did you mean {' or '.join(map(repr, near))}?")
    return [f"{said[:100]!r} of the specification, which is no word that posenc reads"]


def _layout(asked: Mapping[str, Any], convention: str) -> str | None:
    """Return the layout in our words.

    Raises:
        ValueError: There is none of that name.
    """
    said = asked["layout"]
    waves = convention in _SINUSOIDS or str(asked.get("encoding")).lower().startswith(("sin", "relative_sin"))
    if said is None or (waves and _WAVES.search(str(said).lower())):
        return said  # type: ignore[no-any-return]
    ours = _LAYOUTS_MEANT.get(str(said).lower(), said)
    if ours not in LAYOUTS:
        raise ValueError(f"verify: layout cannot be {str(said)[:100]!r}. Use 'half' or 'interleaved'.")
    return str(ours)


def _encoding(asked: dict[str, Any]) -> list[str]:
    """Put the encoding in small letters, and report one that is not known.

    Raises:
        ValueError: It is misspelt, or no word.
    """
    from posenc import registry
    from posenc.definitions import versions

    said = asked.get("encoding")
    if said is None:
        return []
    if not isinstance(said, str):
        raise ValueError(f"verify: encoding must be a word; got {type(said).__name__}. Use one of {_list(ENCODINGS)}.")
    name = asked["encoding"] = _ENCODINGS_MEANT.get(said.lower(), said.lower())
    if name.startswith("alibi@") and name not in versions.BIASES:
        raise ValueError(f"verify: there is no definition {said[:100]!r}. Use one of {_list(versions.BIASES)}.")
    known = {*ENCODINGS, *registry.names(), *versions.BIASES}
    return [] if name in known or _BY_BEGINNING.match(name) else _unknown("encoding cannot be", said, known)


def _scaling(asked: Mapping[str, Any]) -> None:
    """Refuse a scaling that is unknown, or of which only the name is given where it has parameters of its own.

    Raises:
        ValueError: Likewise.
    """
    said = asked.get("scaling")
    if (
        said in (None, "none", "default")
        and not asked.get("config")
        and (factor := asked.get("factor")) not in (None, 1)
    ):
        raise ValueError(f"verify: factor {factor!r:.40} has no scaling that it is of. Name one: {_list(SCALINGS)}.")
    if said is None:
        return
    is_whole = isinstance(said, Mapping)  # as a configuration has it
    if is_whole:
        said = said.get("rope_type", said.get("type", "default"))
    if not isinstance(said, str):
        raise ValueError(f"verify: scaling must be a word or a dict; got {type(said).__name__}.")
    if said in SCALINGS or (said in ONLY_CONFIG and (is_whole or asked.get("config"))):
        return
    if said in ONLY_CONFIG:
        raise ValueError(f"verify: scaling {said!r} needs parameters. Give the model's config in the spec.")
    _unknown("scaling cannot be", said, SCALINGS)
    if is_whole or not asked.get("config"):  # which says it all
        raise ValueError(f"verify: scaling cannot be {said[:100]!r}. Use one of {_list(SCALINGS)}, or give a config.")


def _list(words: Iterable[str]) -> str:
    return ", ".join(sorted(words))
