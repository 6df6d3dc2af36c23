"""Dynamic NTK: only the base grows, beyond the trained length, and positions stay."""

import torch

CONFIG = {
    "model_type": "llama",
    "head_dim": 32,
    "rope_theta": 50000.0,
    "max_position_embeddings": 256,
    "rope_scaling": {"rope_type": "dynamic", "factor": 2.0},
}
STYLE = "rope_fn"
SPEC = {"encoding": "rope", "head_dim": 32, "layout": "half", "scaling": "dynamic", "config": CONFIG}
EXPECT = "pass"


def rope(x, positions):
    dim = CONFIG["head_dim"]
    scaling = CONFIG["rope_scaling"]
    trained = CONFIG["max_position_embeddings"]
    n = max(int(positions.max()) + 1, trained)
    base = CONFIG["rope_theta"] * (scaling["factor"] * n / trained - (scaling["factor"] - 1)) ** (dim / (dim - 2))
    scale = 1 / scaling["factor"] if scaling["rope_type"] == "linear" else 1.0
    angle = scale * positions.float()[:, None] * base ** (-torch.arange(0, dim, 2).float() / dim)
    cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)
    swapped = torch.roll(x, dim // 2, dims=-1)
    sign = torch.ones(dim)
    sign[: dim // 2] = -1
    return (x * cos + swapped * sign * sin).to(x.dtype)


def build():
    return rope
