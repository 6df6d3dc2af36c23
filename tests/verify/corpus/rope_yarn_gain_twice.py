"""YaRN that multiplies the configuration's final attention_factor once more by 0.1 ln(factor) + 1.

Report: https://github.com/sgl-project/sglang/pull/33558
"""

import math

import torch
from torch import nn

CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_attention_heads": 4,
    "head_dim": 64,
    "rope_theta": 500000.0,
    "max_position_embeddings": 524288,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 128.0,
        "original_max_position_embeddings": 4096,
        "attention_factor": 1.4852030263919618,
    },
}
STYLE = "bshd_module"
SPEC = {"encoding": "rope", "head_dim": 64, "layout": "half", "scaling": "yarn", "config": CONFIG}
EXPECT = "rope.yarn.gain_squared"


class YarnRope(nn.Module):
    def __init__(self, config):
        super().__init__()
        s, d, base = config["rope_scaling"], config["head_dim"], config["rope_theta"]
        trained = s["original_max_position_embeddings"]
        ends = [d * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (32, 1)]
        low, high = max(math.floor(ends[0]), 0), min(math.ceil(ends[1]), d - 1)
        slow = ((torch.arange(d // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
        freq = base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
        self.register_buffer("inv_freq", (freq * (1 - slow) + freq / s["factor"] * slow).float(), persistent=False)
        self.gain = s["attention_factor"] * (0.1 * math.log(s["factor"]) + 1)

    def forward(self, q, k):
        angles = torch.arange(q.shape[1]).float()[:, None] * self.inv_freq
        cos = (self.gain * torch.cos(angles)).to(q.dtype)[:, None]
        sin = (self.gain * torch.sin(angles)).to(q.dtype)[:, None]
        out = []
        for x in (q, k):
            a, b = x.chunk(2, dim=-1)
            out.append(torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1))
        return tuple(out)


def build():
    return YarnRope(CONFIG)
