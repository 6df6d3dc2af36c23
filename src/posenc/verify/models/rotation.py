"""The rotation of one layer of a model, compared with what its configuration says, and what explains a difference."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from posenc.families import Rotary
from posenc.verify.engine import Case, Choice, Family, Fault, Seen
from posenc.verify.engine.read import base_of, speeds
from posenc.verify.engine.records import FLOAT32, Array, Model

RULE = "model.rotation."
_STILL = 1e-3  # how far dimensions that do not rotate may move, over the size of the head


@dataclass(frozen=True)
class View:
    """Queries or keys of a layer in one run, (rows, seq, head_dim), where row is a head of a text.

    Args:
        run: "near", or "far" with the longest positions.
        side: "q" or "k".
        pos: Positions (seq,).
        x: Before they rotate.
        got: What came out, but for the gain.
        freq: Radians per position of each pair, as the configuration says; none where nothing rotates.
        pairing: Which dimensions are one pair.
        last: Whether the last dimensions of a head rotate, and not the first ones.
        eps: The rounding of the model's dtype.
    """

    run: str
    side: str
    pos: Array
    x: Array
    got: Array
    freq: Array
    pairing: str
    last: bool
    eps: float

    def rotated(self, model: Model) -> Array:
        """Return x as a model's parameters rotate it."""
        freq = self.of(model)
        a, b = self.pairs(freq, model["pairing"])
        angle = model["sign"] * np.outer(self.pos, freq)
        cos, sin, out = np.cos(angle), np.sin(angle), self.x.copy()
        out[..., a] = cos * self.x[..., a] - sin * self.x[..., b]
        out[..., b] = sin * self.x[..., a] + cos * self.x[..., b]
        return out

    def of(self, model: Model) -> Array:
        """Return the frequencies of a model: its own, or those of this run."""
        freq: Array = self.freq if model["freq"] is None else model["freq"]
        return freq

    def pairs(self, freq: Array, pairing: str | None = None) -> Array:
        """Return the first and the second dimensions of all pairs, (2, n_pairs)."""
        n = len(freq)
        one = np.arange(2 * n)
        both = one.reshape(2, n) if (pairing or self.pairing) == "half" else one.reshape(n, 2).T
        return both + (self.x.shape[-1] - 2 * n if self.last else 0)

    def allowed(self, freq: Array) -> Array:
        """Return the errors of angles (seq, n_pairs) that honest rounding makes."""
        return 32 * self.eps + 4 * FLOAT32 * np.outer(self.pos, np.abs(freq))

    def errors(self) -> Array:
        """Return the errors of angles (seq, n_pairs), over all heads by their size."""
        a, b = self.pairs(self.freq)
        want = self.rotated(TRUTH)
        z = (self.got[..., a] + 1j * self.got[..., b]) * (want[..., a] - 1j * want[..., b])
        found: Array = np.angle(z.sum(0))
        return found


TRUTH: Model = {"freq": None, "pairing": None, "sign": 1}


def of_text(rope: Rotary) -> Array:
    """Return radians per position of each pair in text, whose positions are the same on all axes."""
    freq: Array = rope.frequencies().sum(0).detach().double().numpy()
    return freq


class Rotation(Family):
    """One layer.

    Args:
        views: Its queries and keys; those of near positions first.
        known: Faults that are looked for, in this order.
        order_seen: Whether it was seen that dimensions keep their order before they rotate.
    """

    definition = "posenc.PerLayer.from_config(config.json)"
    mismatch = RULE + "mismatch"
    truth = TRUTH
    pairs = 0

    def __init__(self, views: Sequence[View], known: Iterable[Fault], *, order_seen: bool) -> None:
        super().__init__("model", {})
        self._order_seen = order_seen
        self._seen = [Seen(Case(v.side, (v,), v.run), v.got, v.eps) for v in views]
        self._near, self._known = next((v for v in views if v.run == "near"), views[0]), [*known]

    def cases(self) -> Iterator[Case]:
        """Yield what was seen; nothing is asked."""
        yield from (seen.case for seen in self._seen)

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return what was seen."""
        return next(seen for seen in self._seen if seen.case is case)

    def predict(self, model: Model, case: Case) -> Array:
        """Return queries or keys as they should be."""
        found: Array = case.args[0].rotated(model)
        return found

    def slack(self, seen: Seen, predicted: Array, model: Model) -> Array | float:
        """Return what rounding explains: an error of angles, over the sizes of pairs."""
        view: View = seen.case.args[0]
        freq = view.of(model)
        a, b = view.pairs(freq, model["pairing"])
        size = np.sqrt(np.square(predicted).mean(-1, keepdims=True)) + 1e-30
        found = np.broadcast_to(_STILL * size, predicted.shape).copy()
        found[..., a] = found[..., b] = (np.hypot(predicted[..., a], predicted[..., b]) + size) * view.allowed(freq)
        return found

    def free(self) -> Iterator[Choice]:
        """Yield what no score sees."""
        if not self._order_seen:  # code may sort even dimensions before odd ones, and rotate halves
            yield Choice({"pairing": "half"})
        yield Choice({"sign": -1}, "rotates queries and keys the other way round; scores are the same")

    def faults(self) -> Iterator[Fault]:
        """Yield the known faults, and what can be read off angles at consecutive positions."""
        yield from self._known
        view, found = self._near, _read(self._near)
        if not len(found):
            return
        scale = float(found @ view.freq / (view.freq @ view.freq))
        if scale > 0:
            said = f"rotates {scale:.6g} times as fast as it should, as with positions times {scale:.6g}"
            yield fault("position_scale", said, freq=scale * view.freq)
        k = np.arange(len(found))
        sharp = (found > 1e-3) & (k > 0)
        if sharp.any():
            log = -(k * np.log(found.clip(1e-12)))[sharp].sum() / np.square(k[sharp]).sum() * len(k)
            fitted = float(np.exp(log.clip(-50, 50)))
            own = base_of(view.freq, 2 * len(k))
            want = "" if own is None else f", where its configuration says {own:.6g}"
            for digits in (2, 3, 4, 5, 6, 7, 17):  # the roundest that fits
                base = float(f"{fitted:.{digits}g}")
                yield fault("base", f"rotates by base {base:g}{want}", freq=geometric(base, len(k)))

    def unknown(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault:
        """Return what is wrong where nothing explains it."""
        view: View = wrong[0].case.args[0]
        if not len(view.freq):
            moved = float(np.linalg.norm(view.got - view.x) / np.linalg.norm(view.x))
            said = f"moves queries or keys by {moved:.3g} of their size, where its configuration has no rotation here"
            return fault("unexpected", said, {"evidence": moved})
        off = self.off(wrong[0], view.rotated(model), model)[..., view.pairs(view.freq).ravel()]
        if (off <= 1).all():
            return fault("width", f"changes dimensions beyond the {2 * len(view.freq)} that rotate")
        first, wanted = (", ".join(f"{f:.6g}" for f in freq[:3]) for freq in (_read(self._near), self._near.freq))
        said = f"rotates by other angles: its first pairs by {first} radians a position as far as can be read, and not "
        return fault("mismatch", said + wanted)


def _read(view: View) -> Array:
    """Return radians per position of each pair, as far as the pairs are those of the configuration."""
    a, b = view.pairs(view.freq)
    z = (view.got[..., a] + 1j * view.got[..., b]) * (view.x[..., a] - 1j * view.x[..., b])
    return speeds(view.pos, z.sum(0))[0]


def fault(code: str, said: str, values: Mapping[str, Any] | None = None, **change: Any) -> Fault:
    """Return a fault by what it changes, with what is said of it."""
    return Fault(RULE + code, change, {"said": said, **(values or {})})


def geometric(base: float, n_pairs: int) -> Array:
    """Return radians per position of each pair by a base only."""
    found: Array = base ** (-np.arange(n_pairs) / n_pairs)
    return found
