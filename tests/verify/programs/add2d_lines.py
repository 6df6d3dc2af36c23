"""Two-dimensional sinusoids: a line of rows and a line of columns, written into a channels-last buffer."""

import torch


class Lines(torch.nn.Module):
    def __init__(self, channels=40, most=64):
        super().__init__()
        self.most = most
        lane = torch.arange(channels // 2)
        rate = 10000.0 ** (-2 * torch.div(lane, 2, rounding_mode="floor").double() / (channels // 2))
        phase = (lane % 2) * (torch.pi / 2)
        self.register_buffer("line", torch.sin(torch.arange(most).double()[:, None] * rate + phase))

    def forward(self, x):
        n, c, h, w = x.shape
        code = torch.empty(h, w, c, dtype=torch.float64)
        code[..., : c // 2] = self.line[:h, None]
        code[..., c // 2 :] = self.line[None, :w]
        return (x.permute(0, 2, 3, 1) + code.to(x.dtype)).permute(0, 3, 1, 2)


def build():
    return Lines()


STYLE = "additive_2d_module"
SPEC = {"encoding": "sinusoidal2d", "dim": 40, "base": 10000.0, "layout": "interleaved", "order": "yx"}
EXPECT = "pass"
