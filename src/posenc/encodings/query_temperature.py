"""Queries that grow with their position, which keeps attention sharp among more keys."""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from posenc.encoding import Encoding, Placed, Pos
from posenc.families import check_tokens, check_word
from posenc.registry import register


@register(
    "query_temperature",
    paper="Meta, Llama 4 (code); Chiang & Cholak, Overcoming a Theoretical Limitation of Self-Attention (log n)",
    year=2025,
    arxiv="2202.12172",
    formula="q_i·(1 + w·ln(1 + ⌊(p_i + 1)/L⌋)),  or q_i·max(1, ln(p_i + 1)/ln L),  or q_i·(1 + (p_i + 1)/L)^w,  "
    "or q_i·(1 + w·ln max((p_i + 1)/L, 1))",
    parameters="0",
    cost="one product for each lane of q",
    aliases=("attention_temperature", "log_n_scaling"),
    used_by=("Llama 4 and Beam (in layers without RoPE)", "Ministral 3", "Qwen (log n)", "Inkling"),
    serves=("long", "text"),
    example={"original_max_len": 4},
    variants=({"law": "ministral", "original_max_len": 3}, {"law": "log_n"}, {"law": "beam"}, {"law": "inkling"}),
    traits={
        "distinct": {"float32": 1, "bfloat16": 1, "float16": 1},
        "longest": None,
        "real_positions": True,
        "smooth": True,
        "bounded": True,
        "shift_invariant": False,
        "symmetric": False,
        "recency": False,
        "linear_shift": False,
        "length_dependent": False,
        "learned": 0,
        "cost": "token",
    },
)
class QueryTemperature(Encoding):
    """Scale queries up with their position, by a logarithm or a power of how far beyond a length they are.

    The softmax over n keys flattens as n grows; queries that grow with log n counter this. Combine it with an encoding:
    `Compose(RoPE(...), QueryTemperature(...))`, or with NoPE in some layers by `PerLayer`, as Llama 4 does. Keys, and
    so caches, stay unchanged. Source: transformers' code of Llama 4, Ministral 3, Beam and Inkling; log n, Chiang &
    Cholak 2022, section 5.3.

    Args:
        law: "llama4" (1 + weight ln(1 + floor((p + 1) / L))), "ministral" (the same with p for p + 1), "log_n"
            (max(1, ln(p + 1) / ln L)), "beam" ((1 + (p + 1) / L)^weight) or "inkling"
            (1 + weight ln max((p + 1) / L, 1)).
        original_max_len: L, in positions: queries before it stay unchanged, except for "beam", where all grow.
        weight: 0.1 in the models; "log_n" ignores it.

    Raises:
        ValueError: The law is unknown, original_max_len is below 2, or weight is negative.

    >>> temperature = QueryTemperature(original_max_len=4)
    >>> temperature.place(torch.tensor([2, 3, 11])).parts[0].numpy().round(4)  # 1, 1 + 0.1 ln 2, 1 + 0.1 ln 4
    array([1.    , 1.0693, 1.1386], dtype=float32)
    """

    family = "rotary"

    def __init__(
        self,
        *,
        law: Literal["llama4", "ministral", "log_n", "beam", "inkling"] = "llama4",
        original_max_len: int = 8192,
        weight: float = 0.1,
    ) -> None:
        super().__init__()
        check_word(self.name, "law", law, "llama4", "ministral", "log_n", "beam", "inkling")
        self._count(least=2, original_max_len=original_max_len)
        if not 0 <= weight < math.inf:
            raise ValueError(f"{self.name}: weight must be finite and not negative; got weight={weight}.")
        self.law, self.original_max_len, self.weight = law, original_max_len, weight

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Compute the factor of each position."""
        p, length = pos.double(), self.original_max_len
        if self.law == "log_n":
            factor = ((p + 1).clamp(min=1).log() / math.log(length)).clamp(min=1)
        elif self.law == "beam":
            factor = torch.exp(self.weight * torch.log1p((p + 1).clamp(min=0) / length))
        elif self.law == "inkling":
            factor = log_temperature(p, self.weight, length)
        else:
            beyond = torch.floor((p + (self.law == "llama4")) / length).clamp(min=0)
            factor = 1 + self.weight * torch.log1p(beyond)
        return (factor.to(dtype),)

    def rotate_q(self, q: Tensor, placed: Placed) -> Tensor:
        """Return scaled queries, rounded once."""
        check_tokens(self.name, q, q.shape[-1], placed.parts[0].shape)
        return (q * self._factor(placed)).to(q.dtype)

    def _factor(self, placed: Placed) -> Tensor:
        factor: Tensor = placed.parts[0]
        return factor[..., None, :, None]

    def _unrotate(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed) -> tuple[Tensor, Tensor]:
        return (q / self._factor(placed)).to(q.dtype), k


def log_temperature(pos: Pos, weight: float, length: int) -> Tensor:
    """Return 1 + weight ln max((p + 1) / length, 1) in float64: Inkling's law, for queries and for its bias."""
    return 1 + weight * ((pos.double() + 1) / length).clamp(min=1).log()
