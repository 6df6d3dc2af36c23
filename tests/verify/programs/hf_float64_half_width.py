"""float64 tables of half width, joined only in the function; argument names of its own."""

import math

import torch


class Tables(torch.nn.Module):
    """Frequencies as plain Python numbers; nothing is registered."""

    rates = [math.exp(-2 * i / 96 * math.log(123456.0)) for i in range(48)]

    def forward(self, hidden, ids):
        place = ids.to(torch.float64)
        grid = torch.stack([place * r for r in self.rates], dim=-1)
        return grid.cos(), grid.sin()


def rotate_all(query, key, c, s, unsqueeze_dim=1, **unused):
    c, s = c.unsqueeze(unsqueeze_dim), s.unsqueeze(unsqueeze_dim)

    def one(x):
        wide = x.to(torch.float64)
        lo, hi = wide.tensor_split(2, dim=-1)
        return torch.cat((lo * c - hi * s, lo * s + hi * c), dim=-1).to(x.dtype)

    return one(query), one(key)


def build():
    return Tables(), rotate_all


STYLE = "hf_rope"
SPEC = {"encoding": "rope", "head_dim": 96, "base": 123456.0, "layout": "half"}
EXPECT = "pass"
