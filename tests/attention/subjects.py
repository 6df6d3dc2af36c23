"""One encoding for each way in which scores are joined, masks and positions of all kinds, and a watch over sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import posenc
from posenc import Compose, positions
from posenc.attention import blocked, spans
from strategies import normal

N, HEADS, LANES = 90, 4, 8
IDS = torch.repeat_interleave(torch.tensor([3, 0, 7]), torch.tensor([15, 65, 10]))
LEFT = torch.arange(N) >= torch.tensor([[0], [30]])
GRID = (9, 10)  # rows and columns
GRAPH = (torch.arange(2 * N)[:, None] - torch.arange(2 * N)).abs() * 7 % 11 - 1  # -1: no path


class Gates(posenc.FoX):
    """FoX with tokens of its own, so that it is placed as others are."""

    def place(self, pos: Tensor, x: Tensor | None = None, **options: Any) -> posenc.Placed:
        x = normal(1, pos.shape[-1], 6, seed=9).to(self.weight.dtype)
        return super().place(pos, x, **options)


class Waves(posenc.Bias):
    """Of distances alone, and written by `at` alone."""

    by_distance = True

    def __init__(self) -> None:
        super().__init__(n_heads=HEADS)
        self.freq = torch.nn.Parameter(torch.empty(HEADS, 3))

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        total: Tensor = (self.freq[h] * (q - k)[..., None]).cos().sum(-1)
        return total


class Values(posenc.Encoding):
    """Rotates the first two lanes of values of any width, at a learned frequency."""

    def __init__(self) -> None:
        super().__init__()
        self.freq = torch.nn.Parameter(torch.empty(()))

    def parts(self, pos: Tensor, x: Tensor | None, past: Any, dtype: torch.dtype) -> tuple[Tensor]:
        return (pos.to(dtype),)

    def rotate_v(self, v: Tensor, placed: posenc.Placed) -> Tensor:
        return self._rotate(v, placed.parts[0])

    def unrotate_out(self, out: Tensor, placed: posenc.Placed) -> Tensor:
        return self._rotate(out, -placed.parts[0])

    def _rotate(self, x: Tensor, pos: Tensor) -> Tensor:
        angle = (pos * self.freq)[..., None, :, None]
        first, second, rest = x[..., :1], x[..., 1:2], x[..., 2:]
        rotated = first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()
        return torch.cat((*rotated, rest), -1).to(x.dtype)


def made(name: str) -> posenc.Encoding:
    """One encoding for each way in which scores are joined, with parameters that are not small."""
    kinds: dict[str, Any] = {
        "nope": posenc.NoPE,
        "rope": lambda: posenc.RoPE(head_dim=LANES),
        "alibi": lambda: posenc.ALiBi(n_heads=HEADS),
        "t5": lambda: posenc.T5(n_heads=HEADS),
        "kerple": lambda: posenc.KERPLE(n_heads=HEADS),
        "waves": Waves,
        "shaw": lambda: posenc.Shaw(head_dim=LANES),
        "transformer_xl": lambda: posenc.TransformerXL(d_model=6, n_heads=HEADS, head_dim=LANES),
        "fire": lambda: posenc.FIRE(n_heads=HEADS),
        "fox": lambda: Gates(d_model=6, n_heads=HEADS),
        "tupe": lambda: posenc.TUPE(n_heads=HEADS, head_dim=LANES, max_len=3 * N),
        "deberta": lambda: posenc.DeBERTa(n_heads=HEADS, head_dim=LANES, n_buckets=6, max_distance=9),
        "dape": lambda: posenc.DAPE(n_heads=HEADS),
        "dynamic_position_bias": lambda: posenc.DynamicPositionBias(n_heads=HEADS, width=4),
        "graphormer": lambda: posenc.Graphormer(n_heads=HEADS, max_distance=9, distances=GRAPH),
        "swin": lambda: posenc.Swin(n_heads=HEADS, window=GRID),
        "swin_v2": lambda: posenc.SwinV2(n_heads=HEADS, window=GRID, width=4),
        "beit": lambda: posenc.BEiT(n_heads=HEADS, window=GRID),
        "decomposed_2d": lambda: posenc.Decomposed2D(head_dim=LANES, size=GRID),
        "cope": lambda: posenc.CoPE(head_dim=LANES, max_count=7),
        "rerope": lambda: posenc.ReRoPE(head_dim=LANES, window=20),
        "two vectors, turned": lambda: Compose(
            posenc.KERPLE(n_heads=HEADS), posenc.RoPE(head_dim=LANES), posenc.T5(n_heads=HEADS)
        ),
        "values, turned, and a vector": lambda: Compose(
            posenc.RoPE(head_dim=LANES), posenc.T5(n_heads=HEADS), Values()
        ),
        "product and vector": lambda: Compose(
            posenc.TUPE(n_heads=HEADS, head_dim=LANES, max_len=3 * N), posenc.T5(n_heads=HEADS)
        ),
        "vector and rows": lambda: Compose(posenc.T5(n_heads=HEADS), posenc.Shaw(head_dim=LANES)),
        "content and vector": lambda: Compose(
            posenc.DeBERTa(n_heads=HEADS, head_dim=LANES, n_buckets=6, max_distance=9, terms=("p2c",)),
            posenc.T5(n_heads=HEADS),
        ),
    }
    torch.manual_seed(5)
    encoding: posenc.Encoding = kinds[name]().double()
    for parameter in encoding.parameters():
        torch.nn.init.normal_(parameter)
    return encoding


NAMES = ["nope", "rope", "alibi", "t5", "kerple", "waves", "shaw", "transformer_xl", "fire", "fox", "tupe"]
NAMES += ["dape", "dynamic_position_bias", "graphormer", "swin", "swin_v2", "beit", "decomposed_2d"]
NAMES += ["deberta", "cope", "rerope", "two vectors, turned", "values, turned, and a vector"]
NAMES += ["product and vector", "vector and rows", "content and vector"]
TABLES = ("tupe", "product and vector", "graphormer")  # positions end
OF_CELLS = ("swin", "swin_v2", "beit", "decomposed_2d")
MASKS: dict[str, dict[str, Any]] = {
    "causal": {},
    "bidirectional": {"causal": False},
    "window": {"window": 7},
    "window both ways": {"window": 7, "causal": False},
    "documents": {"document_ids": IDS},
    "documents by row": {"document_ids": torch.stack((IDS, IDS.flip(0)))},
    "documents interleaved": {"document_ids": torch.arange(N) % 3},
    "left padding": {"mask": LEFT[:, None, None]},
    "left padding as numbers": {"mask": torch.zeros(2, 1, 1, N).double().masked_fill(~LEFT[:, None, None], -torch.inf)},
    "the first keys alone": {"mask": (torch.arange(N) < 6)[None, None, None]},  # far from most queries
    "right padding": {"mask": LEFT.flip(1)[:, None, None], "causal": False},
    "padding with a hole": {"mask": (LEFT & (torch.arange(N) // 5 != 9))[:, None, None], "window": 40},
    "a row that sees nothing": {"mask": (torch.arange(N) < 80)[:, None] & (torch.arange(N) > 5), "q_len": N},
    "numbers": {"mask": normal(N, N, seed=4), "q_len": N},
    "by head": {"mask": normal(2, HEADS, N, N, seed=4) > 0, "q_len": N},
}
PLACES = {
    "in order": positions.arange(N),
    "far": positions.arange(N, start=10_000),
    "packed": positions.packed(IDS),
    "left padded": positions.left_padded(LEFT),
    "spread": 2 * positions.arange(N),
    "scattered": (positions.arange(N) * 7919) % N,
}
CELLS = positions.grid(*GRID)
IMAGES = {
    "in order": CELLS,
    "far": CELLS + 1_000,
    "scattered": CELLS[(torch.arange(N) * 7919) % N],
    "by row": torch.stack((CELLS, CELLS.flip(0))),
}
WITH_CLASS = {"in order": torch.cat((torch.tensor([[-1, -1]]), CELLS[1:]))}


def places(name: str, encoding: posenc.Encoding) -> dict[str, Tensor]:
    """Positions that an encoding can have."""
    if encoding.n_axes > 1:
        return IMAGES | (WITH_CLASS if name == "beit" else {})
    return {where: pos for where, pos in PLACES.items() if not (where == "far" and name in TABLES)}


def nth_place(n: int, name: str, encoding: posenc.Encoding) -> Tensor:
    """One of the positions that an encoding can have; of those that have fewer than `PLACES`, some stand for two."""
    found = list(places(name, encoding).values())
    return found[n % len(found)]


def last(pos: Tensor, n: int, encoding: posenc.Encoding) -> Tensor:
    """The last n of some positions."""
    return pos[..., -n:, :] if encoding.n_axes > 1 else pos[..., -n:]


def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make blocks of a few queries, so that ninety tokens make many."""
    monkeypatch.setattr(blocked, "LONG", 24)
    monkeypatch.setattr(blocked, "SHORT", 16)
    monkeypatch.setattr(blocked, "LEAST", 8)
    monkeypatch.setattr(blocked, "FORMED", 0)
    monkeypatch.setattr(spans, "SHORTEST", 10)


def tensors(q_len: int) -> list[Tensor]:
    shapes = ((2, HEADS, q_len, LANES), (2, 2, N, LANES), (2, 2, N, 5))
    return [normal(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]


def largest(graph: torch.fx.Graph) -> int:
    """The number of elements of the largest tensor that a graph makes, at the lengths that it was traced with."""
    values = (node.meta.get("val") for node in graph.nodes if node.op != "placeholder")
    sizes: list[Any] = [of.numel() for of in values if isinstance(of, Tensor)]
    return max(n.node.hint if isinstance(n, torch.SymInt) else n for n in sizes)
