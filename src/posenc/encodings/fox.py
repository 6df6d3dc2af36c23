"""FoX: a forget gate at each token lowers the scores of all keys before it."""

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
    """Add the logarithms of the forget gates between key and query; the gates read the tokens.

    A gate is σ(w·x + b). The term is F_i - F_j, where F is the running sum of the gates' logarithms. The sum follows
    the order of the sequence, as causal masks do; positions are ignored. So a packed document needs no special care,
    since F_i and F_j both contain the sum before it. A cache needs none either: `past` carries the last sum. For keys
    ahead the term is the same difference, which is positive; the paper is causal.

    Sums are computed in float64 and stored as a float32 and its rounding remainder, so differences between near tokens
    are exact at the end of a long text too. A token that is not finite counts as one that forgets nothing: padding may
    hold NaN, which a running sum would carry to all later tokens. A real token with NaN still spoils its own query and
    key. Source: Lin 2025, section 3.

    Args:
        d_model: Width of the tokens that the gates read: the input of the attention layer.
        n_heads: Number of query heads, each with its own gate.

    Raises:
        ValueError: The tokens' shape does not match the positions and d_model.
        TypeError: `place` gets no tokens.

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
        """Return the running sums (batch, seq_len, n_heads), and the remainder of rounding them to `dtype`."""
        assert x is not None  # place() has checked it
        tokens, real = self.clear(x, dtype)
        with no_autocast(x.device):
            gate = F.logsigmoid(tokens @ self.weight.to(dtype).T + self.b.to(dtype))
        widest = torch.float64 if has_float64(x.device) else dtype
        total = gate.masked_fill(~real, 0.0).to(widest).cumsum(1)
        if past is not None and past.pos.numel():
            total = total + _exact(past.last(1), widest)
        kept = total.to(dtype)
        return kept, (total.detach() - kept.detach()).to(dtype)  # gradients flow through the first only

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        """Return F_q - F_k for head `h`; large sums cancel before their remainders are added."""
        return (q[0] - k[0]) + (q[1] - k[1])  # type: ignore[no-any-return]

    def reset_parameters(self) -> None:
        """Draw the weights from N(0, 0.02) and start the gates at one half, as the authors' code does."""
        nn.init.normal_(self.weight, std=0.02)
        nn.init.zeros_(self.b)


def _exact(placed: Placed, dtype: torch.dtype) -> Tensor:
    """Return the running sums plus their rounding remainders."""
    kept, left = placed.parts
    return kept.to(dtype) + left.to(dtype)  # type: ignore[no-any-return]
