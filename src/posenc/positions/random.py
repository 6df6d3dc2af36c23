"""Random positions, for training."""

import math

import torch
from jaxtyping import Float64, Int64, Shaped
from torch import Tensor


def shifted(
    pos: Shaped[Tensor, "*pos"], max_shift: int, *, n_axes: int = 1, generator: torch.Generator | None = None
) -> Shaped[Tensor, "*pos"]:
    """Shift each sequence by a random integer from 0 to max_shift (SHAPE; Kiyono 2021, 2109.05644).

    For training: a model that is trained with all offsets must rely on differences. Draws one shift for (seq_len,),
    one per row for (batch, seq_len), and one per axis for several axes.

    Args:
        pos: (seq_len,) or (batch, seq_len), with a last dimension of n_axes for several axes.
        max_shift: The largest shift, inclusive.
        n_axes: The number of axes of `pos`.
        generator: The random generator, on the device of `pos`.

    Raises:
        ValueError: max_shift is negative.

    >>> shifted(torch.arange(3), 0)
    tensor([0, 1, 2])
    """
    if max_shift < 0:
        raise ValueError(f"positions.shifted: max_shift must not be negative; got {max_shift}. Pass 0 for no shift.")
    lead = pos.shape[: pos.ndim - 1 - (n_axes > 1)]
    shape = (*lead, 1) if n_axes == 1 else (*lead, 1, n_axes)
    return pos + torch.randint(max_shift + 1, shape, generator=generator, device=pos.device)


def randomised(
    n: int,
    max_len: int,
    *,
    batch: int | None = None,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> Int64[Tensor, "*batch n"]:
    """Draw n of the positions 0 .. max_len - 1 without repetition, in ascending order (Ruoss 2023, 2305.16843).

    For training with any encoding: the model is trained on positions of the longest test, in the right order, but
    loses exact distances.

    Args:
        n: The number of tokens of a sequence.
        max_len: One more than the largest position: the length of the longest sequence at test time.
        batch: The number of rows, each with its own positions; None for a single sequence.
        generator: The random generator.
        device: The device of the result.

    Raises:
        ValueError: n is negative or above max_len.

    >>> randomised(4, 4)
    tensor([0, 1, 2, 3])
    """
    if not 0 <= n <= max_len:
        raise ValueError(
            f"positions.randomised: n tokens need n different positions; got n={n}, max_len={max_len}. "
            f"Pass a max_len of {max(n, 0)} or more."
        )
    rows = torch.rand(1 if batch is None else batch, max_len, generator=generator, device=device)
    drawn = rows.topk(n).indices.sort().values  # the indices of the n largest are a uniform draw
    return drawn[0] if batch is None else drawn


def jittered(
    pos: Float64[Tensor, "*batch seq n_axes"],
    *,
    shift: float = 0.0,
    jitter: float = 1.0,
    rescale: float = 1.0,
    generator: torch.Generator | None = None,
) -> Float64[Tensor, "*batch seq n_axes"]:
    """Shift, jitter and rescale coordinates at random, with one draw per call, as DINOv3 does in training.

    Args:
        pos: Coordinates on several axes, such as those of `unit_grid`.
        shift: Each axis is shifted by U(-shift, shift).
        jitter: Each axis is scaled by exp(U(-ln jitter, ln jitter)).
        rescale: All axes are scaled by one exp(U(-ln rescale, ln rescale)).
        generator: The random generator, on the device of `pos`.

    Raises:
        ValueError: shift is negative, or jitter or rescale is below 1.

    >>> jittered(torch.tensor([[0.0, -0.5]], dtype=torch.float64)).tolist()
    [[0.0, -0.5]]
    """
    if not (shift >= 0 and jitter >= 1 and rescale >= 1):
        raise ValueError(
            "positions.jittered: shift must not be negative, and jitter and rescale must be at least 1; "
            f"got shift={shift}, jitter={jitter}, rescale={rescale}. Pass 0, 1 and 1 for no change."
        )

    def draw(reach: float, n: int) -> Tensor:
        return (torch.rand(n, generator=generator, dtype=torch.float64, device=pos.device) * 2 - 1) * reach

    n = pos.shape[-1]
    return (pos + draw(shift, n)) * (draw(math.log(jitter), n) + draw(math.log(rescale), 1)).exp()
