"""A symmetric bias for the longest length so far, cut at its last rows."""

import math

import torch

STYLE = "bias_fn"
SPEC = {"encoding": "alibi", "heads": 6, "causal": True}
EXPECT = "pass"


class Alibi:
    def __init__(self):
        self.buffer = torch.zeros(0, 0)

    def slopes(self, heads):
        def series(n):
            return [2 ** (-(2 ** -(math.log2(n) - 3)) * (h + 1)) for h in range(n)]

        low = 2 ** math.floor(math.log2(heads))
        return torch.tensor(series(low) + series(2 * low)[0::2][: heads - low])

    def __call__(self, heads, q_len, kv_len):
        if len(self.buffer) < kv_len:
            place = torch.arange(kv_len)
            self.buffer = -(place[:, None] - place).abs()
        part = self.buffer[kv_len - q_len : kv_len, :kv_len]
        return torch.einsum("h,ij->hij", self.slopes(heads), part.float())


def build():
    return Alibi()
