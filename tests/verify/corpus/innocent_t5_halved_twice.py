"""Half of the buckets for each direction and half of those exact: two halvings, both right."""

import math

import torch

STYLE = "bucket_fn"
SPEC = {"encoding": "t5", "num_buckets": 20, "max_distance": 50, "bidirectional": True}
EXPECT = "pass"


def bucket(relative_position, num_buckets=20, max_distance=50):
    num_buckets = num_buckets // 2
    exact = num_buckets // 2
    sign = (relative_position > 0).long()
    n = relative_position.abs().double()
    steps = (num_buckets - exact) * torch.log(n.clamp(min=0.5) / exact) / math.log(max_distance / exact)
    large = (exact + torch.floor(steps)).clamp(max=num_buckets - 1)
    return (torch.where(n < exact, n, large) + sign * num_buckets).to(relative_position.dtype)


def build():
    return bucket
