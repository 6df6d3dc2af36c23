"""Dual chunk attention: positions count within chunks, with capped distances between chunks."""

import math

import torch
from torch import Tensor

from posenc.encoding import Pos
from posenc.encodings.rope import RoPE
from posenc.kernels.eager import Pairing
from posenc.piecewise import Piecewise
from posenc.registry import register


@register(
    "dual_chunk",
    paper="An et al., Training-Free Long-Context Scaling of Large Language Models",
    year=2024,
    arxiv="2402.17463",
    formula="RoPE at r_i - r_j in one chunk, min(r_i + s, c) - r_j in the next, else c - r_j,  "
    "r = p mod s, s = c - local",
    parameters="0",
    cost="as RoPE three times; in blocks six products of queries and keys a score",
    aliases=("dca", "chunk_llama"),
    used_by=("Qwen2.5-1M", "Qwen2 (with YaRN)"),
    serves=("long",),
    example={"head_dim": 8, "chunk": 6, "local": 2},
    variants=({"pairing": "interleaved", "chunk": 5, "local": 0},),
    traits={
        "distinct": {"float32": 7, "bfloat16": 7, "float16": 7},
        "longest": None,
        "real_positions": True,
        "smooth": False,
        "bounded": True,
        "shift_invariant": False,
        "symmetric": False,
        "recency": False,
        "linear_shift": None,
        "length_dependent": False,
        "learned": 0,
        "cost": "score",
    },
)
class DualChunk(Piecewise):
    """Rotate by the distance within a chunk, by a capped distance to the previous chunk, and by c to all others.

    Chunks hold chunk - local tokens. To the previous chunk, distances are exact for a chunk's first `local` queries and
    end at `chunk`; keys in earlier chunks are seen from position `chunk`. So no distance exceeds it. The paper's
    pretrained length c is chunk + 1, as in the authors' code. With local >= chunk / 2, that code sees far chunks from
    nearer. Keys ahead get the negative of the distance that they would have looking back. Source: An 2024, section 3,
    and code.

    Args:
        head_dim: Dimensions of one head; all of them rotate.
        chunk: c, the largest distance, in positions; three quarters of the trained length in the authors' code.
        local: Number of a chunk's first queries that see the whole previous chunk at its exact distance; a sixteenth
            of the trained length in the authors' code.
        base: Base of the model's RoPE.
        pairing: Pairing of the model's RoPE.

    Raises:
        ValueError: chunk is below 1, local is below 0 or not below chunk, head_dim is odd, or base is not above 1.

    >>> DualChunk(head_dim=2, chunk=12, local=4).distances(torch.arange(16))[15].tolist()
    [12, 11, 10, 9, 8, 7, 6, 5, 7, 6, 5, 4, 3, 2, 1, 0]
    """

    pieces = ((1, 0), (2, 0))

    def __init__(
        self,
        *,
        head_dim: int,
        chunk: int = 3072,
        local: int = 256,
        base: float = 10000.0,
        pairing: Pairing = "half",
    ) -> None:
        super().__init__(RoPE(head_dim=head_dim, base=base, pairing=pairing))
        self._count(chunk=chunk)
        self._count(least=0, local=local)
        if local >= chunk:
            raise ValueError(
                f"{self.name}: local must be below chunk, because chunks hold chunk - local tokens; got chunk={chunk} "
                f"and local={local}. A common choice is at most a quarter of chunk."
            )
        self.head_dim, self.chunk, self.local = head_dim, chunk, local
        self.base, self.pairing = self.rope.base, pairing

    def maps(self, pos: Pos) -> tuple[Tensor, ...]:
        """Return positions in the chunk, those seen from the next chunk, and the one seen from all other chunks."""
        length = self.chunk - self.local
        place = pos.remainder(length)
        return place, (place + length).clamp(max=self.chunk), torch.full_like(pos, self.chunk)

    def units(self, pos: Pos) -> Tensor:
        """Return the number of the chunk."""
        return pos.div(self.chunk - self.local, rounding_mode="floor")

    def bounds(self) -> tuple[float, ...]:
        """Return one chunk, two, and infinity."""
        return 1.0, 2.0, math.inf
