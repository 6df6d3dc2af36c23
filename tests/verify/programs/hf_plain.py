"""The rotary module of a Llama: frequencies from the configuration's base, tables of the whole head's width."""

import torch
from torch import nn

CONFIG = {"model_type": "llama", "head_dim": 32, "rope_theta": 5000000.0, "max_position_embeddings": 4096}
STYLE = "hf_rope"
SPEC = {"encoding": "rope", "head_dim": 32, "layout": "half", "config": CONFIG}
EXPECT = "pass"


class RotaryEmbedding(nn.Module):
    def __init__(self, config):
        super().__init__()
        dim, base = config["head_dim"], config["rope_theta"]
        self.register_buffer("inv_freq", base ** (-torch.arange(0, dim, 2).float() / dim))

    def forward(self, x, position_ids):
        freqs = torch.einsum("bs,f->bsf", position_ids.float(), self.inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos().to(x.dtype), emb.sin().to(x.dtype)


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def apply(q, k, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def build():
    return RotaryEmbedding(CONFIG), apply
