"""What an encoding gives on a device that has no float64, as Apple's have none: what it gives on others, in float32."""

from collections.abc import Iterator

import torch
from torch import Tensor

from posenc.encoding import Placed
from posenc.laws.case import Case
from posenc.positions.checks import without_float64

_FAR = (2**24 + 77, 3, 2**27 - 5, 2**31 - 1, 4095, -9, 2**20 + 511, 2**29 + 2**12)  # in which every digit occurs


def narrow(case: Case) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield (way, what a device without float64 gives, what others give), of a case in float32."""
    for pos in _places(case):
        n = pos.shape[-1 - (case.encoding.n_axes > 1)]
        x, q = case.tokens(n), case.normal(2, case.n_heads, n, case.head_dim)
        k = case.normal(2, case.n_kv_heads, n, case.head_dim)
        try:
            placed = case.place(pos, x)
        except ValueError:  # beyond the last position, or further than sizes that are its powers reach
            continue
        wanted = _seen(case, x, q, k, placed)
        with without_float64():
            got = _seen(case, x, q, k, case.place(pos, x))
        yield from ((f"{what}, without float64", got[what].to(w.dtype), w) for what, w in wanted.items())


def _places(case: Case) -> Iterator[Tensor]:
    """Yield whole positions and real ones, in a row and in a batch of two; far ones too where angles are formed."""
    whole = case.positions(8, start=500)
    yield torch.stack((whole, whole - 7))
    if case.encoding.accepts_real:
        real = (whole - 499) * 2.375 - 11
        yield real.float()
        yield torch.stack((real, real.flip(0) * 40.125)).float()
    if case.encoding.family in ("rotary", "values") and case.max_len is None:
        far = torch.stack([torch.tensor(_FAR).roll(i) for i in range(case.encoding.n_axes)], -1)
        yield far.view_as(whole)


def _seen(case: Case, x: Tensor, q: Tensor, k: Tensor, placed: Placed) -> dict[str, Tensor]:
    encoding, of_layer = case.encoding.layer(case.index, placed)
    found = {"embed": case.encoding.embed(x, placed), "rotate_q": encoding.rotate_q(q, of_layer)}
    found["rotate_v"] = encoding.rotate_v(k, of_layer)
    bias = encoding.bias(q, k, of_layer, of_layer)
    return found if bias is None else found | {"bias": bias}
