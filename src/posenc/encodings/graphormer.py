"""Graphormer: a learned number for each head and each length of the shortest path between two nodes."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from posenc import positions
from posenc.config.values import short
from posenc.encoding import Placed, Pos
from posenc.families import Bias, Table, wide
from posenc.registry import register

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class Distances(Table):
    """Distances of the nodes of one graph (n, n), or of several (graphs, n, n), as a `Graphormer` keeps them.

    Args:
        given: Whole numbers, -1 for nodes without a path between them; a tensor, an array or nested lists.
        spelling: How `repr` writes them, for instance inside a call of `Graphormer`.
    """

    def __init__(self, given: Any, spelling: str | None = None) -> None:
        try:
            table = torch.as_tensor(given)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                f"Graphormer: distances must be whole numbers (n, n) or (graphs, n, n); got {short(given)}."
            ) from error
        if table.ndim not in (2, 3) or table.shape[-1] != table.shape[-2] or not table.numel():
            raise ValueError(
                "Graphormer: distances must be a square table (n, n), or (graphs, n, n) of several graphs; "
                f"got {tuple(table.shape)}."
            )
        if table.dtype not in _INTEGERS:
            raise TypeError(f"Graphormer: distances must be whole numbers; got {table.dtype}. Round them.")
        super().__init__(table.long(), spelling)


def tree(n: int) -> Distances:
    """Return the distances in a binary tree of n nodes numbered level by level, as an example of a graph.

    >>> tree(4).table.tolist()
    [[0, 1, 1, 2], [1, 0, 2, 1], [1, 2, 0, 3], [2, 1, 3, 0]]
    """
    table = torch.zeros(n, n, dtype=torch.int64)
    for node in range(1, n):  # a path to a new leaf goes through its parent
        table[node, :node] = table[:node, node] = table[(node - 1) // 2, :node] + 1
    return Distances(table, f"posenc.Graphormer.tree({n})")


@register(
    "graphormer",
    paper="Ying et al., Do Transformers Really Perform Bad for Graph Representation?",
    year=2021,
    arxiv="2106.05234",
    formula="score + W[h, shortest path from i to j]",
    parameters="H·(K + 2)",
    cost="two look-ups a score",
    aliases=("spatial_encoding", "shortest_path"),
    used_by=("Graphormer",),
    serves=("graph",),
    example={"n_heads": 4, "max_distance": 12, "distances": ("tree", 64)},
    traits={
        "distinct": {"float32": 2, "bfloat16": 2, "float16": 2},
        "longest": 63,
        "real_positions": False,
        "smooth": False,
        "bounded": True,
        "shift_invariant": False,
        "symmetric": True,
        "recency": False,
        "linear_shift": None,
        "length_dependent": False,
        "learned": 56,
        "cost": "score",
    },
)
class Graphormer(Bias):
    """Add a learned number that depends on the head and on the distance of two nodes in a graph.

    A position is the number of a node. `on(distances)` sets the graph: it returns a copy that shares the table. With
    the distances of several graphs, positions are (graph, node), and nodes of different graphs have no path. The last
    column of the table is for pairs without a path (distance -1). The paper's edge encoding, its degree encoding and
    its virtual node are not included. Source: Ying 2021, section 3.1.2, equation 6.

    Args:
        n_heads: Number of query heads.
        max_distance: The longest path in the table; a longer one raises an error. 510 makes a table of 512 numbers a
            head, as the authors' code does (num_spatial).
        distances: Distances of the nodes, (n, n) or (graphs, n, n), -1 where there is no path; ("tree", n) for those of
            `tree(n)`; None to set them later by `on`.

    Raises:
        ValueError: A size is below 1, the distances are not square, below -1 or above max_distance, a node does not
            exist, or the encoding is placed without distances.
        TypeError: Distances or positions are not integers.

    >>> graph = Graphormer(n_heads=1, max_distance=2)
    >>> with torch.no_grad(): _ = graph.weight.copy_(torch.tensor([[0.0, 10.0, 20.0, -5.0]]))
    >>> graph.on([[0, 1, -1], [1, 0, -1], [-1, -1, 0]]).dense(torch.arange(3))[0, 0].tolist()
    [[0.0, 10.0, -5.0], [10.0, 0.0, -5.0], [-5.0, -5.0, 0.0]]
    """

    accepts_real = False
    tree = staticmethod(tree)

    def __init__(
        self,
        *,
        n_heads: int,
        max_distance: int = 510,
        distances: Distances | Tensor | Sequence[Any] | None = None,
    ) -> None:
        super().__init__(n_heads=n_heads)
        self._count(max_distance=max_distance)
        self.max_distance = max_distance
        self.weight = nn.Parameter(torch.empty(n_heads, max_distance + 2))
        self._set(distances)
        self.reset_parameters()

    @property
    def max_len(self) -> int | None:
        """Nodes of a graph; None if no graph is set."""
        return None if self.distances is None else self.distances.table.shape[-1]

    def on(self, distances: Distances | Tensor | Sequence[Any]) -> "Graphormer":
        """Return the encoding of one graph, or of a batch of graphs; it shares the table.

        Args:
            distances: (n, n) or (graphs, n, n), -1 where there is no path.
        """
        twin = copy.copy(self)  # shares the parameters
        twin._set(distances)
        return twin

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Keep the node numbers."""
        if self.distances is None:
            raise ValueError(
                f"{self.name}: needs the distances of a graph before it can place nodes; got distances=None. "
                "Call on(distances) and use the result, or construct it with distances=."
            )
        for axis, n in zip(pos.unbind(-1), self.distances.table.shape, strict=False) if self.n_axes > 1 else ():
            positions.check_range(axis, n, self.name, f"the distances are {tuple(self.distances.table.shape)}")
        return super().parts(pos, x, past, dtype)

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        """Return W[h, distance of q and k]."""
        nodes: Any = (q, k) if self.n_axes > 1 else ((None, q), (None, k))
        (q_graph, q), (k_graph, k) = nodes
        if self.distances is None:
            raise ValueError(f"{self.name}: no distances are set; got None. Call on(distances).")
        there = (q >= 0) & (k >= 0)
        if q_graph is None:
            distance = self.distances.at(q, k)
        else:
            distance = self.distances.at(q_graph, q, k).where(q_graph == k_graph, -1)
            there = there & (q_graph >= 0) & (k_graph >= 0)
        # where values cannot be read, the index kernel raises for an invalid node or distance
        known = there & (distance >= -1) & (distance <= self.max_distance)
        row = distance.where(distance >= 0, self.max_distance + 1).where(known, self.max_distance + 2)
        return wide(self.weight)[h, row]

    def reset_parameters(self) -> None:
        """Draw the numbers from N(0, 0.02)."""
        nn.init.normal_(self.weight, std=0.02)

    def _set(self, distances: Any) -> None:
        match distances:
            case (str("tree"), int(n)):
                distances = tree(n)
        known = distances if distances is None or isinstance(distances, Distances) else Distances(distances)
        if known is not None and positions.may_look(known.table):
            low, high = (int(value) for value in known.table.aminmax())
            if low < -1 or high > self.max_distance:
                raise ValueError(
                    f"{self.name}: distances must be from -1 (no path) to max_distance={self.max_distance}; got "
                    f"{low if low < -1 else high}. Clip them, or make a larger table."
                )
        self.distances = known
        self.n_axes = 1 if known is None or known.table.ndim == 2 else 2
