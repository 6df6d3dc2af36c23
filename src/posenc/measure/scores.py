"""Scores of pairs of tokens: biases, mapped distances, and the scores themselves."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from posenc.compose import Compose
from posenc.encoding import Encoding, Placed
from posenc.languages import tr
from posenc.mapped import Wrapper
from posenc.measure.asking import exact, heads, layer_of, of_key_heads, place, place_both, plain, read_both, sites
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
    """Return the bias of each query and key, by head.

    Args:
        encoding: One with a bias.
        q_pos: Positions of the queries: a number or (n,) numbers, (n, n_axes) if there are several axes.
        k_pos: Positions of the keys; the same as the queries' if left out.
        q: (head_dim,) or (n_heads, head_dim): the content of every query, for biases that depend on it; ones if left
            out.
        k: The content of every key, likewise.
        tokens: (length, d_model): the text from position 0 on, for biases that read it; drawn from N(0, 1) if left out.
        layer: The layer, if each has its own encoding.

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
    """Return the bias of each head by distance, for one query.

    Distances are q_pos - k_pos, (n,), along axis 0 if there are several axes; or (n, n_axes). If q_pos is left out, it
    is the largest distance, or 0 if all are negative. Biases that depend on contents get vectors of ones; tokens and
    layer are as in `bias_matrix`.

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
    """Return the mapped distance of each pair of tokens, by which the scores rotate.

    Args:
        encoding: Self-Extend, ReRoPE, leaky ReRoPE, dual chunk attention, or a composition or wrapper of one.
        q_pos: The length of a text, for positions 0 .. length - 1; or the positions of the queries.
        k_pos: Positions of the keys; the same as the queries' if left out.
        layer: The layer, if each has its own encoding.

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
    """Return the scores of queries and keys as in attention, before mask and softmax.

    Args:
        encoding: Any encoding; vectors that it adds to tokens must be in q and k already.
        q: (n_heads, q_len, head_dim), or (q_len, head_dim) for one head, before any rotation.
        k: (n_kv_heads, k_len, head_dim), or (k_len, head_dim), before any rotation.
        pos: Positions of the queries. This and k_pos, tokens and layer are as in `bias_matrix`.
        k_pos: Positions of the keys.
        scaled: False leaves out the scale of q·k; biases stay.
        causal: Score maps count only keys up to the query's position; the scores of other encodings do not change.
        tokens: The text.
        layer: The layer.

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
    """Return the scores of one layer, with or without the scale of q·k."""
    if scaled:
        return form_scores(encoding, placed, q, k, k_placed, allowed=allowed)
    if encoding.rescores:
        raise ValueError(f"{who}: {encoding.name} maps scaled scores, so it has no unscaled ones. Leave scaled=True.")
    if encoding.turns_in_bias:  # the bias contains the scaled products, so the scale is divided out of q
        return form_scores(encoding, placed, q / encoding.score_scale(q.shape[-1]), k, k_placed)
    return form_scores(encoding, placed, q, k, k_placed, scale=1.0)


def _bias(
    who: str, encoding: Encoding, at: Tensor, k_at: Tensor, contents: Any, tokens: Any, layer: int
) -> Float64[Array, "n_heads q_len k_len"]:
    """Return the bias of all pairs of positions, for one content of all queries and one of all keys."""
    model = exact(encoding, at, k_at)
    one, placed, k_placed = layer_of(who, model, layer, *place_both(who, model, at, k_at, tokens))
    if one.turns_in_bias:
        why = tr(
            "{name:s} rotates by mapped distances and has no bias in addition to q·k; use effective_distance.",
            name=one.name,
        )
        raise ValueError(f"{who}: {why}")
    n_heads, head_dim = heads(one)
    given = (torch.as_tensor(1.0 if c is None else c, dtype=torch.float64).expand(n_heads, head_dim) for c in contents)
    q, k = (c[None, :, None].expand(-1, -1, len(p), -1) for c, p in zip(given, (at, k_at), strict=True))
    bias = one.bias(q, of_key_heads(one, k), placed, k_placed)
    if bias is None:
        maps = tr("{name:s} adds nothing to the scores but maps them; use score_matrix or profile.", name=one.name)
        why = maps if one.rescores else tr("{name:s} adds nothing to the scores.", name=one.name)
        raise ValueError(f"{who}: {why}")
    return plain(bias[0].expand(n_heads, -1, -1))


def _contents(who: str, name: str, given: Any, pos: Tensor) -> Float64[Tensor, "1 heads n head_dim"]:
    """Return queries or keys with a batch of one, checked against positions."""
    n, form = len(pos), f"be (heads, {len(pos)}, head_dim), a vector for each position"
    found = numbers(who, name, given, form, lambda shape: len(shape) in (2, 3) and shape[-2] == n)
    return torch.from_numpy(found.astype(np.float64)).reshape(1, -1, *found.shape[-2:])


def _mapped(who: str, encoding: Any, at: Tensor, k_at: Tensor) -> Tensor:
    """Return the distances of the encoding's one index map, at the positions that reach it."""
    if isinstance(encoding, Piecewise):
        return encoding.distances(at, k_at)
    if isinstance(encoding, Wrapper):
        return _mapped(who, encoding.encoding, encoding.seen(at), encoding.seen(k_at))
    if isinstance(encoding, Compose) and encoding.turns_in_bias:  # at most one member maps distances
        return next(_mapped(who, e, at, k_at) for e in encoding.encodings if e.turns_in_bias)
    raise ValueError(
        f"{who}: {encoding.name} maps no distances, so its scores depend on the true ones; index maps are "
        "Self-Extend, ReRoPE, leaky ReRoPE and dual chunk attention."
    )
