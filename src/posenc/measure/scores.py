"""What the scores of pairs of tokens see: biases, mapped distances, and the scores themselves."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from posenc.compose import Compose
from posenc.encoding import Encoding, Placed
from posenc.mapped import Wrapper
from posenc.measure.asking import exact, heads, layer_of, place, place_both, plain, read_both, sites
from posenc.measure.values import Array, Numbers, count, numbers
from posenc.piecewise import Piecewise
from posenc.probe import form_scores


@torch.no_grad()
def bias_matrix(
    encoding: Encoding,
    q_pos: Numbers,
    k_pos: Numbers | None = None,
    *,
    q: Numbers | None = None,
    k: Numbers | None = None,
    tokens: Numbers | None = None,
    layer: int = 0,
) -> Float64[Array, "n_heads q_len k_len"]:
    """Return the term that joins the scores of each query and key, by head.

    Args:
        encoding: Has a bias.
        q_pos: Positions of the queries: a number or (n,) of them, (n, n_axes) where there are several axes.
        k_pos: Those of the keys; the queries' if left out.
        q: (head_dim,) or (n_heads, head_dim): the content that stands in every query, for terms that look at it; ones
            if left out.
        k: The same of every key.
        tokens: (length, d_model): the text from position 0 on, for terms that read it; drawn from N(0, 1) if left out.
        layer: Whose encoding is meant, where layers have their own.

    >>> from posenc import ALiBi
    >>> bias_matrix(ALiBi(n_heads=1, bias_max=1.0), [3], [0, 1, 2]).tolist()
    [[[-1.5, -1.0, -0.5]]]
    """
    at, k_at = read_both("bias_matrix", encoding, q_pos, k_pos, "q_pos")
    return _bias("bias_matrix", encoding, at, k_at, (q, k), tokens, layer)


@torch.no_grad()
def bias_curve(
    encoding: Encoding,
    distance: Numbers,
    q_pos: Numbers | None = None,
    *,
    tokens: Numbers | None = None,
    layer: int = 0,
) -> Float64[Array, "n_heads n"]:
    """Return the bias of each head over distances, as one query sees keys.

    A distance is q_pos - k_pos, (n,); with several axes along axis 0, or (n, n_axes). The query stands at the largest
    one if q_pos is left out, or at 0 if all are below. Terms that look at contents see ones; tokens and layer are as in
    `bias_matrix`.

    >>> from posenc import ALiBi
    >>> bias_curve(ALiBi(n_heads=1, bias_max=1.0), [1, 2, 3]).tolist()
    [[-0.5, -1.0, -1.5]]
    """
    at, k_at = sites("bias_curve", encoding, distance, q_pos)
    return _bias("bias_curve", encoding, at, k_at, (None, None), tokens, layer)[:, 0]


@torch.no_grad()
def effective_distance(
    encoding: Encoding, q_pos: Numbers, k_pos: Numbers | None = None, *, layer: int = 0
) -> Float64[Array, "q_len k_len"]:
    """Return the distance by which an index map rotates each pair of tokens, which is what the scores see.

    Args:
        encoding: Self-Extend, ReRoPE, leaky ReRoPE, dual chunk attention, or what is composed or mapped of one.
        q_pos: An integer is the length of a text, 0 .. length - 1; else the positions of the queries.
        k_pos: Those of the keys; the queries' if left out.
        layer: Whose encoding is meant, where layers have their own.

    >>> from posenc import ReRoPE
    >>> effective_distance(ReRoPE(head_dim=2, window=2), 4)[3].tolist()
    [2.0, 2.0, 1.0, 0.0]
    """
    who = "effective_distance"
    if isinstance(q_pos, int) and not isinstance(q_pos, bool):
        q_pos = range(count(who, "q_pos", q_pos))
    at, k_at = read_both(who, encoding, q_pos, k_pos, "q_pos")
    model = exact(encoding, at, k_at)
    one = model if model.reads_x else layer_of(who, model, layer, place(model, at[:1]))[0]
    return plain(_mapped(who, one, at, k_at))


@torch.no_grad()
def score_matrix(
    encoding: Encoding,
    q: Numbers,
    k: Numbers,
    pos: Numbers,
    k_pos: Numbers | None = None,
    *,
    scaled: bool = True,
    causal: bool = False,
    tokens: Numbers | None = None,
    layer: int = 0,
) -> Float64[Array, "n_heads q_len k_len"]:
    """Return the scores of queries and keys as attention forms them, before mask and softmax.

    Args:
        encoding: Any; what it adds to tokens is in q and k already.
        q: (n_heads, q_len, head_dim), or (q_len, head_dim) of one head, before any rotation.
        k: (n_kv_heads, k_len, head_dim), the same of keys.
        pos: Positions of the queries, as in `bias_matrix`, and so are k_pos, tokens and layer.
        k_pos: Those of the keys.
        scaled: False leaves out what multiplies products of q and k; biases stay.
        causal: Maps of scores count keys up to the query's position only; others show all pairs all the same.
        tokens: The text.
        layer: Whose encoding is meant.

    >>> from posenc import RoPE
    >>> q = k = [[[1.0, 0.0], [1.0, 0.0]]]
    >>> score_matrix(RoPE(head_dim=2), q, k, [0, 1], scaled=False).round(4).tolist()
    [[[1.0, 0.5403], [0.5403, 1.0]]]
    """
    who = "score_matrix"
    at, k_at = read_both(who, encoding, pos, k_pos, "pos")
    queries, keys = _contents(who, "q", q, at), _contents(who, "k", k, k_at)
    if queries.shape[-1] != keys.shape[-1] or queries.shape[1] % keys.shape[1]:
        raise ValueError(
            f"{who}: q and k must have the same head_dim, and q a multiple of k's heads; got "
            f"{tuple(queries.shape[1:])} and {tuple(keys.shape[1:])}."
        )
    model = exact(encoding, at, k_at)
    one, placed, k_placed = layer_of(who, model, layer, *place_both(who, model, at, k_at, tokens))
    allowed = k_at[None, :] <= at[:, None] if causal and at.ndim == 1 else None
    return plain(scores(who, one, placed, queries, keys, k_placed, scaled=scaled, allowed=allowed)[0])


def scores(
    who: str,
    encoding: Encoding,
    placed: Placed,
    q: Float64[Tensor, "batch n_heads q_len head_dim"],
    k: Float64[Tensor, "batch n_kv_heads k_len head_dim"],
    k_placed: Placed,
    *,
    scaled: bool = True,
    allowed: Bool[Tensor, "..."] | None = None,
) -> Float64[Tensor, "batch n_heads q_len k_len"]:
    """Form the scores of one layer, with or without what multiplies products of q and k."""
    if scaled:
        return form_scores(encoding, placed, q, k, k_placed, allowed=allowed)
    if encoding.rescores:
        raise ValueError(f"{who}: {encoding.name} maps scaled scores, so there are none without scale; leave it on.")
    if encoding.turns_in_bias:  # products stand in the bias with their scale, which is taken back from q
        return form_scores(encoding, placed, q / encoding.score_scale(q.shape[-1]), k, k_placed)
    return form_scores(encoding, placed, q, k, k_placed, scale=1.0)


def _bias(
    who: str, encoding: Encoding, at: Tensor, k_at: Tensor, contents: Any, tokens: Any, layer: int
) -> Float64[Array, "n_heads q_len k_len"]:
    """Return the bias of all pairs, given positions and the one content of queries and that of keys."""
    model = exact(encoding, at, k_at)
    one, placed, k_placed = layer_of(who, model, layer, *place_both(who, model, at, k_at, tokens))
    if one.turns_in_bias:
        raise ValueError(
            f"{who}: {one.name} rotates by mapped distances and has no bias next to q·k; take effective_distance."
        )
    n_heads, head_dim = heads(one)
    given = (torch.as_tensor(1.0 if c is None else c, dtype=torch.float64).expand(n_heads, head_dim) for c in contents)
    q, k = (c[None, :, None].expand(-1, -1, len(p), -1) for c, p in zip(given, (at, k_at), strict=True))
    bias = one.bias(q, k, placed, k_placed)
    if bias is None:
        more = " but maps them; take score_matrix or profile" if one.rescores else ""
        raise ValueError(f"{who}: {one.name} adds nothing to the scores{more}.")
    return plain(bias[0].expand(n_heads, -1, -1))


def _contents(who: str, name: str, given: Any, pos: Tensor) -> Float64[Tensor, "1 heads n head_dim"]:
    """Return queries or keys with a batch of one, checked against positions."""
    n, form = len(pos), f"be (heads, {len(pos)}, head_dim), a vector for each position"
    found = numbers(who, name, given, form, lambda shape: len(shape) in (2, 3) and shape[-2] == n)
    return torch.from_numpy(found.astype(np.float64)).reshape(1, -1, *found.shape[-2:])


def _mapped(who: str, encoding: Any, at: Tensor, k_at: Tensor) -> Tensor:
    """Return the distances of the one index map that there is, at the positions that it sees."""
    if isinstance(encoding, Piecewise):
        return encoding.distances(at, k_at)
    if isinstance(encoding, Wrapper):
        return _mapped(who, encoding.encoding, encoding.seen(at), encoding.seen(k_at))
    if isinstance(encoding, Compose) and encoding.turns_in_bias:  # which one member by itself may do
        return next(_mapped(who, e, at, k_at) for e in encoding.encodings if e.turns_in_bias)
    raise ValueError(
        f"{who}: {encoding.name} maps no distances, so that the scores see those that there are; index maps are "
        "Self-Extend, ReRoPE, leaky ReRoPE and dual chunk attention."
    )
