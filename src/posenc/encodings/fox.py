"""FoX: each token forgets some of all that came before it."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.encoding import Placed, Pos
from posenc.families import Bias, ReadsTokens, no_autocast
from posenc.positions.checks import has_float64
from posenc.registry import register


@register(
    "fox",
    paper="Lin et al., Forgetting Transformer: Softmax Attention with a Forget Gate",
    year=2025,
    arxiv="2503.02130",
    formula="score + Σ_{t=j+1..i} log σ(w_h·x_t + b_h)",
    parameters="H·(D + 1)",
    cost="a product of width D for each token and head, and one term a score",
    aliases=("forgetting", "forget_gate"),
    used_by=("FoX",),
    serves=("text", "long"),
    example={"d_model": 16, "n_heads": 4},
    traits={
        "distinct": {"float32": 65_536, "bfloat16": 276, "float16": 1_647},
        "longest": None,
        "real_positions": False,
        "smooth": True,
        "bounded": False,
        "shift_invariant": True,
        "symmetric": False,
        "recency": True,
        "linear_shift": None,
        "length_dependent": False,
        "learned": 68,
        "cost": "score",
    },
)
class FoX(ReadsTokens, Bias):
    """Subtract what the tokens between key and query have forgotten, by gates that read them.

    A gate is σ(w·x + b), and the term is F_i - F_j, F the running sum of their logarithms. The sum runs in the order
    of the sequence, as causal masks do, not in that of the positions: these are not looked at. So a packed document
    needs nothing, since what was forgotten before it is in both F_i and F_j; nor does a cache, whose last sum `past`
    carries. For keys ahead the term is the same difference, which rises; the paper is causal.

    Sums are formed in float64 and kept as a float32 and what its rounding left, so that differences between near
    tokens are right at the end of a long text too. A token that is not finite counts as one that forgets nothing:
    padding may hold NaN, which a running sum would carry into all that follows; a real token of that kind spoils
    its own query and key all the same. Source: Lin 2025, section 3.

    Args:
        d_model: Width of the tokens that the gates read: the input of the attention layer.
        n_heads: Heads of the queries, each with its own gate.

    Raises:
        ValueError: Tokens of another shape than positions and d_model say.
        TypeError: Placing without tokens.

    >>> fox = FoX(d_model=2, n_heads=1)
    >>> with torch.no_grad(): _ = fox.weight.zero_()  # each gate lets a half pass
    >>> placed = fox.place(torch.arange(3), torch.ones(1, 3, 2))
    >>> fox.bias(torch.ones(1, 1, 3, 4), torch.ones(1, 1, 3, 4), placed, placed)[0, 0, 2].exp()
    tensor([0.2500, 0.5000, 1.0000], grad_fn=<ExpBackward0>)
    """

    accepts_real = False

    def __init__(self, *, d_model: int, n_heads: int) -> None:
        super().__init__(n_heads=n_heads)
        self._count(d_model=d_model)
        self.d_model = d_model
        self.weight = nn.Parameter(torch.empty(n_heads, d_model))
        self.b = nn.Parameter(torch.empty(n_heads))
        self.reset_parameters()

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return the running sums (batch, seq_len, n_heads), and what their rounding to `dtype` left."""
        assert x is not None  # place() has looked
        real = x.isfinite().all(-1, keepdim=True)
        with no_autocast(x.device):
            tokens = x.masked_fill(~real, 0.0).to(dtype)  # before the product, whose gradient would be NaN
            gate = F.logsigmoid(tokens @ self.weight.to(dtype).T + self.b.to(dtype))
        widest = torch.float64 if has_float64(x.device) else dtype
        total = gate.masked_fill(~real, 0.0).to(widest).cumsum(1)
        if past is not None and past.pos.numel():
            total = total + _whole(past.last(1), widest)
        kept = total.to(dtype)
        return kept, (total.detach() - kept.detach()).to(dtype)  # the gradient is that of the first

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        """Return F_q - F_k, given those of head `h`; large sums cancel before their small parts are added."""
        return (q[0] - k[0]) + (q[1] - k[1])  # type: ignore[no-any-return]

    def reset_parameters(self) -> None:
        """Draw the weights from N(0, 0.02) and let gates begin at one half, as the authors' code does."""
        nn.init.normal_(self.weight, std=0.02)
        nn.init.zeros_(self.b)


def _whole(placed: Placed, dtype: torch.dtype) -> Tensor:
    """Return the running sums with what rounding left of them."""
    kept, left = placed.parts
    return kept.to(dtype) + left.to(dtype)  # type: ignore[no-any-return]
