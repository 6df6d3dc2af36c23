"""The bias is kept on the class, by the number of heads and both lengths."""

from typing import ClassVar

import torch

STYLE = "bias_fn"
SPEC = {"encoding": "alibi", "causal": True}
EXPECT = "pass"


class ALiBi:
    _kept: ClassVar[dict[tuple[int, ...], torch.Tensor]] = {}

    @staticmethod
    def make(heads, q_len, kv_len):
        low = 2 ** (heads.bit_length() - 1)
        exponents = torch.cat([torch.arange(1, low + 1) * 8 / low, torch.arange(1, 2 * low, 2) * 4 / low])[:heads]
        distance = torch.arange(kv_len - q_len, kv_len)[:, None] - torch.arange(kv_len)[None, :]
        return -torch.exp2(-exponents)[:, None, None] * distance.abs()

    def __call__(self, heads, q_len, kv_len):
        key = (heads, q_len, kv_len)
        if key not in self._kept or len(self._kept[key]) < heads:
            self._kept[key] = self.make(heads, q_len, kv_len)
        return self._kept[key][:heads]


def build():
    return ALiBi()
