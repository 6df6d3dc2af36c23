"""BEiT's table with three more rows for the class token."""

import torch

STYLE = "learned_bias_fn"
SPEC = {"encoding": "beit", "heads": 3}
EXPECT = "pass"


def bias(h, w, table):
    cells = torch.stack(torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")).flatten(1)
    dy, dx = cells[:, :, None] - cells[:, None, :]
    patches = (2 * h - 1) * (2 * w - 1)
    index = torch.zeros(h * w + 1, h * w + 1, dtype=torch.long)
    index[1:, 1:] = (dy + h - 1) * (2 * w - 1) + (dx + w - 1)
    index[0, :] = patches
    index[:, 0] = patches + 1
    index[0, 0] = patches + 2
    return table[index].permute(2, 0, 1)


def build():
    return bias
