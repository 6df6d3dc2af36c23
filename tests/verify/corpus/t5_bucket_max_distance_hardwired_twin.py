"""Correct twin of t5_bucket_max_distance_hardwired."""

import math

import torch

STYLE = "bucket_fn"
SPEC = {"encoding": "t5", "num_buckets": 32, "max_distance": 256, "bidirectional": False}
EXPECT = "pass"


class RelativeBias:
    def __init__(self, num_buckets=32, max_distance=256):
        self.num_buckets, self.max_distance = num_buckets, max_distance

    def bucket(self, relative_position):
        n = (-relative_position).clamp(min=0)
        exact = self.num_buckets // 2
        ratio = math.log(self.max_distance / exact)
        large = exact + ((n.clamp(min=exact) / exact).log() / ratio * (self.num_buckets - exact)).int()
        large = large.clamp(max=self.num_buckets - 1)
        return torch.where(n < exact, n.int(), large)


def build():
    return RelativeBias().bucket
