"""The authors' slopes as a tensor in descending order: the heads are named in another order."""

import torch

STYLE = "slopes_fn"
SPEC = {"encoding": "alibi", "heads": 12}
EXPECT = "equivalent"


def slopes(n_heads):
    low = 2 ** int(torch.tensor(n_heads).log2())
    even = torch.arange(1, low + 1) / low
    odd = (torch.arange(n_heads - low) * 2 + 1) / (2 * low)
    return torch.sort(torch.exp2(-8 * torch.cat([even, odd])), descending=True).values


def build():
    return slopes
