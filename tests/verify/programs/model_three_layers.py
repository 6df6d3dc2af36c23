"""Small rotary transformer of three layers; the cache knows how many tokens it has seen."""

import torch
from torch import nn

H, HD, LAYERS = 4, 12, 3


def rotate(x, start):
    f = 10000.0 ** (-torch.arange(6) / 6)
    a = (start + torch.arange(x.shape[2]))[:, None] * f
    u, v = x.chunk(2, -1)
    return torch.cat((u * a.cos() - v * a.sin(), v * a.cos() + u * a.sin()), -1)


class State:
    def __init__(self):
        self.seen = 0
        self.rows = [None] * LAYERS


class Layer(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number = number
        self.qkv = nn.Linear(48, 144, bias=False)
        self.out = nn.Linear(48, 48, bias=False)

    def forward(self, x, state, fresh):
        b, n, _ = x.shape
        q, k, v = (t.view(b, n, H, HD).transpose(1, 2) for t in self.qkv(x).split(48, -1))
        start = 0 if fresh else state.seen
        q, k = rotate(q, start), rotate(k, start)
        if self.number == LAYERS - 1:
            state.seen += n
        if state.rows[self.number] is not None:
            k = torch.cat((state.rows[self.number][0], k), 2)
            v = torch.cat((state.rows[self.number][1], v), 2)
        state.rows[self.number] = (k, v)
        m = k.shape[2]
        score = q @ k.transpose(-1, -2) / HD**0.5
        keep = torch.arange(m)[None] <= torch.arange(m - n, m)[:, None]
        y = score.masked_fill(~keep, float("-inf")).softmax(-1) @ v
        return x + self.out(y.transpose(1, 2).reshape(b, n, 48))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList(Layer(i) for i in range(LAYERS))

    @torch.no_grad()
    def forward(self, x, cache=None):
        fresh = cache is None
        state = State()
        if not fresh:
            state.seen, state.rows = cache.seen, list(cache.rows)
        for layer in self.layers:
            x = layer(x, state, fresh)
        return x, state


def build():
    return Model()


STYLE = "cached_model"
MODEL = {"layers": 3, "dim": 48, "heads": 4, "head_dim": 12}
SPEC = MODEL | {"kind": "decode_equivalence", "encoding": "rope", "base": 10000.0, "layout": "half", "causal": True}
EXPECT = "pass"
