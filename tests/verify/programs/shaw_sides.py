"""wav2vec2-bert's way: unequal sides, all products with the table first, and only the term of the position."""

import torch

STYLE = "scores_fn"
SPEC = {"encoding": "shaw", "head_dim": 16, "max_distance": 6, "table_rows": 9}
EXPECT = "pass"
LEFT, RIGHT = 6, 2


def term(queries, keys, rel_k):
    m, n = queries.size(-2), keys.size(-2)
    products = torch.matmul(queries, rel_k.mT)
    ahead = torch.arange(n) - torch.arange(n - m, n).unsqueeze(1)
    rows = torch.clamp(ahead, -LEFT, RIGHT) + LEFT
    rows = rows.expand(*products.shape[:2], m, n)
    return products.gather(-1, rows) * queries.size(-1) ** -0.5


def build():
    return term
