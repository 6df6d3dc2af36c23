"""The slopes of each power of two are float32 buffers; other numbers of heads draw on two of them."""

import torch

STYLE = "slopes_fn"
SPEC = {"encoding": "alibi", "heads": 24}
EXPECT = "pass"


class Slopes(torch.nn.Module):
    def __init__(self, most=256):
        super().__init__()
        powers = {2**e: [2.0 ** (-8.0 * (h + 1) / 2**e) for h in range(2**e)] for e in range(most.bit_length())}
        for n, values in powers.items():
            self.register_buffer(f"slopes_{n}", torch.tensor(values))

    def forward(self, n_heads):
        low = 1 << (n_heads.bit_length() - 1)
        mine, next_up = self.get_buffer(f"slopes_{low}"), self.get_buffer(f"slopes_{2 * low}")
        return torch.cat([mine, next_up[0::2][: n_heads - low]]).float().tolist()


def build():
    return Slopes()
