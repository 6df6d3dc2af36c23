"""Results on a device without float64, such as Apple's: they must equal those of other devices in float32."""

from collections.abc import Iterator

import torch
from torch import Tensor

from posenc.encoding import Placed
from posenc.laws.case import Case
from posenc.positions.checks import without_float64

_FAR = (
    2**24 + 77,
    3,
    2**27 - 5,
    2**31 - 1,
    4095,
    -9,
    2**20 + 511,
    2**29 + 2**12,
)  # positions in which every digit occurs


def narrow(case: Case) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield (way, the result without float64, the usual result) for a case in float32."""
    for pos in _places(case):
        n = pos.shape[-1 - (case.encoding.n_axes > 1)]
        x, q = case.tokens(n), case.normal(2, case.n_heads, n, case.head_dim)
        k = case.normal(2, case.n_kv_heads, n, case.head_dim)
        try:
            placed = case.place(pos, x)
        except ValueError:  # beyond the last position, or beyond the reach of amplitudes that are its powers
            continue
        wanted = _results(case, x, q, k, placed)
        with without_float64():
            got = _results(case, x, q, k, case.place(pos, x))
        yield from ((f"{what}, without float64", got[what].to(w.dtype), w) for what, w in wanted.items())


def _places(case: Case) -> Iterator[Tensor]:
    """Yield integer and real positions, in a row and in a batch of two; also far ones, if they become angles."""
    whole = case.positions(8, start=500)
    yield torch.stack((whole, whole - 7))
    if case.encoding.accepts_real:
        real = (whole - 499) * 2.375 - 11
        yield real.float()
        yield torch.stack((real, real.flip(0) * 40.125)).float()
    if case.encoding.family in ("rotary", "values") and case.max_len is None:
        far = torch.stack([torch.tensor(_FAR).roll(i) for i in range(case.encoding.n_axes)], -1)
        yield far.view_as(whole)


def _results(case: Case, x: Tensor, q: Tensor, k: Tensor, placed: Placed) -> dict[str, Tensor]:
    encoding, of_layer = case.encoding.layer(case.index, placed)
    found = {"embed": case.encoding.embed(x, placed), "rotate_q": encoding.rotate_q(q, of_layer)}
    found["rotate_v"] = encoding.rotate_v(k, of_layer)
    bias = encoding.bias(q, k, of_layer, of_layer)
    return found if bias is None else found | {"bias": bias}
