"""One right program for each convention, short enough to read: `posenc verify --explain` shows what it is asked."""

import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

import posenc
from posenc import positions
from posenc.definitions.positions import mrope_positions

DIM, BASE = 16, 10000.0
FREQ = BASE ** (-torch.arange(0, DIM, 2) / DIM)
ROPE = {"encoding": "rope", "head_dim": DIM, "base": BASE, "layout": "half"}
ALIBI = {"encoding": "alibi", "heads": 8, "causal": True, "window": 64}


def rotated(x: Tensor, angle: Tensor) -> Tensor:
    """Rotate pairs (i, i + half) of x (.., dim) by angles (.., dim / 2)."""
    a, b = x.double().chunk(2, -1)
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1).to(x)


def rope(x: Tensor, pos: Tensor) -> Tensor:
    """Rotate x (batch, heads, seq, dim) by positions (seq,)."""
    return rotated(x, pos.double()[:, None] * FREQ.double())


def from_start(x: Tensor) -> Tensor:
    """Rotate x (batch, seq, heads, dim) by positions from 0 on."""
    return rotated(x, torch.arange(x.shape[1]).double()[:, None, None] * FREQ.double())


def tables(x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return cos and sin as transformers does, (batch, seq, dim)."""
    angle = (position_ids.double()[..., None] * FREQ.double()).repeat(1, 1, 2)
    return angle.cos().to(x), angle.sin().to(x)


def applied(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> list[Tensor]:
    """Rotate queries and keys by cos and sin."""
    swapped = [torch.cat((-b, a), -1) for a, b in (q.chunk(2, -1), k.chunk(2, -1))]
    return [x * cos[:, None] + y * sin[:, None] for x, y in zip((q, k), swapped, strict=True)]


def meta(q: Tensor, k: Tensor, table: Tensor) -> list[Tensor]:
    """Rotate (batch, seq, heads, dim) by complex numbers (seq, dim / 2), as Llama of Meta does."""
    both = (torch.view_as_complex(x.float().unflatten(-1, (-1, 2))) * table[:, None] for x in (q, k))
    return [torch.view_as_real(x).flatten(-2).to(q) for x in both]


def xpos(q: Tensor, k: Tensor) -> list[Tensor]:
    """Rotate and scale (batch, heads, seq, dim) by positions from 0 on."""
    at = torch.arange(q.shape[2]).double()[:, None]
    zeta = (torch.arange(0, DIM, 2).double() / DIM + 0.4) / 1.4
    grow = (zeta ** (at / 512)).repeat(1, 2)
    return [(rope(q.double(), at[:, 0]) * grow).to(q), (rope(k.double(), at[:, 0]) / grow).to(k)]


def rope_of_axes(x: Tensor, pos: Tensor) -> Tensor:
    """Rotate the first half of each head by the row, the second by the column."""
    parts = zip(x.chunk(2, -1), pos.double().unbind(-1), strict=True)
    return torch.cat([rotated(part, at[:, None, :, None] * FREQ[::2].double()) for part, at in parts], -1)


def wave(pos: Tensor, dim: int = DIM) -> Tensor:
    """Return sines and cosines in turn, (.., dim)."""
    angle = pos.double()[..., None] * BASE ** (-torch.arange(0, dim, 2).double() / dim)
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(-2)


def add_to_image(x: Tensor) -> Tensor:
    """Add the sinusoid of the row to the first half of the channels, that of the column to the second."""
    h, w = x.shape[2:]
    rows, columns = (wave(torch.arange(n), DIM // 2) for n in (h, w))
    code = torch.cat((rows[:, None].expand(h, w, -1), columns.expand(h, w, -1)), -1)
    return x + code.permute(2, 0, 1).to(x)


def window_index(h: int, w: int) -> Tensor:
    """Return the rows of Swin's table for each pair of tokens of a window."""
    y, x = torch.arange(h * w) // w, torch.arange(h * w) % w
    return (y[:, None] - y + h - 1) * (2 * w - 1) + x[:, None] - x + w - 1


def alibi(heads: int, q_len: int, kv_len: int) -> Tensor:
    """Return ALiBi of the last q_len of kv_len keys, with a window of 64 keys."""
    distance = torch.arange(kv_len - q_len, kv_len)[:, None] - torch.arange(kv_len)
    slopes = torch.tensor([2.0 ** (-8 * (h + 1) / heads) for h in range(heads)])
    return (-slopes[:, None, None] * distance).masked_fill((distance < 0) | (distance >= 64), -math.inf)


def alibi_mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Add ALiBi of 8 heads to a score, and hide keys ahead and outside a window of 64 keys."""
    return torch.where((q >= k) & (q - k < 64), score - 2.0 ** -(h + 1.0) * (q - k), -math.inf)


def attention(q: Tensor, k: Tensor, v: Tensor, pos: Tensor) -> Tensor:
    """Attend with queries and keys rotated by positions (seq,) or (batch, seq)."""
    angle = (pos if pos.ndim > 1 else pos[None]).double()[:, None, :, None] * FREQ.double()
    out: Tensor = posenc.attend(rotated(q, angle), rotated(k, angle), v, posenc.NoPE(), positions.arange(q.shape[2]))
    return out


def shaw(q: Tensor, k: Tensor, rel_k: Tensor) -> Tensor:
    """Return the scores of Shaw et al. with distances clipped at 4; queries are the last of the keys."""
    behind = torch.arange(k.shape[2]) - torch.arange(k.shape[2])[k.shape[2] - q.shape[2] :, None]
    vectors = rel_k[behind.clamp(-4, 4) + 4]
    return (q @ k.mT + torch.einsum("bhid,ijd->bhij", q, vectors)) / math.sqrt(q.shape[-1])


def xl_shift(x: Tensor) -> Tensor:
    """Move row i of the last rows to the left, so that column j is key j."""
    rows, keys = x.shape[-2:]
    padded: Tensor = nn.functional.pad(x, (1, 0)).flatten(2).unflatten(2, (keys + 1, rows))
    return padded[:, :, 1:].reshape(x.shape)


def swin_v2(h: int, w: int, w1: Tensor, b1: Tensor, w2: Tensor) -> Tensor:
    """Return Swin v2's bias of a window, by its network over logarithmic steps, trained with windows of 6 x 8."""
    steps = [(torch.arange(n)[:, None] - torch.arange(n)) / (trained - 1) * 8 for n, trained in ((h, 6), (w, 8))]
    logs = [step.sign() * (1 + step.abs()).log2() / 3 for step in steps]
    cells = torch.cartesian_prod(torch.arange(h), torch.arange(w)).T
    both = torch.stack([log[at[:, None], at] for log, at in zip(logs, cells, strict=True)], -1)
    return 16 * torch.sigmoid((torch.relu(both @ w1.T + b1) @ w2.T).permute(2, 0, 1))


class Layer(nn.Module):
    """One layer of attention with a cache of rotated keys and of values."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(3 * 2 * DIM, 2 * DIM, generator=generator) / math.sqrt(2 * DIM))

    def forward(self, x: Tensor, cache: Any = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Attend to the cached tokens and to those of the call."""
        q, k, v = (x @ self.weight.T).unflatten(-1, (3, 2, DIM)).permute(2, 0, 3, 1, 4)
        past = 0 if cache is None else cache[0].shape[2]
        pos = torch.arange(past, past + x.shape[1])
        q, k = rope(q, pos), rope(k, pos)
        if cache is not None:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        seen = pos[:, None] >= torch.arange(k.shape[2])
        scores = (q @ k.mT / math.sqrt(DIM)).masked_fill(~seen, -math.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2), (k, v)


def _complex(end: int) -> Tensor:
    angle = torch.arange(end).double()[:, None] * FREQ.double()
    return torch.polar(torch.ones_like(angle), angle)


def _t5_bucket(relative_position: Tensor) -> Tensor:
    return posenc.T5(n_heads=1, bidirectional=True).bucket(-relative_position)


def _positions(attention_mask: Tensor, q_len: int) -> Tensor:
    return positions.left_padded(attention_mask.long())[:, -q_len:]


EXAMPLES: Mapping[str, tuple[dict[str, Any], Callable[[], Any]]] = {
    "hf_rope": (ROPE, lambda: (tables, applied)),
    "meta_complex": ({**ROPE, "layout": "interleaved"}, lambda: (_complex, meta)),
    "rope_fn": (ROPE, lambda: rope),
    "rope_offset_fn": (ROPE, lambda: lambda x, offset: rope(x, torch.arange(offset, offset + x.shape[2]))),
    "lucidrains": (
        ROPE,
        lambda: SimpleNamespace(
            rotate_queries_or_keys=lambda x, offset=0: rope(x, torch.arange(offset, offset + x.shape[2]))
        ),
    ),
    "bshd_module": (ROPE, lambda: lambda q, k: (from_start(q), from_start(k))),
    "xpos_fn": ({**ROPE, "encoding": "xpos", "scale_base": 512, "gamma": 0.4}, lambda: xpos),
    "mrope_fn": (
        {"encoding": "mrope", "head_dim": DIM, "base": BASE, "section": [2, 3, 3]},
        lambda: lambda position_ids: position_ids.double()[[0, 0, 1, 1, 1, 2, 2, 2]].T * FREQ.double(),
    ),
    "rope2d_table_fn": (
        {"encoding": "rope2d", "head_dim": DIM, "base": BASE, "order": "yx"},
        lambda: lambda h, w: (positions.grid(h, w).double()[..., None] * FREQ[::2].double()).flatten(1),
    ),
    "rope_axes_fn": (
        {"encoding": "rope2d", "head_dim": DIM, "base": BASE, "order": "yx", "layout": "half"},
        lambda: rope_of_axes,
    ),
    "mrope_positions_fn": (
        {"encoding": "mrope", "next_after": "all_axes"},
        lambda: lambda segments, time_steps: torch.from_numpy(_three_axes(segments, time_steps)),
    ),
    "additive_module": (
        {"encoding": "sinusoidal", "d_model": DIM, "layout": "interleaved"},
        lambda: lambda x: x + wave(torch.arange(x.shape[1])).to(x),
    ),
    "additive_2d_module": ({"encoding": "sinusoidal2d", "d_model": DIM, "order": "yx"}, lambda: add_to_image),
    "relative_table_fn": (
        {"encoding": "relative_sinusoid", "d_model": DIM, "layout": "interleaved"},
        lambda: lambda n: wave(torch.arange(n - 1, -n, -1)),
    ),
    "relative_index_fn": ({"encoding": "swin", "window": [3, 5]}, lambda: window_index),
    "slopes_fn": (
        {"encoding": "alibi", "heads": 8},
        lambda: lambda n_heads: [2.0 ** (-8 * (h + 1) / n_heads) for h in range(n_heads)],
    ),
    "bias_fn": (ALIBI, lambda: alibi),
    "score_mod": (ALIBI, lambda: alibi_mod),
    "bucket_fn": ({"encoding": "t5", "bidirectional": True}, lambda: _t5_bucket),
    "position_fn": ({"encoding": "rope", "padding": "left"}, lambda: _positions),
    "packed_position_fn": ({"encoding": "rope"}, lambda: lambda cu_seqlens: positions.packed(cu_seqlens=cu_seqlens)),
    "learned_rows_fn": (
        {"encoding": "learned", "offset": 2, "table_rows": 130, "max_positions": 128, "padding": "left"},
        lambda: lambda attention_mask: positions.left_padded(attention_mask.long()) + 2,
    ),
    "scores_fn": ({"encoding": "shaw", "head_dim": 8, "heads": 2, "max_distance": 4}, lambda: shaw),
    "shift_fn": ({"encoding": "transformer_xl"}, lambda: xl_shift),
    "learned_bias_fn": ({"encoding": "swin_v2", "heads": 3, "pretrained_window": [6, 8]}, lambda: swin_v2),
    "cached_model": ({**ROPE, "heads": 2, "dim": 2 * DIM, "causal": True}, Layer),
    "attention": ({**ROPE, "causal": True}, lambda: attention),
}


def _three_axes(segments: Any, time_steps: Any) -> Any:
    return mrope_positions([part if isinstance(part, int) else tuple(part) for part in segments], time_steps)
