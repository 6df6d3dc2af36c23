"""Cached keys under other frequencies or at other positions: rotated on from where they stand, exactly."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from posenc import kernels
from posenc.encoding import Placed, Pos
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


def move_keys(
    k: Float[Tensor, "batch heads seq head_dim"],
    pos: Pos | Placed,
    new_pos: Shaped[Tensor, "*new_pos"] | Placed,
    encoding: Rotary,
) -> Float[Tensor, "batch heads seq head_dim"]:
    """Return keys that `encoding` has rotated at `pos` as if it had rotated them at `new_pos`.

    For caches whose tokens change places: after an eviction, in a window behind attention sinks, or where a cached text
    is put behind another. Each pair is rotated by the difference of the positions, in one pass that rounds once. The
    gain (YaRN's attention factor) is in the keys already and is not applied again; sizes that depend on the position
    (xPos) change by their ratio. Angles are as exact far out as those of `place`. A thousand moves of the same keys in
    half precision add up a thousand roundings: move them many positions at a time, or keep keys that are not rotated.

    Args:
        k: Keys (batch, n_kv_heads, k_len, head_dim), rotated by `encoding`.
        pos: Where they were rotated, as it was given to `place`, or what that returned.
        new_pos: Where they go.
        encoding: What rotated them.

    Raises:
        TypeError: The encoding is no `Rotary`.
        ValueError: It does more to keys than rotate them (FoPE), or shapes do not fit.

    >>> from posenc.encodings import RoPE
    >>> rope, k = RoPE(head_dim=4, attention_factor=1.5), torch.ones(1, 1, 1, 4)
    >>> old, new = (rope.rotate_k(k, rope.place(torch.tensor([p]))) for p in (1000, 7))
    >>> torch.allclose(move_keys(old, torch.tensor([1000]), torch.tensor([7]), rope), new)
    True
    """
    if not isinstance(encoding, Rotary):
        raise TypeError(
            f"move_keys: encoding must be one that rotates pairs of lanes (Rotary); got {encoding!r}. Pass the member "
            "of a Compose that rotates, or compute the keys anew."
        )
    cls = type(encoding)
    if (cls.parts, cls.rotate_k) != (Rotary.parts, Rotary.rotate_k):
        raise ValueError(
            f"move_keys: {encoding.name} does more to keys than rotate them, and no rotation takes them from one "
            f"position to another; got {encoding!r}. Compute the keys anew."
        )
    before, after = (encoding._check(p.pos if isinstance(p, Placed) else p, torch.float32) for p in (pos, new_pos))
    along = -1 if encoding.n_axes == 1 else -2
    if before.shape[along] != after.shape[along]:
        raise ValueError(
            f"move_keys: each key has one old and one new position; got {before.shape[along]} in pos and "
            f"{after.shape[along]} in new_pos. Take out what is evicted from k and from pos first."
        )
    dtype = torch.float64 if k.dtype == torch.float64 else torch.float32
    tables = encoding._of_angles(after - before, dtype, 1.0)
    if cls.amplitude is not Rotary.amplitude:
        had, gets = encoding.amplitude(before.double()), encoding.amplitude(after.double())
        if had is not None and gets is not None:  # keys are divided by it
            tables = tuple(t * (had / gets).to(dtype) for t in tables)
    return encoding._rotate(k, tables)


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
