"""Compare the rotation of one layer of a model with its configuration, and explain a difference."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posenc.families import Rotary
from posenc.verify.engine import Case, Choice, Family, Fault, Seen
from posenc.verify.engine.read import base_of, speeds
from posenc.verify.engine.records import FLOAT32, Array, Model

RULE = "model.rotation."
TRUTH: Model = {"freq": None, "pairing": None, "sign": 1}  # None: the view's own value
_STILL = 1e-3  # how far unrotated dimensions may move, relative to the head


@dataclass(frozen=True)
class View:
    """Queries or keys of a layer in one run, (rows, seq, head_dim); a row is one head of one text."""

    side: str  # "q" or "k"
    pos: Array
    x: Array  # before the rotation
    got: Array
    freq: Array  # radians per position of each pair in the configuration; empty if nothing rotates
    pairing: str
    last: bool  # whether the last dimensions of a head rotate instead of the first ones
    eps: float

    def freq_of(self, model: Model) -> Array:
        """Return radians per position of a model's pairs: its own, or those of this run."""
        freq: Array = self.freq if model["freq"] is None else model["freq"]
        return freq

    def pairs(self, model: Model = TRUTH) -> Array:
        """Return the first and the second dimensions of a model's pairs, (2, n_pairs)."""
        n = len(self.freq_of(model))
        one = np.arange(2 * n) + (self.x.shape[-1] - 2 * n if self.last else 0)
        return one.reshape(2, n) if (model["pairing"] or self.pairing) == "half" else one.reshape(n, 2).T

    def rotated(self, model: Model = TRUTH) -> Array:
        """Return x rotated by a model."""
        a, b = self.pairs(model)
        out, angle = self.x.copy(), model["sign"] * np.outer(self.pos, self.freq_of(model))
        z = (self.x[..., a] + 1j * self.x[..., b]) * np.exp(1j * angle)
        out[..., a], out[..., b] = z.real, z.imag
        return out

    def moved(self, since: Array) -> NDArray[np.complex128]:
        """Return products of each pair with its old value, (seq, n_pairs), over all heads; the angle is the move."""
        a, b = self.pairs()
        products = (self.got[..., a] + 1j * self.got[..., b]) * (since[..., a] - 1j * since[..., b])
        found: NDArray[np.complex128] = products.sum(0)
        return found

    def errors(self) -> Array:
        """Return the errors of angles, (seq, n_pairs)."""
        return np.angle(self.moved(self.rotated()))


class Rotation(Family):
    """One layer; `order_seen`: whether it is known that dimensions keep their order before the rotation."""

    definition = "posenc.PerLayer.from_config(config.json)"
    mismatch = RULE + "mismatch"
    truth = TRUTH
    pairs = 0

    def __init__(self, views: Sequence[View], known: Iterable[Fault], *, order_seen: bool) -> None:
        super().__init__("model", {})
        self._views, self._known, self._order_seen = views, [*known], order_seen
        near = views[0]
        self._found, self._want = speeds(near.pos, near.moved(near.x))[0], near.freq  # if the pairs are right

    def cases(self) -> Iterator[Case]:
        """Yield the views; no calls are made."""
        yield from (Case(view.side, (view,)) for view in self._views)

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the values of a view."""
        return Seen(case, case.args[0].got, case.args[0].eps)

    def predict(self, model: Model, case: Case) -> Array:
        """Return the right queries or keys."""
        found: Array = case.args[0].rotated(model)
        return found

    def slack(self, seen: Seen, predicted: Array, model: Model) -> Array | float:
        """Return the rounding error: an error of angles, scaled by the sizes of pairs."""
        view: View = seen.case.args[0]
        a, b = view.pairs(model)
        size = np.sqrt(np.square(predicted).mean(-1, keepdims=True)) + 1e-30
        found = np.broadcast_to(_STILL * size, predicted.shape).copy()
        angle = 32 * seen.eps + 4 * FLOAT32 * np.outer(view.pos, np.abs(view.freq_of(model)))
        found[..., a] = found[..., b] = (np.hypot(predicted[..., a], predicted[..., b]) + size) * angle
        return found

    def free(self) -> Iterator[Choice]:
        """Yield differences that do not change scores."""
        if not self._order_seen:  # code may sort even dimensions before odd ones and then rotate halves
            yield Choice({"pairing": "half"})
        yield Choice({"sign": -1}, "rotates queries and keys in the opposite direction, which does not change scores")

    def faults(self) -> Iterator[Fault]:
        """Yield the known faults, and those measured from angles at consecutive positions."""
        yield from self._known
        found, want = self._found, self._want
        if not len(found):
            return
        scale = float(found @ want / (want @ want))
        if scale > 0:
            said = f"rotates {scale:.6g} times as fast as it should, as if positions were multiplied by {scale:.6g}"
            yield fault("position_scale", said, freq=scale * want)
        k = np.arange(len(found))
        sharp = (found > 1e-3) & (k > 0)
        if sharp.any():
            log = -(k * np.log(found.clip(1e-12)))[sharp].sum() / np.square(k[sharp]).sum() * len(k)
            own = base_of(want, 2 * len(k))
            says = "" if own is None else f", but its configuration has {own:.6g}"
            for digits in (2, 3, 4, 5, 6, 7, 17):  # the roundest that fits
                base = float(f"{np.exp(log.clip(-50, 50)):.{digits}g}")
                yield fault("base", f"rotates by base {base:g}{says}", freq=geometric(base, len(k)))

    def unknown(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault:
        """Return the fault if nothing explains the difference."""
        view: View = wrong[0].case.args[0]
        if not len(view.freq):
            moved = float(np.linalg.norm(view.got - view.x) / np.linalg.norm(view.x))
            said = f"moves queries or keys by {moved:.3g} of their size, but its configuration has no rotation here"
            return fault("unexpected", said, evidence=moved)
        first, wanted = (", ".join(f"{f:.6g}" for f in freq[:3]) for freq in (self._found, self._want))
        said = f"rotates by wrong angles: its first pairs by about {first} radians a position instead of "
        return fault("mismatch", said + wanted)


def fault(code: str, said: str, *, evidence: float | None = None, **change: Any) -> Fault:
    """Return a fault from its change and its message; without evidence the angle error is used."""
    return Fault(RULE + code, change, {"said": said, "evidence": evidence})


def of_text(rope: Rotary) -> Array:
    """Return radians per position of each pair in text, where positions on all axes are equal."""
    freq: Array = rope.frequencies().sum(0).detach().double().numpy()
    return freq


def geometric(base: float, n_pairs: int) -> Array:
    """Return radians per position of each pair for an unscaled base."""
    found: Array = base ** (-np.arange(n_pairs) / n_pairs)
    return found
