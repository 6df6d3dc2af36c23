"""Su's Taylor view of position: how much of the effect of positions each term of f(x + p) explains, to second order."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Integral

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from torch.func import grad, vjp
from torch.nn.attention import SDPBackend, sdpa_kernel

from posenc.config.values import short

Array = np.ndarray
Function = Callable[[Tensor], Tensor]  # token vectors (seq, d_model) to a scalar
# Steps for comparing a second derivative with a difference of first ones, the most suitable first: if one step meets a
# kink of ReLU, or rounding, another one does not.
_STEPS = (1e-4, 1e-5, 1e-6, 1e-7, 1e-3)
_AGREES = 1e-3
_REMEDY = (
    "Write it with operations that torch differentiates twice: softplus or GELU for ReLU, plain products and softmax "
    'for a fused attention kernel, posenc.attend(..., backend="reference") for another backend'
)


@dataclass(frozen=True)
class TaylorTerms:
    """The terms of f(x + p) to second order.

    Args:
        rows: The displaced tokens, (n,).
        constant: f(x).
        displaced: f(x + p).
        slopes: p_m · ∇_m f, the first-order effect of each displacement, (n,).
        curvatures: p_m · H_mm p_m / 2, the second-order effect of each displacement, (n,).
        interaction: p_m · H_mn p_n, (n, n), zero on the diagonal: the only term that depends on two positions. It is
            symmetric, and each pair of tokens counts once in the expansion.
    """

    rows: Int64[Array, " n"]
    constant: float
    displaced: float
    slopes: Float64[Array, " n"] = field(repr=False)
    curvatures: Float64[Array, " n"] = field(repr=False)
    interaction: Float64[Array, "n n"] = field(repr=False)

    @property
    def change(self) -> float:
        """The effect of all displacements together, f(x + p) - f(x)."""
        return self.displaced - self.constant

    @property
    def totals(self) -> dict[str, float]:
        """The sums of "slope", "curvature" and "interaction", and the "remainder" of third order and above."""
        terms = {"slope": self.slopes, "curvature": self.curvatures, "interaction": self.interaction / 2}
        sums = {name: float(term.sum()) for name, term in terms.items()}
        return sums | {"remainder": self.change - sum(sums.values())}

    @property
    def shares(self) -> dict[str, float]:
        """The share of the change that each term explains; they add up to 1, may be negative, NaN without a change."""
        return {name: total / self.change if self.change else float("nan") for name, total in self.totals.items()}


def taylor_terms(function: Function, x: Tensor, p: Tensor, *, rows: Sequence[int] | None = None) -> TaylorTerms:
    """Measure the terms of f(x + p) to second order in p, each by a product of the Hessian with one displacement.

    A model without other position information depends on p only through such terms. Terms of one token depend on its
    own position; p_m · H_mn p_n is the first that depends on two, so relative position must come from it. H is used
    only in products, one for each token, which need no more memory than a backward pass.

    Args:
        function: Maps token vectors (seq, d_model) to one number, such as a logit or a loss, with the model in
            evaluation mode. torch.func differentiates it twice, with torch's own attention kernels replaced by plain
            products. The kinks of ReLU do not appear in second derivatives, so their effect is in the remainder.
        x: Token vectors without position, (seq, d_model), float32 or float64. In float64 the second derivative is
            also compared with differences of the first one.
        p: The added position vectors, of the same shape.
        rows: The tokens that are displaced; all if left out.

    Raises:
        ValueError: The function does not return a finite scalar, returns another value when called again, does not
            depend on x or on one of `rows`, or torch finds no second derivative.

    Source: Su 2021, "Transformer升级之路: 1、Sinusoidal位置编码追根溯源", kexue.fm/archives/8231.

    >>> import torch
    >>> x, p = torch.zeros(2, 1).double(), torch.tensor([[2.0], [3.0]]).double()
    >>> found = taylor_terms(lambda z: 5 + z[0, 0] + z[0, 0] * z[1, 0] + z[1, 0] ** 2, x, p)
    >>> found.constant, found.totals
    (5.0, {'slope': 2.0, 'curvature': 9.0, 'interaction': 6.0, 'remainder': 0.0})
    """
    who = "taylor_terms"
    _check_tokens(who, x, p)
    x, p = x.detach(), p.detach()
    chosen = _rows(who, rows, len(x))
    moved = torch.zeros_like(p).index_copy_(0, torch.tensor(chosen, device=p.device), p[chosen])
    along = []
    with sdpa_kernel(SDPBackend.MATH):
        before, after = (_number(who, function, z) for z in (x, x + moved))
        slope, products = _second(who, function, x, moved)
        for m in chosen:
            one = torch.zeros_like(p)
            one[m] = p[m]
            bent = products(one)
            if rows is not None and one.any():
                _check_depends(who, function, x + one, m, x[m], slope[m], bent)
            along.append((bent * moved).sum(-1)[chosen])
    pairs = torch.stack(along).cpu().double().numpy()
    slopes = (slope * p).sum(-1)[chosen].cpu().double().numpy()
    between = (pairs + pairs.T) / 2  # only rounding makes them differ
    np.fill_diagonal(between, 0.0)
    return TaylorTerms(np.array(chosen, np.int64), before, after, slopes, np.diag(pairs) / 2, between)


def interaction_block(function: Function, x: Tensor, m: int, n: int) -> Float64[Array, "d_model d_model"]:
    """Return H_mn, the second derivative of f by token m (rows) and token n (columns), (d_model, d_model).

    It takes one product with the Hessian for each dimension. `diagonal_share` measures how diagonal it is, which
    decides how much p_m · H p_n depends on m - n (`relative_parts`). Function, x and errors are as in `taylor_terms`.

    >>> import torch
    >>> interaction_block(lambda z: (z[0] * z[1]).sum() + z[0, 0] * z[1, 1], torch.ones(2, 2).double(), 0, 1)
    array([[1., 1.],
           [0., 1.]])
    """
    who = "interaction_block"
    _check_tokens(who, x, x)
    x = x.detach()
    _rows(who, list({m, n}), len(x))
    d_model = x.shape[1]
    moved = torch.zeros_like(x)
    moved[[m, n]] = (torch.arange(1.0, d_model + 1, dtype=torch.float64) ** 2).sin().to(x)  # no dimension is 0
    units = torch.zeros(d_model, *x.shape, dtype=x.dtype, device=x.device)
    units[range(d_model), m, range(d_model)] = 1.0
    with sdpa_kernel(SDPBackend.MATH):
        _number(who, function, x)
        slope, products = _second(who, function, x, moved)
        bent = torch.stack([products(unit) for unit in units])
        for row in (m, n):
            _check_depends(who, function, x + moved, row, x[row], slope[row], bent if row == m else bent[:, row])
    return bent[:, n].cpu().double().numpy()


def _rows(who: str, rows: Sequence[int] | None, n: int) -> list[int]:
    """Return the indices of the chosen tokens."""
    found = list(range(n)) if rows is None else list(rows)
    if any(isinstance(row, bool) or not isinstance(row, Integral) for row in found):
        raise TypeError(f"{who}: tokens must be integers, counted from 0; got {short(found)}.")
    if not found or len(set(found)) < len(found) or not 0 <= min(found) <= max(found) < n:
        raise ValueError(f"{who}: tokens must be from 0 to {n - 1}, at least one and each once; got {short(found)}.")
    return [int(row) for row in found]


def _check_tokens(who: str, x: Tensor, p: Tensor) -> None:
    """Raise unless both are finite token vectors (seq, d_model) in float32 or float64."""
    for name, t in (("x", x), ("p", p)):
        kind = getattr(t, "dtype", type(t).__name__)
        if not isinstance(t, Tensor) or not t.is_floating_point():
            raise TypeError(f"{who}: {name} must be a floating tensor (seq, d_model); got {kind}.")
        if t.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"{who}: {name} must be float64, or float32; got {t.dtype}. Cast model and tokens.")
        if not t.isfinite().all():
            raise ValueError(f"{who}: {name} must be finite; got NaN or infinity.")
    if x.ndim != 2 or x.numel() == 0 or p.shape != x.shape or p.dtype != x.dtype:
        raise ValueError(
            f"{who}: x and p must both be (seq, d_model) in one dtype; got {x.dtype} {tuple(x.shape)} and {p.dtype} "
            f"{tuple(p.shape)}. Pass one text at a time; the function may add a batch of one."
        )


@torch.no_grad()
def _number(who: str, function: Function, x: Tensor) -> float:
    """Return a function's value at x; raise if it is not a finite scalar, or differs when called again."""
    value: object = function(x)
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.is_floating_point():
        kind = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(
            f"{who}: the function must return one real number as a tensor; got {kind}. Pick one logit, or a loss."
        )
    first, again = float(value), float(function(x))
    if not math.isfinite(first):
        raise ValueError(f"{who}: the function must be finite; got {first}.")
    if abs(first - again) > 1e-4 * max(abs(first), abs(again)):
        raise ValueError(
            f"{who}: the function must return the same value when called again; got {first:.6g} and {again:.6g}. Turn "
            "dropout off with model.eval()."
        )
    return first


def _check_depends(who: str, function: Function, moved: Tensor, row: int, back: Tensor, *found: Tensor) -> None:
    """Raise if all derivatives by a token are zero, and moving that token back changes nothing either."""
    without = moved.clone()
    without[row] = back
    if not any(t.any() for t in found) and _number(who, function, without) == _number(who, function, moved):
        raise ValueError(
            f"{who}: the function does not depend on token {row}, perhaps because of a mask. Leave it out."
        )


def _second(who: str, function: Function, x: Tensor, direction: Tensor) -> tuple[Tensor, Function]:
    """Return the gradient at x, and a function for products with the Hessian, checked along one direction."""
    slope_at = grad(lambda z: function(z).reshape(()))
    try:
        slope, back = vjp(slope_at, x)[:2]
        slope, bent = slope.detach(), back(direction)[0].detach()
    except (RuntimeError, NotImplementedError) as error:
        reason = short(str(error).splitlines()[0] if str(error) else type(error).__name__)
        raise ValueError(f"{who}: the function has no second derivative in torch ({reason}). {_REMEDY}.") from error
    if not (slope.isfinite().all() and bent.isfinite().all()):
        raise ValueError(f"{who}: the function's derivatives at x are not finite. Choose another x.")
    if not bent.any():
        _check_flat(who, x, direction, slope, slope_at)
    elif x.dtype == torch.float64 and not _agrees(slope_at, x, direction, bent):
        raise ValueError(
            f"{who}: the function's second derivative differs from the change of its first one, because of a "
            f"hand-written backward pass or a kink exactly at x. {_REMEDY}."
        )
    return slope, lambda v: back(v)[0].detach()


def _check_flat(who: str, x: Tensor, p: Tensor, slope: Tensor, slope_at: Function) -> None:
    """Raise if the second derivative is zero although the function is not linear along p."""
    far = 2 * max(float(x.abs().max()), 1.0) / max(float(p.abs().max()), 1e-30)
    elsewhere = torch.stack([slope_at(x + step * p).detach() for step in (1.0, -1.0, far, -far)])
    if not slope.any() and not elsewhere.any():
        raise ValueError(
            f"{who}: the function has no gradient, neither at x nor around it: it does not depend on x, or cuts "
            "the graph by detach(), no_grad() or argmax. Compute it from its argument only."
        )
    if not torch.allclose(elsewhere, slope.expand_as(elsewhere), rtol=1e-4, atol=1e-6 * float(slope.abs().max())):
        raise ValueError(
            f"{who}: the function's second derivative is zero at x although its gradient changes elsewhere, as in a "
            f"network with only ReLU, which is piecewise linear. {_REMEDY}."
        )


def _agrees(slope_at: Function, x: Tensor, direction: Tensor, bent: Tensor) -> bool:
    """Return whether the change of the gradient along a direction agrees with the Hessian."""
    unit = max(float(x.abs().max()), 1.0) / float(direction.abs().max())
    for h in (step * unit for step in _STEPS):
        there, here = slope_at(x + h * direction).detach(), slope_at(x - h * direction).detach()
        noise = 1e-13 * float(there.norm()) / h
        if float(((there - here) / (2 * h) - bent).norm()) <= _AGREES * float(bent.norm()) + noise:
            return True
    return False
