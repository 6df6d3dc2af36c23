"""Tensor2tensor's way: a matrix of clipped distances, vectors of all pairs, one product; the whole scores."""

import math

import torch

STYLE = "scores_fn"
SPEC = {"encoding": "shaw", "head_dim": 8, "heads": 2, "max_distance": 4}
EXPECT = "pass"


def scores(q, k, rel_k):
    m, n, top = q.shape[-2], k.shape[-2], 4
    places = torch.arange(n)
    distance = places[None, :] - places[n - m :, None]
    rows = distance.clamp(-top, top) + top
    vectors = rel_k[rows]
    position = torch.einsum("bhid,ijd->bhij", q, vectors)
    return (q @ k.transpose(-1, -2) + position) / math.sqrt(q.shape[-1])


def build():
    return scores
