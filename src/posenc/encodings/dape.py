"""DAPE: a bias that a small network adapts to the scores."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from posenc import registry
from posenc.encoding import Encoding, Placed, Pos
from posenc.families import Bias, ScoreMap, no_autocast
from posenc.mapped import as_before
from posenc.registry import register


@register(
    "dape",
    paper="Zheng et al., DAPE: Data-Adaptive Positional Encoding for Length Extrapolation",
    year=2024,
    arxiv="2405.14722",
    formula="A + B + f([A; B]),  f = W2·leaky_relu(W1·[A; B] + b1) + b2 over the heads of one pair of tokens",
    parameters="3·H·width + width + H + 2·H",
    cost="the bias, and a network of 3·H·width products for each pair of tokens",
    serves=("text", "long"),
    example={"n_heads": 4, "width": 8},
    variants=({"encoding": "alibi"},),
    traits={
        "distinct": {"float32": 65_536, "bfloat16": 97, "float16": 476},
        "longest": None,
        "real_positions": True,
        "smooth": True,
        "bounded": False,
        "shift_invariant": True,
        "symmetric": True,
        "recency": False,
        "linear_shift": None,
        "length_dependent": False,
        "learned": 116,
        "cost": "score",
    },
)
class DAPE(ScoreMap):
    """Add a bias to the scores, and a correction that a small network computes from both.

    For each pair of tokens the network reads the scores A and the biases B of all heads. B comes from the inner
    encoding. It joins the scores here and not through `bias`, so A does not include it. Source: Zheng 2024, section
    3.2 and appendix (code).

    Args:
        n_heads: Number of query heads.
        width: Units of the network's hidden layer; 32 in the paper.
        encoding: The encoding that gives B: a name, constructed with n_heads, or an encoding of the `Bias` family.

    Raises:
        ValueError: n_heads or width is below 1, or the encoding or the scores have another number of heads.
        TypeError: The encoding is not a `Bias`.

    >>> dape = DAPE(n_heads=2, encoding="alibi")
    >>> with torch.no_grad(): _ = dape.w2.zero_(), dape.b2.fill_(7.0)
    >>> q, p = torch.zeros(1, 2, 1, 4), dape.place(torch.tensor([3]))
    >>> dape.rescore(torch.ones(1, 2, 1, 1), q, q, p, dape.place(torch.tensor([0])), None).flatten().tolist()
    [7.8125, 7.98828125]
    """

    def __init__(self, *, n_heads: int, width: int = 32, encoding: str | Encoding = "kerple") -> None:
        super().__init__()
        self._count(n_heads=n_heads, width=width)
        self.n_heads, self.width = n_heads, width
        self._named = encoding if isinstance(encoding, str) else None
        self.encoding = self._fitting(self._make(encoding))
        self.n_axes, self.accepts_real = self.encoding.n_axes, self.encoding.accepts_real
        self.reads_x = self.encoding.reads_x
        self.w1, self.b1 = nn.Parameter(torch.empty(width, 2 * n_heads)), nn.Parameter(torch.empty(width))
        self.w2, self.b2 = nn.Parameter(torch.empty(n_heads, width)), nn.Parameter(torch.empty(n_heads))
        self._draw()

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Place the positions for the bias."""
        return (self.encoding.place(pos, x, past=past.parts[0] if past else None, dtype=dtype),)

    def rescore(
        self,
        scores: Float[Tensor, "batch n_heads q_len k_len"],
        q: Float[Tensor, "batch n_heads q_len head_dim"],
        k: Float[Tensor, "batch n_kv_heads k_len head_dim"],
        placed: Placed,
        k_placed: Placed,
        mask: Bool[Tensor, "..."] | None,
    ) -> Float[Tensor, "batch n_heads q_len k_len"]:
        """Return A + B + f([A; B])."""
        if scores.shape[1] != self.n_heads:
            raise ValueError(
                f"{self.name}: made for n_heads={self.n_heads}; got scores of {scores.shape[1]} heads. "
                f"Construct it with n_heads={scores.shape[1]}."
            )
        w1, b1, w2, b2 = (p.to(scores.dtype) for p in (self.w1, self.b1, self.w2, self.b2))
        with no_autocast(scores.device):  # half precision would round scores before the softmax
            bias = self.encoding.bias(q, k, placed.parts[0], k_placed.parts[0]).to(scores.dtype)
            both = torch.cat((scores, bias.expand_as(scores)), 1).movedim(1, -1)
            adapted = F.linear(F.leaky_relu(F.linear(both, w1, b1)), w2, b2)
            return scores + bias + adapted.movedim(-1, 1)

    def resolve(self, seq_len: int) -> Encoding:
        """Resolve the bias if it depends on the length."""
        resolved = self.encoding.resolve(seq_len)
        if resolved is self.encoding:
            return self
        twin = DAPE(n_heads=self.n_heads, width=self.width, encoding=resolved)
        twin.w1, twin.b1, twin.w2, twin.b2 = self.w1, self.b1, self.w2, self.b2
        return as_before(twin, self)

    def reset_parameters(self) -> None:
        """Draw the network as the authors' code does, uniform within ±1/√fan_in; reset the bias too."""
        self._draw()
        self.encoding.reset_parameters()

    def options(self) -> dict[str, Any]:
        """Return the constructor's arguments; the bias as the user gave it."""
        return super().options() | ({} if self._named is None else {"encoding": self._named})

    def _draw(self) -> None:
        for parameter, fan_in in ((self.w1, 2 * self.n_heads), (self.b1, 2 * self.n_heads)):
            nn.init.uniform_(parameter, -(fan_in**-0.5), fan_in**-0.5)
        for parameter in (self.w2, self.b2):
            nn.init.uniform_(parameter, -(self.width**-0.5), self.width**-0.5)

    def _make(self, encoding: Any) -> Any:
        """Construct a bias from its name; leave anything else for the check in `_fitting`."""
        if not isinstance(encoding, str):
            return encoding
        try:
            return registry.create(encoding, dims=registry.Dims(n_heads=self.n_heads))
        except TypeError as error:
            raise TypeError(
                f"{self.name}: a bias given by name is constructed with only n_heads={self.n_heads}; got "
                f"encoding={encoding!r}. {error} Pass a constructed encoding instead."
            ) from error

    def _fitting(self, member: Any) -> Bias:
        if not isinstance(member, Bias):
            raise TypeError(
                f"{self.name}: needs a bias, which depends only on positions; got encoding={member!r}. "
                "Pass the name of a bias, or a `Bias`."
            )
        if member.n_heads != self.n_heads:
            raise ValueError(
                f"{self.name}: the bias must have as many heads as the network; got n_heads={self.n_heads} and "
                f"{member.name} with n_heads={member.n_heads}. Construct it with n_heads={self.n_heads}."
            )
        return member
