"""The numbers of an encoding's picture: from its definition, or where numbers are learned from the code that runs."""

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
    "values": "a value of ones times what a query gets of it, against distance",
}
_NOTHING = "There is nothing to draw: no position enters the model."


@dataclass(frozen=True)
class Series:
    """One row of a heat map, or one curve."""

    label: str
    values: list[float]


@dataclass(frozen=True)
class Picture:
    """What can be drawn of an encoding.

    Args:
        kind: "vectors" (a series a position, over lanes), "scores", "bias" or "values" (over distances), or
            "none".
        title: What is shown, or why nothing is.
        x: Lanes or distances: one for each value of a series.
        series: The numbers.
        drawn_for: The construction that they come from.
        learned: True if training changes them, so that they are as freshly initialised.
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
    """Draw an encoding's example by its definition; None where it has none, or the example needs torch."""
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
    if n_axes > 1:  # along the first
        pos = np.pad(pos[:, None], ((0, 0), (0, n_axes - 1)))
    kind, numbers = _DEFINED[card.family]
    values = numbers(partial(function, **options), pos, options.get("head_dim", 0))
    return _picture(kind, _TITLES[kind], values, drawn_for, is_learned=False)


def _turned(turns: Callable[..., Any], pos: NDArray[Any], head_dim: int) -> NDArray[Any]:
    """Score queries of ones at all distances from one key of ones at position 0, (n_distances,) or by heads."""
    ones, matrices = np.ones(head_dim), [turns(p if pos.ndim > 1 else float(p)) for p in pos]
    key = matrices[0][1] @ ones
    return np.stack([(of_q @ ones * key).sum(-1) for of_q, _ in matrices], -1) / math.sqrt(head_dim)


def _given(rotates: Callable[..., Any], pos: NDArray[Any], head_dim: int) -> NDArray[Any]:
    """Multiply a value of ones at position 0 by what queries at all distances get of it, (n_distances,)."""
    ones = np.ones(head_dim)
    rotated = rotates(0.0)[0] @ ones
    return np.stack([ones @ rotates(float(p))[1] @ rotated for p in pos])


def _whole(scores: Callable[..., Any], pos: NDArray[Any], head_dim: int) -> NDArray[Any]:
    """Score the same queries and key where a definition has whole scores."""
    ones = np.ones((1, len(pos), head_dim))
    return np.asarray(scores(ones, ones[:, :1], pos, pos[:1])[:, :, 0])


_DEFINED: dict[str, tuple[str, Callable[..., NDArray[Any]]]] = {  # by family: the kind, and what calls the definition
    "additive": ("vectors", lambda vectors, pos, _: vectors(pos[:N_POSITIONS])),
    "rotary": ("scores", _turned),
    "piecewise": ("scores", _whole),
    "bias": ("bias", lambda bias, pos, _: bias(pos, pos[:1])[:, :, 0]),
    "values": ("values", _given),
}


def measure(construct: Callable[[], Any], spelling: str) -> Picture:
    """Construct an encoding and measure the first hook that it uses, with torch.

    Args:
        construct: Makes the encoding; called under a fixed seed.
        spelling: The same construction as a user writes it, for the caption.
    """
    from posenc.encoding import Encoding

    torch = import_module("torch")  # by name: posenc.cli itself must start without it
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(SEED)  # the same picture each time, though learned numbers are drawn
        encoding = construct().resolve(N_DISTANCES).eval()  # what training draws is not the encoding's
        if encoding.reads_x:
            return Picture("none", "There is no picture: it depends on the tokens.", [], [], spelling)
        for hook, kind, look in _HOOKS:
            if getattr(type(encoding), hook) is not getattr(Encoding, hook):
                title, values = look(encoding)
                learned = any(True for _ in encoding.parameters())
                return _picture(kind, title, values.numpy(), spelling, is_learned=learned)
    return Picture("none", _NOTHING, [], [], spelling)


def _embed(encoding: Any) -> tuple[str, Any]:
    """Embed zeros, so that only the vectors remain; ones, where nothing is added and zeros would show nothing."""
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
    """Read the bias of queries at all distances from one key at position 0."""
    pos = _line(encoding, N_DISTANCES)
    n_heads, head_dim = getattr(encoding, "n_heads", 1), getattr(encoding, "head_dim", 64)
    q = pos.new_ones(1, n_heads, len(pos), head_dim).float()
    bias = encoding.bias(q, q[:, :, :1], encoding.place(pos), encoding.place(pos[:1]))[0, :, :, 0]
    return _TITLES["bias"] + (", for q = k = ones" if encoding.reads_qk else ""), bias


def _value(encoding: Any) -> tuple[str, Any]:
    """Multiply a value of ones at position 0 by what queries at all distances get of it."""
    pos = _line(encoding, N_DISTANCES)
    v = pos.new_ones(1, 1, 1, getattr(encoding, "head_dim", 64)).float()
    rotated = encoding.rotate_v(v, encoding.place(pos[:1])).expand(-1, -1, len(pos), -1)
    return _TITLES["values"], (encoding.unrotate_out(rotated, encoding.place(pos)) * v)[0].sum(-1)


_HOOKS: list[tuple[str, str, Callable[[Any], tuple[str, Any]]]] = [  # each with its kind of picture, in order
    ("embed", "vectors", _embed),
    ("rotate_q", "scores", _score),
    ("bias", "bias", _bias),
    ("rotate_v", "values", _value),
]


def _line(encoding: Any, n: int) -> Any:
    """Count along the first axis, no further than a table reaches."""
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
