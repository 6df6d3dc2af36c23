"""Far distances run past the last bucket: the minimum with the last one is missing.

Report: https://github.com/huggingface/candle/pull/1312
"""

import math

import torch

STYLE = "bucket_fn"
SPEC = {"encoding": "t5", "num_buckets": 32, "max_distance": 128, "bidirectional": True}
EXPECT = "t5.bucket.not_clamped"


def bucket(relative_position):
    half, exact = 16, 8
    reach = relative_position.abs()
    far = exact + (torch.log(reach.clamp(min=1) / exact) / math.log(128 / exact) * (half - exact)).long()
    return torch.where(reach < exact, reach, far) + half * (relative_position > 0)


def build():
    return bucket
