"""Prepare encodings for measurements: positions from plain numbers, a copy in float64, and its members."""

import copy
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Shaped
from torch import Tensor

from posenc.config.values import short
from posenc.encoding import Encoding, Placed
from posenc.encodings import Graphormer
from posenc.families import Additive, Embedded, Rotary, ValueRotary
from posenc.languages import tr
from posenc.measure.values import Array, Numbers, numbers
from posenc.placed import map_tensors
from posenc.probe import count_heads, find_fact

MOST = 2**20  # length of a random text for an encoding that reads whole texts
Found = list[tuple[Any, Placed]]  # encodings, each with its placed positions


def check(who: str, encoding: Any) -> None:
    """Raise a TypeError unless it is an encoding."""
    if not isinstance(encoding, Encoding):
        raise TypeError(
            f"{who}: encoding must be an Encoding; got {type(encoding).__name__}. Use posenc.create(name, ..)."
        )


def read_positions(who: str, encoding: Encoding, pos: Any, what: str = "pos") -> Shaped[Tensor, "n *axes"]:
    """Return positions for an encoding, in int64 or float64.

    They are given as a number, or (n,) numbers; with several axes as (n, n_axes), or (n,) numbers along axis 0 with 0
    on the others.
    """
    check(who, encoding)
    n_axes = encoding.n_axes
    form = "be a number or a list of at least one in one dimension"
    form += f", or ({n_axes} numbers each) in two" if n_axes > 1 else ""
    found = numbers(who, what, pos, form, lambda shape: len(shape) < 2 or (n_axes > 1 and shape[1:] == (n_axes,)))
    if found.dtype.kind == "f" and not encoding.accepts_real:
        between = found[found != np.round(found)]
        if between.size:
            raise TypeError(
                f"{who}: {encoding.name} accepts only integer positions, so {what} must be whole; got {between[0]}."
            )
        found = found.astype(np.int64)
    kind = np.float64 if found.dtype.kind == "f" else np.int64
    at = torch.from_numpy(np.atleast_1d(found).astype(kind, order="C"))
    return torch.nn.functional.pad(at[:, None], (0, n_axes - 1)) if at.ndim == 1 and n_axes > 1 else at


def read_both(
    who: str, encoding: Encoding, pos: Numbers, k_pos: Numbers | None, what: str = "pos"
) -> tuple[Tensor, Tensor]:
    """Return the positions of queries and of keys; the same if `k_pos` is left out."""
    at = read_positions(who, encoding, pos, what)
    return at, at if k_pos is None else read_positions(who, encoding, k_pos, "k_pos")


def exact(encoding: Encoding, *pos: Tensor) -> Encoding:
    """Return a copy in float64 and evaluation mode, resolved for a text that ends at the last position.

    An encoding that is already resolved keeps its length.
    """
    length = max(int(p.abs().max()) for p in pos) + 1
    return copy.deepcopy(encoding).resolve(length).eval().double()


def place(encoding: Encoding, pos: Tensor, x: Tensor | None = None) -> Placed:
    """Place in float64."""
    return encoding.place(pos, x, dtype=torch.float64)


def width(encoding: Encoding) -> int:
    """Return the width of the token vectors; 64 if the encoding does not define it."""
    return int(find_fact(encoding, "d_model", 64))


def heads(encoding: Encoding) -> tuple[int, int]:
    """Return the number of heads and head_dim; 1 and 64 if the encoding does not define them."""
    return count_heads(encoding)[0], int(find_fact(encoding, "head_dim", 64))


def of_key_heads(encoding: Encoding, x: Tensor) -> Tensor:
    """Return, of vectors (batch, n_heads, ..) of keys, those that stand for the key heads of an encoding."""
    n_heads, n_kv_heads = count_heads(encoding)
    return x[:, :: n_heads // n_kv_heads]


def embeds(encoding: Encoding, pos: Tensor) -> bool:
    """Return whether an encoding changes token vectors."""
    x = torch.zeros(1, 1, width(encoding), dtype=torch.float64)
    return encoding.embed(x, place(encoding, pos[:1], x if encoding.reads_x else None)) is not x


def rotating(encoding: Encoding, placed: Placed) -> Found:
    """Return the members of one layer's encoding that rotate queries or keys; else those that rotate values."""
    identity, members = (Encoding.rotate_q, Encoding.rotate_k), encoding.leaves(placed)
    found = [(e, p) for e, p in members if (type(e).rotate_q, type(e).rotate_k) != identity]
    return found or [(e.rope, p) for e, p in members if isinstance(e, ValueRotary)]


def embedding(encoding: Encoding, placed: Placed) -> Found:
    """Return the members that change token vectors."""
    return [(e, p) for e, p in encoding.leaves(placed) if type(e).embed is not Encoding.embed]


def only_adds(members: Found) -> bool:
    """Return whether members change token vectors only by adding to them."""
    own = Additive.mix, Embedded.embed
    return all(isinstance(e, Additive) and (type(e).mix, type(e).embed) == own for e, _ in members)


def pairs_of(rotary: Rotary) -> tuple[Tensor, Tensor]:
    """Return the first and the second dimension of each rotated pair, (n_pairs,) each."""
    n = rotary.rotary_dim // 2
    start = 0 if rotary.rotary_side == "first" else rotary.head_dim - rotary.rotary_dim
    first = torch.arange(n) if rotary.pairing == "half" else torch.arange(0, 2 * n, 2)
    return start + first, start + first + (n if rotary.pairing == "half" else 1)


def layer_of(who: str, encoding: Encoding, layer: int, *placed: Placed) -> tuple[Any, ...]:
    """Return the encoding of one layer, then its part of each `Placed`."""
    if isinstance(layer, bool) or not isinstance(layer, int):
        raise TypeError(f"{who}: layer must be a whole number; got {short(layer)}.")
    return encoding.layer(layer, placed[0])[0], *(encoding.layer(layer, p)[1] for p in placed)


def sites(
    who: str, encoding: Encoding, distance: Numbers, q_pos: Numbers | None
) -> tuple[Shaped[Tensor, "1 *axes"], Shaped[Tensor, "n *axes"]]:
    """Return the position of one query, and the positions of keys at the given distances from it."""
    apart = read_positions(who, encoding, distance, "distance")
    if any(isinstance(m, Graphormer) for m in encoding.modules()):
        why = tr("{name:s} encodes nodes of a graph, whose indices have no distance.", name=encoding.name)
        raise ValueError(f"{who}: {why}")
    at = apart.amax(0, keepdim=True).clamp(min=0)
    if q_pos is not None:
        at = read_positions(who, encoding, np.atleast_2d(q_pos) if encoding.n_axes > 1 and np.ndim(q_pos) else q_pos)
        if len(at) != 1:
            raise ValueError(f"{who}: q_pos must be the position of one query; got {len(at)} of them.")
    return at, at - apart


def place_both(
    who: str, model: Encoding, at: Tensor, k_at: Tensor, tokens: Numbers | None = None
) -> tuple[Placed, Placed]:
    """Place queries and keys; if the encoding reads tokens, place the whole text from position 0 and take both from it.

    Tokens are (length, d_model) or (batch, length, d_model), drawn from N(0, 1) if left out.
    """
    if not model.reads_x:
        placed = place(model, at)
        return placed, placed if k_at is at else place(model, k_at)
    n, d_model = text_length(who, model, at, k_at), width(model)
    if tokens is None:
        random = torch.Generator().manual_seed(0)
        text = torch.randn(1, n, d_model, generator=random, dtype=torch.float64)
    else:
        form = f"be (length, d_model={d_model}) for a text that reaches position {n - 1}"
        given = numbers(who, "tokens", tokens, form, lambda s: len(s) in (2, 3) and s[-2] >= n and s[-1] == d_model)
        text = torch.from_numpy(given.astype(np.float64)).reshape(-1, *given.shape[-2:])
    whole = place(model, torch.arange(text.shape[1]), text)
    placed, k_placed = (map_tensors(lambda t, i=i: t.index_select(whole.seq_dim, i), whole) for i in (at, k_at))
    return placed, k_placed


def text_length(who: str, model: Encoding, at: Tensor, k_at: Tensor) -> int:
    """Return the length of a text that contains all positions; raise a ValueError if no text can."""
    both = torch.cat((at, k_at))
    if both.ndim > 1 or both.is_floating_point() or int(both.min()) < 0 or int(both.max()) >= MOST:
        raise ValueError(
            f"{who}: {model.name} reads the whole text before a position, so positions must be whole numbers in "
            f"0..{MOST - 1} on one axis."
        )
    return int(both.max()) + 1


def plain(t: Tensor) -> Float64[Array, "*shape"]:
    """Return a copy as a float64 array."""
    return t.detach().double().numpy().copy()
