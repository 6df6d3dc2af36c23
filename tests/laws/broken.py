"""Encodings with one fault each, as such code has had it; the laws must see every one."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import torch
from torch import Tensor

import posenc
from posenc import Placed
from posenc.attention.blocked import Blocked
from posenc.attention.call import Call
from posenc.attention.whole import Reference
from posenc.families import geometric


class AttractsTheFar(posenc.ALiBi):
    """The sign of the slope is lost."""

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        return -super().at(h, q, k)


class SeesPlaces(posenc.ALiBi):
    """Declares shift invariance, and looks at the places themselves."""

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        return super().at(h, q, k) - 0.01 * (q * k)


class RoundsPositions(posenc.ALiBi):
    """Declares real positions, and cuts the fraction off."""

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        return super().at(h, q // 100, k // 100)


class KeepsTheKind(posenc.KERPLE):
    """Distances are formed in the integer kind of pos, where uint8 wraps."""

    by_distance = False  # or attention forms them itself

    def place(self, pos: Tensor, x: Any = None, **options: Any) -> Placed:
        return Placed(pos, (pos,))


class CastsItsFrequencies(posenc.RoPE):
    """Learned frequencies go to bfloat16 with everything else."""

    keeps_float32 = False


class DividesByItsStart(posenc.RelativeBias):
    """Normalises its table, which starts as zeros."""

    def reset_parameters(self) -> None:
        torch.nn.init.zeros_(self.weight)

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        return super().at(h, q, k) / self.weight.abs().max()


class LearnsARowMore(posenc.RelativeBias):
    """Its table has a row that no distance reads."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.weight = torch.nn.Parameter(torch.cat((self.weight, self.weight[:1]), 0))


class EndsTooEarly(posenc.Binary):
    """Refuses positions that it says it has."""

    def vectors(self, pos: Tensor) -> Tensor:
        if int(pos.max()) > 2**20:
            raise ValueError("Binary: too far; got more.")
        return super().vectors(pos)


class CountsFromTheEnd(posenc.Learned):
    """Position -1 takes the last row, as an index of Python does."""

    accepts_real = False

    def place(self, pos: Tensor, x: Any = None, **options: Any) -> Placed:
        return super().place(torch.where(pos < 0, pos + self.max_len, pos), x, **options)


class TakesTheNextRow(posenc.Learned2D):
    """A column too far to the right is the first one of the next row."""

    def vectors(self, pos: Tensor) -> Tensor:
        row, column = pos.unbind(-1)
        over = column == self.width
        return super().vectors(torch.stack((row + over, column.masked_fill(over, 0)), -1))


class TurnsBackTooLittle(posenc.RoPE):
    """The inverse knows the angle but not the gain."""

    def gain(self) -> float:
        return 1.25

    def _unrotate(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed) -> tuple[Tensor, Tensor]:
        tables = [(p.parts[0], -p.parts[1]) for p in (placed, k_placed)]
        return self._rotate(q, tables[0]), self._rotate(k, tables[1])


class TakesAnything(posenc.RoPE):
    """Half-precision positions are believed."""

    def _check(self, pos: Tensor, dtype: torch.dtype) -> Tensor:
        return pos.double()


class MumblesErrors(posenc.ALiBi):
    """The check stands, but its message says nothing."""

    def bias(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed) -> Tensor:
        if q.shape[1] != self.n_heads:
            raise ValueError("bad heads")
        return self._broadcast(placed, k_placed)


class CountsByIndex(posenc.KERPLE):
    """The distance is taken between slots, not between positions."""

    by_distance = False  # or attention takes it itself

    def _broadcast(self, placed: Placed, k_placed: Placed) -> Tensor:
        slots = [self.place(torch.arange(p.pos.shape[-1])) for p in (placed, k_placed)]
        return super()._broadcast(*slots)


class StartsAtZero(posenc.RoPE):
    """Positions are guessed from the shape, so a cached step is turned as if it were the first."""

    def place(self, pos: Tensor, x: Any = None, **options: Any) -> Placed:
        return super().place(torch.arange(pos.shape[-1]).expand(pos.shape), x, **options)


class NeverRestarts(posenc.Sinusoidal):
    """A packed document goes on counting where the one before it ended."""

    def place(self, pos: Tensor, x: Any = None, **options: Any) -> Placed:
        return super().place(torch.arange(pos.shape[-1]).expand(pos.shape), x, **options)


class CentresTokens(posenc.Sinusoidal):
    """Tokens are centred over the sequence, padded slots and their NaN included."""

    def embed(self, x: Tensor, placed: Placed) -> Tensor:
        return super().embed(x - x.mean(-2, keepdim=True), placed)


class SizesATable(posenc.Learned):
    """The table is cut to the longest position, which an empty sequence does not have."""

    def vectors(self, pos: Tensor) -> Tensor:
        return self.weight[: int(pos.max()) + 1 + self.offset][pos + self.offset]


class TurnsOnlyTogether(posenc.Encoding):
    """`rotate` is overridden and its two halves are not, so that Compose passes it by."""

    def rotate(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Any = None, **options: Any) -> Any:
        factor = 1.0 + placed.pos[:, None].to(q.dtype) % 3
        return q * factor, k


class RemembersTheLongest(posenc.RoPE):
    """The base follows the longest sequence ever seen (dynamic NTK with hidden state)."""

    longest = 8

    def place(self, pos: Tensor, x: Any = None, **options: Any) -> Placed:
        if pos.shape[0] > self.longest:
            self.longest = pos.shape[0]
            self.base *= self.longest / 8
        return super().place(pos, x, **options)


class WritesIntoTokens(posenc.Sinusoidal):
    """Vectors are added in place."""

    def embed(self, x: Tensor, placed: Placed) -> Tensor:
        return x.add_(placed.parts[0])


class HalvesTheBias(posenc.RelativeBias):
    """The bias is rounded to bfloat16 before it meets the scores, unless exact work is asked for."""

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        exact = super().at(h, q, k)
        return exact if q.is_floating_point() else exact.bfloat16().float()


class KeepsABuffer(posenc.RoPE):
    """The frequencies are a buffer that no state_dict shows and `.bfloat16()` spoils."""

    keeps_float32 = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.register_buffer("omega", geometric(32, base=1e4, width=64)[None], persistent=False)

    def frequencies(self) -> Tensor:
        return self.omega.double()


class HalvesPositions(posenc.RoPE):
    """Positions are rounded to bfloat16 unless exact work is asked for."""

    def place(self, pos: Tensor, x: Any = None, *, dtype: torch.dtype = torch.float32, **options: Any) -> Placed:
        pos = pos if dtype == torch.float64 else pos.bfloat16().float()
        return super().place(pos, x, dtype=dtype, **options)


class MultipliesUnderAutocast(posenc.RoPE):
    """Angles are a matrix product, which autocast takes for one of the model's."""

    def place(self, pos: Tensor, x: Any = None, *, dtype: torch.dtype = torch.float32, **options: Any) -> Placed:
        angle = pos.to(dtype)[:, None] @ self.frequencies().to(dtype)
        return Placed(pos, (angle.cos().to(dtype), angle.sin().to(dtype)))


class GrowsATable(posenc.Sinusoidal):
    """Vectors are kept for the next call, in a tensor that grows with the sequence."""

    _table: Tensor | None = None

    def vectors(self, pos: Tensor) -> Tensor:
        if pos.numel() and pos.min() >= 0 and not pos.is_floating_point():
            if self._table is None or len(self._table) <= pos.max():
                self._table = super().vectors(torch.arange(int(pos.max()) + 1))
            return self._table[pos]
        return super().vectors(pos)


class RegistersABuffer(posenc.RoPE):
    """A buffer is registered in the forward pass."""

    def place(self, pos: Tensor, x: Any = None, **options: Any) -> Placed:
        placed = super().place(pos, x, **options)
        self.register_buffer("cos", placed.parts[0])
        return placed


class FixedWithAGraph(posenc.RoPE):
    """Frequencies that nobody learns require gradients."""

    def frequencies(self) -> Tensor:
        return super().frequencies().requires_grad_()


class CutsTheGradient(posenc.KERPLE):
    """One of the two learned vectors is detached."""

    d_model = head_dim = 2  # gradcheck says in full what is wrong, which takes its time in a larger layer

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        r1, r2 = self.log_r1.detach()[h].exp(), self.log_r2[h].exp()
        return -r1 * torch.log1p(r2 * (q - k).abs())


class ForgetsToReset(posenc.KERPLE):
    """After materialisation one parameter is whatever memory held."""

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.log_r1.uniform_(0.0, 2.0).log_()
            if not hasattr(self, "drawn"):
                self.drawn = self.log_r2.fill_(0.25)


class HoldsALambda(posenc.ALiBi):
    """A closure is kept, which pickle cannot take."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.shape_of = lambda pos: pos.shape


class SharesItsTables(posenc.RoPE):
    """What was placed last is kept on the module and used for whoever turns next."""

    def place(self, pos: Tensor, x: Any = None, **options: Any) -> Placed:
        self.now = super().place(pos, x, **options)
        time.sleep(0.002)
        return self.now

    def rotate_q(self, q: Tensor, placed: Placed) -> Tensor:
        return super().rotate_q(q, self.now)


class AsksTheDevice(posenc.RoPE):
    """A branch looks at the positions' values, which a compiler cannot know."""

    def place(self, pos: Tensor, x: Any = None, **options: Any) -> Placed:
        if pos.max() >= 1000:
            raise ValueError("too far")
        return super().place(pos, x, **options)


class SpecialisesOnLength(posenc.Encoding):
    """Queries grow with the length beyond 16 tokens, so that another length is another program."""

    def rotate_q(self, q: Tensor, placed: Placed) -> Tensor:
        return q * 1.5 if q.shape[2] > 16 else q


class ForgetsTheWindow(Blocked):
    """A backend that takes a window and does not apply it."""

    def run(self, call: Call) -> Tensor:
        return super().run(dataclasses.replace(call, window=None))


class UnblankedCall(Call):
    """Slots that nobody sees keep what they hold."""

    def blanked(self) -> tuple[Call, Tensor | None]:
        return self, self.allowed()


class LeavesPadding(Reference):
    """A backend that trusts padded slots."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "leaky"

    def run(self, call: Call) -> Tensor:
        return super().run(UnblankedCall(**vars(call)))


class KeepsItsDistance(posenc.KERPLE):
    """Does not say that it sees distances alone, so that attention asks for each pair."""

    by_distance = False


class HidesItsVectors(posenc.Shaw):
    """Has vectors of distances, and does not say so."""

    by_distance = False


class TurnsBothBack(posenc.RoPE):
    """Turns queries and keys the other way, which scores do not see and other readers of a cache do."""

    def frequencies(self):
        return -super().frequencies()


class ForgetsZeros(posenc.RelativeBias):
    """Takes a number that is zero for one that was never learned."""

    def at(self, h, q, k):
        found = super().at(h, q, k)
        return torch.where(found == 0, 1.0, found)


class ForgetsInGaps(posenc.FoX):
    """Forgets where padding stands, which nobody sees of padding before a text."""

    def parts(self, pos, x, past, dtype):
        kept, left = super().parts(pos, x, past, dtype)
        return kept - (~x.isfinite().all(-1)).cumsum(1)[..., None], left


class TakesAnyNegativeRow(posenc.BEiT):
    """Every token in a negative row is taken for the class token."""

    def parts(self, pos: Tensor, *rest: Any) -> Any:
        inside = (pos >= 0).all(-1, keepdim=True)
        return super().parts(pos.where(inside, -1), *rest)


class CubesValues(posenc.VORoPE):
    """Attention mixes cubes of values: the root undoes them for one value, and not for a sum."""

    def rotate_v(self, v: Tensor, placed: Placed) -> Tensor:
        return super().rotate_v(v, placed) ** 3

    def unrotate_out(self, out: Tensor, placed: Placed) -> Tensor:
        return super().unrotate_out(out.sign() * out.abs() ** (1 / 3), placed)


class ForgetsTheOutput(posenc.VORoPE):
    """Values rotate and outputs do not, so that these depend on where a text stands."""

    def unrotate_out(self, out: Tensor, placed: Placed) -> Tensor:
        return out


class RotatesForwardsTwice(posenc.VORoPE):
    """Outputs rotate the way that values do."""

    def unrotate_out(self, out: Tensor, placed: Placed) -> Tensor:
        return self.rotate_v(out, placed)
