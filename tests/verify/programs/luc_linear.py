"""Linear scaling: positions are divided, the base stays."""

import torch

CONFIG = {
    "model_type": "llama",
    "head_dim": 16,
    "rope_theta": 10000.0,
    "max_position_embeddings": 128,
    "rope_scaling": {"rope_type": "linear", "factor": 4.0},
}
STYLE = "lucidrains"
SPEC = {"encoding": "rope", "head_dim": 16, "layout": "interleaved", "scaling": "linear", "config": CONFIG}
EXPECT = "pass"


class ScaledRotary:
    def __init__(self, config):
        self.dim, self.theta = config["head_dim"], config["rope_theta"]
        self.kind, self.factor = config["rope_scaling"]["rope_type"], config["rope_scaling"]["factor"]
        self.trained = config["max_position_embeddings"]

    def rotate_queries_or_keys(self, x, offset=0):
        n = offset + x.shape[-2]
        positions = torch.arange(offset, n).float()
        theta = self.theta
        if self.kind == "linear":
            positions = positions / self.factor
        if self.kind == "dynamic" and n > self.trained:
            theta = theta * (self.factor * n / self.trained - (self.factor - 1)) ** (self.dim / (self.dim - 2))
        angles = positions[:, None] / theta ** (torch.arange(0, self.dim, 2) / self.dim)
        z = torch.complex(x[..., 0::2].float(), x[..., 1::2].float()) * torch.exp(1j * angles)
        return torch.view_as_real(z).flatten(-2).to(x.dtype)


def build():
    return ScaledRotary(CONFIG)
