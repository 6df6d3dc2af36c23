"""The base of the configuration is never passed on, so the default of the table's function counts.

Report: https://github.com/young-geng/EasyLM/pull/117
"""

import torch

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "head_dim": 16,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 2048,
}
STYLE = "meta_complex"
SPEC = {"encoding": "rope", "head_dim": 16, "layout": "interleaved", "config": CONFIG}
EXPECT = "rope.config.theta_not_read"


def precompute(dim, end, theta=10000.0):
    freqs = 1.0 / theta ** (torch.arange(0, dim, 2)[: dim // 2].float() / dim)
    angles = torch.outer(torch.arange(end), freqs)
    return torch.polar(torch.ones_like(angles), angles)


def apply(q, k, table):
    def turn(x):
        z = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(z * table[None, : x.shape[1], None, :]).flatten(-2).to(x.dtype)

    return turn(q), turn(k)


def table_of(end):
    return precompute(CONFIG["head_dim"], end)


def build():
    return table_of, apply
