"""Correct twin of t5_bucket_direction."""

import math

import torch

STYLE = "bucket_fn"
SPEC = {"encoding": "t5", "num_buckets": 32, "max_distance": 128, "bidirectional": True}
EXPECT = "pass"


def relative_position_bucket(relative_position, num_buckets=32, max_distance=128):
    num_buckets //= 2
    ahead = (relative_position > 0).to(torch.long) * num_buckets
    n = relative_position.abs()
    exact = num_buckets // 2
    scaled = torch.log(n.float().clamp_min(1.0) / exact) / math.log(max_distance / exact)
    large = (exact + scaled * (num_buckets - exact)).long().clamp_max(num_buckets - 1)
    return ahead + torch.where(n < exact, n, large)


def build():
    return relative_position_bucket
