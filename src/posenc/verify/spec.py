"""The words of a specification, their names in other projects, and their allowed values.

Words of other libraries are translated. A misspelt word is refused, because otherwise code with the wrong base would
pass. Any other unknown word is reported.
"""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from posenc.verify import values

# words that describe a model or a test; a convention that does not read them need not refuse them
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
_AXES = f"{_SCALED.replace('rotary_side ', '')} interleaved section widths n_axes ladder"
_ADDED = "dim d_model head_dim base temperature layout variant start offset order origin"
_OF_A_TEXT = "table_rows max_positions padding padding_idx activation_dtype interpolation"
_OF_AN_IMAGE = "grid cls scale normalize normalise normalized normalised interpolation"
_MODEL = (
    f"{_ROTATION} heads layers causal window chunked scale_base gamma num_buckets max_distance bidirectional slopes "
    "bias_max variant start offset order interleaved section"
)
_SCORES = (
    f"{_ROTATION} heads layers causal bidirectional window scale_base gamma order direction num_buckets max_distance"
)
_BIAS = "heads head_dim causal bidirectional window num_buckets max_distance variant slopes bias_max order config"
READS = {  # words that change the right answer, by convention
    **dict.fromkeys(["hf_rope", "meta_complex", "rope_fn", "rope_offset_fn", "lucidrains", "bshd_module"], _SCALED),
    "xpos_fn": f"{_SCALED} scale_base gamma",
    "mrope_fn": f"{_AXES} axes",
    "rope_axes_fn": f"{_AXES} axes order",
    "rope2d_table_fn": "head_dim dim rotary_dim base layout interleaved max_positions activation_dtype order ladder "
    "coordinates "
    "section widths n_axes",
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
    "scores_fn": ("heads head_dim dim d_model base scale causal max_distance table_rows direction num_buckets variant"),
    "shift_fn": "causal",
    "learned_bias_fn": "heads causal window pretrained_window",
}
WORDS = {"encoding", "kind", *(word for words in READS.values() for word in words.split())}
READS["encoding"] = " ".join(sorted(WORDS))
ENCODINGS = {
    *("rope", "rope2d", "mrope", "xpos", "sinusoidal", "sinusoidal2d", "relative_sinusoid", "relative_sinusoidal"),
    *("alibi", "t5", "swin_bias", "swin", "relative_bias", "deberta", "learned", "learned2d", "additive", "sin"),
    *("nope", "none"),
}
LAYOUTS = {"half", "interleaved"}
SCALINGS = {"none", "default", "linear", "dynamic", "yarn", "llama3", "longrope", "su", "proportional"}
ONLY_CONFIG = {"mrope", "ntk_alpha"}  # scalings with parameters that only a configuration can give
_BY_BEGINNING = re.compile("learned|sinusoid|relative_sinusoid")  # whatever follows, as in "learned_1d"


def _ours(**others: str) -> dict[str, str]:
    return {name: ours for ours, names in others.items() for name in names.split()}


_MEANT = _ours(  # other names of our words and of their values
    base="theta rope_theta rotary_base",
    heads="n_heads num_heads num_attention_heads nheads",
    num_buckets="n_buckets relative_attention_num_buckets position_buckets",
    max_distance="max_relative_positions max_relative_position relative_attention_max_distance",
    layout="pairing",
    max_positions="max_position_embeddings max_len max_seq_len",
    scaling="rope_scaling rope_type rope_parameters",
    window="sliding_window window_size",
    section="sections mrope_section",
    widths="axes_dim axes_dims axis_dims rope_axes_dim axes_dims_rope rope_dim_list",
    pretrained_window="pretrained_window_size",
    interleaved="mrope_interleaved",
)
_LAYOUTS_MEANT = _ours(
    half="neox gpt_neox gpt-neox rotate_half halves split",
    interleaved="gptj gpt_j gpt-j meta complex pairs adjacent rotate_every_two",
)
_ENCODINGS_MEANT = _ours(
    rope="rotary rope1d",
    rope2d="rope_2d rope-2d",
    mrope="m_rope m-rope",
    axial_rope="axial rope_nd vision_rope rope3d rope_3d rope-3d",
    transformer_xl="transformer-xl transfo_xl transfo-xl",
    deberta="deberta_v2 deberta-v2 deberta_v3 deberta-v3",
    swin_v2="swinv2 swin-v2",
)
SHARES = {"partial_rotary_factor", "rotary_pct", "rotary_percent"}  # shares of head_dim, in place of rotary_dim
_OTHERS = {"kv_heads", "n_kv_heads", "num_kv_heads", "num_key_value_heads"}  # similar to ours, but not misspelt
_NEAR = 0.75  # similarity from which one word counts as a misspelling of another
# common names for the layout of sinusoids: sines and cosines in two blocks or alternating, either of them first
_SINUSOIDS = ("additive_module", "additive_2d_module", "relative_table_fn")
_WAVES = re.compile("half|halves|block|concat|split|interleav|alternat|woven|^_?cos")
# known parts of a sinusoid's variant; any other leaves open which formula is right
FORMULAS = (
    "paper vaswani original standard transformer tensor2tensor t2t fairseq m2m100 detr maskformer loftr mae vit moco "
    "xl normalised unnormalised"
)


def read(spec: Mapping[str, Any] | None, convention: str = "") -> tuple[dict[str, Any], list[str]]:
    """Return a specification in our words, and a sentence for each word that is not read.

    Args:
        spec: Its words, or None.
        convention: How to call the subject: sinusoids have more layouts than rotations.

    Raises:
        TypeError: It is not a mapping of words.
        ValueError: A word is misspelt, given twice, has an impossible value, or is not read although it matters.

    >>> read({"encoding": "rope", "theta": 10000.0, "comment": "ours"})
    ({'encoding': 'rope', 'base': 10000.0}, ["'comment' of the specification, which posenc does not know"])
    >>> read({"encoding": "rope", "rotary_dims": 32})
    Traceback (most recent call last):
    ...
    ValueError: verify: the spec has a word 'rotary_dims'. Did you mean 'rotary_dim'?
    """
    if spec is None:
        return {}, []
    if not isinstance(spec, Mapping) or not all(isinstance(word, str) for word in spec):
        raise TypeError(f"verify: the spec must be a dict; got {type(spec).__name__}. Give a JSON object.")
    asked, notes = _translated(spec)
    asked = {word: values.checked(word, said, convention) for word, said in asked.items()}
    _share(asked, spec)
    if "layout" in asked:
        asked["layout"] = _layout(asked, convention)
    _scaling(asked)
    return asked, [*notes, *_encoding(asked), *_variant(asked, convention), *_unread(asked, convention)]


def _translated(spec: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the values of our words, and report unknown ones; a word with the value None is ignored."""
    asked: dict[str, Any] = {}
    notes: list[str] = []
    for word, said in spec.items():
        ours = word if word in WORDS else _MEANT.get(word, word)
        if word in SHARES:
            continue
        if ours not in WORDS:
            notes += _unknown("the spec has a word", word, WORDS)
        elif ours in asked and asked[ours] != said:
            raise ValueError(f"verify: the spec gives {ours!r} twice, once as {word!r}. Give it once.")
        elif said is not None:
            asked[ours] = said
    return asked, notes


def _share(asked: dict[str, Any], spec: Mapping[str, Any]) -> None:
    """Replace the rotated share of dimensions by their number."""
    for word in SHARES & set(spec):
        whole, share = asked.get("head_dim"), spec[word]
        if whole is None or not values.is_number(share) or not 0 < share <= 1:
            raise ValueError(
                f"verify: {word} must be a share of head_dim, from 0 to 1; got {share!r:.40} of {whole!r}."
            )
        if asked.setdefault("rotary_dim", int(whole * share)) != int(whole * share):
            raise ValueError(f"verify: {word}={share!r} contradicts rotary_dim={asked['rotary_dim']!r}. Give one.")


def _unknown(what: str, said: str, known: Iterable[str]) -> list[str]:
    """Report an unknown word; refuse it if it resembles a known one."""
    near = [] if said in _OTHERS else get_close_matches(said[:100].lower(), sorted(known), 2, _NEAR)
    if near:
        raise ValueError(f"verify: {what} {said[:100]!r}. Did you mean {' or '.join(map(repr, near))}?")
    return [f"{said[:100]!r} of the specification, which posenc does not know"]


def _layout(asked: Mapping[str, Any], convention: str) -> str:
    said = asked["layout"].lower()
    waves = convention in _SINUSOIDS or str(asked.get("encoding")).lower().startswith(("sin", "relative_sin"))
    if waves and _WAVES.search(said):
        return str(asked["layout"])
    ours = _LAYOUTS_MEANT.get(said, said)
    if ours not in LAYOUTS:
        raise ValueError(f"verify: layout cannot be {said[:100]!r}. Use 'half' or 'interleaved'.")
    return str(ours)


def encoding_of(said: Any) -> str:
    """Return an encoding's name in our words."""
    return _ENCODINGS_MEANT.get(str(said).lower(), str(said).lower())


def _encoding(asked: dict[str, Any]) -> list[str]:
    """Write the encoding in lower case and report an unknown one; refuse a misspelt one."""
    from posenc import registry
    from posenc.definitions import versions

    if (said := asked.get("encoding")) is None:
        return []
    name = asked["encoding"] = encoding_of(said)
    if name.startswith("alibi@") and name not in versions.BIASES:
        raise ValueError(f"verify: unknown definition {said[:100]!r}. Use one of {_list(versions.BIASES)}.")
    known = {*ENCODINGS, *registry.names(), *registry.card("mrope").keys, *versions.BIASES}
    return [] if name in known or _BY_BEGINNING.match(name) else _unknown("encoding cannot be", said, known)


def _variant(asked: Mapping[str, Any], convention: str) -> list[str]:
    """Report an unknown formula of sinusoids; refuse a misspelt one."""
    said = re.sub(r"[^a-z0-9]", "", asked.get("variant", "").lower())
    if convention not in _SINUSOIDS or not said or any(name in said for name in FORMULAS.split()):
        return []
    return _unknown("variant cannot be", asked["variant"], FORMULAS.split())


def _scaling(asked: Mapping[str, Any]) -> None:
    """Refuse a scaling that is unknown, or that is given only by name although it needs parameters."""
    said, is_given = asked.get("scaling", "none"), bool(asked.get("config"))
    if "ntk" in (said, *(said.get(word) for word in ("rope_type", "type") if isinstance(said, Mapping))):
        raise ValueError(
            "verify: scaling 'ntk' can mean a fixed larger base, or one that grows with the text. For the fixed one, "
            'base * alpha^(d/(d-2)), write {"rope_type": "ntk_alpha", "alpha": 8.0}, for the other one "dynamic".'
        )
    if isinstance(said, Mapping):  # as in a configuration
        said, known = said.get("rope_type", said.get("type", "default")), SCALINGS | ONLY_CONFIG
    elif is_given:  # the parameters are complete
        return
    elif said in ONLY_CONFIG:
        raise ValueError(f"verify: scaling {said!r} needs parameters. Give the model's config in the spec.")
    else:
        known = SCALINGS
        if said in ("none", "default") and asked.get("factor", 1) != 1:
            factor = asked["factor"]
            raise ValueError(f"verify: factor {factor!r:.40} needs a scaling. Name one: {_list(known)}.")
    if not isinstance(said, str) or said not in known:
        _unknown("scaling cannot be", str(said), known)
        raise ValueError(f"verify: scaling cannot be {said!r:.60}. Use one of {_list(known)}, or give a config.")


def _unread(asked: Mapping[str, Any], convention: str) -> list[str]:
    """Report our words that a convention does not read; refuse those that change the right answer."""
    if convention not in READS:
        return []
    reads = {*READS[convention].split(), "encoding", "kind"}
    unread = [word for word, said in asked.items() if word not in reads and said not in ("none", "default")]
    for word in unread:
        if word not in DESCRIBE:
            others = [name for name, words in READS.items() if word in words.split() and name != "encoding"]
            raise ValueError(
                f"verify: {convention} does not read {word!r}, which affects the answer; got {asked[word]!r:.60}. "
                f"Remove it, or use a convention that reads it: {', '.join(others) or 'none does'}."
            )
    return [f"{word!r} of the specification, which {convention} does not read" for word in unread]


def _list(words: Iterable[str]) -> str:
    return ", ".join(sorted(words))
