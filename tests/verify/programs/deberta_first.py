"""DeBERTa's first version: clipped distances, one vector for each pair; only the terms of the position."""

import torch

STYLE = "scores_fn"
SPEC = {"encoding": "deberta", "heads": 2, "head_dim": 8, "max_distance": 12}
EXPECT = "pass"


def term(q, k, rel_k, rel_q):
    places = torch.arange(q.shape[2])
    rows = torch.clamp(places[:, None] - places + 12, 0, 23)
    c2p = torch.einsum("bhid,hijd->bhij", q, rel_k[:, rows])
    p2c = torch.einsum("bhjd,hijd->bhij", k, rel_q[:, rows])
    return (c2p + p2c) / (3 * 8) ** 0.5


def build():
    return term
