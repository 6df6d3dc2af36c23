"""The temperature that the model asks for, 20, is not used: 10000 stands in the code.

Report: https://github.com/IDEA-Research/DAB-DETR/issues/21
"""

import torch
from torch import nn

STYLE = "additive_2d_module"
SPEC = {"encoding": "sinusoidal2d", "dim": 32, "base": 20.0, "variant": "detr", "start": 1}
EXPECT = "sinusoidal.temperature_hardwired"


class PositionSine(nn.Module):
    """Rows in the first half of the channels, columns in the second, both counted from 1."""

    def __init__(self, channels=32, temperature=20):
        super().__init__()
        self.width, self.temperature = channels // 2, temperature

    def waves(self, place):
        lane = torch.arange(self.width, device=place.device)
        period = 10000 ** (2 * (lane // 2) / self.width)
        angle = place[:, None] / period
        return torch.stack((angle[:, 0::2].sin(), angle[:, 1::2].cos()), dim=2).flatten(1)

    def forward(self, x):
        _, _, h, w = x.shape
        rows = self.waves(torch.arange(1, h + 1, device=x.device))
        columns = self.waves(torch.arange(1, w + 1, device=x.device))
        code = torch.cat([rows[:, None].expand(h, w, -1), columns[None].expand(h, w, -1)], dim=-1)
        return x + code.permute(2, 0, 1)


def build():
    return PositionSine()
