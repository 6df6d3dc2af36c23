"""Cached keys under other frequencies: turned on from where they stand, exactly."""

import torch
from jaxtyping import Float
from torch import Tensor

from posenc import kernels
from posenc.encoding import Pos
from posenc.families import Rotary, check_heads, check_lanes
from posenc.families.angles import tabulate


def rephase(
    k: Float[Tensor, "batch heads seq head_dim"], pos: Pos, old: Rotary, new: Rotary
) -> Float[Tensor, "batch heads seq head_dim"]:
    """Return keys that `old` has turned as if `new` had turned them.

    For encodings whose frequencies change while a cache is held (dynamic NTK, LongRoPE, a context that is
    extended): each pair is turned by the difference of the two angles, and by the ratio of the gains, in one pass
    that rounds once. Queries can be treated alike.

    Args:
        k: Keys (batch, n_kv_heads, k_len, head_dim), turned by `old`.
        pos: Their positions, as they were given to `old.place`.
        old: What turned them.
        new: What shall have turned them.

    Raises:
        TypeError: One of the two is no `Rotary`.
        ValueError: The two turn other lanes, pair them otherwise, work on other axes, or change lane sizes by
            position (xPos).

    >>> from posenc.encodings import RoPE
    >>> old, new, pos = RoPE(head_dim=4), RoPE(head_dim=4, base=100.0), torch.tensor([7])
    >>> k = torch.ones(1, 1, 1, 4)
    >>> turned, wanted = (rope.rotate_k(k, rope.place(pos)) for rope in (old, new))
    >>> torch.allclose(rephase(turned, pos, old, new), wanted)
    True
    """
    for encoding in (old, new):
        if not isinstance(encoding, Rotary):
            raise TypeError(
                f"rephase: old and new must be encodings that turn pairs of lanes (Rotary); got {encoding!r}. "
                "Compute the keys anew."
            )
    exact = old._check(pos, torch.float32)
    _compare(old, new, exact)
    check_lanes("rephase", k, old.head_dim)
    check_heads("rephase", k, exact.shape if old.n_axes == 1 else exact.shape[:-1])
    change = new.frequencies() - old.frequencies()
    dtype = torch.float64 if k.dtype == torch.float64 else torch.float32
    cos, sin = (t.unsqueeze(-3) for t in tabulate(exact, change, dtype=dtype, gain=new.gain() / old.gain()))
    return kernels.turn(k, cos, sin, pairing=old.pairing, side=old.rotary_side)


def _compare(old: Rotary, new: Rotary, exact: Tensor) -> None:
    """Raise unless the two differ in frequencies and gain alone."""
    for fact in ("head_dim", "rotary_dim", "rotary_side", "pairing", "n_axes"):
        before, after = getattr(old, fact), getattr(new, fact)
        if before != after:
            raise ValueError(
                f"rephase: keys can be turned on only where the same pairs of lanes turn; {fact} is {before!r} in the "
                f"old {old.name} and {after!r} in the new {new.name}. Compute the keys anew."
            )
    for encoding in (old, new):
        if encoding.n_kv_heads is not None or encoding.amplitude(exact.double()) is not None:
            raise ValueError(
                f"rephase: {encoding.name} changes the size of lanes by position, or turns each head otherwise, and "
                f"one turn for all undoes neither; got {old.name} and {new.name}. Compute the keys anew."
            )
