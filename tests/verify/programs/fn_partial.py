"""A partial rotation by the configuration's factor, with pairs gathered by index."""

import torch

CONFIG = {
    "model_type": "llama",
    "head_dim": 32,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "partial_rotary_factor": 0.5,
}
STYLE = "rope_fn"
SPEC = {"encoding": "rope", "head_dim": 32, "rotary_dim": 16, "layout": "half", "config": CONFIG}
EXPECT = "pass"
HEAD_DIM = CONFIG["head_dim"]
ROTARY_DIM = int(HEAD_DIM * CONFIG["partial_rotary_factor"])


def rope(x, positions):
    pair = torch.arange(ROTARY_DIM // 2)
    freq = CONFIG["rope_theta"] ** (-2.0 * pair / ROTARY_DIM)
    partner = pair + ROTARY_DIM // 2
    angle = positions.float()[:, None] * freq
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., pair], x[..., partner]
    out = x.clone()
    out[..., pair] = a * cos - b * sin
    out[..., partner] = a * sin + b * cos
    return out


def build():
    return rope
