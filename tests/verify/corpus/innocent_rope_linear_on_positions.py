"""Linear scaling by a multiplier of the positions, 0.25, where the configuration has a factor of 4.

Seen in: https://github.com/ml-explore/mlx/pull/261
"""

import torch

STYLE = "rope_offset_fn"
SPEC = {
    "encoding": "rope",
    "head_dim": 16,
    "layout": "half",
    "scaling": "linear",
    "config": {
        "model_type": "llama",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "head_dim": 16,
        "rope_theta": 10000.0,
        "max_position_embeddings": 8192,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    },
}
EXPECT = "pass"


def build(scale=0.25):
    def rope(x, offset=0):
        positions = scale * torch.arange(offset, offset + x.shape[-2], dtype=torch.float32)
        angle = positions[:, None] / 10000.0 ** (torch.arange(8) / 8)
        a, b = torch.tensor_split(x, 2, dim=-1)
        return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), dim=-1).to(x.dtype)

    return rope
