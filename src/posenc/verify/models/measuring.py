"""How queries and keys were turned, held against an encoding: angles, gain, and lanes that must not turn."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from posenc.encoding import Encoding, Placed
from posenc.families import Rotary

EPS = float(torch.finfo(torch.float32).eps)  # models form angles in float32
_GAIN = 1e-3  # a relative error of the gain that no rounding makes
_STILL = 1e-3  # how far lanes that do not turn may move, over their size
_COHERENT = 1e-3


@dataclass(frozen=True)
class Expected:
    """What turns one layer in one run.

    Args:
        encoding: The layer's encoding, with what lengthens queries.
        placed: What was placed for it.
        rope: What turns, None where nothing does.
        rope_placed: What was placed for that.
    """

    encoding: Encoding
    placed: Placed
    rope: Rotary | None
    rope_placed: Placed | None

    @classmethod
    def of(cls, encoding: Encoding, placed: Placed) -> "Expected":
        """Find what turns among the parts of an encoding."""
        found = next(((e, p) for e, p in encoding.leaves(placed) if isinstance(e, Rotary)), (None, None))
        return cls(encoding, placed, *found)

    @property
    def inv_freq(self) -> Tensor:
        """Radians per position of each pair; none where nothing turns."""
        return torch.zeros(0) if self.rope is None else of_text(self.rope)


@dataclass(frozen=True)
class Sight:
    """One tensor of a layer as it is turned, in float64, (batch, heads, seq, lanes).

    Args:
        side: "q", "k", or "call 1", "call 2".
        x: Before it is turned.
        want: As it should be after.
        got: As it is after.
        pos: Positions (seq,).
        place: "rotation": around the function that turns; "attention": against the same tokens at position 0.
        sorts: Whether the code sorts even lanes before odd ones and then turns halves, as a declared map of lanes.
        eps: Of the dtype in which the model returned it.
    """

    side: str
    x: Tensor
    want: Tensor
    got: Tensor
    pos: Tensor
    place: str
    sorts: bool
    eps: float


@dataclass(frozen=True)
class Measure:
    """What a sight shows.

    Args:
        wrong: What is wrong with it, in the order of weight: "angle", "lanes", "gain", "still"; empty if nothing.
        angle: The largest angle error in radians.
        at: The position and the pair of the angle error that exceeds its tolerance most.
        excess: That error over what rounding allows.
        gain: Measured size over the expected one, of turned lanes; 1 is right.
        cosines: Mean cosine of the angle error over pairs, by position.
        coherence: How much of the lanes is explained by turns of these pairs; 1 is all.
        still: How far lanes that do not turn moved, over their size.
    """

    wrong: tuple[str, ...]
    angle: float
    at: tuple[int, int]
    excess: float
    gain: float
    cosines: Tensor
    coherence: float
    still: float


def of_text(rope: Rotary) -> Tensor:
    """Return radians per position of each pair in text, whose positions are the same on all axes."""
    return rope.frequencies().sum(0).detach().double()


def pairs(x: Tensor, rope: Rotary, pairing: str) -> tuple[Tensor, Tensor]:
    """Return the turned lanes as complex numbers (batch, heads, seq, n_pairs), and the other lanes.

    Args:
        x: Whole heads, or the turned lanes alone.
        rope: What turns.
        pairing: Which lanes are one number.
    """
    width, d = rope.rotary_dim, x.shape[-1]
    first = d == width or rope.rotary_side == "first"
    lanes, rest = (x[..., :width], x[..., width:]) if first else (x[..., d - width :], x[..., : d - width])
    a, b = lanes.chunk(2, -1) if pairing == "half" else (lanes[..., 0::2], lanes[..., 1::2])
    return torch.complex(a.contiguous(), b.contiguous()), rest


def measure(sight: Sight, expected: Expected) -> Measure:
    """Hold what was seen against what should be."""
    rope = expected.rope
    if not bool(sight.got.isfinite().all()):
        return Measure(("lanes",), torch.pi, (int(sight.pos[0]), 0), 1.0, 0.0, torch.zeros(len(sight.pos)), 0.0, 1.0)
    if rope is None:
        moved = _relative(sight.got - sight.want, sight.want)
        wrong = ("still",) if moved > _STILL else ()
        return Measure(wrong, 0.0, (0, 0), 0.0, 1.0, torch.ones(len(sight.pos)), 1.0, moved)
    want, want_rest = pairs(sight.want, rope, rope.pairing)
    got, rest = pairs(sight.got, rope, "half" if sight.sorts else rope.pairing)
    product = (got * want.conj()).sum((0, 1))  # (seq, n_pairs): heads vote by their size
    powers = tuple(z.abs().square().sum((0, 1)) for z in (got, want))
    coherence = float(product.abs().sum() / (powers[0] * powers[1]).sqrt().sum().clamp_min(1e-300))
    error = product.angle()
    allowed = tolerance(sight, expected.inv_freq)
    excess = error.abs() / allowed
    worst = divmod(int(excess.argmax()), error.shape[1])
    gain = float((powers[0].sum() / powers[1].sum().clamp_min(1e-300)).sqrt())
    moved = _relative(rest - want_rest, want_rest) if rest.numel() else 0.0
    limit = max(_GAIN, 8 * sight.eps)
    found = {
        "angle": float(excess.max()) > 1,
        "lanes": 1 - coherence > max(_COHERENT, 8 * sight.eps),
        "gain": abs(gain - 1) > limit,
        "still": moved > max(_STILL, 8 * sight.eps),
    }
    return Measure(
        wrong=tuple(name for name, is_so in found.items() if is_so),
        angle=float(error.abs().max()),
        at=(int(sight.pos[worst[0]]), worst[1]),
        excess=float(excess.max()),
        gain=gain,
        cosines=error.cos().mean(-1),
        coherence=coherence,
        still=moved,
    )


def tolerance(sight: Sight, inv_freq: Tensor) -> Tensor:
    """Return the angle errors (seq, n_pairs) that honest rounding makes."""
    return 32 * max(sight.eps, EPS) + 4 * EPS * sight.pos.double()[:, None] * inv_freq.abs()


def turns(sight: Sight, rope: Rotary, pairing: str) -> tuple[Tensor, float, float]:
    """Return by how much each pair was turned (seq, n_pairs), the size of the lanes over what it was, and coherence.

    Angles are those beyond the first position's, where lanes may be sorted by the code.
    """
    x, _ = pairs(sight.x, rope, rope.pairing if sight.sorts else pairing)
    got, _ = pairs(sight.got, rope, "half" if sight.sorts else pairing)
    product = (got * x.conj()).sum((0, 1))
    powers = tuple(z.abs().square().sum((0, 1)) for z in (got, x))
    coherence = float(product.abs().sum() / (powers[0] * powers[1]).sqrt().sum().clamp_min(1e-300))
    return product.angle(), float((powers[0].sum() / powers[1].sum().clamp_min(1e-300)).sqrt()), coherence


def fits(sight: Sight, angles: Tensor, inv_freq: Tensor, *, shift: float = 0.0) -> bool:
    """Whether measured angles are those of frequencies, to rounding; `shift` is added to all positions."""
    pos = sight.pos.double()[:, None] + shift
    return bool((wrap(angles - pos * inv_freq).abs() <= 4 * tolerance(sight, inv_freq)).all())


def wrap(angles: Tensor) -> Tensor:
    """Return angles between -pi and pi."""
    return torch.remainder(angles + torch.pi, 2 * torch.pi) - torch.pi


def read_frequencies(angles: Tensor) -> Tensor:
    """Return radians per position from angles (seq, n_pairs) at positions 0, 1, 2, ...; those beyond pi wrapped.

    Steps of 1, 2, 4, ... each make the frequency sharper, and the one before says how often it went round.
    """
    found = wrap(angles[1:] - angles[:-1]).median(0).values
    step = 2
    while step < len(angles):
        lag = angles[step:] - angles[:-step]
        found = found + wrap(lag - step * found).mean(0) / step
        step *= 2
    return found


def is_sorted(x: Tensor, y: Tensor, gain: float) -> bool:
    """Whether y is x at angle 0 with even lanes before odd ones; (..., lanes)."""
    ordered = torch.cat([x[..., 0::2], x[..., 1::2]], -1) * gain
    return _relative(y - ordered, ordered) < 1e-3 < _relative(y - gain * x, ordered)


def mean_cosines(measures: Sequence[Measure]) -> Tensor:
    """Return the mean over sights of the cosine by position."""
    return torch.stack([m.cosines for m in measures]).mean(0)


def _relative(difference: Tensor, size: Tensor) -> float:
    return float(difference.norm() / size.norm().clamp_min(1e-300))
