"""The ways to call position code that a check knows, and which of them fits what a file built.

First by what it is and how its arguments are called; only then by trial. Where two fit, neither is taken: a rotation
read by offset in place of positions would be reported as broken.
"""

import difflib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_POSITIONS = "positions position pos position_ids pos_ids p ids idx indices input_pos seq_pos token_positions"
_OFFSET = (
    "offset start start_pos pos_offset seq_offset position_offset past_len past_length cache_len seqlen_offset begin"
)
_MASK = "attention_mask mask attn_mask padding_mask pad_mask key_padding_mask"
_Q, _K = "q query queries xq query_states q_states", "k key keys xk key_states k_states"
_HEADS = "heads n_heads num_heads nheads n_head num_attention_heads head_count"
_Q_LEN = "q_len qlen query_len query_length len_q q_length n_q seq_q tq lq tgt_len num_queries"
_KV_LEN = "kv_len k_len klen key_len key_length len_k kv_length n_k seq_k tk lk src_len"
_H, _W = "h height rows grid_h n_rows hh win_h window_h", "w width cols columns grid_w n_cols ww win_w window_w"


@dataclass(frozen=True)
class Convention:
    """One way to call position code.

    Args:
        name: As in STYLE and --convention.
        call: What build() returns, and how it is called.
        words: For each argument of the call, the names of it that speak for this convention; empty if any may.
            None if it is no plain call: it is known by what it is.
        called: A word in the function's own name that speaks for it.
    """

    name: str
    call: str
    words: tuple[str, ...] | None = None
    called: str = ""


_ALL = (
    Convention("hf_rope", "(module: (x, position_ids) -> (cos, sin), function: (q, k, cos, sin) -> (q, k))"),
    Convention("meta_complex", "(function: (end=n) -> complex table, function: (q, k, table) -> (q, k))"),
    Convention("rope_fn", "rope(x, positions), x (batch, heads, seq, dim), positions (seq,)", ("", _POSITIONS)),
    Convention("rope_offset_fn", "rope(x, offset)", ("", _OFFSET)),
    Convention("lucidrains", "object with rotate_queries_or_keys(x, offset=)"),
    Convention("bshd_module", "forward(q, k) on (batch, seq, heads, dim), positions from 0", (_Q, _K)),
    Convention("xpos_fn", "xpos(q, k) -> (q, k)", (_Q, _K), "xpos"),
    Convention(
        "mrope_fn",
        "angles(position_ids (3, seq)) -> (seq, head_dim / 2)",
        (_POSITIONS + " coords",),
    ),
    Convention(
        "rope2d_table_fn",
        "table(h, w) -> angles (h*w, head_dim / 2), first half of the dimensions x, second y",
        (_H, _W),
    ),
    Convention(
        "mrope_positions_fn",
        "positions(segments, time_steps) -> (3, seq), a segment a number of tokens or (frames, rows, columns)",
        ("segments parts", "time_steps steps time_step"),
    ),
    Convention(
        "rope_axes_fn",
        "rope(x, positions), x (batch, heads, seq, dim), positions (batch, seq, 2) of rows and columns",
        ("", _POSITIONS + " coords"),
    ),
    Convention(
        "additive_module",
        "forward(x (batch, seq, dim)) -> x + code",
        ("x input inputs tokens emb embedding embeddings hidden hidden_states tensor src",),
    ),
    Convention(
        "additive_2d_module",
        "forward(x (n, channels, h, w)) -> x + code",
        ("x input inputs image images img feature features feature_map fmap maps tensor",),
    ),
    Convention(
        "relative_table_fn",
        "table(n) -> (2n - 1, dim), row r holds distance (n - 1) - r",
        ("n length seq_len seqlen klen size max_len n_positions n_tokens",),
    ),
    Convention("relative_index_fn", "index(h, w) -> (h*w, h*w)", (_H, _W), "index"),
    Convention("slopes_fn", "slopes(n_heads) -> list", (_HEADS + " n h",), "slope"),
    Convention(
        "bias_fn",
        "bias(heads, q_len, kv_len), broadcastable to (heads, q_len, kv_len)",
        (_HEADS + " h n", _Q_LEN + " q n m i", _KV_LEN + " k kv n m j"),
    ),
    Convention(
        "score_mod",
        "score_mod(score, b, h, q_idx, kv_idx) -> score",
        ("", "", "", "", ""),
        "score_mod",
    ),
    Convention(
        "bucket_fn",
        "bucket(relative_position = key - query) -> int tensor",
        ("relative_position relative_positions rel_pos rel relpos relative distance distances delta d r rp",),
        "bucket",
    ),
    Convention(
        "position_fn",
        "positions(attention_mask (batch, total), q_len) -> (batch, q_len)",
        (_MASK, _Q_LEN + " n length seq_len seqlen new_tokens"),
    ),
    Convention(
        "packed_position_fn",
        "positions(cu_seqlens) -> (total,)",
        ("cu_seqlens cu_seq_lens cu cu_lens cu_lengths cumulative bounds boundaries",),
    ),
    Convention("learned_rows_fn", "rows(attention_mask) -> row numbers of the learned table", (_MASK,), "rows"),
    Convention(
        "cached_model",
        "model(x (batch, seq, dim), cache or None) -> (y, cache)",
        ("", "cache kv_cache past past_kv past_key_values layer_past state memory"),
    ),
    Convention("attention", "attention(q, k, v, positions) -> out", (_Q, _K, "", _POSITIONS)),
    Convention("encoding", "a posenc Encoding or a subclass"),
)
CONVENTIONS: Mapping[str, Convention] = {c.name: c for c in _ALL}


def named(name: object, where: str) -> str:
    """Return the name of a convention if it is one.

    Args:
        name: What was given.
        where: Where it was given, for the message.

    Raises:
        ValueError: No convention is called so.

    >>> named("rope_fn", "STYLE")
    'rope_fn'
    """
    if isinstance(name, str) and name in CONVENTIONS:
        return name
    near = difflib.get_close_matches(str(name)[:100], CONVENTIONS, 2, 0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else ""
    said = repr(str(name)[:100])
    raise ValueError(f"verify: {where} must be a convention; got {said}. {hint} Known: {', '.join(CONVENTIONS)}.")


def misfit(subject: Any, convention: str) -> str | None:
    """Return why a subject cannot be called by a convention at all, in words; None if it may be.

    Args:
        subject: What build() returned.
        convention: A name in CONVENTIONS.

    >>> misfit([0.5, 0.25], "slopes_fn")
    'slopes_fn calls slopes(n_heads) -> list, but build() returned a list'
    """
    if convention == "encoding":
        fits = _is_encoding(subject)
    elif convention == "lucidrains":
        fits = callable(getattr(subject, "rotate_queries_or_keys", None))
    elif CONVENTIONS[convention].words is None:
        fits = _is_pair(subject)
    else:
        fits = callable(subject) or callable(getattr(subject, "forward", None))
    if fits:
        return None
    return f"{convention} calls {CONVENTIONS[convention].call}, but build() returned {_describe(subject)}"


def by_signature(subject: Any, spec: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Return the conventions that fit what a subject is and what it takes, and whether names say so or only a count.

    Args:
        subject: What build() returned.
        spec: What it should be: a module on (q, k) may be an xPos only if that was asked for.
    """
    if known := _by_kind(subject):
        return known, True
    if isinstance(subject, tuple | list) or not callable(subject):
        return [], False
    signature = signature_of(subject)
    plain = [c for c in _ALL if c.words is not None and _takes(signature, len(c.words))]
    if _is_module(subject) and spec.get("encoding") != "xpos":
        plain = [c for c in plain if c.name != "xpos_fn"]  # a function; modules on (q, k) are another convention
    other = "rope_fn" if spec.get("encoding") == "rope2d" else "rope_axes_fn"  # both take (x, positions)
    plain = [c for c in plain if c.name != other]
    spoken = [c for c in plain if signature and _speaks(signature, c.words or ())]
    if len(spoken) > 1:
        own = str(getattr(subject, "__name__", "")).lower()
        spoken = [c for c in spoken if c.called and c.called in own] or spoken
    return [c.name for c in spoken or plain], bool(spoken)


def by_trial(subject: Any, fits: Sequence[str], spec: Mapping[str, Any]) -> list[str]:
    """Return those of some conventions by which the subject can be called with a result of their form.

    Args:
        subject: What build() returned; its state may change.
        fits: The conventions to try.
        spec: What it should be; its widths are tried first.
    """
    from posenc.verify.child import trials

    best = {name: trials.rate(subject, name, spec) for name in fits}
    most = max(best.values(), default=0)
    return [name for name, rating in best.items() if rating == most > 0]


def only(fits: Sequence[str], subject: Any) -> str:
    """Return the one convention that fits.

    Raises:
        ValueError: None does, or several do, which are named.
    """
    if len(fits) == 1:
        return fits[0]
    what = f"what build() returned, {_describe(subject)}"
    if not fits:
        raise ValueError(
            f"verify: no convention fits {what}. Name one by --convention or STYLE; known: {', '.join(CONVENTIONS)}."
        )
    listed = "; ".join(f"{name}: {CONVENTIONS[name].call}" for name in fits)
    count = {2: "two", 3: "three"}.get(len(fits), str(len(fits)))
    raise ValueError(f"verify: {count} conventions fit {what}: {listed}. Name one by --convention or STYLE.")


def signature_of(subject: Any) -> inspect.Signature | None:
    """Return how a subject is called, of a module its forward; None where that cannot be seen."""
    try:
        return inspect.signature(subject.forward if _is_module(subject) else subject)
    except Exception:  # built in, or one that lies about itself
        return None


def _by_kind(subject: Any) -> list[str]:
    """Return the conventions of what is no plain callable: pairs, objects with a known method, encodings."""
    if _is_encoding(subject):
        return ["encoding"]
    if _is_pair(subject):
        signature = signature_of(subject[1])
        first = signature_of(subject[0])
        if first and list(first.parameters)[:1] == ["end"]:
            return ["meta_complex"]
        rotates = {"hf_rope": 4, "meta_complex": 3}
        return [name for name, count in rotates.items() if _takes(signature, count)]
    if callable(getattr(subject, "rotate_queries_or_keys", None)):
        return ["lucidrains"]
    return []


def _is_encoding(subject: Any) -> bool:
    from posenc.encoding import Encoding

    return isinstance(subject, Encoding) or (inspect.isclass(subject) and issubclass(subject, Encoding))


def _is_pair(subject: Any) -> bool:
    return isinstance(subject, tuple | list) and len(subject) == 2 and all(map(callable, subject))


def _is_module(subject: Any) -> bool:
    from torch import nn

    return isinstance(subject, nn.Module)


def _takes(signature: inspect.Signature | None, count: int) -> bool:
    """Return whether so many arguments can be given by place, or all by name where that is asked; unseen, they can."""
    if signature is None:
        return True
    needed = [p for p in signature.parameters.values() if p.kind == p.KEYWORD_ONLY and p.default is p.empty]
    try:
        signature.bind(*[None] * (count - len(needed)), **{p.name: None for p in needed})
    except TypeError:
        return False
    return count >= len(needed)


def _speaks(signature: inspect.Signature, words: tuple[str, ...]) -> bool:
    """Return whether the names of the arguments speak for a convention: each that has words is one of them."""
    starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = [p.name.lower().strip("_") for p in signature.parameters.values() if p.kind not in starred]
    if len(names) < len(words):
        return False
    return all(not word or name in word.split() for name, word in zip(names, words, strict=False))


def _describe(subject: Any) -> str:
    kind = type(subject).__name__
    signature = None if isinstance(subject, tuple | list) or not callable(subject) else signature_of(subject)
    return f"a {kind}" + (f" that takes {signature}" if signature else "")
