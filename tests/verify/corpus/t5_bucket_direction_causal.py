"""A decoder that sorts the keys ahead into buckets and throws all keys before it into bucket 0.

Report: https://github.com/dmlc/gluon-nlp/pull/1470
"""

import math

import torch

STYLE = "bucket_fn"
SPEC = {"encoding": "t5", "num_buckets": 32, "max_distance": 128, "bidirectional": False}
EXPECT = "t5.bucket.direction"


def decoder_bucket(relative_position: torch.Tensor) -> torch.Tensor:
    distance = torch.clamp(relative_position, min=0)
    is_small = distance < 16
    growth = torch.log(distance.double().clamp(min=1) / 16) / math.log(128 / 16)
    large = torch.minimum(16 + torch.floor(growth * 16 + 1e-9).long(), torch.full_like(distance, 31))
    return torch.where(is_small, distance, large)


def build():
    return decoder_bucket
