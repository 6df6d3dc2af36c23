"""A program of a user, who checks it with `mypy --strict`; tests/test_wheel.py runs both on the installed wheel."""

from collections.abc import Callable
from typing import assert_type

import torch
from torch import Tensor

import posenc
from posenc import Dims, Encoding, Placed, create, positions


class Recency(posenc.Bias):
    """Subtract the square root of the distance."""

    def at(self, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return -((q - k).abs().float().sqrt()) * (h + 1)


def attend_to(encoding: Encoding, q: Tensor, k: Tensor, v: Tensor, pos: Tensor) -> Tensor:
    placed = encoding.place(pos)
    assert_type(placed, Placed)
    return posenc.attend(q, k, v, encoding, placed)


rope = posenc.RoPE(head_dim=8)
alibi = posenc.ALiBi(n_heads=2)
q = k = v = torch.ones(1, 2, 4, 8)
pos = positions.arange(4)
assert_type(rope, posenc.RoPE)
assert_type(pos, Tensor)
assert_type(rope.rotate(q, k, rope.place(pos)), tuple[Tensor, Tensor])
assert_type(rope.score_scale(8), float)
assert_type(alibi.dense(pos, causal=True), Tensor)
assert_type(posenc.Sinusoidal(d_model=8).vectors(pos), Tensor)
x: Tensor = posenc.Sinusoidal(d_model=8)(torch.ones(1, 4, 8), pos)  # torch declares that a call of a module is Any
assert_type(posenc.names("ro*"), list[str])
assert_type(posenc.card("rope"), posenc.Card)
assert_type(posenc.PerLayer.preset("rnope", 4, head_dim=8), posenc.PerLayer)
assert_type(posenc.laws.run(Recency(n_heads=2), ["untouched inputs"]), list[posenc.laws.Violation])
mod: Callable[..., Tensor] = alibi.score_mod(alibi.place(pos))

by_name: Encoding = create("rope", dims=Dims(head_dim=8))
both = posenc.Compose(by_name, Recency(n_heads=2))
out = attend_to(both, q, k, v, pos)
print(*out.shape)
