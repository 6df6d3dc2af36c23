"""Keys cached without rotation and rotated at every step; cache is a dictionary with spare rows."""

import torch


def turn(x, places):
    a = places[:, None] * 10000.0 ** (-torch.arange(10) / 10)
    c, s = a.cos(), a.sin()
    return torch.cat((x[..., :10] * c - x[..., 10:] * s, x[..., 10:] * c + x[..., :10] * s), -1)


class Spare(torch.nn.Module):
    def __init__(self):
        super().__init__()
        g = torch.Generator().manual_seed(2)
        self.w = torch.nn.ParameterList(torch.nn.Parameter(torch.randn(4, 40, 40, generator=g) / 7) for _ in range(2))

    def forward(self, x, cache=None):
        b, n, _ = x.shape
        past = 0 if cache is None else cache["used"]
        total = past + n
        kept = []
        for layer, w in enumerate(self.w):
            q, k, v = (torch.einsum("bnd,de->bne", x, w[i]).reshape(b, n, 2, 20).transpose(1, 2) for i in range(3))
            room = torch.zeros(2, b, 2, total + 5, 20, dtype=x.dtype)
            if past:
                room[:, :, :, :past] = cache["rows"][layer][:, :, :, :past]
            room[0, :, :, past:total], room[1, :, :, past:total] = k, v
            kept.append(room)
            keys = turn(room[0, :, :, :total], torch.arange(total))
            score = turn(q, torch.arange(past, total)) @ keys.mT / 20**0.5
            score = score.masked_fill(torch.arange(total) > torch.arange(past, total)[:, None], -torch.inf)
            y = score.softmax(-1) @ room[1, :, :, :total]
            x = x + y.transpose(1, 2).flatten(2) @ w[3]
        return x, {"used": total, "rows": kept}


def build():
    return Spare()


STYLE = "cached_model"
MODEL = {"layers": 2, "dim": 40, "heads": 2, "head_dim": 20}
SPEC = MODEL | {"kind": "decode_equivalence", "encoding": "rope", "base": 10000.0, "layout": "half", "causal": True}
EXPECT = "pass"
