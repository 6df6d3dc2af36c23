"""The vector of a position: its dimensions, pairs as complex numbers, points in space, and similarities."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Complex128, Float64
from torch import Tensor

from posenc.encoding import Encoding, Placed
from posenc.encodings import TAPE, ComplexOrder, GaussianFourier, NeRFFourier, PoPE, Sinusoidal, SinusoidalND
from posenc.families import Rotary
from posenc.languages import tr
from posenc.measure import asking
from posenc.measure.tables import similarity
from posenc.measure.values import Array, Numbers

_UNIT = float(np.log(np.expm1(1.0)))  # softplus(_UNIT) = 1


@dataclass(frozen=True)
class Distances:
    """Dot products of one position's vector with others, and their cosines; 0 for a zero vector."""

    dot: Float64[Array, " n"]
    cosine: Float64[Array, " n"]


@torch.no_grad()
def heat_map(encoding: Encoding, pos: Numbers, *, head: int = 0, layer: int = 0) -> Float64[Array, "n lanes"]:
    """Return one row per position with the values of all dimensions, computed by the encoding's own code.

    If the encoding adds vectors, a row is that vector. If it changes tokens in another way, a row is the output for a
    token of ones. If it rotates queries and keys, a row is a rotated query with 1 in the first dimension of each pair:
    cosines in the first dimensions, sines in the second, and 0 in dimensions that are not rotated.

    Args:
        encoding: One that adds to tokens, or rotates pairs of dimensions.
        pos: A number or (n,) numbers; (n, n_axes) if there are several axes.
        head: The key head, if each has its own rotation.
        layer: The layer, if each has its own encoding.

    >>> from posenc import RoPE, Integer
    >>> heat_map(Integer(d_model=2), [0, 3]).tolist()
    [[0.0, 0.0], [3.0, 3.0]]
    >>> heat_map(RoPE(head_dim=2), [1]).round(4).tolist()
    [[0.5403, 0.8415]]
    """
    model, placed, inside = _ask("heat_map", encoding, pos)
    if inside:
        x = torch.zeros(1, len(placed.pos), asking.width(model), dtype=torch.float64)
        return asking.plain(model.embed(x if asking.only_adds(inside) else x + 1, placed)[0])
    rotation, part, n_heads = _only_rotation("heat_map", head, *asking.layer_of("heat_map", model, layer, placed))
    q = torch.full((1, 1, 1, rotation.head_dim), _UNIT, dtype=torch.float64)
    if isinstance(rotation, Rotary):
        q = torch.zeros_like(q).index_fill_(-1, asking.pairs_of(rotation)[0], 1.0)
    q = q.expand(1, getattr(rotation, "n_heads", n_heads), len(placed.pos), -1)
    return asking.plain(rotation.rotate_q(q, part)[0, head])


@torch.no_grad()
def by_pair(encoding: Encoding, pos: Numbers, *, head: int = 0, layer: int = 0) -> Complex128[Array, "n n_pairs"]:
    """Return cos + i sin of each pair's angle at each position, times its gain and amplitude.

    The encoding must rotate pairs of dimensions, or add sines and cosines. With several axes the pairs of axis 0 come
    first; a last sine without a cosine is left out. Positions, head and layer are as in `heat_map`.

    >>> from posenc import RoPE
    >>> by_pair(RoPE(head_dim=2), [0, 1]).round(4).tolist()
    [[(1+0j)], [(0.5403+0.8415j)]]
    """
    model, placed, inside = _ask("by_pair", encoding, pos)
    if inside:
        cos, sin = _waves("by_pair", inside)
    else:
        rotation, part, n_heads = _only_rotation("by_pair", head, *asking.layer_of("by_pair", model, layer, placed))
        own = isinstance(rotation, Rotary) and n_heads > 1 and part.parts[0].ndim == 3
        cos, sin = (t[:, head] if own else t for t in part.parts[:2])
    return asking.plain(cos) + 1j * asking.plain(sin)


def points(
    encoding: Encoding, pos: Numbers, lanes: Sequence[int] = (0, 1), *, head: int = 0, layer: int = 0
) -> Float64[Array, "n lanes"]:
    """Return positions as points in the plane or in space: two or three columns of the heat map.

    A negative column counts from the end. The other arguments are those of `heat_map`.

    >>> from posenc import Binary
    >>> points(Binary(d_model=4), [1, 2, 3], (2, 3)).tolist()
    [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
    """
    chosen = list(lanes)
    if len(chosen) not in (2, 3):
        raise ValueError(f"points: lanes must be two for the plane or three for space; got {chosen}.")
    if any(isinstance(lane, bool) or not isinstance(lane, (int, np.integer)) for lane in chosen):
        raise TypeError(f"points: lanes must be whole numbers; got {chosen}.")
    rows = heat_map(encoding, pos, head=head, layer=layer)
    if not all(-rows.shape[1] <= lane < rows.shape[1] for lane in chosen):
        raise ValueError(f"points: lanes must lie in 0..{rows.shape[1] - 1}, those of {encoding.name}; got {chosen}.")
    return rows[:, chosen]


def by_distance(encoding: Encoding, middle: Numbers, pos: Numbers, *, head: int = 0, layer: int = 0) -> Distances:
    """Return the dot products and cosines of one position's vector with the vectors of others.

    Vectors and arguments are those of `heat_map`; `middle` is one position, a number or (n_axes,) numbers.

    >>> from posenc import RoPE
    >>> by_distance(RoPE(head_dim=2), 5, [4, 5]).dot.round(4).tolist()  # cos(1), and 1
    [0.5403, 1.0]
    """
    others = asking.read_positions("by_distance", encoding, pos)
    one = asking.read_positions("by_distance", encoding, np.atleast_2d(middle) if np.ndim(middle) else middle, "middle")
    if len(one) != 1:
        raise ValueError(f"by_distance: middle must be one position; got {len(one)} of them.")
    both = torch.cat((others, one))  # an image may not contain the middle position twice
    where = int((both == one).reshape(len(both), -1).all(-1).nonzero()[0])
    rows = heat_map(encoding, both[: max(len(others), where + 1)], head=head, layer=layer)
    column, chosen = rows[: len(others)], rows[where : where + 1]
    return Distances(similarity(column, chosen)[:, 0], similarity(column, chosen, cosine=True)[:, 0])


def _ask(who: str, encoding: Encoding, pos: Numbers) -> tuple[Encoding, Placed, list[tuple[Any, Placed]]]:
    """Return the model in float64, its placed positions, and the members of its first layer that embed."""
    at = asking.read_positions(who, encoding, pos)
    model = asking.exact(encoding, at)
    if model.reads_x:
        why = tr("{name:s} reads the tokens, so a position has no vector of its own.", name=model.name)
        raise ValueError(f"{who}: {why}")
    placed = asking.place(model, at)
    return model, placed, asking.embedding(*model.layer(0, placed)) if asking.embeds(model, at) else []


def _only_rotation(who: str, head: int, encoding: Encoding, placed: Placed) -> tuple[Any, Placed, int]:
    """Return the one member that rotates pairs of dimensions, its placed positions, and its number of heads."""
    found = [(e, p) for e, p in asking.rotating(encoding, placed) if isinstance(e, (Rotary, PoPE))]
    if len(found) != 1:
        several = tr(
            "{name:s} has {n:d} rotations at once, so there is nothing to show by position.",
            name=encoding.name,
            n=len(found),
        )
        none = tr(
            "{name:s} neither adds vectors to tokens nor rotates pairs of dimensions, so there is nothing to show "
            "by position.",
            name=encoding.name,
        )
        raise ValueError(f"{who}: {several if found else none}")
    n_heads = found[0][0].n_kv_heads or 1
    if isinstance(head, bool) or not isinstance(head, int) or not 0 <= head < n_heads:
        raise ValueError(
            f"{who}: head must be one of 0..{n_heads - 1}, the heads with their own rotations; got head={head!r}."
        )
    return *found[0], int(n_heads)


def _waves(who: str, members: Any) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines (n, n_pairs) of the one member that adds them, or rotates tokens by them."""
    encoding, placed = members[0]
    if len(members) == 1 and isinstance(encoding, ComplexOrder):
        return placed.parts[0], placed.parts[1]
    if len(members) != 1 or not isinstance(encoding, (Sinusoidal, SinusoidalND, NeRFFourier, GaussianFourier, TAPE)):
        names = " and ".join(e.name for e, _ in members)
        raise ValueError(f"{who}: {names} has no pairs of a sine and a cosine; use heat_map.")
    cos_lanes, sin_lanes = wave_lanes(encoding)
    return placed.parts[0][:, cos_lanes], placed.parts[0][:, sin_lanes]


def wave_lanes(encoding: Any) -> tuple[Tensor, Tensor]:
    """Return the dimensions of an additive encoding that hold cosines, and those of their sines, (n_pairs,) each.

    They are found at position 0, where cosines are not zero, but sines and unused dimensions are. With several axes
    those of axis 0 come first; a last sine without a cosine is left out.
    """
    origin = torch.zeros((1, encoding.n_axes) if encoding.n_axes > 1 else 1, dtype=torch.float64)
    zero = encoding.vectors(origin)[0] == 0
    cos_lanes, sin_lanes = (lanes.nonzero()[:, 0] for lanes in (~zero, zero))
    return cos_lanes, sin_lanes[: len(cos_lanes)]
