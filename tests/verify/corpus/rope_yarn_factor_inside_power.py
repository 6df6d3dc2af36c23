"""YaRN whose slow pairs turn by (factor * base)**(-2i/d).

Report: https://github.com/apache/tvm/pull/18576
"""

import math

import torch

CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_attention_heads": 4,
    "head_dim": 64,
    "rope_theta": 150000.0,
    "max_position_embeddings": 131072,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
    },
}
STYLE = "rope_offset_fn"
SPEC = {"encoding": "rope", "head_dim": 64, "layout": "half", "scaling": "yarn", "config": CONFIG}
EXPECT = "rope.yarn.factor_in_power"


def frequencies(dim, base, factor, length, beta_fast=32.0, beta_slow=1.0):
    def bound(turns):
        return dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(bound(beta_fast)), 0), min(math.ceil(bound(beta_slow)), dim - 1)
    out = []
    for i in range(dim // 2):
        fast = 1 / base ** (2 * i / dim)
        slow = 1 / (factor * base) ** (2 * i / dim)
        keep = 1 - min(max((i - low) / (high - low), 0.0), 1.0)
        out.append(slow * (1 - keep) + fast * keep)
    return torch.tensor(out)


def build():
    scaling = CONFIG["rope_scaling"]
    freqs = frequencies(
        CONFIG["head_dim"], CONFIG["rope_theta"], scaling["factor"], scaling["original_max_position_embeddings"]
    )
    gain = 0.1 * math.log(scaling["factor"]) + 1

    def rope(x, offset=0):
        angles = torch.arange(offset, offset + x.shape[-2]).unsqueeze(1) * freqs
        cos, sin = gain * angles.cos().to(x.dtype), gain * angles.sin().to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)

    return rope
