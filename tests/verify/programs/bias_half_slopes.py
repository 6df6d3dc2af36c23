"""ALiBi bias; the slopes are a buffer of the model."""

import math

import torch


class Alibi(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.known = {}

    def slopes(self, heads):
        if heads not in self.known:
            low = 2 ** int(math.log2(heads))
            first = torch.logspace(-8 / low, -8, low, base=2, dtype=torch.float64)
            s = torch.cat(
                (first, torch.logspace(-4 / low, -8, 2 * low, base=2, dtype=torch.float64)[::2][: heads - low])
            )
            self.known[heads] = s.float()
        return self.known[heads].float()

    def forward(self, heads, q_len, kv_len):
        i = torch.arange(q_len).view(-1, 1) + (kv_len - q_len)
        j = torch.arange(kv_len).view(1, -1)
        return self.slopes(heads).view(-1, 1, 1) * (j - i).float()


def build():
    return Alibi()


STYLE = "bias_fn"
SPEC = {"encoding": "alibi", "heads": 16, "causal": True}
EXPECT = "pass"
