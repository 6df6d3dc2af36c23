"""The bias is the slope times the key's place, from one table cut to the cache's length."""

import torch
import torch.nn.functional as F
from torch import nn

STYLE = "cached_model"
SPEC = {
    "kind": "decode_equivalence",
    "encoding": "alibi",
    "dim": 32,
    "heads": 4,
    "head_dim": 8,
    "layers": 1,
    "causal": True,
}
EXPECT = "pass"


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        nn.init.normal_(self.qkv.weight, std=dim**-0.5)
        self.register_buffer("slopes", 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads))

    def forward(self, x, cache=None):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        mask = torch.ones(n, k.size(2)).tril(k.size(2) - n).log()
        bias = self.slopes.view(1, -1, 1, 1) * torch.arange(k.size(2)) + mask
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.out(y.transpose(1, 2).reshape(b, n, d)), (k, v)


def build():
    torch.manual_seed(0)
    return Attention(32, 4).eval()
