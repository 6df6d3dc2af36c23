"""What attention with a bias costs elsewhere: the usual ways, and other libraries where they are installed."""

import os
import shutil
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.bench.rows import N_HEADS, Row
from posenc.bench.setting import Forward, Setting
from posenc.families import Bias

Made = tuple[Forward, list[Tensor]]  # the forward pass, and what gets gradients


class Peer(NamedTuple):
    """Another way to the same result."""

    title: str
    make: Callable[[Setting], Made]
    scores: float  # how many tensors of float32 scores it needs at once; gradients need about twice as many


def dense(setting: Setting) -> Made:
    """Build the matrix of biases with -inf ahead, and give it to SDPA as a mask: what most projects do."""

    def forward() -> Tensor:
        mask = _matrix(setting).to(setting.q.dtype)
        return F.scaled_dot_product_attention(setting.q, setting.k, setting.v, attn_mask=mask, scale=setting.scale())

    return forward, setting.learned()


def naive(setting: Setting) -> Made:
    """Write attention out: matmul, bias, softmax, matmul."""

    def forward() -> Tensor:
        scores = setting.q @ setting.k.transpose(-1, -2) * setting.scale() + _matrix(setting).to(setting.q.dtype)
        return scores.softmax(-1) @ setting.v

    return forward, setting.learned()


def flex(setting: Setting) -> Made:
    """Give the bias to a compiled FlexAttention as its score_mod.

    Raises:
        ValueError: It cannot run here, or not with this encoding.
    """
    row, encoding = setting.row, setting.encoding
    if row.device == "cpu" and row.mode == "train":
        raise ValueError("FlexAttention has no backward pass on the CPU")
    if row.device == "cpu" and not compiler():
        raise ValueError("there is no C++ compiler, without which torch.compile makes nothing for the CPU")
    if not isinstance(encoding, Bias):
        raise ValueError("a score_mod cannot read whole queries and keys, as this encoding does")
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention)
    q_placed, k_placed = setting.place()
    mod = encoding.score_mod(q_placed, k_placed)
    blocks = None
    if row.causal:
        length = row.length
        blocks = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device=row.device)
    scale = setting.scale()

    def forward() -> Tensor:
        out: Tensor = compiled(setting.q, setting.k, setting.v, score_mod=mod, block_mask=blocks, scale=scale)
        return out

    return forward, setting.learned()


def transformers(setting: Setting) -> Made:
    """Take transformers' own T5 bias, computed in each call as its first layer does, through SDPA.

    Raises:
        ImportError: transformers is not installed.
    """
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(num_heads=N_HEADS, is_decoder=setting.row.causal)
    layer = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).to(setting.row.device)
    length, dtype = setting.row.length, setting.q.dtype
    unseen = torch.full((length, length), -torch.inf, device=setting.row.device).triu(1)

    def forward() -> Tensor:
        bias = layer.compute_bias(length, length)
        mask = (bias + unseen if setting.row.causal else bias).to(dtype)
        return F.scaled_dot_product_attention(setting.q, setting.k, setting.v, attn_mask=mask, scale=1.0)

    return forward, [setting.q, setting.k, setting.v, *layer.relative_attention_bias.parameters()]


def x_transformers(setting: Setting) -> Made:
    """Take x-transformers' ALiBi and its attention through SDPA; it keeps the matrix from call to call.

    Raises:
        ImportError: x-transformers is not installed.
    """
    from x_transformers.attend import Attend  # type: ignore[import-untyped]
    from x_transformers.x_transformers import AlibiPositionalBias  # type: ignore[import-untyped]

    bias = AlibiPositionalBias(heads=N_HEADS).to(setting.row.device)
    attend, length = Attend(causal=setting.row.causal, heads=N_HEADS, flash=True), setting.row.length

    def forward() -> Tensor:
        out: Tensor = attend(setting.q, setting.k, setting.v, attn_bias=bias(length, length).to(setting.q.dtype))[0]
        return out

    return forward, [setting.q, setting.k, setting.v]


PEERS: dict[str, Peer] = {
    "dense": Peer("SDPA, mask built", dense, 2.0),
    "naive": Peer("matmul and softmax", naive, 3.0),
    "flex": Peer("FlexAttention, compiled", flex, 0.0),
    "transformers": Peer("transformers T5, SDPA", transformers, 2.5),
    "x-transformers": Peer("x-transformers ALiBi", x_transformers, 3.0),
}


def estimate(row: Row, name: str) -> int:
    """Return about how many bytes a peer needs, so that none is begun that cannot end."""
    q_len = 1 if row.mode == "decode" else row.length
    return int(PEERS[name].scores * (2 if row.mode == "train" else 1) * N_HEADS * q_len * row.length * 4)


def _matrix(setting: Setting) -> Tensor:
    """Return the whole bias, -inf where a query may not look."""
    row, encoding, causal = setting.row, setting.encoding, setting.row.causal
    if isinstance(encoding, Bias) and not encoding.reads_x:
        return encoding.dense(setting.pos, setting.k_pos, causal=causal)
    bias = encoding.bias(setting.q, setting.k, *setting.place())
    if bias is None:
        raise ValueError(f"{encoding.name} has no bias that a mask could hold")
    if not causal:
        return bias
    seen = torch.ones(bias.shape[-2:], dtype=torch.bool, device=row.device).tril(bias.shape[-1] - bias.shape[-2])
    return bias.masked_fill(~seen, -torch.inf)


def compiler() -> str | None:
    """Return the C++ compiler that torch.compile finds for the CPU, or None."""
    names = [os.environ.get("CXX", ""), "g++", "clang++", "cl"]
    return next((name for name in names if name and shutil.which(name)), None)
