"""T5 buckets of a decoder."""

import math

import torch


def bucket(relative_position):
    n = (-relative_position).clamp(min=0)
    exact = 12
    ratio = torch.log(n.clamp(min=1).double() / exact) / math.log(100 / exact)
    far = exact + (ratio * (24 - exact)).floor().long()
    far = far.clamp(min=0, max=23)
    return torch.where(n < exact, n, far)


def build():
    return bucket


STYLE = "bucket_fn"
SPEC = {"encoding": "t5", "bidirectional": False, "num_buckets": 24, "max_distance": 100}
EXPECT = "pass"
