"""One rotary attention layer with a cache of rotated keys."""

import torch

G = torch.Generator().manual_seed(11)
WQ, WK, WV = (torch.randn(32, 32, generator=G) / 32**0.5 for _ in range(3))


def rot(x, places):
    f = 500000.0 ** (-torch.arange(0, 16, 2) / 16)
    w = torch.polar(torch.ones(len(places), 8), places[:, None] * f)
    z = torch.view_as_complex(x.unflatten(-1, (8, 2)).contiguous())
    return torch.view_as_real(z * w).flatten(-2)


def model(x, cache=None):
    b, n, _ = x.shape
    q, k, v = ((x @ w).view(b, n, 2, 16).permute(0, 2, 1, 3) for w in (WQ, WK, WV))
    past = 0
    if cache is not None:
        past = cache[0].shape[2]
    places = torch.arange(past, past + n).float()
    q, k = rot(q, places), rot(k, places)
    if cache is not None:
        k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
    score = torch.einsum("bhid,bhjd->bhij", q, k) / 4.0
    m = k.shape[2]
    score = score + torch.full((n, m), float("-inf")).triu(m - n + 1)
    y = torch.einsum("bhij,bhjd->bhid", score.softmax(-1), v)
    return y.permute(0, 2, 1, 3).reshape(b, n, 32), (k, v)


def build():
    return model


STYLE = "cached_model"
MODEL = {"layers": 1, "dim": 32, "heads": 2, "head_dim": 16, "causal": True}
SPEC = MODEL | {"kind": "decode_equivalence", "encoding": "rope", "base": 500000.0, "layout": "interleaved"}
EXPECT = "pass"
