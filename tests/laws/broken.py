"""Encodings with one fault each, as published code has had it; the laws must find every one."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

import posenc
from posenc import Placed
from posenc.families import geometric


class SeesPositions(posenc.ALiBi):
    """Declares shift invariance but depends on the positions themselves."""

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        return super().at(h, q, k) - 0.01 * (q * k)


class RoundsPositions(posenc.ALiBi):
    """Declares real positions but cuts the fraction off."""

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        return super().at(h, q // 100, k // 100)


class KeepsTheDtype(posenc.KERPLE):
    """Distances are computed in the dtype of pos, where uint8 wraps, and not by attention itself."""

    by_distance = False

    def place(self, pos: Tensor, x: Any = None, **options: Any) -> Placed:
        return Placed(pos, (pos,))


class CastsItsFrequencies(posenc.RoPE):
    """Learned frequencies are cast to bfloat16 with everything else."""

    keeps_float32 = False


class DividesByItsStart(posenc.RelativeBias):
    """Normalises its table, which starts as zeros."""

    def reset_parameters(self) -> None:
        torch.nn.init.zeros_(self.weight)

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        return super().at(h, q, k) / self.weight.abs().max()


class LearnsARowMore(posenc.RelativeBias):
    """The table has a row that no distance reads."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.weight = torch.nn.Parameter(torch.cat((self.weight, self.weight[:1]), 0))


class EndsTooEarly(posenc.Binary):
    """Refuses positions that it declares."""

    def vectors(self, pos: Tensor) -> Tensor:
        if int(pos.max()) > 2**20:
            raise ValueError("Binary: too far; got more.")
        return super().vectors(pos)


class CountsFromTheEnd(posenc.Learned):
    """Position -1 reads the last row, as an index does in Python."""

    accepts_real = False

    def place(self, pos: Tensor, x: Any = None, **options: Any) -> Placed:
        return super().place(torch.where(pos < 0, pos + self.max_len, pos), x, **options)


class ReadsTheNextRow(posenc.Learned2D):
    """A column beyond the last is read as the first one of the next row."""

    def vectors(self, pos: Tensor) -> Tensor:
        row, column = pos.unbind(-1)
        over = column == self.width
        return super().vectors(torch.stack((row + over, column.masked_fill(over, 0)), -1))


class ForgetsTheGain(posenc.RoPE):
    """The inverse rotation uses the angle but not the gain."""

    def gain(self) -> float:
        return 1.25

    def _unrotate(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed) -> tuple[Tensor, Tensor]:
        tables = [(p.parts[0], -p.parts[1]) for p in (placed, k_placed)]
        return self._rotate(q, tables[0]), self._rotate(k, tables[1])


class AcceptsAnything(posenc.RoPE):
    """Half-precision positions are accepted."""

    def _check(self, pos: Tensor, dtype: torch.dtype) -> Tensor:
        return pos.double()


class RaisesVagueErrors(posenc.ALiBi):
    """The message of an error does not name what is wrong."""

    def bias(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed) -> Tensor:
        if q.shape[1] != self.n_heads:
            raise ValueError("bad heads")
        return self._broadcast(placed, k_placed)


class CountsByIndex(posenc.Sinusoidal):
    """Positions are guessed from the shape: not those of a decode step, of a packed document or of permuted tokens."""

    def place(self, pos: Tensor, x: Any = None, **options: Any) -> Placed:
        return super().place(torch.arange(pos.shape[-1]).expand(pos.shape), x, **options)


class CentresTokens(posenc.Sinusoidal):
    """Tokens are centred over the sequence, including padded slots and their NaN."""

    def embed(self, x: Tensor, placed: Placed) -> Tensor:
        return super().embed(x - x.mean(-2, keepdim=True), placed)


class SizesATable(posenc.Learned):
    """The table is cut at the largest position, which an empty sequence does not have."""

    def vectors(self, pos: Tensor) -> Tensor:
        return self.weight[: int(pos.max()) + 1 + self.offset][pos + self.offset]


class RotatesOnlyBoth(posenc.Encoding):
    """`rotate` is overridden but rotate_q and rotate_k are not, so Compose does not call it."""

    def rotate(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Any = None, **options: Any) -> Any:
        factor = 1.0 + placed.pos[:, None].to(q.dtype) % 3
        return q * factor, k


class RemembersTheLongest(posenc.RoPE):
    """The base grows with the longest sequence so far (dynamic NTK with hidden state)."""

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


class RoundsTheBias(posenc.RelativeBias):
    """The bias is rounded to bfloat16 before it is added to the scores, except in float64."""

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        exact = super().at(h, q, k)
        return exact if q.is_floating_point() else exact.bfloat16().float()


class KeepsABuffer(posenc.RoPE):
    """The frequencies are a buffer outside the state_dict, which `.bfloat16()` rounds."""

    keeps_float32 = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.register_buffer("omega", geometric(32, base=1e4, width=64)[None], persistent=False)

    def frequencies(self) -> Tensor:
        return self.omega.double()


class MultipliesUnderAutocast(posenc.RoPE):
    """Angles are a matrix product, which autocast computes in bfloat16."""

    def place(self, pos: Tensor, x: Any = None, *, dtype: torch.dtype = torch.float32, **options: Any) -> Placed:
        angle = pos.to(dtype)[:, None] @ self.frequencies().to(dtype)
        return Placed(pos, (angle.cos().to(dtype), angle.sin().to(dtype)))


class KeepsATable(posenc.Sinusoidal):
    """Vectors are kept after the call."""

    def vectors(self, pos: Tensor) -> Tensor:
        self._table = super().vectors(pos)
        return self._table


class LearnsAScalar(posenc.ALiBi):
    """One learned number, without a dimension."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.learned = torch.nn.Parameter(torch.tensor(1.0))

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        return super().at(h, q, k) * self.learned


class RegistersABuffer(posenc.RoPE):
    """A buffer is registered in the forward pass."""

    def place(self, pos: Tensor, x: Any = None, **options: Any) -> Placed:
        placed = super().place(pos, x, **options)
        self.register_buffer("cos", placed.parts[0])
        return placed


class FixedWithAGraph(posenc.RoPE):
    """Fixed frequencies require gradients."""

    def frequencies(self) -> Tensor:
        return super().frequencies().requires_grad_()


class CutsTheGradient(posenc.KERPLE):
    """One of the two learned vectors is detached."""

    d_model = head_dim = 2  # gradcheck reports every entry, which takes long in a larger layer

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        r1, r2 = self.log_r1.detach()[h].exp(), self.log_r2[h].exp()
        return -r1 * torch.log1p(r2 * (q - k).abs())


class ForgetsToReset(posenc.KERPLE):
    """After materialisation one parameter holds whatever was in memory."""

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.log_r1.uniform_(0.0, 2.0).log_()
            if not hasattr(self, "drawn"):
                self.drawn = self.log_r2.fill_(0.25)


class HoldsALambda(posenc.ALiBi):
    """A closure is kept, which pickle refuses."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.shape_of = lambda pos: pos.shape


class SharesItsTables(posenc.RoPE):
    """The last placed tables are kept on the module and used by every thread."""

    def place(self, pos: Tensor, x: Any = None, **options: Any) -> Placed:
        self.now = super().place(pos, x, **options)
        time.sleep(0.002)
        return self.now

    def rotate_q(self, q: Tensor, placed: Placed) -> Tensor:
        return super().rotate_q(q, self.now)


class AsksTheDevice(posenc.RoPE):
    """A branch depends on the positions' values, which a compiler does not know."""

    def place(self, pos: Tensor, x: Any = None, **options: Any) -> Placed:
        if pos.max() >= 1000:
            raise ValueError("too far")
        return super().place(pos, x, **options)


class ScalesLongQueries(posenc.Encoding):
    """Queries are scaled beyond 16 tokens, so another length needs another program."""

    def rotate_q(self, q: Tensor, placed: Placed) -> Tensor:
        return q * 1.5 if q.shape[2] > 16 else q


class HidesItsDistance(posenc.Shaw):
    """Depends only on distances but does not declare it."""

    by_distance = False


class RotatesClockwise(posenc.RoPE):
    """Rotates queries and keys the other way: scores stay the same, cached keys do not."""

    def frequencies(self):
        return -super().frequencies()


class ReplacesZeros(posenc.RelativeBias):
    """Replaces a learned zero as if it had never been learned."""

    def at(self, h, q, k):
        found = super().at(h, q, k)
        return torch.where(found == 0, 1.0, found)


class ForgetsInGaps(posenc.FoX):
    """Forgets at padding, which has an effect only within a text."""

    def parts(self, pos, x, past, dtype):
        kept, left = super().parts(pos, x, past, dtype)
        return kept - (~x.isfinite().all(-1)).cumsum(1)[..., None], left


class AcceptsNegativeRows(posenc.BEiT):
    """Every token in a negative row is read as the class token."""

    def parts(self, pos: Tensor, *rest: Any) -> Any:
        inside = (pos >= 0).all(-1, keepdim=True)
        return super().parts(pos.where(inside, -1), *rest)


class CubesValues(posenc.VORoPE):
    """Attention mixes cubes of values: the root restores one value, but not a sum."""

    def rotate_v(self, v: Tensor, placed: Placed) -> Tensor:
        return super().rotate_v(v, placed) ** 3

    def unrotate_out(self, out: Tensor, placed: Placed) -> Tensor:
        return super().unrotate_out(out.sign() * out.abs() ** (1 / 3), placed)


class ForgetsTheOutput(posenc.VORoPE):
    """Values rotate and outputs do not, so outputs depend on where a text starts."""

    def unrotate_out(self, out: Tensor, placed: Placed) -> Tensor:
        return out
