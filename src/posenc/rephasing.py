"""Rotate cached keys to other frequencies or other positions, exactly."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from posenc import kernels
from posenc.encoding import Placed, Pos
from posenc.families import Rotary, check_tokens
from posenc.families.angles import tabulate


def rephase(
    k: Float[Tensor, "batch heads seq head_dim"], pos: Pos, old: Rotary, new: Rotary
) -> Float[Tensor, "batch heads seq head_dim"]:
    """Return keys that `old` has rotated, as if `new` had rotated them.

    Use it when frequencies change while a cache is kept (dynamic NTK, LongRoPE, an extended context). Each pair is
    rotated by the difference of the two angles and multiplied by the ratio of the gains, in one pass that rounds once.
    It works for queries, too.

    Args:
        k: Keys (batch, n_kv_heads, k_len, head_dim), rotated by `old`.
        pos: Their positions, as passed to `old.place`.
        old: The encoding that rotated them.
        new: The encoding for the result.

    Raises:
        TypeError: One of the two is not a `Rotary`.
        ValueError: The two differ in the dimensions that rotate, their pairing or their axes, or an encoding scales
            dimensions by position (xPos) or differs between heads.

    >>> from posenc.encodings import RoPE
    >>> old, new, pos = RoPE(head_dim=4), RoPE(head_dim=4, base=100.0), torch.tensor([7])
    >>> k = torch.ones(1, 1, 1, 4)
    >>> cached, wanted = (rope.rotate_k(k, rope.place(pos)) for rope in (old, new))
    >>> torch.allclose(rephase(cached, pos, old, new), wanted)
    True
    """
    for encoding in (old, new):
        if not isinstance(encoding, Rotary):
            raise TypeError(
                f"rephase: old and new must be encodings that rotate pairs of dimensions (Rotary); got {encoding!r}. "
                "Compute the keys again."
            )
    exact = old._check(pos, torch.float32)
    _compare(old, new, exact)
    check_tokens("rephase", k, old.head_dim, exact.shape if old.n_axes == 1 else exact.shape[:-1])
    change = new.frequencies() - old.frequencies()
    dtype = torch.float64 if k.dtype == torch.float64 else torch.float32
    cos, sin = (t.unsqueeze(-3) for t in tabulate(exact, change, dtype=dtype, gain=new.gain() / old.gain()))
    return kernels.rotate(k, cos, sin, pairing=old.pairing, side=old.rotary_side)


def move_keys(
    k: Float[Tensor, "batch heads seq head_dim"],
    pos: Pos | Placed,
    new_pos: Shaped[Tensor, "*new_pos"] | Placed,
    encoding: Rotary,
) -> Float[Tensor, "batch heads seq head_dim"]:
    """Return keys that `encoding` has rotated at `pos`, as if it had rotated them at `new_pos`.

    Use it when cached tokens move: after an eviction, in a window after attention sinks, or when a cached text is put
    after another. Each pair is rotated by the difference of the positions, in one pass that rounds once. The gain
    (YaRN's attention factor) is in the keys already and is not applied again; scales that depend on the position (xPos)
    change by their ratio. Angles are as exact as those of `place`, also at large positions. Repeated moves in half
    precision add up rounding errors: move keys many positions at a time, or keep unrotated keys.

    Args:
        k: Keys (batch, n_kv_heads, k_len, head_dim), rotated by `encoding`.
        pos: Their positions, as passed to `place` or as it returned them.
        new_pos: Their new positions.
        encoding: The encoding that rotated them.

    Raises:
        TypeError: The encoding is not a `Rotary`.
        ValueError: The encoding does more to keys than rotate them (FoPE), or shapes do not match.

    >>> from posenc.encodings import RoPE
    >>> rope, k = RoPE(head_dim=4, attention_factor=1.5), torch.ones(1, 1, 1, 4)
    >>> old, new = (rope.rotate_k(k, rope.place(torch.tensor([p]))) for p in (1000, 7))
    >>> torch.allclose(move_keys(old, torch.tensor([1000]), torch.tensor([7]), rope), new)
    True
    """
    if not isinstance(encoding, Rotary):
        raise TypeError(
            f"move_keys: encoding must rotate pairs of dimensions (Rotary); got {encoding!r}. Pass the member of a "
            "Compose that rotates, or compute the keys again."
        )
    cls = type(encoding)
    if (cls.parts, cls.rotate_k) != (Rotary.parts, Rotary.rotate_k):
        raise ValueError(
            f"move_keys: {encoding.name} does more to keys than rotate them, so a rotation cannot move them to another "
            f"position; got {encoding!r}. Compute the keys again."
        )
    before, after = (encoding._check(p.pos if isinstance(p, Placed) else p, torch.float32) for p in (pos, new_pos))
    along = -1 if encoding.n_axes == 1 else -2
    if before.shape[along] != after.shape[along]:
        raise ValueError(
            f"move_keys: each key needs one old and one new position; got {before.shape[along]} in pos and "
            f"{after.shape[along]} in new_pos. Remove evicted tokens from k and pos first."
        )
    dtype = torch.float64 if k.dtype == torch.float64 else torch.float32
    tables = encoding._of_angles(after - before, dtype, 1.0)
    if cls.amplitude is not Rotary.amplitude:
        had, gets = encoding.amplitude(before.double()), encoding.amplitude(after.double())
        if had is not None and gets is not None:  # keys are divided by it
            tables = tuple(t * (had / gets).to(dtype) for t in tables)
    return encoding._rotate(k, tables)


def _compare(old: Rotary, new: Rotary, exact: Tensor) -> None:
    """Check that the two encodings differ only in frequencies and gain."""
    for fact in ("head_dim", "rotary_dim", "rotary_side", "pairing", "n_axes"):
        before, after = getattr(old, fact), getattr(new, fact)
        if before != after:
            raise ValueError(
                f"rephase: old and new must rotate the same pairs of dimensions; got {fact}={before!r} in the old "
                f"{old.name} and {after!r} in the new {new.name}. Compute the keys again."
            )
    for encoding in (old, new):
        if encoding.n_kv_heads is not None or encoding.amplitude(exact.double()) is not None:
            raise ValueError(
                f"rephase: {encoding.name} scales dimensions by position or rotates heads differently, which one "
                f"rotation for all heads cannot undo; got {old.name} and {new.name}. Compute the keys again."
            )
