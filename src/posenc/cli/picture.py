"""The numbers of an encoding's picture: from its definition or, if they are learned, from the implementation."""

import inspect
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posenc import definitions
from posenc.registry import Card

N_POSITIONS = 16
N_DISTANCES = 64
N_HEADS = 4  # curves that fit on a screen
SEED = 0
_TITLES = {
    "vectors": "the vector added at each position",
    "scores": "score of q = k = ones against distance",
    "bias": "bias against distance",
    "values": "a value of ones times a query's share of it, against distance",
}
_NOTHING = "There is nothing to draw, because this encoding uses no positions."


@dataclass(frozen=True)
class Series:
    """One row of a heat map, or one curve."""

    label: str
    values: list[float]


@dataclass(frozen=True)
class Picture:
    """The numbers of an encoding's picture.

    Args:
        kind: "vectors" (a series per position, over dimensions), "scores", "bias" or "values" (over distances), or
            "none".
        title: The picture's title, or why there is no picture.
        x: Dimensions or distances, one for each value of a series.
        series: The numbers.
        drawn_for: The construction that yields them.
        learned: True if training changes them; they are then freshly initialised.
    """

    kind: str
    title: str
    x: list[int]
    series: list[Series]
    drawn_for: str = ""
    learned: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the picture as plain JSON values."""
        return asdict(self)


def define(card: Card) -> Picture | None:
    """Evaluate the definition of an encoding's example; None if it has none, or if the example needs torch."""
    function, drawn_for = definitions.find(card.name), card.as_dict()["example"]
    if function is None or card.traits.get("learned") or "viewmats" in card.example:  # whose example torch makes
        return None
    if card.family == "none":
        return Picture("none", _NOTHING, [], [], drawn_for)
    known = inspect.signature(function).parameters
    options = {name: p.default for name, p in known.items() if p.default is not p.empty}
    given = {"head_dim": 64, "length": N_DISTANCES, **card.example}
    options |= {name: value for name, value in given.items() if name in known}
    n_axes = options.get("n_axes") or len(options.get("sections") or options.get("axes") or [0])
    pos = np.arange(N_DISTANCES, dtype=np.float64)
    if n_axes > 1:  # positions along the first axis
        pos = np.pad(pos[:, None], ((0, 0), (0, n_axes - 1)))
    kind, numbers = _DEFINED[card.family]
    values = numbers(partial(function, **options), pos, options.get("head_dim", 0))
    return _picture(kind, _TITLES[kind], values, drawn_for, is_learned=False)


def _rotated(rotations: Callable[..., Any], pos: NDArray[Any], head_dim: int) -> NDArray[Any]:
    """Score queries of ones at all distances from one key of ones at position 0, (n_distances,) or by heads."""
    ones, matrices = np.ones(head_dim), [rotations(p if pos.ndim > 1 else float(p)) for p in pos]
    key = matrices[0][1] @ ones
    return np.stack([(of_q @ ones * key).sum(-1) for of_q, _ in matrices], -1) / math.sqrt(head_dim)


def _received(rotations: Callable[..., Any], pos: NDArray[Any], head_dim: int) -> NDArray[Any]:
    """Multiply a value of ones at position 0 by its rotated copy at queries of all distances, (n_distances,)."""
    ones = np.ones(head_dim)
    rotated = rotations(0.0)[0] @ ones
    return np.stack([ones @ rotations(float(p))[1] @ rotated for p in pos])


def _scored(scores: Callable[..., Any], pos: NDArray[Any], head_dim: int) -> NDArray[Any]:
    """Score the same queries and key with a definition of whole scores."""
    ones = np.ones((1, len(pos), head_dim))
    return np.asarray(scores(ones, ones[:, :1], pos, pos[:1])[:, :, 0])


# by family: the kind of picture, and the call of the definition
_DEFINED: dict[str, tuple[str, Callable[..., NDArray[Any]]]] = {
    "additive": ("vectors", lambda vectors, pos, _: vectors(pos[:N_POSITIONS])),
    "rotary": ("scores", _rotated),
    "piecewise": ("scores", _scored),
    "bias": ("bias", lambda bias, pos, _: bias(pos, pos[:1])[:, :, 0]),
    "values": ("values", _received),
}


def measure(construct: Callable[[], Any], spelling: str) -> Picture:
    """Construct an encoding and measure the first hook that it uses, with torch.

    Args:
        construct: Constructs the encoding; called under a fixed seed.
        spelling: The same construction in a user's code, for the caption.
    """
    from posenc.encoding import Encoding

    torch = import_module("torch")  # by name: posenc.cli itself must start without it
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(SEED)  # the same picture each time, though initial numbers are random
        encoding = construct().resolve(N_DISTANCES).eval()  # without the random draws of training
        if encoding.reads_x:
            return Picture(
                "none", "There is no picture, because this encoding depends on the tokens.", [], [], spelling
            )
        for hook, kind, look in _HOOKS:
            if getattr(type(encoding), hook) is not getattr(Encoding, hook):
                title, values = look(encoding)
                learned = any(True for _ in encoding.parameters())
                return _picture(kind, title, values.numpy(), spelling, is_learned=learned)
    return Picture("none", _NOTHING, [], [], spelling)


def _embed(encoding: Any) -> tuple[str, Any]:
    """Embed zeros, which leaves the added vectors; or ones, if the encoding does not add and zeros would stay zeros."""
    pos = _line(encoding, N_POSITIONS)
    added = encoding.family != "embedded"
    x = pos.new_full((1, len(pos), getattr(encoding, "d_model", 32)), 0 if added else 1).float()
    title = _TITLES["vectors"] if added else "a token of ones at each position"
    return title, encoding.embed(x, encoding.place(pos))[0]


def _score(encoding: Any) -> tuple[str, Any]:
    """Score queries of ones at all distances from one key of ones at position 0."""
    pos = _line(encoding, N_DISTANCES)
    n_heads = getattr(encoding, "n_kv_heads", None) or getattr(encoding, "n_heads", 1)
    head_dim = getattr(encoding, "head_dim", 64)
    q = pos.new_ones(1, n_heads, len(pos), head_dim).float()
    q, k = encoding.rotate(q, q[:, :, :1], encoding.place(pos), encoding.place(pos[:1]))
    return _TITLES["scores"], (q @ k.mT)[0, :, :, 0] * encoding.score_scale(head_dim)


def _bias(encoding: Any) -> tuple[str, Any]:
    """Return the bias of queries at all distances from one key at position 0."""
    pos = _line(encoding, N_DISTANCES)
    n_heads, head_dim = getattr(encoding, "n_heads", 1), getattr(encoding, "head_dim", 64)
    q = pos.new_ones(1, n_heads, len(pos), head_dim).float()
    k = q[:, : getattr(encoding, "n_kv_heads", None) or n_heads, :1]
    bias = encoding.bias(q, k, encoding.place(pos), encoding.place(pos[:1]))[0, :, :, 0]
    return _TITLES["bias"] + (", for q = k = ones" if encoding.reads_qk else ""), bias


def _value(encoding: Any) -> tuple[str, Any]:
    """Multiply a value of ones at position 0 by its rotated copy at queries of all distances."""
    pos = _line(encoding, N_DISTANCES)
    v = pos.new_ones(1, getattr(encoding, "n_kv_heads", None) or 1, 1, getattr(encoding, "head_dim", 64)).float()
    rotated = encoding.rotate_v(v, encoding.place(pos[:1])).expand(-1, -1, len(pos), -1)
    return _TITLES["values"], (encoding.unrotate_out(rotated, encoding.place(pos)) * v)[0].sum(-1)


# hook, kind of picture, measurement; the first hook in use counts
_HOOKS: list[tuple[str, str, Callable[[Any], tuple[str, Any]]]] = [
    ("embed", "vectors", _embed),
    ("rotate_q", "scores", _score),
    ("bias", "bias", _bias),
    ("rotate_v", "values", _value),
]


def _line(encoding: Any, n: int) -> Any:
    """Return positions along the first axis, at most as many as a learned table has."""
    from posenc import positions

    pos = positions.arange(min(n, getattr(encoding, "max_len", None) or n))
    if encoding.n_axes == 1:
        return pos
    return import_module("torch").nn.functional.pad(pos[:, None], (0, encoding.n_axes - 1))


def _picture(kind: str, title: str, values: NDArray[Any], spelling: str, *, is_learned: bool) -> Picture:
    """Return vectors (n_positions, d_model), or a few heads, spread evenly, of curves (n_heads, n_distances)."""
    values = np.atleast_2d(values)
    n_rows = len(values)
    if kind == "vectors":
        series = [Series(f"{p}", row.tolist()) for p, row in enumerate(values)]
    else:
        n_shown = min(n_rows, N_HEADS)
        chosen = [round(i * (n_rows - 1) / max(n_shown - 1, 1)) for i in range(n_shown)]
        series = [Series(f"head {h}" if n_rows > 1 else "", values[h].tolist()) for h in chosen]
    return Picture(kind, title, list(range(values.shape[1])), series, spelling, is_learned)
