"""One attention layer whose relative bias covers all keys in the cache, in a decoder's buckets."""

import math

import torch
from torch import nn

STYLE = "cached_model"
MODEL = {"layers": 1, "dim": 32, "heads": 4, "head_dim": 8, "bidirectional": False}
SPEC = MODEL | {"kind": "decode_equivalence", "encoding": "t5", "causal": True, "num_buckets": 8, "max_distance": 16}
EXPECT = "pass"


def bucket(back, n_buckets=8, max_distance=16):
    """Return the bucket of distances back >= 0."""
    exact = n_buckets // 2
    far = exact + torch.log(back.clamp(min=1) / exact) / math.log(max_distance / exact) * (n_buckets - exact)
    return torch.where(back < exact, back, far.long().clamp(max=n_buckets - 1))


class Decoder(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.table = nn.Embedding(8, heads)

    def forward(self, x, cache=None):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        n, total = q.size(2), k.size(2)
        back = torch.arange(total - n, total)[:, None] - torch.arange(total)[None]
        position_bias = self.table(bucket(back.clamp(min=0))).permute(2, 0, 1)
        scores = q @ k.mT + position_bias
        weights = scores.masked_fill(back < 0, -torch.inf).softmax(dim=-1)
        return self.to_out((weights @ v).transpose(1, 2).flatten(2)), (k, v)


def build():
    torch.manual_seed(2)
    return Decoder(32, 4)
