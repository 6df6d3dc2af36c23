"""What a diagnosis of a rotation works on."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from posenc.verify.rotary.expected import Expected
from posenc.verify.rotary.matrix import Matrices
from posenc.verify.rotary.turner import Turner

CLOSE = 1e-3  # of an angle or a gain, in radians or shares: far above rounding here, far below any fault


@dataclass(frozen=True)
class Bench:
    """What a diagnosis works on.

    Args:
        turner: The subject.
        asked: What it should be.
        layout: The pairing asked for.
        matrices: R at the positions that were compared.
        seq_len: How long the text was.
        pos: The positions at which angles are read.
    """

    turner: Turner
    asked: Expected
    layout: str
    matrices: Matrices
    seq_len: int
    pos: Tensor

    def case(self, **more: Any) -> dict[str, Any]:
        """Return the smallest case in words."""
        return {"head_dim": self.asked.head_dim, "positions": self.pos.tolist()[:4], **more}
