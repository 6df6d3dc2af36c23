"""The mean score at each distance, and its spread."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from posenc.config.values import short
from posenc.encoding import Encoding
from posenc.encodings import CPVT
from posenc.families import of_each_head
from posenc.languages import tr
from posenc.measure.asking import embeds, exact, heads, layer_of, of_key_heads, place, plain, sites, text_length, width
from posenc.measure.scores import scores
from posenc.measure.values import Array, Numbers, count
from posenc.probe import find_fact

_Both = tuple[Tensor, Tensor]  # for queries, for keys
_NUMBERS = 2**20  # numbers of keys computed together, which fit into a processor's cache


@dataclass(frozen=True)
class Profile:
    """Scores by distance, over random contents.

    Args:
        distance: The distances, (n,) or (n, n_axes).
        mean: The mean over the draws, by head.
        low: The 5 % quantile of the draws.
        high: The 95 % quantile of the draws.
    """

    distance: Float64[Array, "n *axes"]
    mean: Float64[Array, "n_heads n"]
    low: Float64[Array, "n_heads n"]
    high: Float64[Array, "n_heads n"]


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
    """Return the mean score at each distance over random contents, with a band that contains 90 % of the scores.

    For each draw, the content of the query and the content of the keys at all distances are drawn from N(0, 1). With
    content "same" both are equal, so that a key differs from the query only by its position. If an encoding adds to
    tokens, query and key are token vectors with position added, split into heads in order. Tokens that an encoding
    reads (FoX) are drawn separately.

    Args:
        encoding: Any encoding whose scores have distances.
        distance: q_pos - k_pos, (n,); with several axes this is along axis 0, or give (n, n_axes).
        content: "same" or "independent".
        n_draws: The number of draws.
        seed: The seed of the draws; the global random state is neither read nor written.
        q_pos: The position of the query; the largest distance if left out, or 0 if all are negative.
        scaled: False leaves out the scale of q·k; biases stay.
        layer: The layer, if each has its own encoding.

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
        why = tr("CPVT adds values that depend on neighbouring tokens, so a distance has no score.")
        raise ValueError(f"{who}: {why}")
    random = torch.Generator().manual_seed(seed)
    n_heads, head_dim = heads(model)
    shape = (n_draws, width(model)) if embeds(model, at) else (n_draws, n_heads, 1, head_dim)
    q = torch.randn(shape, generator=random, dtype=torch.float64)
    k = q if content == "same" else torch.randn(shape, generator=random, dtype=torch.float64)
    found = torch.cat(list(_scores(model, (q, k), (at, k_at), random, layer, scaled))).numpy()
    low, high = np.quantile(found, [0.05, 0.95], axis=0)
    apart = plain(at - k_at)
    return Profile(apart[:, 0] if apart.ndim == 2 and not apart[:, 1:].any() else apart, found.mean(0), low, high)


def _scores(
    model: Encoding, contents: _Both, places: _Both, random: torch.Generator, layer: int, scaled: bool
) -> Iterator[Float64[Tensor, "draws n_heads n"]]:
    """Yield the scores of some draws at a time, to save memory.

    Queries and keys are (draws, n_heads, 1, head_dim), or tokens (draws, d_model) if position is added to tokens. If
    the encoding reads a whole text or all its scores, there is a key at each of its positions, and the text ends with
    the query or with a key.
    """
    (q, k), (at, k_at), who, whole = contents, places, "profile", model.reads_x or model.rescores
    n = text_length(who, model, at, k_at) if whole else len(k_at)
    step = max(1, _NUMBERS // (n * max(q[0].numel(), width(model) if model.reads_x else 1)))
    for queries, keys in zip(q.split(step), k.split(step), strict=True):
        shape = len(queries), n, width(model)
        text = torch.randn(shape, generator=random, dtype=torch.float64) if model.reads_x else None
        k_placed = place(model, torch.arange(n), text) if whole else place(model, k_at)
        placed = k_placed.rows(int(at), int(at) + 1) if whole else place(model, at)
        one, part, k_part = layer_of(who, model, layer, placed, k_placed)
        if q.ndim == 2:
            by_head, tokens = _by_head(one, width(model)), keys[:, None].expand(-1, n, -1)
            queries, keys = (
                model.embed(x, p).unflatten(-1, by_head).transpose(1, 2)
                for x, p in ((queries[:, None], placed), (tokens, k_placed))
            )
        keys = of_key_heads(one, keys)
        if q is k and q.ndim > 2:  # the same content for all heads of a group
            queries = of_each_head(keys, queries.shape[1])
        keys = keys.expand(-1, -1, n, -1)
        found = scores(who, one, part, queries, keys, k_part, scaled=scaled)[:, :, 0]
        yield found.index_select(-1, k_at) if whole else found


def _by_head(one: Encoding, d_model: int) -> tuple[int, int]:
    """Return the number of heads and their width, for a token vector that is split into heads."""
    n_heads, head_dim = find_fact(one, "n_heads", find_fact(one, "n_kv_heads", None)), find_fact(one, "head_dim", None)
    n_heads = n_heads or (d_model // head_dim if head_dim else 1)
    head_dim = head_dim or d_model // n_heads
    if n_heads * head_dim != d_model:
        raise ValueError(
            f"profile: d_model must be n_heads * head_dim, to split token vectors into heads for {one.name}; "
            f"got d_model={d_model}, "
            f"n_heads={n_heads} and head_dim={head_dim}."
        )
    return int(n_heads), int(head_dim)
