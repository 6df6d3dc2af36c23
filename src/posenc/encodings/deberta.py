"""DeBERTa's disentangled attention: content meets the learned vector of a bucket of distances, both ways."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from posenc import positions
from posenc.encoding import Placed, Pos
from posenc.families import ContentBias, Piece, join, no_autocast
from posenc.registry import register

TERMS = ("c2p", "p2c")
CHUNK = 192  # keys that are multiplied with the rows they meet, and no others


@register(
    "deberta",
    paper="He et al., DeBERTa: Decoding-enhanced BERT with Disentangled Attention",
    year=2020,
    arxiv="2006.03654",
    formula="(q_i·k_j + q_i·K[δ(i, j)] + k_j·Q[δ(i, j)]) / √(3d),  δ a logarithmic bucket of i - j",
    parameters="4·H·n_buckets·d",
    cost="two products of width d and two look-ups for each score nearer than max_distance, an addition beyond",
    aliases=("deberta_v2", "disentangled"),
    used_by=("DeBERTa-v2", "DeBERTa-v3", "mDeBERTa"),
    example={"n_heads": 4, "head_dim": 8, "n_buckets": 16, "max_distance": 40},
    variants=({"terms": ("c2p",)}, {"terms": ("p2c",), "n_buckets": 7}),
    traits={
        "distinct": {"float32": 10, "bfloat16": 10, "float16": 10},
        "longest": None,
        "real_positions": False,
        "smooth": False,
        "bounded": True,
        "shift_invariant": True,
        "symmetric": False,
        "recency": False,
        "linear_shift": None,
        "length_dependent": False,
        "learned": 2_048,
        "cost": "score",
    },
)
class DeBERTa(ContentBias):
    """Add what the query says of the distance's key vector, and the key of the distance's query vector.

    A published model has one table of 2 n_buckets rows, `rel_embeddings.weight`, normalised by the encoder's
    LayerNorm where `norm_rel_ebd` says so. A layer's key_table is its projection by `key_proj` and its query_table
    that by `query_proj`, biases included, split into heads; with `share_att_key=False`, by `pos_key_proj` and
    `pos_query_proj`. Here the projected rows are what is learned. Both tables are read at the bucket of i - j: so
    does all public code, and so was every checkpoint trained, where the paper writes δ(j, i) for the second.

    Distances up to n_buckets / 2 have a bucket each, further ones share by logarithm up to max_distance, and each
    side's last serves beyond. Edges are compared as whole numbers; transformers' floating formula gives the same
    bucket for every distance up to 20,000 and all sizes tried. A version 1 model, which has no logarithm and looks k
    tokens far, is n_buckets=2k with rows clip(r - k, 0, 2k - 1) of its tables, r = 0 .. 4k - 1. Source: He 2020,
    section 3.1, and the authors' code.

    Args:
        n_heads: Heads of the queries.
        head_dim: Lanes of one head.
        n_buckets: Buckets on either side of the query, 256 in version 2; half of them hold one distance.
        max_distance: Where the logarithm ends, `max_relative_positions` in a configuration.
        terms: "c2p" for q·key_table, "p2c" for k·query_table, or both. All products are divided by
            √(head_dim (1 + len(terms))).

    Raises:
        ValueError: Fewer than 4 buckets, a max_distance within the exact ones, other terms, or q of another shape.

    >>> DeBERTa(n_heads=1, head_dim=2).row(torch.tensor([-512, -5, 0, 128, 131, 500, 9999])).tolist()
    [0, 251, 256, 384, 387, 510, 511]
    """

    accepts_real = False
    key_table: nn.Parameter | None
    query_table: nn.Parameter | None

    def __init__(
        self,
        *,
        n_heads: int,
        head_dim: int,
        n_buckets: int = 256,
        max_distance: int = 512,
        terms: Sequence[str] = TERMS,
    ) -> None:
        super().__init__()
        self._count(n_heads=n_heads, head_dim=head_dim)
        self._count(least=4, n_buckets=n_buckets)
        self._count(max_distance=max_distance)
        if max_distance < n_buckets // 2 + 2:
            raise ValueError(
                f"{self.name}: max_distance must be at least {n_buckets // 2 + 2}, because distances up to "
                f"{n_buckets // 2} have a bucket each and the logarithm needs room; got max_distance={max_distance}."
            )
        if isinstance(terms, str) or not terms or any(terms.count(t) > 1 or t not in TERMS for t in terms):
            raise ValueError(f"{self.name}: terms must be 'c2p', 'p2c' or both, in a tuple; got terms={terms!r}.")
        self.n_heads, self.head_dim, self.terms = n_heads, head_dim, tuple(terms)
        self.n_buckets, self.max_distance = n_buckets, max_distance
        self._edges = _edges(n_buckets, max_distance)
        for term, name in zip(TERMS, ("key_table", "query_table"), strict=True):
            table = nn.Parameter(torch.empty(n_heads, 2 * n_buckets, head_dim)) if term in terms else None
            self.register_parameter(name, table)
        self.reset_parameters()

    def row(self, distance: Int64[Tensor, "*any"]) -> Int64[Tensor, "*any"]:
        """Return the row of both tables for each distance (query minus key): 0 furthest ahead, n_buckets for 0."""
        starts = (0, *range(1, self.n_buckets // 2 + 1), *self._edges)  # of buckets 0 .. n_buckets, behind the query
        ahead = [1 - start for start in reversed(starts[1:])]  # the mirror image: bucket -b ends where b starts
        thresholds = torch.tensor([*ahead, *starts[1:-1]], device=distance.device)
        return torch.bucketize(distance, thresholds, right=True)

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Keep the positions exact; as float64 where the bias shall be."""
        return (pos.double() if dtype == torch.float64 else pos,)

    def bias(
        self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed
    ) -> Float[Tensor, "batch n_heads q_len k_len"]:
        """Return (q_i · K[row] + k_j · Q[row]) / √(d (1 + terms))."""
        return join(self.pieces(q, k, placed, k_placed))

    def pieces(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed) -> list[Piece]:
        """Return the terms of `bias`, one of them for each query or key where keys are far.

        Keys that are far from every query of the call share one row of each table. Where that can be seen, they cost
        an addition; so a call with a block of queries is cheap however many keys there are.
        """
        if (q.shape[1], q.shape[-1]) != (self.n_heads, self.head_dim):
            raise ValueError(
                f"{self.name}: made for n_heads={self.n_heads} and head_dim={self.head_dim}; got q of shape "
                f"{tuple(q.shape)}, which is (batch, heads, seq, head_dim)."
            )
        dtype = torch.float64 if placed.parts[0].dtype == torch.float64 else torch.float32
        with no_autocast(q.device):  # half precision would round the products before the softmax
            q, k = q.to(dtype), k.to(dtype)
            if self.n_heads != k.shape[1]:  # one each would be a copy
                k = k.repeat_interleave(self.n_heads // k.shape[1], dim=1)
            scale = self.score_scale(self.head_dim)  # of the tables, which are smaller than q and k may be
            tables = [None if t is None else t.to(dtype) * scale for t in (self.key_table, self.query_table)]
            first, last = self._near(placed.pos, k_placed.pos)
            row = self._row(placed.pos[..., None, :, None] - k_placed.pos[..., None, None, first:last])
            # gradients of parts of a split are joined once, those of slices added up as wide as all keys
            k_behind, k_near, k_ahead = k.split((first, last - first, k.shape[2] - last), 2)
            near = _by_row(q, k_near, row, *tables)
            behind, ahead = _by_end(q, k_behind, -1, *tables), _by_end(q, k_ahead, 0, *tables)
        found = [Piece(0, first, t) for t in behind if first]
        found += [Piece(first + a, first + b, t) for a, b, t in near]
        return found + [Piece(last, k.shape[2], t) for t in ahead if last < k.shape[2]]

    def score_scale(self, head_dim: int) -> float:
        """Return 1 / √(head_dim (1 + terms)), so that the sum of all products has the size of one."""
        return float((head_dim * (1 + len(self.terms))) ** -0.5)

    def reset_parameters(self) -> None:
        """Draw the tables from N(0, 0.02)."""
        for table in self.parameters():
            nn.init.normal_(table, std=0.02)

    def _row(self, distance: Int64[Tensor, "*any"]) -> Int64[Tensor, "*any"]:
        """Return `row`, searched for once for each distance where pairs share few."""
        if not positions.may_look(distance) or not distance.numel():
            return self.row(distance)
        lowest, highest = (int(d) for d in distance.aminmax())
        if highest - lowest >= distance.numel():
            return self.row(distance)
        return self.row(torch.arange(lowest, highest + 1, device=distance.device))[distance - lowest]

    def _near(self, q_pos: Tensor, k_pos: Tensor) -> tuple[int, int]:
        """Return the first key that is not beyond the last bucket behind every query, and the end of those ahead.

        All keys, where positions cannot be read without stalling a device or breaking a graph.
        """
        if not (positions.may_look(q_pos) and positions.may_look(k_pos)):
            return 0, k_pos.shape[-1]
        # buckets grow by one from edge to edge, and rows end one earlier behind than ahead, where n_buckets is the last
        behind, ahead = k_pos <= q_pos.min() - self._edges[-2], k_pos >= q_pos.max() + self._edges[-1]
        first, rest = (side.reshape(-1, side.shape[-1]).all(0).long() for side in (behind, ahead.flip(-1)))
        return int(first.cumprod(0).sum()), k_pos.shape[-1] - int(rest.cumprod(0).sum())


def _by_row(q: Tensor, k: Tensor, row: Tensor, keys: Tensor | None, queries: Tensor | None) -> list[Piece]:
    """Form the products of each query, and of each key, with the rows, and look up those of the pairs."""
    found = []
    if keys is not None:
        found.append(Piece(0, k.shape[2], (q @ keys.mT).gather(-1, row.expand(*q.shape[:3], -1))))
    if queries is not None:
        looks, first = positions.may_look(row), 0
        for some, rows in zip(k.split(CHUNK, 2), row.split(CHUNK, -1), strict=True) if looks else ((k, row),):
            found.append(Piece(first, first + some.shape[2], _by_key(some, rows, queries)))
            first += some.shape[2]
    return found


def _by_key(k: Tensor, row: Tensor, queries: Tensor) -> Tensor:
    """Look up the products of keys with those rows that occur: neighbours among keys meet the same few."""
    first, last = (int(r) for r in row.aminmax()) if positions.may_look(row) else (0, queries.shape[1] - 1)
    products = queries[:, first : last + 1] @ k.mT
    return products.gather(-2, (row - first).expand(*products.shape[:2], -1, -1))


def _by_end(q: Tensor, k: Tensor, row: int, keys: Tensor | None, queries: Tensor | None) -> list[Tensor]:
    """Return the products of each query, (... q_len 1), and of each key, (... 1 k_len), with one row."""
    of_query = [] if keys is None else [q @ keys[:, row, :, None]]
    return of_query if queries is None else [*of_query, queries[:, None, row] @ k.mT]


def _edges(n_buckets: int, max_distance: int) -> tuple[int, ...]:
    """Return the first distance of each bucket from n_buckets // 2 + 1 to n_buckets.

    For e exact buckets and m = 0, 1, .., bucket e + m + 1 starts at the least whole n with
    (e - 1) log(n / e) / log((M - 1) / e) > m: n^(e - 1) e^m > e^(e - 1) (M - 1)^m, a comparison of integers.
    """
    exact = n_buckets // 2
    width = exact - 1
    edges = []
    for m in range(n_buckets - exact):
        n = max(exact, int(exact * ((max_distance - 1) / exact) ** (m / width)) - 2)  # near, and not beyond
        while n**width * exact**m <= exact**width * (max_distance - 1) ** m:
            n += 1
        edges.append(n)
    return tuple(edges)
