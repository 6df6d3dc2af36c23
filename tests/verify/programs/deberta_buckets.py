"""DeBERTa-v2's two terms with logarithmic buckets, gathered from all products."""

import math

import torch

STYLE = "scores_fn"
SPEC = {"encoding": "deberta", "heads": 2, "head_dim": 8, "num_buckets": 16, "max_distance": 40}
EXPECT = "pass"
SPAN, TOP = 16, 40


def bucket(distance):
    mid = SPAN // 2
    sign = torch.sign(distance)
    reach = torch.where((distance < mid) & (distance > -mid), torch.tensor(mid - 1), distance.abs())
    log = torch.ceil(torch.log(reach / mid) / math.log((TOP - 1) / mid) * (mid - 1)) + mid
    return torch.where(reach <= mid, distance, (log * sign).long())


def scores(q, k, rel_k, rel_q):
    n, scale = q.shape[2], math.sqrt(3 * q.shape[3])
    places = torch.arange(n)
    rel = bucket(places[:, None] - places[None, :])
    out = q @ k.transpose(-1, -2) / scale
    shape = (*q.shape[:2], n, n)
    c2p_pos = (rel + SPAN).clamp(0, 2 * SPAN - 1)
    c2p = q @ rel_k.transpose(-1, -2)
    out = out + c2p.gather(-1, c2p_pos.expand(shape)) / scale
    p2c_pos = (-rel + SPAN).clamp(0, 2 * SPAN - 1)
    p2c = k @ rel_q.transpose(-1, -2)
    p2c = p2c.gather(-1, p2c_pos.expand(shape)).transpose(-1, -2)
    return out + p2c / scale


def build():
    return scores
