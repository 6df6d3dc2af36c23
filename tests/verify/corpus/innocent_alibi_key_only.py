"""The slope times the key's position, for all queries at once."""

import torch

STYLE = "bias_fn"
SPEC = {"encoding": "alibi", "heads": 16, "causal": True}
EXPECT = "equivalent"


def build_alibi_tensor(heads, q_len, kv_len):
    powers = torch.arange(1, heads + 1, dtype=torch.float32)
    slopes = torch.pow(torch.tensor(2.0 ** (-8.0 / heads)), powers)
    return (slopes[:, None] * torch.arange(kv_len)).reshape(heads, 1, kv_len)


def build():
    return build_alibi_tensor
