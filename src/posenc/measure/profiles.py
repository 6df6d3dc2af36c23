"""What scores are on average at each distance, and how far they spread."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from posenc.config.values import short
from posenc.encoding import Encoding, Placed
from posenc.encodings import CPVT, ComplexOrder, PoPE
from posenc.families import Rotary
from posenc.measure.asking import (
    adds_alone,
    embedding,
    embeds,
    exact,
    heads,
    layer_of,
    pairs_of,
    place,
    place_both,
    plain,
    sites,
    text_length,
    turning,
    width,
)
from posenc.measure.scores import scores
from posenc.measure.values import Numbers, count
from posenc.measure.vectors import UNIT
from posenc.piecewise import Piecewise
from posenc.probe import find_fact

Array = np.ndarray
LOW, HIGH = 0.05, 0.95
_Drawn = tuple[Tensor, Tensor | None]  # scores (n_heads, n, draws), and a bias (1 | draws, n_heads, n) beside them
_NUMBERS = 2**22  # of keys formed at once


@dataclass(frozen=True)
class Profile:
    """Scores by distance, over random contents.

    Args:
        distance: As it was asked, (n,) or (n, n_axes).
        mean: Over the draws, by head.
        low: The quantile below which 5 % of the draws are.
        high: The quantile above which 5 % of them are.
    """

    distance: Float64[Array, "n *axes"]
    mean: Float64[Array, "n_heads n"]
    low: Float64[Array, "n_heads n"]
    high: Float64[Array, "n_heads n"]


@dataclass(frozen=True)
class _Question:
    """One query and keys at distances from it, for one layer of a model in float64."""

    model: Encoding
    layer: int
    at: Tensor
    k_at: Tensor
    same: bool
    scaled: bool


@torch.no_grad()
def profile(
    encoding: Encoding,
    distance: Numbers,
    *,
    content: str = "same",
    n_draws: int = 64,
    seed: int = 0,
    q_pos: Numbers | None = None,
    scaled: bool = True,
    layer: int = 0,
) -> Profile:
    """Return the mean score at each distance over random contents, with the band in which 90 % of them lie.

    One content is drawn from N(0, 1) for the query and one for the keys, and the latter stands at every distance. With
    "same" they are one, and a key is what the query is but for its place. Of an encoding that adds to tokens, query and
    key are the tokens themselves with position in them, dealt to the heads in order. Tokens that an encoding reads
    (FoX) are drawn apart from both.

    Args:
        encoding: Any; what it learned is taken as it stands.
        distance: q_pos - k_pos, (n,); with several axes along axis 0, or (n, n_axes).
        content: "same" or "independent".
        n_draws: How many contents.
        seed: Of the draws; the global random state is neither read nor written.
        q_pos: Where the query stands; the largest distance if left out, or 0 if all are below.
        scaled: False leaves away what multiplies products of q and k; biases stay.
        layer: Whose encoding is meant, where layers have their own.

    Raises:
        TypeError: It is no encoding, or distances are no numbers.
        ValueError: It has no scores by distance, or refuses such positions.

    >>> from posenc import ALiBi
    >>> found = profile(ALiBi(n_heads=1, bias_max=1.0), [0, 8], content="independent")
    >>> round(float(found.mean[0, 1] - found.mean[0, 0]), 9)
    -4.0
    """
    who = "profile"
    if content not in ("same", "independent"):
        raise ValueError(f"{who}: content must be 'same' or 'independent'; got {short(content)}.")
    n_draws = count(who, "n_draws", n_draws)
    at, k_at = sites(who, encoding, distance, q_pos)
    model = exact(encoding, at, k_at)
    if any(isinstance(m, CPVT) for m in model.modules()):
        raise ValueError(f"{who}: what CPVT adds depends on which tokens are beside one, so distances have no scores.")
    asked = _Question(model, layer, at, k_at, content == "same", scaled)
    random = torch.Generator().manual_seed(seed)
    found, bias = _of_tokens(asked, n_draws, random) if embeds(model, at) else _of_heads(asked, n_draws, random)
    if bias is not None and len(bias) > 1:  # of texts that were drawn
        found, bias = found + bias.movedim(0, -1), None
    ranked = np.sort(found.numpy(), -1)  # (n_heads, n, draws)
    parts = (t if bias is None else t + bias[0].numpy() for t in (ranked.mean(-1), *_quantiles(ranked)))
    n = len(k_at)
    mean, low, high = (np.broadcast_to(t, (t.shape[0], n)).copy() for t in parts)
    apart = plain(at - k_at)
    return Profile(apart[:, 0] if apart.ndim == 2 and not apart[:, 1:].any() else apart, mean, low, high)


def _of_tokens(asked: _Question, n_draws: int, random: torch.Generator) -> _Drawn:
    """Return scores of random tokens with position in them."""
    model, lanes = asked.model, width(asked.model)
    x = torch.randn(n_draws, lanes, generator=random, dtype=torch.float64)
    y = x if asked.same else torch.randn(n_draws, lanes, generator=random, dtype=torch.float64)
    both = place_both("profile", model, asked.at, asked.k_at)
    one, part = layer_of("profile", model, asked.layer, both[0])
    k_part = layer_of("profile", model, asked.layer, both[1])[1]
    n_heads, head_dim = _dealt(one, lanes)
    members = embedding(*model.layer(0, both[0]))
    if not (turning(one, part) or one.reads_qk or one.reads_x or one.rescores):
        q = model.embed(x[:, None], both[0].rows(0, 1))[:, 0].unflatten(-1, (n_heads, head_dim))
        if adds_alone(members):
            rows = model.embed(torch.zeros(1, len(asked.k_at), lanes, dtype=torch.float64), both[1])[0]
            rows, k = rows.unflatten(-1, (n_heads, head_dim)).transpose(0, 1), y.unflatten(-1, (n_heads, head_dim))
            products = torch.einsum("hnl,dhl->hnd", rows, q) + (q * k).sum(-1).T[:, None]
            return _finish(asked, one, products, part, k_part, head_dim)
        if n_heads == len(members) == 1 and isinstance(members[0][0], ComplexOrder):
            unit = torch.zeros(1, len(asked.k_at), lanes, dtype=torch.float64)
            unit[..., ::2] = 1.0
            pairs = torch.arange(0, lanes, 2), torch.arange(1, lanes, 2)
            products = _by_pairs(model.embed(unit, both[1]), q, y[:, None], *pairs)
            return _finish(asked, one, products, part, k_part, head_dim)
    found = []
    for some in _chunks(n_draws, lanes * len(asked.k_at)):
        q, k = (
            model.embed(t[some, None].expand(-1, len(b.pos), -1), b).unflatten(-1, (n_heads, head_dim)).transpose(1, 2)
            for t, b in ((x, both[0]), (y, both[1]))
        )
        found.append(scores("profile", one, part, q, k, k_part, scaled=asked.scaled)[:, :, 0])
    return torch.cat(found).movedim(0, -1), None


def _of_heads(asked: _Question, n_draws: int, random: torch.Generator) -> _Drawn:
    """Return scores of random queries and keys."""
    model = asked.model
    n_heads, head_dim = heads(model)
    shape = n_draws, n_heads, 1, head_dim
    q = torch.randn(shape, generator=random, dtype=torch.float64)
    k = q if asked.same else torch.randn(shape, generator=random, dtype=torch.float64)
    if model.reads_x or model.rescores:
        return _of_texts(asked, q, k, random)
    placed, k_placed = place_both("profile", model, asked.at, asked.k_at)
    one, placed = layer_of("profile", model, asked.layer, placed)
    k_placed = layer_of("profile", model, asked.layer, k_placed)[1]
    if isinstance(one, Piecewise):  # what it turns by, at the distances that it maps to
        mapped = one.distances(asked.at, asked.k_at)[0]
        one = one.rope
        placed, k_placed = place(one, torch.zeros_like(asked.at)), place(one, -mapped)
    if not one.reads_qk and (shared := _turned(one, placed, k_placed, q, k)) is not None:
        return _finish(asked, one, shared, placed, k_placed, head_dim)
    found = []
    for some in _chunks(n_draws, n_heads * head_dim * len(asked.k_at)):
        keys = k[some].expand(-1, -1, len(asked.k_at), -1)
        found.append(scores("profile", one, placed, q[some], keys, k_placed, scaled=asked.scaled)[:, :, 0])
    return torch.cat(found).movedim(0, -1), None


def _of_texts(asked: _Question, q: Tensor, k: Tensor, random: torch.Generator) -> _Drawn:
    """Return scores where a whole text counts, its tokens or the scores of all keys; the query or a key ends it."""
    model, at, k_at = asked.model, asked.at, asked.k_at
    n = text_length("profile", model, at, k_at)
    row, lanes = torch.arange(n), width(model)
    found: list[Tensor] = []
    products: Tensor | None = None
    for some in _chunks(len(q), n * max(q.shape[1] * q.shape[3], lanes)):
        shape = some.stop - some.start, n, lanes
        x = torch.randn(shape, generator=random, dtype=torch.float64) if model.reads_x else None
        one, placed = layer_of("profile", model, asked.layer, place(model, row, x))
        last, keys = placed.rows(int(at), int(at) + 1), k[some].expand(-1, -1, n, -1)
        if not found and not (one.reads_qk or one.rescores):  # tokens change the bias alone
            first = slice(1)
            products = _turned(one, last.rows(0, 1, first), placed.rows(0, n, first), q, k)
        if products is None:
            here = scores("profile", one, last, q[some], keys, placed, scaled=asked.scaled)
        else:
            bias = one.bias(q[some], keys, last, placed)
            assert bias is not None  # it reads the tokens and neither turns by them nor maps
            here = bias
        found.append(here[:, :, 0].index_select(-1, k_at))
    if products is None:
        return torch.cat(found).movedim(0, -1), None
    products = products if products.shape[1] == 1 else products.index_select(1, k_at)
    return products * one.score_scale(q.shape[-1]) if asked.scaled else products, torch.cat(found)


def _turned(one: Encoding, placed: Placed, k_placed: Placed, q: Tensor, k: Tensor) -> Tensor | None:
    """Return products (n_heads, n, draws) of turned queries with keys at all places, or (n_heads, 1, draws) if alike.

    None where keys are turned by more than the cosines and sines of one rotation: those are the same for all draws.
    """
    members = [e for e, _ in turning(one, k_placed) if type(e).rotate_k is not Encoding.rotate_k]
    n, n_heads = k_placed.pos.shape[k_placed.seq_dim], q.shape[1]
    if not members:
        return (one.rotate_q(q, placed) * k).sum((-1, -2)).T[:, None]
    rotary = members[0]
    own, head_dim = getattr(rotary, "n_kv_heads", None) or 1, q.shape[-1]
    if len(members) > 1 or not (isinstance(rotary, PoPE) or (isinstance(rotary, Rotary) and not rotary._overridden)):
        return None
    if isinstance(rotary, PoPE):  # of a length of 1, a query shows cosines and sines; keys have phases as well
        pairs = torch.arange(head_dim), torch.arange(head_dim, 2 * head_dim)
        still = place(rotary, torch.zeros(1, dtype=torch.int64))
        rows = rotary.rotate_q(q.new_full((1, 1, n, head_dim), UNIT), _part(rotary, one, k_placed))[0]
        key = rotary.rotate_k(k, still)
    else:
        pairs, key = pairs_of(rotary), k
        unit = q.new_ones(head_dim).index_fill(0, pairs[1], 0.0)
        rows = one.rotate_k(unit.expand(1, own, n, -1), k_placed)[0].repeat_interleave(n_heads // own, 0)
    return _by_pairs(rows, one.rotate_q(q, placed)[:, :, 0], key[:, :, 0], *pairs)


def _part(member: Encoding, one: Encoding, placed: Placed) -> Placed:
    """Return what was placed for one of the members."""
    return next(p for e, p in one.leaves(placed) if e is member)


def _by_pairs(
    rows: Float64[Tensor, "heads_or_one n lanes"],
    q: Float64[Tensor, "draws heads lanes"],
    k: Float64[Tensor, "draws heads lanes"],
    first: Tensor,
    second: Tensor,
) -> Float64[Tensor, "heads n draws"]:
    """Return products of queries, as they stand, with keys that are turned by pairs at n places.

    A pair (a, b) of a key becomes (a c - b s, a s + b c), and (1, 0) becomes (c, s), which `rows` hold; lanes that do
    not turn have 1 there. So one key is turned for all draws, and each draw only says how it weighs c and s.
    """
    weights = q * k
    weights[..., first] += weights[..., second]
    weights[..., second] = q[..., second] * k[..., first] - q[..., first] * k[..., second]
    return torch.einsum("hnl,dhl->hnd", rows.expand(q.shape[1], -1, -1), weights)


def _finish(
    asked: _Question, one: Encoding, products: Tensor, placed: Placed, k_placed: Placed, head_dim: int
) -> _Drawn:
    """Return products by their scale, and beside them a bias that looks at positions alone."""
    products = products * one.score_scale(head_dim) if asked.scaled else products
    q = products.new_zeros(()).expand(1, len(products), 1, head_dim)
    bias = one.bias(q, q.expand(-1, -1, len(asked.k_at), -1), placed, k_placed)
    return products, None if bias is None else bias[:, :, 0]


def _dealt(one: Encoding, d_model: int) -> tuple[int, int]:
    """Return over how many heads the lanes of a token are dealt, and how many each gets.

    Raises:
        ValueError: They cannot be.
    """
    n_heads, head_dim = find_fact(one, "n_heads", find_fact(one, "n_kv_heads", None)), find_fact(one, "head_dim", None)
    n_heads = n_heads or (d_model // head_dim if head_dim else 1)
    head_dim = head_dim or d_model // n_heads
    if n_heads * head_dim != d_model:
        raise ValueError(
            f"profile: the lanes of a token must make up the heads that {one.name} is for; got d_model={d_model}, "
            f"n_heads={n_heads} and head_dim={head_dim}."
        )
    return int(n_heads), int(head_dim)


def _chunks(n_draws: int, numbers: int) -> list[slice]:
    """Return draws in parts that take little memory, given the numbers of one."""
    step = max(1, _NUMBERS // numbers)
    return [slice(i, min(i + step, n_draws)) for i in range(0, n_draws, step)]


def _quantiles(ranked: Array) -> list[Array]:
    """Return both quantiles over the last dimension, each between the two draws beside it in proportion."""
    found = []
    for share in (LOW, HIGH):
        where = share * (ranked.shape[-1] - 1)
        low = int(where)
        high = min(low + 1, ranked.shape[-1] - 1)
        found.append(ranked[..., low] + (where - low) * (ranked[..., high] - ranked[..., low]))
    return found
