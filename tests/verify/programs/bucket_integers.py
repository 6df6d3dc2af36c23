"""A decoder's buckets by counting thresholds passed, in integers; int32."""

import torch

STYLE = "bucket_fn"
SPEC = {"encoding": "t5", "num_buckets": 32, "max_distance": 128, "bidirectional": False}
EXPECT = "pass"


def bucket(relative_position):
    back = torch.relu(-relative_position)
    out = torch.minimum(back, torch.tensor(16, dtype=back.dtype)).to(torch.int32)
    for b in range(1, 16):
        # (back / 16) ** 16 >= 8 ** b, with no logarithm
        first = next(n for n in range(16, 129) if n**16 >= 8**b * 16**16)
        out = out + (back >= first).int()
    return out


def build():
    return bucket
