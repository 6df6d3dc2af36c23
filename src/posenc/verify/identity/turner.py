"""Foreign rotations behind one call: turn queries and keys at given positions."""

import copy
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from posenc.verify.guard import call, shaped


class Turner(ABC):
    """One way to call a rotation.

    Args:
        subject: What `build()` returned.

    Attributes:
        reach: "any": any positions in one call; "run": consecutive ones from any offset; "start": from 0 on.
    """

    reach = "any"

    def __init__(self, subject: Any) -> None:
        self.subject = subject

    def fresh(self) -> "Turner":
        """Return the same with a copy of the subject as it is now; itself where it cannot be copied."""
        try:
            return type(self)(copy.deepcopy(self.subject))
        except Exception:  # user code decides what can be copied
            return self

    def turn(self, q: Tensor, k: Tensor, pos: Tensor, *, grad: bool = False) -> tuple[Tensor, Tensor]:
        """Return queries and keys (batch, heads, seq, head_dim) turned at positions (seq,).

        Raises:
            SubjectError: The subject fails, or returns something else.
        """
        said = f"on x {tuple(q.shape)} of {str(q.dtype)[6:]} at positions {_short(pos)}"
        found = self._turn(q, k, pos, said, grad)
        return shaped(found[0], tuple(q.shape), f"{self.name} {said}"), shaped(
            found[1], tuple(k.shape), f"{self.name} {said}"
        )

    @property
    def name(self) -> str:
        """What is called, in words."""
        return "the rotation"

    @abstractmethod
    def _turn(self, q: Tensor, k: Tensor, pos: Tensor, said: str, grad: bool) -> tuple[Any, Any]: ...


class HFRope(Turner):
    """(module: (x, position_ids) -> (cos, sin), function: (q, k, cos, sin) -> (q, k))."""

    def by_row(self, q: Tensor, k: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Turn each row of a batch at positions of its own, (batch, seq)."""
        turned = self._ids(q, k, ids, f"with position_ids {ids.tolist()}", grad=False)
        return shaped(turned[0], tuple(q.shape), "q"), shaped(turned[1], tuple(k.shape), "k")

    def _turn(self, q: Tensor, k: Tensor, pos: Tensor, said: str, grad: bool) -> tuple[Any, Any]:
        return self._ids(q, k, pos[None].expand(q.shape[0], -1).contiguous(), said, grad)

    def _ids(self, q: Tensor, k: Tensor, ids: Tensor, said: str, grad: bool) -> tuple[Any, Any]:
        module, function = self.subject
        cos, sin = call(module, q.detach(), ids, what=f"the rotary module {said}", grad=grad)
        turned = call(function, q, k, cos, sin, what=f"the function on q, k, cos, sin {said}", grad=grad)
        return turned[0], turned[1]


class MetaComplex(Turner):
    """(function: (end=n) -> complex table, function: (q, k, table)), tensors (batch, seq, heads, dim)."""

    def _turn(self, q: Tensor, k: Tensor, pos: Tensor, said: str, grad: bool) -> tuple[Any, Any]:
        make, apply = self.subject
        table = call(make, end=int(pos.max()) + 1, what=f"the table up to position {int(pos.max())}")
        turned = call(
            apply,
            q.transpose(1, 2),
            k.transpose(1, 2),
            table[pos],
            what=f"the function on q, k, table {said}",
            grad=grad,
        )
        return turned[0].transpose(1, 2), turned[1].transpose(1, 2)


class RopeFn(Turner):
    """rope(x, positions), x (batch, heads, seq, dim)."""

    def _turn(self, q: Tensor, k: Tensor, pos: Tensor, said: str, grad: bool) -> tuple[Any, Any]:
        what = f"rope(x, positions) {said}"
        return (call(self.subject, q, pos, what=what, grad=grad), call(self.subject, k, pos, what=what, grad=grad))


class RopeOffsetFn(Turner):
    """rope(x, offset)."""

    reach = "run"

    def _turn(self, q: Tensor, k: Tensor, pos: Tensor, said: str, grad: bool) -> tuple[Any, Any]:
        what, offset = f"rope(x, offset={int(pos[0])}) {said}", int(pos[0])
        return (
            call(self.subject, q, offset, what=what, grad=grad),
            call(self.subject, k, offset, what=what, grad=grad),
        )


class Lucidrains(Turner):
    """An object with rotate_queries_or_keys(x, offset=)."""

    reach = "run"

    def _turn(self, q: Tensor, k: Tensor, pos: Tensor, said: str, grad: bool) -> tuple[Any, Any]:
        rotate, offset = self.subject.rotate_queries_or_keys, int(pos[0])
        what = f"rotate_queries_or_keys(x, offset={offset}) {said}"
        return tuple(call(rotate, t, offset=offset, what=what, grad=grad) for t in (q, k))


class BSHDModule(Turner):
    """forward(q, k) on (batch, seq, heads, dim), positions from 0."""

    reach = "start"

    def _turn(self, q: Tensor, k: Tensor, pos: Tensor, said: str, grad: bool) -> tuple[Any, Any]:
        turned = call(
            self.subject, q.transpose(1, 2).contiguous(), k.transpose(1, 2).contiguous(), what=f"forward(q, k) {said}",
            grad=grad,
        )  # fmt: skip
        return turned[0].transpose(1, 2), turned[1].transpose(1, 2)


class XPosFn(Turner):
    """xpos(q, k) -> (q, k), positions from 0."""

    reach = "start"

    def _turn(self, q: Tensor, k: Tensor, pos: Tensor, said: str, grad: bool) -> tuple[Any, Any]:
        turned = call(self.subject, q, k, what=f"xpos(q, k) {said}", grad=grad)
        return turned[0], turned[1]


class Undone(Turner):
    """A rotation, with what it does at position 0 to queries and keys alike taken back: no score sees that.

    Args:
        turner: The rotation.
        origin: The orthogonal matrix (head_dim, head_dim) of position 0.
    """

    def __init__(self, turner: Turner, origin: Tensor) -> None:
        super().__init__(turner.subject)
        self.turner, self.origin, self.reach = turner, origin, turner.reach

    def fresh(self) -> "Turner":
        """Return the same around a copy."""
        return Undone(self.turner.fresh(), self.origin)

    def _turn(self, q: Tensor, k: Tensor, pos: Tensor, said: str, grad: bool) -> tuple[Any, Any]:
        turned = self.turner.turn(q, k, pos, grad=grad)
        q, k = ((t.double() @ self.origin).to(t.dtype if t.itemsize > 4 else torch.float32) for t in turned)
        return q, k


TURNERS: dict[str, type[Turner]] = {
    "hf_rope": HFRope,
    "meta_complex": MetaComplex,
    "rope_fn": RopeFn,
    "rope_offset_fn": RopeOffsetFn,
    "lucidrains": Lucidrains,
    "bshd_module": BSHDModule,
    "xpos_fn": XPosFn,
}


def positions(*values: int) -> Tensor:
    """Return positions as models pass them: int64."""
    return torch.tensor(values, dtype=torch.int64)


def _short(pos: Tensor) -> str:
    listed = pos.tolist()
    if len(listed) > 3 and listed == list(range(listed[0], listed[0] + len(listed))):
        return f"{listed[0]} .. {listed[-1]}"
    return str(listed) if len(listed) <= 12 else f"[{', '.join(map(str, listed[:4]))}, ..., {listed[-1]}]"
