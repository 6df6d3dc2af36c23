"""The offset grows by the tokens of the call: 0, 6, 7, 8.

The correct twin of rope_cached_prompt_counted_twice.py.
"""

import torch
import torch.nn.functional as F

STYLE = "cached_model"
SPEC = {
    "kind": "decode_equivalence",
    "encoding": "rope",
    "dim": 32,
    "heads": 4,
    "head_dim": 8,
    "layers": 2,
    "base": 10000.0,
}
EXPECT = "pass"


FREQ = 10000.0 ** (-torch.arange(4) / 4)


def rope(x, offset):
    angle = (offset + torch.arange(x.shape[2])).unsqueeze(-1) * FREQ
    real, imag = x.chunk(2, dim=-1)
    return torch.cat((real * angle.cos() - imag * angle.sin(), imag * angle.cos() + real * angle.sin()), dim=-1)


class TinyLM:
    def __init__(self, layers=2):
        chance = torch.Generator().manual_seed(2)
        self.w = torch.randn(layers, 4, 32, 32, generator=chance) / 3

    def __call__(self, x, cache=None):
        n = x.shape[1]
        state = cache or {"offset": 0, "last": n, "kv": [None] * len(self.w)}
        kept = []
        for (wq, wk, wv, wo), old in zip(self.w, state["kv"], strict=True):
            h = F.normalize(x, dim=-1) * 6
            q, k, v = (torch.reshape(h @ w, (*h.shape[:2], 4, 8)).swapaxes(1, 2) for w in (wq, wk, wv))
            q, k = rope(q, state["offset"]), rope(k, state["offset"])
            if old is not None:
                k, v = torch.cat((old[0], k), dim=2), torch.cat((old[1], v), dim=2)
            kept.append((k, v))
            mask = torch.full((n, k.shape[2]), float("-inf")).triu(k.shape[2] - n + 1)
            y = torch.softmax(q @ k.mT / 8**0.5 + mask, dim=-1) @ v
            x = x + y.swapaxes(1, 2).reshape(x.shape) @ wo
        step = n
        return x, {"offset": state["offset"] + step, "last": n, "kv": kept}


def build():
    return TinyLM()
