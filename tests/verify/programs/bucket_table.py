"""Buckets looked up in a table over the clamped distances."""

import torch

STYLE = "bucket_fn"
SPEC = {"encoding": "t5", "num_buckets": 32, "max_distance": 128, "bidirectional": True}
EXPECT = "pass"


THRESHOLDS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91)


def build():
    table = torch.zeros(2 * 91 + 1, dtype=torch.int64)
    for distance in range(-91, 92):
        passed = sum(abs(distance) >= t for t in THRESHOLDS)
        table[distance + 91] = passed + (16 if distance > 0 else 0)
    return lambda relative_position: table[relative_position.clamp(-91, 91) + 91]
