"""The known ways to call position code, and how to find the one that fits the object that a file builds.

The type and the argument names are compared first, then trial calls. If two conventions fit, neither is used: a
rotation called with an offset instead of positions would be reported as broken.
"""

import difflib
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posenc.verify.spec import encoding_of

_POSITIONS = "positions position pos position_ids pos_ids p ids idx indices input_pos seq_pos token_positions"
_OFFSET = (
    "offset start start_pos pos_offset seq_offset position_offset past_len past_length cache_len seqlen_offset begin"
)
_MASK = "attention_mask mask attn_mask padding_mask pad_mask key_padding_mask"
_Q, _K = "q query queries xq query_states q_states", "k key keys xk key_states k_states"
_HEADS = "heads n_heads num_heads nheads n_head num_attention_heads head_count"
_Q_LEN = "q_len qlen query_len query_length len_q q_length n_q seq_q tq lq tgt_len num_queries"
_KV_LEN = "kv_len k_len klen key_len key_length len_k kv_length n_k seq_k tk lk src_len"
_ALIBI = "alibi alibi@authors alibi@geometric alibi@one-sided alibi@falcon"
_H, _W = "h height rows grid_h n_rows hh win_h window_h", "w width cols columns grid_w n_cols ww win_w window_w"


@dataclass(frozen=True)
class Convention:
    """One way to call position code.

    Args:
        call: What build() returns, how it is called, and the result; a program is called by the same names.
        words: For each argument of the call, the names that identify this convention; empty if any name may.
            None if it is not a plain call: its type identifies it; () if the arguments depend on the encoding.
        called: A word in the function's own name that identifies it.
        encodings: The values of the specification's word encoding that it can judge, in words; empty if any.
    """

    call: str
    words: tuple[str, ...] | None = None
    called: str = ""
    encodings: str = ""

    @property
    def functions(self) -> dict[str, tuple[str, ...]]:
        """The called functions, and the names of their arguments.

        >>> CONVENTIONS["slopes_fn"].functions
        {'slopes': ('n_heads',)}
        """
        return {name: tuple(args.split(", ")) for name, args in re.findall(r"(\w+)\(([\w, ]+)\)", self.call)}

    @property
    def signatures(self) -> dict[str, tuple[str, ...]]:
        """The arguments by encoding, if they depend on it: "f(q, k, table) for NAME".

        >>> CONVENTIONS["shift_fn"].signatures
        {'transformer_xl': ('x',)}
        """
        return {name: tuple(args.split(", ")) for args, name in re.findall(r"\w+\(([\w, ]+)\) for (\w+)", self.call)}

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """The axes of tensors.

        >>> CONVENTIONS["attention"].axes["k"]
        ('batch', 'heads', 'seq', 'dim')
        """
        found = re.findall(r"((?:\w+(?:, | and ))*\w+) \(([\w, ]+)\)", self.call)
        return {
            name: tuple(axis.strip(",") for axis in axes.split(", "))
            for names, axes in found
            for name in re.split(", | and ", names)
        }


CONVENTIONS: Mapping[str, Convention] = {
    "hf_rope": Convention(
        "(module rotary(x, position_ids) -> (cos, sin), function apply(q, k, cos, sin) -> (q, k)), q and k (batch, "
        "heads, seq, dim), position_ids (batch, seq), x any tensor with their dtype",
        encodings="rope",
    ),
    "meta_complex": Convention(
        "(function table(end) -> complex table, function apply(q, k, table) -> (q, k)), q and k (batch, seq, heads, "
        "dim), table (seq, pairs) of the call's own positions",
        encodings="rope",
    ),
    "rope_fn": Convention(
        "rope(x, positions), x (batch, heads, seq, dim), positions (seq,)", ("", _POSITIONS), encodings="rope"
    ),
    "rope_offset_fn": Convention(
        "rope(x, offset), x (batch, heads, seq, dim), positions offset, offset + 1, ..", ("", _OFFSET), encodings="rope"
    ),
    "lucidrains": Convention(
        "object with rotate_queries_or_keys(x, offset), x (batch, heads, seq, dim)", encodings="rope"
    ),
    "bshd_module": Convention(
        "forward(q, k) -> (q, k), q and k (batch, seq, heads, dim), positions from 0", (_Q, _K), encodings="rope"
    ),
    "xpos_fn": Convention(
        "xpos(q, k) -> (q, k), q and k (batch, heads, seq, dim), positions from 0", (_Q, _K), "xpos", encodings="xpos"
    ),
    "mrope_fn": Convention(
        "angles(position_ids) -> (seq, head_dim / 2), position_ids (3, seq), or as many rows as the spec has axes",
        (_POSITIONS + " coords",),
        encodings="mrope axial_rope",
    ),
    "rope2d_table_fn": Convention(
        "table(h, w) -> angles (h*w, head_dim / 2), first half of the dimensions x, second y",
        (_H, _W),
        encodings="rope2d axial_rope",
    ),
    "mrope_positions_fn": Convention(
        "positions(segments, time_steps) -> (3, seq), a segment a number of tokens or (frames, rows, columns), "
        "time_steps one number for each picture or video",
        ("segments parts", "time_steps steps time_step"),
        encodings="mrope",
    ),
    "rope_axes_fn": Convention(
        "rope(x, positions), x (batch, heads, seq, dim), positions (batch, seq, 2) of rows and columns, or of all axes "
        "of the spec",
        ("", _POSITIONS + " coords"),
        encodings="rope2d axial_rope mrope",
    ),
    "additive_module": Convention(
        "forward(x) -> x + code, x (batch, seq, dim)",
        ("x input inputs tokens emb embedding embeddings hidden hidden_states tensor src",),
        encodings="sinusoidal learned",
    ),
    "additive_2d_module": Convention(
        "forward(x) -> x + code, x (batch, channels, h, w)",
        ("x input inputs image images img feature features feature_map fmap maps tensor",),
        encodings="sinusoidal2d learned2d",
    ),
    "relative_table_fn": Convention(
        "table(n) -> (2n - 1, dim), row r holds distance (n - 1) - r",
        ("n length seq_len seqlen klen size max_len n_positions n_tokens",),
        encodings="relative_sinusoid",
    ),
    "relative_index_fn": Convention(
        "index(h, w) -> (h*w, h*w) rows of a table, of Swin (dy + h - 1)(2w - 1) + dx + w - 1 where dy and dx are "
        "those of query - key; another order of the rows is equivalent, unless a trained table is loaded",
        (_H, _W),
        "index",
        encodings="swin swin_bias",
    ),
    "slopes_fn": Convention(
        "slopes(n_heads) -> list",
        (_HEADS + " n h",),
        "slope",
        encodings=_ALIBI,
    ),
    "bias_fn": Convention(
        "bias(heads, q_len, kv_len) -> bias that broadcasts to (heads, q_len, kv_len), queries the last q_len keys; of "
        "relative_bias: one number for each key - query from -max_distance to max_distance, in any order of the rows, "
        "since the table is not visible: Shaw's row is key - query + max_distance, posenc's query - key + max_distance",
        (_HEADS + " h n", _Q_LEN + " q n m i", _KV_LEN + " k kv n m j"),
        encodings=f"{_ALIBI} t5 relative_bias swin swin_bias",
    ),
    "score_mod": Convention(
        "score_mod(score, b, h, q_idx, kv_idx) -> score",
        ("", "", "", "", ""),
        "score_mod",
        encodings=f"{_ALIBI} t5 relative_bias",
    ),
    "bucket_fn": Convention(
        "bucket(relative_position) -> int tensor of the same shape, relative_position = key - query; of deberta: "
        "signed buckets of query - key, as in its code, or of key - query, and from 0 or from num_buckets on",
        ("relative_position relative_positions rel_pos rel relpos relative distance distances delta d r rp",),
        "bucket",
        encodings="t5 deberta",
    ),
    "position_fn": Convention(
        "positions(attention_mask, q_len) -> (batch, q_len), attention_mask (batch, total) of 0 and 1, or if the "
        "specification has packed, of the number of each token's document",
        (_MASK, _Q_LEN + " n length seq_len seqlen new_tokens"),
    ),
    "packed_position_fn": Convention(
        "positions(cu_seqlens) -> (total,)",
        ("cu_seqlens cu_seq_lens cu cu_lens cu_lengths cumulative bounds boundaries",),
    ),
    "learned_rows_fn": Convention(
        "rows(attention_mask) -> row numbers of the learned table, attention_mask (batch, total)",
        (_MASK,),
        "rows",
        encodings="learned",
    ),
    "cached_model": Convention(
        "model(x, cache) -> (y, cache), x and y (batch, seq, dim), dim the width of the model, cache None at first",
        ("", "cache kv_cache past past_kv past_key_values layer_past state memory"),
        encodings="rope xpos alibi t5 sinusoidal learned none",
    ),
    "attention": Convention(
        "attention(q, k, v, positions) -> out, q, k and v (batch, heads, seq, dim), positions (seq,) or (batch, seq)",
        (_Q, _K, "", _POSITIONS),
        encodings="rope xpos alibi",
    ),
    "scores_fn": Convention(
        "scores(q, k, rel_k) for shaw, scores(q, k, u, v, w_r) for transformer_xl, scores(q, k, logit_scale) for "
        "swin_v2, scores(q, k, rel_k, rel_q) for deberta -> scores before the softmax, or only their term of the "
        "position, (batch, heads, q_len, kv_len); q (batch, heads, q_len, head_dim), the last q_len of kv_len "
        "positions, k (batch, heads, kv_len, head_dim); of shaw: rel_k (2 max_distance + 1, head_dim), row key - query "
        "+ max_distance (direction query-key: query - key + ..; table_rows: the rest beyond max_distance + 1 is "
        "ahead); of transformer_xl: u and v (heads, head_dim), w_r (heads * head_dim, d_model), the weight of r_net, "
        "which projects [sines, cosines] of query - key; of swin_v2: logit_scale (heads, 1, 1), scores without the "
        "bias; of deberta: rel_k and rel_q (heads, rows, head_dim), projected, 2 num_buckets rows with logarithmic "
        "buckets, else 2 max_distance, row query - key + half of them",
        (),
        encodings="shaw transformer_xl swin_v2 deberta",
    ),
    "shift_fn": Convention(
        "shift(x) for transformer_xl -> x (batch, heads, q_len, kv_len) with the column of key j in place j, where "
        'column c of the argument has distance kv_len - 1 - c; with "causal": false it has 2 kv_len - 1 columns',
        (),
        "shift",
        encodings="transformer_xl",
    ),
    "learned_bias_fn": Convention(
        "bias(q_len, kv_len, w1, b1, w2, b2, c, threshold) for fire, bias(h, w, w1, b1, w2) for swin_v2, "
        "bias(h, w, table) for beit -> (heads, q_len, kv_len), in an image of h rows and w columns (heads, h*w, h*w), "
        "for beit with a class token in front; a network is w2 relu(w1 x + b1), w1 (width, inputs), b1 (width,), w2 "
        "(heads, width); of fire: b2 (heads,), c and threshold are tensors of one number, the input for query i and "
        "key j is log(c |i - j| + 1) / log(c L + 1), L the larger of i and threshold, both counted from 0, or from "
        "1, in the whole text; of swin_v2: inputs are (row, column), 16 sigmoid of the result; of beit: table ((2h - "
        "1)(2w - 1) + 3, heads), rows as of Swin, then class to patch, patch to class and class to class",
        (),
        encodings="fire swin_v2 beit",
    ),
    "encoding": Convention("a posenc Encoding or a subclass"),
}


def named(name: object, where: str) -> str:
    """Return the name of a convention, or raise a ValueError that names the place where it was given.

    >>> named("rope_fn", "STYLE")
    'rope_fn'
    """
    if isinstance(name, str) and name in CONVENTIONS:
        return name
    said = str(name)[:100]
    near = difflib.get_close_matches(said, CONVENTIONS, 2, 0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    raise ValueError(f"verify: {where} must be a convention; got {said!r}. {hint}Known: {', '.join(CONVENTIONS)}.")


def misfit(subject: Any, convention: str) -> str | None:
    """Return why a subject cannot be called by a convention at all, in words; None if it can.

    >>> misfit([0.5, 0.25], "slopes_fn")
    'slopes_fn calls slopes(n_heads) -> list, but build() returned a list'
    """
    asked = CONVENTIONS[convention]
    if asked.words is None:
        fits = convention in _by_kind(subject, any_call=True)
    else:
        fits = callable(subject) or callable(getattr(subject, "forward", None))
    return None if fits else f"{convention} calls {asked.call}, but build() returned {_describe(subject)}"


def fitting(subject: Any, spec: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Return the conventions that fit the type and the arguments of a subject, and whether trial calls were needed.

    Args:
        subject: The object that build() returned; a trial may change its state.
        spec: What it should compute: trials use its widths, and only encoding "xpos" makes a module on (q, k) an xPos.
    """
    if len(known := _by_kind(subject)) == 1:
        return known, False
    fits, spoken = known, bool(known)
    if not known and callable(subject) and not isinstance(subject, tuple | list):
        fits, spoken = _by_signature(subject, spec)
    if len(fits) == 1 and spoken:
        return fits, False
    from posenc.verify.child import trials

    ratings = {name: trials.rate(subject, name, spec) for name in fits}
    tried = [name for name, rating in ratings.items() if rating == max(ratings.values()) > 0]
    return tried or (fits if spoken else []), True


def only(fits: Sequence[str], subject: Any) -> str:
    """Return the one convention that fits.

    Raises:
        ValueError: None fits, or several do, which are named.
    """
    if len(fits) == 1:
        return fits[0]
    count, listed = "no", f"known: {', '.join(CONVENTIONS)}"
    if fits:
        count, listed = str(len(fits)), "; ".join(f"{name}: {CONVENTIONS[name].call}" for name in fits)
    what = f"convention{'s' * bool(fits)} fit{'s' * (not fits)} what build() returned, {_describe(subject)}"
    raise ValueError(f"verify: {count} {what}. Name one by --convention or STYLE; {listed}.")


def _by_kind(subject: Any, *, any_call: bool = False) -> list[str]:
    """Return the conventions of objects that are not plain callables: pairs, known methods, encodings."""
    from posenc.encoding import Encoding

    if isinstance(subject, Encoding) or (inspect.isclass(subject) and issubclass(subject, Encoding)):
        return ["encoding"]
    if isinstance(subject, tuple | list) and len(subject) == 2 and all(map(callable, subject)):
        tables, rotates = map(_signature_of, subject)
        if any_call:
            return ["hf_rope", "meta_complex"]
        if tables and list(tables.parameters)[:1] == ["end"]:
            return ["meta_complex"]
        return [name for name, count in (("hf_rope", 4), ("meta_complex", 3)) if _takes(rotates, count)]
    return ["lucidrains"] if callable(getattr(subject, "rotate_queries_or_keys", None)) else []


def _by_signature(subject: Any, spec: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Return the conventions that fit the arguments of a callable, and whether by names or only by their count."""
    signature, own = _signature_of(subject), str(getattr(subject, "__name__", "")).lower()
    if signature and (given := [name for name, c in CONVENTIONS.items() if _gets_numbers(signature, own, c, spec)]):
        return given, True
    plain = {name: c for name, c in CONVENTIONS.items() if c.words and _takes(signature, len(c.words))}
    if hasattr(subject, "forward") and spec.get("encoding") != "xpos":
        plain.pop("xpos_fn", None)  # a function; modules on (q, k) have another convention
    several = spec.get("encoding") in ("rope2d", "axial_rope", "mrope")
    plain.pop("rope_fn" if several else "rope_axes_fn", None)  # both take (x, positions)
    spoken = [name for name, c in plain.items() if signature and _speaks(signature, c.words or ())]
    if len(spoken) > 1:
        spoken = [name for name in spoken if plain[name].called and plain[name].called in own] or spoken
    return spoken or list(plain), bool(spoken)


def _gets_numbers(signature: inspect.Signature, own: str, convention: Convention, spec: Mapping[str, Any]) -> bool:
    """Return whether a callable takes the learned numbers of an encoding: the one of the specification, or any."""
    encoding = spec.get("encoding") and encoding_of(spec["encoding"])
    for name, names in convention.signatures.items():
        if encoding == name and _takes(signature, len(names)):
            return True
        first = {"q": _Q, "k": _K, "x": "" if convention.called in own else "?"}
        words = tuple(first.get(each, each) for each in names)
        if encoding is None and _takes(signature, len(names)) and _speaks(signature, words):
            return True
    return False


def _signature_of(subject: Any) -> inspect.Signature | None:
    """Return the signature of a subject, of a module its forward; None if there is none."""
    try:
        return inspect.signature(getattr(subject, "forward", subject))
    except Exception:  # built-in, or with a wrong signature
        return None


def _takes(signature: inspect.Signature | None, count: int) -> bool:
    """Return whether a call can pass so many arguments by position, or all by name; True without a signature."""
    if signature is None:
        return True
    needed = [p for p in signature.parameters.values() if p.kind == p.KEYWORD_ONLY and p.default is p.empty]
    try:
        signature.bind(*[None] * (count - len(needed)), **{p.name: None for p in needed})
    except TypeError:
        return False
    return count >= len(needed)


def _speaks(signature: inspect.Signature, words: tuple[str, ...]) -> bool:
    """Return whether argument names identify a convention: each that has known names is one of them."""
    starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = [p.name.lower().strip("_") for p in signature.parameters.values() if p.kind not in starred]
    fits = all(not word or name in word.split() for name, word in zip(names, words, strict=False))
    return fits and len(names) >= len(words)


def _describe(subject: Any) -> str:
    kind = type(subject).__name__
    signature = None if isinstance(subject, tuple | list) or not callable(subject) else _signature_of(subject)
    return f"a {kind}" + (f" that takes {signature}" if signature else "")
