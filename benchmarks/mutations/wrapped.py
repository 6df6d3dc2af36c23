"""posenc's own implementations in the calling conventions that `check` knows."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

import posenc
from posenc import positions
from posenc.encodings import ALiBi, AxialRoPE, Learned, MRoPE, RoPE, Sinusoidal, TransformerXL, XPos
from posenc.families import angles, windows
from posenc.kernels import eager


def turned(encoding: posenc.Encoding) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, pos: encoding.rotate_q(x, encoding.place(pos))


def eager_turn(
    *, head_dim: int, base: float = 10000.0, rotary_dim: int = 0, rotary_side: Any = "first", pairing: Any = "half"
):
    """Turn by the plain kernel, whichever one the package would choose."""
    n = (rotary_dim or head_dim) // 2

    def rope(x: Tensor, pos: Tensor) -> Tensor:
        angle = pos.double()[:, None] * base ** (-torch.arange(n, dtype=torch.float64) / n)
        return eager.rotate(x, angle.cos().float(), angle.sin().float(), pairing=pairing, side=rotary_side)

    return rope


def far(start: int, **options: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """Take rows of a table of all positions up to the last, as many models do."""
    encoding = RoPE(**options)

    def rope(x: Tensor, pos: Tensor) -> Tensor:
        reach = max(9 * 512, int(pos.max()) + 1)
        if reach > 2**16 or int(pos.min()) < start:
            return turned(encoding)(x, pos)
        cos, sin = (t[pos - start] for t in encoding.place(positions.arange(reach - start, start=start)).parts)
        return eager.rotate(x, cos, sin, pairing="half")

    return rope


def scattered(encoding: posenc.Encoding) -> Callable[[Tensor, Tensor], Tensor]:
    """Take rows of a table of positions that are in no order."""
    order = torch.arange(6000) * 1771 % 6000

    def rope(x: Tensor, pos: Tensor) -> Tensor:
        if int(pos.max()) >= 6000 or int(pos.min()) < 0:
            return turned(encoding)(x, pos)
        cos, sin = (t[order.argsort()[pos]] for t in encoding.place(order).parts)
        return eager.rotate(x, cos, sin, pairing="half")

    return rope


PIECES = ((700, 5), (512, 1024), (900, 2000), (513, 511))  # how many positions, and the first


def in_pieces(encoding: posenc.Encoding) -> Callable[[Tensor, Tensor], Tensor]:
    """Place the positions between others, in runs of many lengths."""

    def rope(x: Tensor, pos: Tensor) -> Tensor:
        before = torch.cat([positions.arange(n, start=at) for n, at in PIECES])
        parts = encoding.place(torch.cat((before, pos, before + 7))).parts
        cos, sin = (t[len(before) : len(before) + len(pos)] for t in parts)
        near = encoding.place(torch.cat((before, positions.arange(4096)))).parts
        inside = (pos >= 0) & (pos < 4096)
        rows = len(before) + pos.clamp(0, 4095)
        cos, sin = (torch.where(inside[:, None], n[rows], t) for n, t in zip(near, (cos, sin), strict=True))
        return eager.rotate(x, cos, sin, pairing="half")

    return rope


def by_keys(encoding: posenc.Encoding) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, pos: encoding.rotate_k(x, encoding.place(pos))


def by_offset(encoding: posenc.Encoding) -> Callable[[Tensor, int], Tensor]:
    return lambda x, offset=0: turned(encoding)(x, positions.continued(offset, x.shape[-2]))


def lucid(encoding: posenc.Encoding) -> Any:
    turn = by_offset(encoding)
    return SimpleNamespace(rotate_queries_or_keys=lambda x, offset=0: turn(x, offset))


class Bshd(nn.Module):
    def __init__(self, encoding: posenc.Encoding) -> None:
        super().__init__()
        self.encoding = encoding

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        placed = self.encoding.place(positions.arange(q.shape[1]))
        q, k = self.encoding.rotate(q.transpose(1, 2), k.transpose(1, 2), placed)
        return q.transpose(1, 2), k.transpose(1, 2)


def complex_pair(*, head_dim: int, base: float, pairing: Any) -> tuple[Any, Any]:
    def table(end: int) -> Tensor:
        inv_freq = angles.geometric(head_dim // 2, base=base, width=head_dim)[None]
        return torch.complex(*angles.tabulate(positions.arange(end), inv_freq, dtype=torch.float32))

    def apply(q: Tensor, k: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
        turned = (eager.rotate(x.transpose(1, 2), found.real, found.imag, pairing=pairing) for x in (q, k))
        return tuple(x.transpose(1, 2) for x in turned)

    return table, apply


def both_turned(encoding: XPos) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    return lambda q, k: encoding.rotate(q, k, encoding.place(positions.arange(q.shape[-2])))


def resolved(config: dict[str, Any]) -> Callable[[int], posenc.Encoding]:
    encoding = RoPE.from_config(config)
    return lambda seq_len: encoding.resolve(seq_len)


def of_length(config: dict[str, Any]) -> Callable[[int], RoPE]:
    def of(seq_len: int) -> RoPE:
        found = posenc.frequencies.from_config(config, seq_len=seq_len)
        given = {"rotary_dim": found.rotary_dim, "pairing": found.pairing, "inv_freq": found.inv_freq}
        return RoPE(head_dim=32, **given, attention_factor=found.gain, score_factor=found.score_factor)

    return of


def hf_pair(of_length: Callable[[int], Any]) -> tuple[Any, Any]:
    def module(x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        own = of_length(int(position_ids.max()) + 1)
        return tuple(torch.cat((t, t), -1).to(x.dtype) for t in own.place(position_ids).parts)

    def apply(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = (t[..., : t.shape[-1] // 2].unsqueeze(1) for t in (cos, sin))
        return tuple(eager.rotate(x, cos, sin, pairing="half") for x in (q, k))

    return module, apply


def angles_2d(base: float) -> Callable[[int, int], Tensor]:
    inv_freq = AxialRoPE(head_dim=32, base=base).frequencies
    return lambda h, w: positions.grid(h, w).flip(-1).double() @ inv_freq()


def mrope_angles(sections: tuple[int, ...], layout: Any) -> Callable[[Tensor], Tensor]:
    encoding = MRoPE(head_dim=128, sections=sections, layout=layout, base=1e6)
    return lambda ids: positions.from_hf(ids[:, None])[0].double() @ encoding.frequencies()


def window_index(h: int, w: int) -> Tensor:
    cells = positions.grid(h, w)
    down, right = (cells[:, None] - cells[None]).unbind(-1)
    return windows.cell((down, right), (h, w))


class Added(nn.Module):
    def __init__(self, encoding: posenc.Encoding) -> None:
        super().__init__()
        self.encoding = encoding

    def forward(self, x: Tensor) -> Tensor:
        return self.encoding(x, positions.arange(x.shape[1]))


class Added2d(Added):
    def forward(self, x: Tensor) -> Tensor:
        cells = positions.grid(*x.shape[-2:])
        return self.encoding(x.flatten(2).mT, cells).mT.unflatten(-1, x.shape[-2:])


def relative_rows(encoding: Sinusoidal) -> Callable[[int], Tensor]:
    return lambda n: encoding.vectors(torch.arange(n - 1, -n, -1)).float()


def relative_rows_xl() -> Callable[[int], Tensor]:
    encoding = TransformerXL(d_model=32, n_heads=1, head_dim=2)
    return lambda n: torch.cat(encoding.parts(torch.arange(n - 1, -n, -1), None, None, torch.float32), -1)


def slopes(n_heads: int) -> list[float]:
    return ALiBi(n_heads=n_heads).slope(torch.arange(n_heads), torch.float64).tolist()


def learned_slopes(n_heads: int) -> list[float]:
    return ALiBi(n_heads=n_heads, slopes="learned").slope(torch.arange(n_heads), torch.float32).tolist()


def alibi_bias(heads: int, q_len: int, kv_len: int, **options: Any) -> Tensor:
    pos, k_pos = positions.arange(q_len, start=kv_len - q_len), positions.arange(kv_len)
    return ALiBi(n_heads=heads, **options).dense(pos, k_pos, causal="sides" in options)[0]


def alibi_of_heads(heads: int, q_len: int, kv_len: int) -> Tensor:
    """Join what the ranks of tensor parallelism hold."""
    whole, first = ALiBi(n_heads=heads), heads // 2
    pos, k_pos = positions.arange(q_len, start=kv_len - q_len), positions.arange(kv_len)
    parts = (whole.of_heads(0, first), whole.of_heads(first, heads - first)) if first else (whole,)
    return torch.cat([part.dense(pos, k_pos) for part in parts], 1)[0]


def score_mod(n_heads: int) -> Callable[..., Tensor]:
    encoding = ALiBi(n_heads=n_heads)
    mod = encoding.score_mod(encoding.place(positions.arange(2**15)))
    whole = torch.as_tensor
    return lambda score, b, h, q_idx, kv_idx: mod(score, whole(b), whole(h), whole(q_idx), whole(kv_idx))


def score_mod_of_heads(n_heads: int) -> Callable[..., Tensor]:
    """Join two ranks of tensor parallelism; queries stand in another order than keys."""
    whole, first, pos = ALiBi(n_heads=n_heads), n_heads // 2, positions.arange(2**15)
    mods = []
    for part in (whole.of_heads(0, first), whole.of_heads(first, n_heads - first)):
        mods.append(part.score_mod(part.place(pos.flip(0)), part.place(pos.expand(2, -1))))

    def mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Tensor:
        b, h, q_idx, kv_idx = map(torch.as_tensor, (b % 2, h, q_idx, kv_idx))
        low, high = (f(score, b, h - at, len(pos) - 1 - q_idx, kv_idx) for f, at in zip(mods, (0, first), strict=True))
        return torch.where(h < first, low, high)

    return mod


def buckets(bidirectional: bool, n_buckets: int, max_distance: int) -> Callable[[Tensor], Tensor]:
    encoding = posenc.T5(n_heads=1, n_buckets=n_buckets, max_distance=max_distance, bidirectional=bidirectional)
    return lambda relative_position: encoding.bucket(-relative_position)


def counted(name: str) -> Callable[[Tensor, int], Tensor]:
    return lambda attention_mask, q_len: getattr(positions, name)(attention_mask)[:, -q_len:]


def counted_by_row(attention_mask: Tensor, q_len: int) -> Tensor:
    return torch.stack([positions.left_padded(row)[-q_len:] for row in attention_mask])


def packed(cu_seqlens: Tensor) -> Tensor:
    return positions.packed(cu_seqlens=cu_seqlens)


def packed_by_document(cu_seqlens: Tensor) -> Tensor:
    """Count in a batch of three rows."""
    ids = torch.repeat_interleave(torch.arange(len(cu_seqlens) - 1), cu_seqlens.diff())
    return positions.packed(ids.expand(3, -1))[1]


def learned_rows(*, apart: bool = False) -> Callable[[Tensor], Tensor]:
    """Look up rows of a table that holds their numbers; `apart` places each sequence by itself."""
    encoding = Learned(d_model=1, max_len=128, offset=2, padding_idx=1)
    with torch.no_grad():
        encoding.weight.copy_(torch.arange(130.0)[:, None])
    place = (lambda mask: torch.stack(list(map(positions.padded, mask)))) if apart else positions.padded
    return lambda attention_mask: encoding.vectors(place(attention_mask))[..., 0].long()


def _attend(encoding: Any, q: Tensor, k: Tensor, v: Tensor, placed: Any, k_placed: Any, past_keys: Tensor) -> Tensor:
    scores = encoding.score_scale(q.shape[-1]) * encoding.rotate_q(q, placed) @ past_keys.mT
    bias = encoding.bias(q, k, placed, k_placed)
    scores = scores if bias is None else scores + bias
    hidden = placed.pos[:, None] < k_placed.pos
    return scores.masked_fill(hidden, -math.inf).softmax(-1) @ v


class Cached(nn.Module):
    """One layer that keeps keys as they were turned."""

    def __init__(self, encoding: posenc.Encoding) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoding, self.qkv = encoding, nn.Linear(32, 96, bias=False)

    def forward(self, x: Tensor, cache: Any = None) -> tuple[Tensor, Any]:
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        past = 0 if cache is None else cache[0].shape[2]
        placed = self.encoding.place(positions.continued(past, x.shape[1]))
        keys = self.encoding.rotate_k(k, placed)
        if cache is not None:
            keys, v = torch.cat((cache[0], keys), 2), torch.cat((cache[1], v), 2)
        everything = self.encoding.place(positions.arange(past + x.shape[1]))
        out = _attend(self.encoding, q, k, v, placed, everything, keys)
        return out.transpose(1, 2).flatten(2), (keys, v)


def library_attention(encoding: posenc.Encoding) -> Callable[..., Tensor]:
    return lambda q, k, v, pos: posenc.attend(q, k, v, encoding, encoding.place(pos))


def plain_attention(encoding: posenc.Encoding) -> Callable[..., Tensor]:
    def attention(q: Tensor, k: Tensor, v: Tensor, pos: Tensor) -> Tensor:
        placed = encoding.place(pos)
        return _attend(encoding, q, k, v, placed, placed, encoding.rotate_k(k, placed))

    return attention
