"""Su's Taylor view of position: which terms of f(x + p) to second order explain what positions do to a model."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from posenc.config.values import short
from posenc.measure.hessian import Function, check_depends, check_tokens, number, second

__all__ = ["TaylorTerms", "interaction_block", "taylor_terms"]

Array = np.ndarray


@dataclass(frozen=True)
class TaylorTerms:
    """The terms of f(x + p) to second order.

    Args:
        rows: Which tokens were displaced, (n,).
        constant: f(x).
        displaced: f(x + p).
        slopes: p_m · ∇_m f, what each displacement does by itself to first order, (n,).
        curvatures: p_m · H_mm p_m / 2, the same to second order, (n,).
        interaction: p_m · H_mn p_n, (n, n), zero on the diagonal: the only term that sees two positions. It is
            symmetric, and each pair of tokens counts once in the expansion.

    `change` is f(x + p) - f(x), `totals` what each kind of term adds to it, and `shares` the same divided by it.
    """

    rows: Int64[Array, " n"]
    constant: float
    displaced: float
    slopes: Float64[Array, " n"] = field(repr=False)
    curvatures: Float64[Array, " n"] = field(repr=False)
    interaction: Float64[Array, "n n"] = field(repr=False)

    @property
    def change(self) -> float:
        """What the displacements do to f all together."""
        return self.displaced - self.constant

    @property
    def totals(self) -> dict[str, float]:
        """The sums of "slope", "curvature" and "interaction", and "remainder", what is of third order and above."""
        terms = {"slope": self.slopes, "curvature": self.curvatures, "interaction": self.interaction / 2}
        sums = {name: float(term.sum()) for name, term in terms.items()}
        return sums | {"remainder": self.change - sum(sums.values())}

    @property
    def shares(self) -> dict[str, float]:
        """How much of the change each explains; they add up to 1, one may be negative. NaN where nothing changes."""
        return {name: total / self.change if self.change else float("nan") for name, total in self.totals.items()}


def taylor_terms(function: Function, x: Tensor, p: Tensor, *, rows: Sequence[int] | None = None) -> TaylorTerms:
    """Measure the terms of f(x + p) to second order in p, each by a product of the Hessian with one displacement.

    Without position in the tokens a model sees p through these terms alone: those of one token say where it is, and
    p_m · H_mn p_n is the first that sees two, so that all that is relative must come from it. Of H only products are
    formed, one for each token: no more memory than a pass backwards takes.

    Args:
        function: Maps token vectors (seq, d_model) to one number, such as a logit or a loss; a model in evaluation.
            Differentiated twice by torch.func, with torch's own attention kernels replaced by plain products. What
            ReLU bends is in no second derivative, and so in the remainder.
        x: Token vectors without position, (seq, d_model), float32 or float64. In float64 the second derivative is
            also held against differences of the first one.
        p: What position adds to them, of the same shape.
        rows: Tokens that are displaced; all if left out.

    Raises:
        TypeError: x and p are no floating tensors.
        ValueError: Shapes do not fit; the function is no finite scalar, answers otherwise when asked again, does not
            depend on x or on one of `rows`, or has no second derivative that torch finds.

    Source: Su 2021, "Transformer升级之路: 1、Sinusoidal位置编码追根溯源", kexue.fm/archives/8231.

    >>> import torch
    >>> x, p = torch.zeros(2, 1).double(), torch.tensor([[2.0], [3.0]]).double()
    >>> found = taylor_terms(lambda z: 5 + z[0, 0] + z[0, 0] * z[1, 0] + z[1, 0] ** 2, x, p)
    >>> found.constant, found.totals
    (5.0, {'slope': 2.0, 'curvature': 9.0, 'interaction': 6.0, 'remainder': 0.0})
    """
    who = "taylor_terms"
    check_tokens(who, x, p)
    x, p = x.detach(), p.detach()
    chosen = _rows(who, rows, len(x))
    moved = torch.zeros_like(p)
    moved[chosen] = p[chosen]
    with sdpa_kernel(SDPBackend.MATH):
        before, after = (number(who, function, z) for z in (x, x + moved))
        slope, products = second(who, function, x, moved)
        along = []
        for m in chosen:
            one = _alone(moved, m)
            turned = products(one)
            if rows is not None and one.any():
                check_depends(who, function, x + one, m, x[m], slope[m], turned)
            along.append((turned * moved).sum(-1)[chosen])
    pairs = torch.stack(along).cpu().double().numpy()
    own = np.diag(pairs) / 2
    slopes = (slope * p).sum(-1)[chosen].cpu().double().numpy()
    between = (pairs + pairs.T) / 2  # rounding alone tells the two apart
    np.fill_diagonal(between, 0.0)
    return TaylorTerms(np.array(chosen, np.int64), before, after, slopes, own, between)


def interaction_block(function: Function, x: Tensor, m: int, n: int) -> Float64[Array, "d_model d_model"]:
    """Return H_mn, the second derivative of f by token m (rows) and token n (columns), (d_model, d_model).

    One product with the Hessian for each lane; `diagonal_share` says how diagonal it is, which decides what p_m · H p_n
    can say of m - n (`relative_parts`).

    Args:
        function: As in `taylor_terms`.
        x: Token vectors at which it is taken, (seq, d_model).
        m: A token.
        n: Another one, or the same.

    Raises:
        TypeError: x is no floating tensor, or m and n are no integers.
        ValueError: As in `taylor_terms`.

    >>> import torch
    >>> interaction_block(lambda z: (z[0] * z[1]).sum() + z[0, 0] * z[1, 1], torch.ones(2, 2).double(), 0, 1)
    array([[1., 1.],
           [0., 1.]])
    """
    who = "interaction_block"
    check_tokens(who, x, x)
    x = x.detach()
    _rows(who, [m], len(x))
    _rows(who, [n], len(x))
    lanes = torch.arange(1.0, x.shape[1] + 1, dtype=torch.float64)
    moved = torch.zeros_like(x)
    moved[[m, n]] = (lanes**2).sin().to(x)  # no lane still, none like another
    with sdpa_kernel(SDPBackend.MATH):
        number(who, function, x)
        slope, products = second(who, function, x, moved)
        units = torch.zeros(x.shape[1], *x.shape, dtype=x.dtype, device=x.device)
        units[:, m] = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
        turned = torch.stack([products(unit) for unit in units])
        for row in (m, n):
            check_depends(who, function, x + moved, row, x[row], slope[row], turned if row == m else turned[:, row])
    return turned[:, n].cpu().double().numpy()


def _rows(who: str, rows: Sequence[int] | None, n: int) -> list[int]:
    """Return which tokens are meant."""
    found = list(range(n)) if rows is None else list(rows)
    if any(isinstance(row, bool) or not isinstance(row, Integral) for row in found):
        raise TypeError(f"{who}: tokens must be named by integers; got {short(found)}. Count them from 0.")
    if not found or len(set(found)) < len(found) or not 0 <= min(found) <= max(found) < n:
        raise ValueError(f"{who}: tokens must be from 0 to {n - 1}, at least one and each once; got {short(found)}.")
    return [int(row) for row in found]


def _alone(p: Tensor, row: int) -> Tensor:
    """Return what moves one token alone."""
    one = torch.zeros_like(p)
    one[row] = p[row]
    return one
