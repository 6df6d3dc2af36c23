"""T5 buckets of an encoder with a longer reach."""

import math

import torch


def bucket(relative_position, bidirectional=True, num_buckets=40, max_distance=300):
    result = torch.zeros_like(relative_position)
    if bidirectional:
        num_buckets //= 2
        result = result + (relative_position > 0).to(result.dtype) * num_buckets
        distance = relative_position.abs()
    else:
        distance = -torch.minimum(relative_position, torch.zeros_like(relative_position))
    exact = num_buckets // 2
    log_part = torch.log(distance.clamp(min=exact).float() / exact) / math.log(max_distance / exact)
    large = exact + (log_part * (num_buckets - exact)).to(torch.long)
    large = large.clamp(max=num_buckets - 1)
    return result + torch.where(distance < exact, distance, large)


def build():
    return bucket


STYLE = "bucket_fn"
SPEC = {"encoding": "t5", "bidirectional": True, "num_buckets": 40, "max_distance": 300}
EXPECT = "pass"
