"""A GPT of nanoGPT's size whose rotary positions are posenc's."""

from torch import nn
from torch.nn import functional as F

import posenc
from posenc import positions


class Attention(nn.Module):
    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, rope, placed):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = rope.rotate(q, k, placed)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(out.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width, n_heads):
        super().__init__()
        self.norm_1, self.attention = nn.LayerNorm(width), Attention(width, n_heads)
        self.norm_2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, rope, placed):
        x = x + self.attention(self.norm_1(x), rope, placed)
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class GPT(nn.Module):
    def __init__(self, vocab=96, width=384, n_heads=6, n_layers=6, base=10000.0):
        super().__init__()
        self.rope = posenc.RoPE(head_dim=width // n_heads, base=base)
        self.tokens = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(Block(width, n_heads) for _ in range(n_layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, ids):
        placed = self.rope.place(positions.arange(ids.shape[1]))
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x, self.rope, placed)
        return self.head(self.norm(x))
