"""The numbers of an encoding's picture, from the code that runs in models."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

N_POSITIONS = 16
N_DISTANCES = 64
N_HEADS = 4  # curves that fit on a screen
SEED = 0


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


def measure(construct: Callable[[], Any], spelling: str) -> Picture:
    """Construct an encoding and measure the first door that it uses.

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
        for door, look in (("embed", _vectors), ("rotate_q", _scores), ("bias", _bias), ("rotate_v", _values)):
            if getattr(type(encoding), door) is not getattr(Encoding, door):
                kind, title, x, series = look(encoding)
                learned = any(True for _ in encoding.parameters())
                return Picture(kind, title, x, series, spelling, learned)
    return Picture("none", "There is nothing to draw: no position enters the model.", [], [], spelling)


_Look = tuple[str, str, list[int], list[Series]]


def _vectors(encoding: Any) -> _Look:
    """Embed zeros, so that only the vectors remain; ones, where nothing is added and zeros would show nothing."""
    pos = _line(encoding, N_POSITIONS)
    d_model = getattr(encoding, "d_model", 32)
    added = encoding.family != "embedded"
    x = pos.new_full((1, len(pos), d_model), 0 if added else 1).float()
    rows = encoding.embed(x, encoding.place(pos))[0].tolist()
    series = [Series(f"{p}", row) for p, row in enumerate(rows)]
    title = "the vector added at each position" if added else "a token of ones at each position"
    return "vectors", title, list(range(d_model)), series


def _scores(encoding: Any) -> _Look:
    """Score queries of ones at all distances from one key of ones at position 0."""
    pos = _line(encoding, N_DISTANCES)
    n_heads, head_dim = getattr(encoding, "n_kv_heads", None) or 1, getattr(encoding, "head_dim", 64)
    q = pos.new_ones(1, n_heads, len(pos), head_dim).float()
    q, k = encoding.rotate(q, q[:, :, :1], encoding.place(pos), encoding.place(pos[:1]))
    scores = (q @ k.mT)[0, :, :, 0] * encoding.score_scale(head_dim)
    return "scores", "score of q = k = ones against distance", list(range(len(pos))), _curves(scores)


def _bias(encoding: Any) -> _Look:
    """Read the bias of queries at all distances from one key at position 0."""
    pos = _line(encoding, N_DISTANCES)
    n_heads, head_dim = getattr(encoding, "n_heads", 1), getattr(encoding, "head_dim", 64)
    q = pos.new_ones(1, n_heads, len(pos), head_dim).float()
    bias = encoding.bias(q, q[:, :, :1], encoding.place(pos), encoding.place(pos[:1]))[0, :, :, 0]
    title = "bias against distance" + (", for q = k = ones" if encoding.reads_qk else "")
    return "bias", title, list(range(len(pos))), _curves(bias)


def _values(encoding: Any) -> _Look:
    """Multiply a value of ones at position 0 by what queries at all distances get of it."""
    pos = _line(encoding, N_DISTANCES)
    v = pos.new_ones(1, 1, 1, getattr(encoding, "head_dim", 64)).float()
    rotated = encoding.rotate_v(v, encoding.place(pos[:1])).expand(-1, -1, len(pos), -1)
    products = (encoding.unrotate_out(rotated, encoding.place(pos)) * v)[0].sum(-1)
    return "values", "v = ones times what a query gets of it, by distance", list(range(len(pos))), _curves(products)


def _line(encoding: Any, n: int) -> Any:
    """Count along the first axis, no further than a table reaches."""
    from posenc import positions

    pos = positions.arange(min(n, getattr(encoding, "max_len", None) or n))
    if encoding.n_axes == 1:
        return pos
    return import_module("torch").nn.functional.pad(pos[:, None], (0, encoding.n_axes - 1))


def _curves(values: Any) -> list[Series]:
    """Choose a few heads, spread evenly, of (n_heads, n_distances)."""
    n_heads = values.shape[0]
    n_shown = min(n_heads, N_HEADS)
    chosen = [round(i * (n_heads - 1) / max(n_shown - 1, 1)) for i in range(n_shown)]
    return [Series(f"head {h}" if n_heads > 1 else "", values[h].tolist()) for h in chosen]
