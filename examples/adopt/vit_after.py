"""A small ViT whose learned vectors are posenc's."""

import torch
from torch import nn
from torch.nn import functional as F

import posenc
from posenc import positions


class Block(nn.Module):
    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.norm_1, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm_2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm_1(x)).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class ViT(nn.Module):
    def __init__(self, size=14, width=192, n_heads=3, n_layers=6, n_classes=10):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = posenc.Learned2D(d_model=width, height=size, width=size, n_prefix=1)
        self.blocks = nn.ModuleList(Block(width, n_heads) for _ in range(n_layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, n_classes)

    def resize(self, size):
        self.pos_embed = self.pos_embed.resized(size, size)  # timm's rule; others by name

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.class_token.expand(len(x), -1, -1), x), 1)
        x = self.pos_embed(x, positions.grid(self.pos_embed.height, self.pos_embed.width, n_prefix=1))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])
