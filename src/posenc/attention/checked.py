"""Check the arguments of `attend` and place its positions."""

from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from posenc.attention.call import Call
from posenc.attention.leaves import biased
from posenc.encoding import Encoding, Placed
from posenc.families import Rotary, autocast_dtype

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def make_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding: Encoding,
    pos: Tensor | Placed,
    k_pos: Tensor | Placed | None,
    rotated: bool,
    causal: bool,
    mask: Tensor | None,
    window: int | None,
    document_ids: Tensor | None,
    scale: float | None,
    dropout_p: float,
    backend: str,
) -> Call:
    """Check the arguments of `attend` and place the positions.

    Raises:
        ValueError: Shapes, lengths or options do not match.
        TypeError: An argument has a wrong type.
    """
    _check_tensors(q, k, v)
    _check_masks(q, k, mask, window, document_ids, dropout_p)
    if not isinstance(encoding, Encoding):
        raise TypeError(f"attend: encoding must be a posenc.Encoding; got {type(encoding).__name__}.")
    exact = q.dtype == torch.float64 or backend == "reference-float64"
    dtype = torch.float64 if exact else torch.float32
    if mask is not None:
        mask = mask[(None,) * (4 - mask.ndim)]  # so that every backend sees (batch, n_heads, q_len, k_len)
    if backend == "reference-float64" and not encoding.reads_x:  # place again: the given ones may be in float32
        pos = pos.pos if isinstance(pos, Placed) else pos
        k_pos = k_pos.pos if isinstance(k_pos, Placed) else k_pos
    done = rotated and _only_rotates(encoding)
    placed = _place(pos, q, encoding, dtype, "pos", done)
    if k_pos is None and q.shape[2] != k.shape[2]:
        raise ValueError(
            f"attend: q has {q.shape[2]} tokens and k has {k.shape[2]}, so the keys' positions differ from the "
            "queries'. Pass k_pos, the positions of all keys."
        )
    k_placed = placed if k_pos is None else _place(k_pos, k, encoding, dtype, "k_pos", done)
    masks = causal, mask, window, document_ids, _scale(scale, q, encoding), dropout_p
    # autocast does not cast float64, as in torch's own attention
    out_dtype = q.dtype if q.dtype == torch.float64 else autocast_dtype(q.device) or q.dtype
    leaves = biased(q, k, encoding, placed, k_placed)
    return Call(q, k, v, encoding, placed, k_placed, rotated, *masks, backend, out_dtype, leaves)


def _scale(scale: Any, q: Tensor, encoding: Encoding) -> float:
    """Return the factor of q.k, given the argument of `attend`."""
    if scale is None:
        if q.shape[-1] == 0:
            raise ValueError(
                f"attend: q and k have head_dim 0, for which there is no default scale; got q {tuple(q.shape)}. "
                "Pass scale=1.0 to weight the keys by the bias only."
            )
        return encoding.score_scale(q.shape[-1])
    if isinstance(scale, bool) or not isinstance(scale, Real):
        raise TypeError(
            f"attend: scale must be a Python number, since it gets no gradient; got {type(scale).__name__}."
        )
    return scale  # type: ignore[return-value]


def _only_rotates(encoding: Encoding) -> bool:
    """Whether nothing reads the tables of an encoding once q and k are rotated."""
    others = ("bias", "rescore", "unrotate_out", "leaves")
    return isinstance(encoding, Rotary) and all(
        getattr(type(encoding), name) is getattr(Encoding, name) for name in others
    )


def _place(pos: Tensor | Placed, x: Tensor, encoding: Encoding, dtype: torch.dtype, what: str, done: bool) -> Placed:
    if not isinstance(pos, Placed) and encoding.reads_x:
        raise TypeError(
            f"attend: {encoding.name} reads the tokens x as well as their positions; got only positions. Pass "
            f"encoding.place(pos, x) as {what}."
        )
    if isinstance(pos, Placed):
        placed = pos
    elif done:  # a cache's keys are many, and their tables cost more than a step of decoding
        placed = Placed(encoding._check(pos, dtype), (), encoding.n_axes)
    else:
        placed = encoding.place(pos, dtype=dtype)
    length = placed.pos.shape[placed.seq_dim]
    if length != x.shape[2]:
        raise ValueError(
            f"attend: {what} holds {length} positions for {x.shape[2]} tokens; got {tuple(placed.pos.shape)} and "
            f"{tuple(x.shape)}. With a cache, pos is for q and k_pos for all keys."
        )
    if placed.seq_dim and placed.pos.shape[0] not in (1, x.shape[0]):
        raise ValueError(
            f"attend: {what} has a batch of {placed.pos.shape[0]}, but the tensors have a batch of {x.shape[0]}. Pass "
            "positions of shape (seq_len,) to share them."
        )
    return placed


def _check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, t in (("q", q), ("k", k), ("v", v)):
        if not isinstance(t, Tensor):
            raise TypeError(
                f"attend: {name} must be a tensor; got {type(t).__name__}. Call attend(q, k, v, encoding, pos)."
            )
    if (wrong := _misshapen(q, k, v)) is not None:
        raise ValueError(f"attend: {wrong}; got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}.")
    for name, t in (("q", q), ("k", k), ("v", v)):
        if t.dtype not in _DTYPES:
            raise TypeError(
                f"attend: {name} must be float64, float32, bfloat16 or float16; got {t.dtype}. Cast it: {name}.float()."
            )


def _misshapen(q: Tensor, k: Tensor, v: Tensor) -> str | None:
    if not q.ndim == k.ndim == v.ndim == 4:
        return "q, k and v must be (batch, heads, seq_len, head_dim)"
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        return "q, k and v must have the same batch"
    if q.shape[-1] != k.shape[-1]:
        return "q and k must have the same head_dim"
    if k.shape[1:3] != v.shape[1:3]:
        return "k and v must have the same heads and length"
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        return "the number of heads of k and v must divide that of q"
    return None


def _check_masks(
    q: Tensor, k: Tensor, mask: Tensor | None, window: int | None, ids: Tensor | None, dropout_p: float
) -> None:
    scores = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    given: Any
    for name, given in (("mask", mask), ("document_ids", ids)):
        if given is not None and not isinstance(given, Tensor):
            raise TypeError(f"attend: {name} must be a tensor; got {type(given).__name__}. Pass torch.tensor({name}).")
        if given is not None and given.device != q.device:
            raise ValueError(f"attend: {name} must be on q's device, {q.device}; got {given.device}. Move it there.")
    if mask is not None:
        if not (mask.dtype == torch.bool or mask.is_floating_point()):
            raise TypeError(
                f"attend: mask must be boolean (True where attention is allowed) or floating (added to the scores); "
                f"got {mask.dtype}. Pass mask.bool()."
            )
        own = (1,) * (4 - mask.ndim) + tuple(mask.shape)
        if mask.ndim > 4 or any([m not in (1, s) for m, s in zip(own, scores, strict=True)]):  # noqa: C419 - compiles
            raise ValueError(
                f"attend: mask must broadcast to (batch, n_heads, q_len, k_len) = {scores}; got {tuple(mask.shape)}. "
                "A padding mask (batch, k_len) is mask[:, None, None, :]."
            )
    tokens: Any = window
    if tokens is not None and (isinstance(tokens, bool) or not isinstance(tokens, (Integral, torch.SymInt))):
        raise TypeError(f"attend: window must be a whole number of tokens; got window={tokens!r}.")
    if window is not None and window < 1:
        raise ValueError(f"attend: window must be at least 1, the token itself; got window={window}.")
    # compare numbers, not tuples: of (2, k_len) and (k_len,) tuples would compare the 2 with k_len, on which a compiler
    # that leaves k_len open would then specialise
    if ids is not None and not (
        ids.ndim in (1, 2) and ids.shape[-1] == scores[3] and (ids.ndim == 1 or ids.shape[0] == scores[0])
    ):
        raise ValueError(
            f"attend: document_ids must be (k_len,) or (batch, k_len) with k_len={scores[3]}; got {tuple(ids.shape)}."
        )
    if ids is not None and scores[2] > scores[3]:
        raise ValueError(f"attend: document_ids need q_len <= k_len; got {scores[2]} > {scores[3]}.")
    if not 0.0 <= dropout_p < 1.0:
        raise ValueError(f"attend: dropout_p must lie in [0, 1); got {dropout_p}.")
