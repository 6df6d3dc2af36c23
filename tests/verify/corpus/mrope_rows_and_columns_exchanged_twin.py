"""Interleaved M-RoPE with the axes in the order T H W T H W ...

The correct twin of mrope_rows_and_columns_exchanged.py.
"""

import torch

STYLE = "mrope_fn"
SPEC = {"encoding": "mrope", "head_dim": 128, "base": 5000000.0, "section": [24, 20, 20], "interleaved": True}
EXPECT = "pass"


SECTION = (24, 20, 20)
ORDER = (0, 1, 2)


def axis_of(pair):
    turn = pair % 3
    if turn and pair < 3 * SECTION[turn]:
        return ORDER[turn]
    return 0


def angles(position_ids):
    axes = torch.tensor([axis_of(i) for i in range(64)])
    inv_freq = 5000000.0 ** (-torch.arange(64).float() / 64)
    return position_ids.float()[axes].T * inv_freq


def build():
    return angles
