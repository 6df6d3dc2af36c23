"""DeBERTa's disentangled attention: content times the learned vector of a bucket of distances, in both directions."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from posenc import positions
from posenc.encoding import Placed, Pos
from posenc.families import ContentBias, no_autocast, of_each_head
from posenc.registry import register

TERMS = ("c2p", "p2c")
CHUNK = 192  # near keys per block, each block multiplied only with the table rows that occur in it


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
    serves=("text",),
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
    """Add the query's product with the distance's key vector, and the key's product with its query vector.

    A published model has one table of 2 n_buckets rows, `rel_embeddings.weight`, which the encoder's LayerNorm
    normalises where `norm_rel_ebd` asks for it. A layer's key_table is its projection by `key_proj` and its
    query_table that by `query_proj`, biases included, split into heads; with `share_att_key=False`, by `pos_key_proj`
    and `pos_query_proj`. Here the projected rows are the parameters. Both tables are read at the bucket of i - j, as in
    all public code and every trained checkpoint; the paper writes δ(j, i) for the second table.

    Distances up to n_buckets / 2 have a bucket each. Larger distances share logarithmic buckets up to max_distance,
    and the last bucket of each side serves all distances beyond. Bucket edges are compared as integers; transformers'
    floating-point formula gives the same bucket for every distance up to 20,000 and all sizes tried. A version 1
    model, which has no logarithm and reaches k tokens, is n_buckets=2k with rows clip(r - k, 0, 2k - 1) of its tables,
    r = 0 .. 4k - 1. Source: He 2020, section 3.1, and the authors' code.

    Args:
        n_heads: Number of query heads.
        head_dim: Dimensions of one head.
        n_buckets: Buckets on each side of the query, 256 in version 2; half of them hold one distance.
        max_distance: Distance at which the logarithm ends, `max_relative_positions` in a configuration.
        terms: "c2p" for q·key_table, "p2c" for k·query_table, or both. All products are divided by
            √(head_dim (1 + len(terms))).

    Raises:
        ValueError: n_buckets is below 4, max_distance is within the exact buckets, a term is unknown, or q has another
            shape.

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
        terms: Sequence[str] = ("c2p", "p2c"),
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
        ahead = [1 - start for start in reversed(starts[1:])]  # mirrored: bucket -b ends where b starts
        thresholds = torch.tensor([*ahead, *starts[1:-1]], device=distance.device)
        return torch.bucketize(distance, thresholds, right=True)

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Keep the positions exact; as float64 for a float64 bias."""
        return (pos.double() if dtype == torch.float64 else pos,)

    def bias(
        self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed
    ) -> Float[Tensor, "batch n_heads q_len k_len"]:
        """Return (q_i · K[row] + k_j · Q[row]) / √(d (1 + terms)), one block of keys at a time.

        Neighbouring keys use few rows of the tables. Keys far from every query use one row: then one number per query
        and one per key suffice. So a call with a block of queries is cheap however many keys there are.
        """
        self.check_heads(q)
        dtype = torch.float64 if placed.parts[0].dtype == torch.float64 else torch.float32
        with no_autocast(q.device):  # half precision would round the products before the softmax
            q, k = q.to(dtype), of_each_head(k.to(dtype), self.n_heads)
            scale = self.score_scale(self.head_dim)  # of the tables, which are smaller than q and k may be
            keys, queries = (None if t is None else t.to(dtype) * scale for t in (self.key_table, self.query_table))
            of_q = None if keys is None else q @ keys.mT
            sizes = self._sizes(placed.pos, k_placed.pos)
            found = [
                _products(of_q, some, queries, *self._met(placed.pos, pos)).expand(-1, -1, q.shape[2], -1)
                for some, pos in zip(k.split(sizes, 2), k_placed.pos.split(sizes, -1), strict=True)
            ]
        return torch.cat(found, -1)

    def score_scale(self, head_dim: int) -> float:
        """Return 1 / √(head_dim (1 + terms)), so that the sum of all products is as large as one of them."""
        return float((head_dim * (1 + len(self.terms))) ** -0.5)

    def reset_parameters(self) -> None:
        """Draw the tables from N(0, 0.02)."""
        for table in self.parameters():
            nn.init.normal_(table, std=0.02)

    def _sizes(self, q_pos: Tensor, k_pos: Tensor) -> list[int]:
        """Return the sizes of blocks of keys: all keys before and behind the near ones, and small blocks between."""
        n, far = k_pos.shape[-1], self._edges[-1]
        if not _may_look(q_pos, k_pos):
            return [n]
        near = (k_pos > q_pos.min() - far) & (k_pos < q_pos.max() + far)
        place = near.reshape(-1, n).any(0).nonzero()
        first, last = (int(place[0]), int(place[-1]) + 1) if len(place) else (n, n)
        ends = (0, *range(first, last, CHUNK), last, n)
        return [end - begin for begin, end in pairwise(ends) if end > begin]

    def _met(self, q_pos: Tensor, k_pos: Tensor) -> tuple[Tensor, int, int]:
        """Return the row of each pair, or one row if all share it; and the first and the last row that occur."""
        far = self._edges[-1]  # beyond this distance each side has one row
        rows = self.row(torch.arange(-far, far + 1, device=q_pos.device))
        first, last = 0, 2 * self.n_buckets - 1
        if _may_look(q_pos, k_pos):
            ends = torch.stack((q_pos.min() - k_pos.max(), q_pos.max() - k_pos.min()))
            first, last = rows[ends.clamp(-far, far) + far].tolist()
            if first == last:
                return rows.new_full((1, 1, 1), first), first, last
        distance = q_pos[..., None, :, None] - k_pos[..., None, None, :]
        return rows[distance.clamp(-far, far) + far], first, last


def _may_look(q_pos: Tensor, k_pos: Tensor) -> bool:
    return positions.may_look(q_pos) and positions.may_look(k_pos)


def _products(
    of_q: Tensor | None, k: Tensor, queries: Tensor | None, row: Tensor, first: int, last: int
) -> Float[Tensor, "batch n_heads q_len_or_one k_len"]:
    """Look up the products of q and k with each pair's row; compute them only for the rows that occur."""
    total = None
    if of_q is not None:
        total = of_q.gather(-1, row.expand(*of_q.shape[:3], -1)).expand(-1, -1, -1, k.shape[2])
    if queries is not None:
        of_k = queries[:, first : last + 1] @ k.mT
        of_k = of_k.gather(-2, (row - first).expand(*k.shape[:2], -1, k.shape[2]))
        total = of_k if total is None else total + of_k
    assert total is not None  # a term is required
    return total


def _edges(n_buckets: int, max_distance: int) -> tuple[int, ...]:
    """Return the first distance of each bucket from n_buckets // 2 + 1 to n_buckets.

    For e exact buckets and m = 0, 1, .., bucket e + m + 1 starts at the least whole n with
    (e - 1) log(n / e) / log((M - 1) / e) > m: n^(e - 1) e^m > e^(e - 1) (M - 1)^m, a comparison of integers.
    """
    exact = n_buckets // 2
    width = exact - 1
    edges = []
    for m in range(n_buckets - exact):
        n = max(exact, int(exact * ((max_distance - 1) / exact) ** (m / width)) - 2)  # slightly below the edge
        while n**width * exact**m <= exact**width * (max_distance - 1) ** m:
            n += 1
        edges.append(n)
    return tuple(edges)
