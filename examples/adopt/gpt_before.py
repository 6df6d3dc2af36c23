"""A GPT of nanoGPT's size with rotary positions of its own."""

import torch
from torch import nn
from torch.nn import functional as F


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Attention(nn.Module):
    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, cos, sin):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(out.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width, n_heads):
        super().__init__()
        self.norm_1, self.attention = nn.LayerNorm(width), Attention(width, n_heads)
        self.norm_2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm_1(x), cos, sin)
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class GPT(nn.Module):
    def __init__(self, vocab=96, width=384, n_heads=6, n_layers=6, base=10000.0):
        super().__init__()
        head_dim = width // n_heads
        self.register_buffer("inv_freq", base ** (-torch.arange(0, head_dim, 2) / head_dim))
        self.tokens = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(Block(width, n_heads) for _ in range(n_layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, ids):
        angles = torch.arange(ids.shape[1])[:, None] * self.inv_freq
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))
