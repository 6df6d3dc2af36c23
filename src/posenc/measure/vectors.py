"""What an encoding makes of a position: lanes, pairs as complex numbers, and points in the plane or in space."""

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
from posenc.measure.asking import (
    adds_alone,
    embedding,
    embeds,
    exact,
    layer_of,
    pairs_of,
    place,
    plain,
    read_positions,
    turning,
    width,
)
from posenc.measure.tables import matrix
from posenc.measure.values import Numbers

Array = np.ndarray
UNIT = float(np.log(np.expm1(1.0)))  # its softplus is 1


@dataclass(frozen=True)
class Projection:
    """Vectors seen from where they differ most.

    Args:
        points: (n, 2) or (n, 3): coordinates along the principal axes, about the mean.
        share: The part of all variance along each of these axes.
    """

    points: Float64[Array, "n axes"]
    share: Float64[Array, " axes"]


@torch.no_grad()
def heat_map(encoding: Encoding, pos: Numbers, *, head: int = 0, layer: int = 0) -> Float64[Array, "n lanes"]:
    """Return a row of lanes for each position, as the encoding's own code makes them.

    Of an encoding that adds vectors, these; of one that does something else to tokens, what becomes of a token of ones;
    of one that turns queries and keys, what becomes of a query with 1 in the first lane of each pair: cosines stay
    there, sines come to the second lanes, and lanes that do not turn are 0.

    Args:
        encoding: Adds to tokens, or turns pairs of lanes; its learned numbers are taken as they stand, and what depends
            on the length is resolved for the last position.
        pos: A number or (n,) of them; (n, n_axes) where there are several axes.
        head: Of the key heads, where each has a turn of its own.
        layer: Whose encoding is meant, where layers have their own.

    Raises:
        TypeError: It is no encoding, or positions are no numbers.
        ValueError: It has no such numbers, or has none for these positions.

    >>> from posenc import RoPE, Integer
    >>> heat_map(Integer(d_model=2), [0, 3]).tolist()
    [[0.0, 0.0], [3.0, 3.0]]
    >>> heat_map(RoPE(head_dim=2), [1]).round(4).tolist()
    [[0.5403, 0.8415]]
    """
    at = read_positions("heat_map", encoding, pos)
    model = exact(encoding, at)
    x = torch.zeros(1, len(at), width(model), dtype=torch.float64)
    _refuse_reading("heat_map", model)
    placed = place(model, at)
    if embeds(model, at):
        return plain(model.embed(x if adds_alone(_embedding(model, placed)) else x + 1, placed)[0])
    turned, part = _only_turn("heat_map", *layer_of("heat_map", model, layer, placed))
    q = torch.full((1, 1, 1, turned.head_dim), UNIT, dtype=torch.float64)
    if isinstance(turned, Rotary):
        q = torch.zeros_like(q).index_fill_(-1, pairs_of(turned)[0], 1.0)
    n_heads = _check_head("heat_map", turned, head)
    return plain(turned.rotate_q(q.expand(1, n_heads, len(at), -1), part)[0, head])


@torch.no_grad()
def by_pair(encoding: Encoding, pos: Numbers, *, head: int = 0, layer: int = 0) -> Complex128[Array, "n n_pairs"]:
    """Return cos + i sin of each pair's angle at each position, times its gain and amplitude.

    Args:
        encoding: Turns pairs of lanes, or adds sines beside cosines; as in `heat_map`. Of lanes of several axes those
            of axis 0 come first; a last sine without a cosine is left out.
        pos: As in `heat_map`.
        head: As in `heat_map`.
        layer: As in `heat_map`.

    Raises:
        TypeError: As in `heat_map`.
        ValueError: It has no pairs, or none for these positions.

    >>> from posenc import RoPE
    >>> by_pair(RoPE(head_dim=2), [0, 1]).round(4).tolist()
    [[(1+0j)], [(0.5403+0.8415j)]]
    """
    at = read_positions("by_pair", encoding, pos)
    model = exact(encoding, at)
    _refuse_reading("by_pair", model)
    placed = place(model, at)
    if embeds(model, at):
        cos, sin = _waves("by_pair", _embedding(model, placed))
        return plain(cos) + 1j * plain(sin)
    turned, part = _only_turn("by_pair", *layer_of("by_pair", model, layer, placed))
    n_heads = _check_head("by_pair", turned, head)
    own = isinstance(turned, Rotary) and n_heads > 1 and part.parts[0].ndim == 3
    cos, sin = (t[:, head] if own else t for t in part.parts[:2])
    return plain(cos) + 1j * plain(sin)


def points(
    encoding: Encoding, pos: Numbers, lanes: Sequence[int] = (0, 1), *, head: int = 0, layer: int = 0
) -> Float64[Array, "n lanes"]:
    """Return positions as points in the plane or in space: two or three lanes of the heat map.

    Args:
        encoding: As in `heat_map`.
        pos: As in `heat_map`.
        lanes: Which ones; a negative one counts from the end.
        head: As in `heat_map`.
        layer: As in `heat_map`.

    Raises:
        TypeError: As in `heat_map`, or a lane is no integer.
        ValueError: As in `heat_map`, or there are not two or three lanes, or one does not exist.

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


def project(vectors: Numbers, n: int = 2) -> Projection:
    """Return vectors along the directions in which they vary most (PCA), each of which has a positive largest weight.

    Args:
        vectors: (rows, lanes).
        n: 2 for the plane, or 3 for space.

    Raises:
        TypeError: They are no real numbers.
        ValueError: Another number of directions, or fewer lanes or rows than that.

    >>> found = project([[0.0, 0.0, 0.0], [3.0, 4.0, 0.0], [6.0, 8.0, 0.0]])
    >>> found.points[:, 0].round(4).tolist(), found.share.round(4).tolist()
    ([-5.0, 0.0, 5.0], [1.0, 0.0])
    """
    rows = matrix("project", "vectors", vectors)
    if n not in (2, 3):
        raise ValueError(f"project: n must be 2 for the plane or 3 for space; got n={n!r}.")
    if min(rows.shape) < n:
        raise ValueError(f"project: needs {n} rows and lanes at least for n={n}; got shape {rows.shape}.")
    centred = rows - rows.mean(0)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    largest = np.abs(axes).argmax(1)[:, None]
    axes = axes * np.where(np.take_along_axis(axes, largest, 1) < 0, -1.0, 1.0)  # the sign is no one's
    total = float((sizes**2).sum())
    return Projection(centred @ axes[:n].T, sizes[:n] ** 2 / total if total else np.zeros(n))


def _embedding(model: Encoding, placed: Placed) -> Any:
    """Return what embeds: members of the first layer's encoding."""
    return embedding(*model.layer(0, placed))


def _refuse_reading(who: str, model: Encoding) -> None:
    if model.reads_x:
        raise ValueError(f"{who}: {model.name} reads the tokens, so a position alone makes no numbers.")


def _only_turn(who: str, encoding: Encoding, placed: Placed) -> tuple[Any, Placed]:
    """Return the one member that turns pairs of lanes, with its part of what was placed.

    Raises:
        ValueError: There is none, or there are several.
    """
    found = [(e, p) for e, p in turning(encoding, placed) if isinstance(e, (Rotary, PoPE))]
    if len(found) == 1:
        return found[0]
    why = f"has {len(found)} rotations at once" if found else "neither adds vectors to tokens nor turns pairs of lanes"
    raise ValueError(f"{who}: {encoding.name} {why}, so there is nothing to show by position.")


def _check_head(who: str, turned: Any, head: int) -> int:
    """Return how many heads are turned in their own ways."""
    n_heads = turned.n_kv_heads or 1
    if isinstance(head, bool) or not isinstance(head, int) or not 0 <= head < n_heads:
        raise ValueError(f"{who}: head must be one of 0..{n_heads - 1}, whose turns differ; got head={head!r}.")
    return int(n_heads)


def _waves(who: str, members: Any) -> tuple[Tensor, Tensor]:
    """Return cosines and sines (n, n_pairs) of the one member that adds them, or turns tokens by them.

    Raises:
        ValueError: There is none, or there are several.
    """
    encoding, placed = members[0]
    if len(members) == 1 and isinstance(encoding, ComplexOrder):
        cos, sin = placed.parts
        return cos, sin
    if len(members) != 1 or not isinstance(encoding, (Sinusoidal, SinusoidalND, NeRFFourier, GaussianFourier, TAPE)):
        names = " and ".join(e.name for e, _ in members)
        raise ValueError(f"{who}: {names} has no pairs of lanes that hold a sine and a cosine; take heat_map.")
    cos, sin = wave_lanes(encoding)
    return placed.parts[0][:, cos], placed.parts[0][:, sin]


def wave_lanes(encoding: Any) -> tuple[Tensor, Tensor]:
    """Return which lanes of an encoding that adds waves hold cosines, and which their sines, (n_pairs,) each.

    Of several axes those of axis 0 come first; a last sine without a cosine is left out.
    """
    n_axes, order = 1, getattr(encoding, "order", "alternating")
    width = encoding.d_model
    if isinstance(encoding, SinusoidalND):
        n_axes, width = encoding.n_axes, encoding.axis.d_model
    elif isinstance(encoding, NeRFFourier):  # lanes that the octaves do not reach hold nothing
        width = 2 * encoding.n_octaves * encoding.n_axes
    elif isinstance(encoding, GaussianFourier):
        order = "concatenated"
    runs = [part.tolist() for part in torch.arange(encoding.d_model).split(width)[:n_axes]]
    pairs: list[tuple[int, int]] = []
    for run in runs:
        n = len(run) // 2
        cos, sin = (run[len(run) - n :], run[:n]) if order == "concatenated" else (run[1 : 2 * n : 2], run[: 2 * n : 2])
        pairs += zip(cos, sin, strict=True)
    cos_lanes, sin_lanes = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).unbind(-1)
    return cos_lanes, sin_lanes
