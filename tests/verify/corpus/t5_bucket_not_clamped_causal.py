"""A decoder's buckets go on growing with the distance beyond max_distance.

Report: https://github.com/huggingface/candle/pull/1312
"""

import math

import torch

STYLE = "bucket_fn"
SPEC = {"encoding": "t5", "num_buckets": 16, "max_distance": 64, "bidirectional": False}
EXPECT = "t5.bucket.not_clamped"


class Buckets:
    def __init__(self, num_buckets, max_distance):
        self.n = num_buckets
        self.exact = num_buckets // 2
        self.log_span = math.log(max_distance / self.exact)

    def one(self, relative):
        back = max(-relative, 0)
        if back < self.exact:
            return back
        share = math.log(back / self.exact) / self.log_span
        return self.exact + int(share * (self.n - self.exact))

    def __call__(self, relative_position):
        flat = [self.one(r) for r in relative_position.flatten().tolist()]
        return torch.tensor(flat, dtype=torch.long).view(relative_position.shape)


def build():
    return Buckets(16, 64)
