"""All lanes of the head turn, although the configuration says that half of them do.

Report: https://github.com/ml-explore/mlx-lm/pull/1698
"""

import torch

CONFIG = {
    "model_type": "llama",
    "hidden_size": 128,
    "num_attention_heads": 4,
    "head_dim": 32,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "partial_rotary_factor": 0.5,
}
STYLE = "rope_fn"
SPEC = {"encoding": "rope", "head_dim": 32, "rotary_dim": 16, "layout": "half", "config": CONFIG}
EXPECT = "rope.partial.factor_not_read"


def width_of(config):
    return config["head_dim"]


def rope(x, positions):
    width = width_of(CONFIG)
    inv_freq = CONFIG["rope_theta"] ** (-torch.arange(0, width, 2).float() / width)
    angle = torch.outer(positions.float(), inv_freq)
    cos, sin = angle.cos().to(x), angle.sin().to(x)
    a, b, rest = x.split([width // 2, width // 2, x.shape[-1] - width], dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


def build():
    return rope
