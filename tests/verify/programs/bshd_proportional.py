"""A proportional rotation (Gemma 4) in which the fastest quarter of the pairs rotates."""

import torch
from torch import nn

CONFIG = {
    "model_type": "llama",
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "rope_parameters": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25},
}
STYLE = "bshd_module"
SPEC = {"encoding": "rope", "head_dim": 32, "layout": "half", "scaling": "proportional", "config": CONFIG}
EXPECT = "pass"


class GemmaRotary(nn.Module):
    def __init__(self, config):
        super().__init__()
        dim, rope = config["head_dim"], config["rope_parameters"]
        inv_freq = rope["rope_theta"] ** (-torch.arange(0, dim, 2).float() / dim)
        turning = int(rope["partial_rotary_factor"] * dim // 2)
        inv_freq[turning:] = 0.0
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, q, k):
        angle = torch.arange(q.shape[1]).float()[:, None] * self.inv_freq
        angle = torch.cat((angle, angle), dim=-1)[None, :, None, :]
        return self.turn(q, angle), self.turn(k, angle)

    @staticmethod
    def turn(x, angle):
        a, b = x.chunk(2, dim=-1)
        return x * angle.cos().to(x.dtype) + torch.cat((-b, a), dim=-1) * angle.sin().to(x.dtype)


def build():
    return GemmaRotary(CONFIG)
