"""The authors' way: r from the farthest key to the nearest, and the shift by a padded view."""

import torch

STYLE = "scores_fn"
SPEC = {"encoding": "transformer_xl", "heads": 2, "head_dim": 8}
EXPECT = "pass"


def rel_shift(x):
    padded = torch.cat([torch.zeros(*x.shape[:3], 1), x], -1)
    return padded.view(*x.shape[:2], x.shape[3] + 1, x.shape[2])[:, :, 1:].reshape(x.shape)


def scores(q, k, u, v, w_r):
    _, heads, _, d = q.shape
    n, d_model = k.shape[2], w_r.shape[1]
    pos_seq = torch.arange(n - 1, -1, -1.0)
    inv_freq = 1 / (10000 ** (torch.arange(0.0, d_model, 2.0) / d_model))
    angles = torch.outer(pos_seq, inv_freq)
    r = torch.cat([angles.sin(), angles.cos()], -1)
    r_head_k = (r @ w_r.t()).view(n, heads, d)
    ac = torch.einsum("bhid,bhjd->bhij", q + u[:, None], k)
    bd = torch.einsum("bhid,jhd->bhij", q + v[:, None], r_head_k)
    return (ac + rel_shift(bd)) * d**-0.5


def build():
    return scores
