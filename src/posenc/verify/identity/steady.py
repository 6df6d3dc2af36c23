"""What a rotation must be before anything else can be said of it: the same at each call, and linear in x."""

import numpy as np
import torch

from posenc.verify.identity.matrix import HEADS, Array, at
from posenc.verify.identity.turner import Turner
from posenc.verify.report import Cause

REPEATS = 1e-4  # of the largest lane: what two runs of one call may differ by
LINEAR = 1e-2  # of the largest lane: x may be rounded to half precision on the way


def unsteady(turner: Turner, head_dim: int) -> Cause | None:
    """Tell a call that gives something else the second time, or lanes that are no sum of what goes in.

    Raises:
        SubjectError: A call fails.
    """
    generator = torch.Generator().manual_seed(7)
    x, y = torch.randn(2, 2, HEADS, head_dim, generator=generator)
    return _repeated(turner, x) or _linear(turner.fresh(), x, y)


def _fed(turner: Turner, x: torch.Tensor) -> Array:
    """Return what becomes of queries and keys at a few positions."""
    return np.stack(at(turner, x, torch.tensor([0, 1, 2, 5])))


def _repeated(turner: Turner, x: torch.Tensor) -> Cause | None:
    """Make one call twice on one object, and once on a fresh one."""
    one = turner.fresh()
    first, again, other = _fed(one, x), _fed(one, x), _fed(turner.fresh(), x)
    off, apart = (float(np.abs(t - first).max() / np.abs(first).max(initial=1e-30)) for t in (again, other))
    case = {"positions": [0, 1, 2, 5], "calls": 2}
    if apart > REPEATS:
        message = (
            f"the same call on two copies of the object gives two results, {apart:.2%} of the largest lane apart: "
            "something is drawn at random, or counted from call to call"
        )
        help_ = "Take noise, dropout and counters out: a turn hangs on x and on positions alone."
        return Cause("rope.not_deterministic", message, apart, case, help_)
    if off > REPEATS:
        message = f"the same call gives something else the second time, by up to {off:.2%} of the largest lane"
        help_ = "Keep nothing from call to call that changes what the next one gives."
        return Cause("rope.state_kept", message, off, case, help_)
    return None


def _linear(turner: Turner, x: torch.Tensor, y: torch.Tensor) -> Cause | None:
    """Hold a sum of vectors against the sum of what becomes of them."""
    a, b = 20.0, -30.0  # large, so that a bound on lanes shows
    whole = _fed(turner, a * x + b * y)
    off = float(np.abs(whole - a * _fed(turner, x) - b * _fed(turner, y)).max() / np.abs(whole).max(initial=1e-30))
    if off <= LINEAR:
        return None
    added = float(np.abs(_fed(turner, 0 * x)).max())
    why = f"zeros come back as up to {added:.3g}: something is added" if added > REPEATS else "zeros come back as zeros"
    message = f"f(20 x - 30 y) is not 20 f(x) - 30 f(y), by up to {off:.2%} of the largest lane; {why}"
    help_ = "A turn is linear in x: multiply lanes by cos and sin, and add nothing, cut nothing off, divide by no norm."
    return Cause("rope.not_linear", message, off, {"positions": [0, 1, 2, 5]}, help_)


def rounded_x(turner: Turner, x: torch.Tensor) -> Cause | None:
    """Tell float32 vectors that are rounded to half precision on the way."""
    turned = _fed(turner, x)
    for dtype, code in ((torch.bfloat16, "rope.precision.x_bf16"), (torch.float16, "rope.precision.x_fp16")):
        off = float(np.abs(_fed(turner, x.to(dtype).float()) - turned).max())
        if off < 1e-6:
            message = f"x of float32 and x rounded to {str(dtype)[6:]} come back the same: it is rounded on the way"
            help_ = "Turn x in float32 or finer, and give back the type that came in."
            return Cause(code, message, float((x.to(dtype).float() - x).abs().max()), {"dtype": "float32"}, help_)
    return None
