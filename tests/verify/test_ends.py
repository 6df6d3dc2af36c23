"""What ends, says so, and is right before it, is right; what is declared must be reached."""

import pytest
import torch
from torch import nn

from posenc import verify
from posenc.verify import spec as words


def rates(d, base=10000.0):
    return base ** (-torch.arange(0, d, 2).double() / d)


def within(positions, end):
    if int(positions.max()) >= end:
        raise IndexError(f"a table of {end} rows")
    return positions.double()


class Attention:
    """Rotary attention with a table."""

    def __init__(self, layout, end, base=10000.0):
        self.layout, self.end, self.base = layout, end, base

    def turn(self, x, positions):
        angle = within(positions, self.end)[:, None] * rates(x.shape[-1], self.base)
        cos, sin = angle.cos(), angle.sin()
        if self.layout == "half":
            a, b = x.double().chunk(2, -1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
        a, b = x.double()[..., ::2], x.double()[..., 1::2]
        return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)

    def __call__(self, q, k, v, positions):
        scores = self.turn(q, positions) @ self.turn(k, positions).mT / q.shape[-1] ** 0.5
        return scores.softmax(-1).to(v.dtype) @ v


def mrope_within(end, base=1e6):
    axis = torch.tensor([0] * 2 + [1] * 3 + [2] * 3)
    return lambda ids: within(ids, end).T[:, axis] * rates(16, base)


def picture_within(end, base=10000.0):
    def table(h, w):
        if max(h, w) > end:
            raise ValueError(f"{end} x {end} at most")
        y, x = (t.flatten().double() for t in torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij"))
        return torch.cat((x[:, None] * rates(8, base), y[:, None] * rates(8, base)), 1)

    return table


class Slots(nn.Module):
    """A model whose cache has room for four rows."""

    def __init__(self, wrong=0):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.w = nn.Parameter(torch.randn(3, 16, 16, generator=generator) / 4)
        self.wrong = wrong

    def forward(self, x, cache=None):
        batch, n, _ = x.shape
        if cache is None:
            cache = (torch.zeros(2, 4, 64, 16), 0)
        kept, past = cache[0].clone(), cache[1]
        p = past + torch.arange(n) + (self.wrong if past else 0)
        q, k, v = (x @ w for w in self.w)
        angle = p[:, None] * rates(16).float()
        q, k = (torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)
                for a, b in (t.chunk(2, -1) for t in (q, k)))  # fmt: skip
        kept[0, :, past : past + n][:batch], kept[1, :, past : past + n][:batch] = k.expand(batch, -1, -1), v
        if batch > 4:
            raise RuntimeError("room for 4 rows")
        k, v = kept[0, :batch, : past + n], kept[1, :batch, : past + n]
        seen = torch.arange(past + n) <= past + torch.arange(n)[:, None]
        return (q @ k.mT / 4).masked_fill(~seen, -torch.inf).softmax(-1) @ v, (kept, past + n)


def window_of(size, wide=0):
    def index(h, w):
        y, x = (t.flatten() for t in torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij"))
        return (y[:, None] - y + size - 1) * (2 * size - 1 - wide) + x[:, None] - x + size - 1

    return index


ROPE = {"encoding": "rope", "head_dim": 16}
MROPE = {"encoding": "mrope", "head_dim": 16, "base": 1e6, "section": [2, 3, 3]}
ROPE2D = {"encoding": "rope2d", "head_dim": 16}
CONFIG = {"config": {"head_dim": 16, "rope_theta": 10000.0, "max_position_embeddings": 4096}}
DECODE = {"kind": "decode_equivalence", "encoding": "rope", "dim": 16, "heads": 1}
SWIN = {"encoding": "swin_bias"}
LAYOUTS = ("half", "interleaved")
MANY = 10**6
CASES = [  # convention, subject, specification, status or code
    *(
        ("attention", Attention(name, end - less), ROPE | {"layout": name} | more, want)
        for name in LAYOUTS
        for end in (256, 2048, MANY)
        for less, more, want in (
            (0, {}, "pass"),
            (0, {"max_positions": end}, "pass"),
            (1, {"max_positions": end}, "subject.raises" if end < MANY else "pass"),
        )
    ),
    *(("attention", Attention(name, MANY), ROPE, "pass") for name in LAYOUTS),
    *(
        ("attention", Attention(name, MANY, base), ROPE | {"base": 20000.0}, "rope.config.theta_not_read")
        for name in LAYOUTS
        for base in (10000.0, 500000.0)
    ),
    ("attention", Attention("half", MANY), ROPE | {"layout": "interleaved"}, "rope.layout.wrong_pairing"),
    ("attention", Attention("interleaved", MANY), ROPE | CONFIG | {"layout": "interleaved"}, "pass"),
    *(
        ("mrope_fn", mrope_within(*args), MROPE | more, want)
        for end in (100, 4096, 5000)
        for args, more, want in (
            ((end,), {}, "pass"),
            ((end,), {"max_positions": end}, "pass"),
            ((end, 1e4), {"max_positions": end}, "fail"),
            ((end - 1,), {"max_positions": 32769}, "subject.raises"),
        )
    ),
    *(
        ("rope2d_table_fn", picture_within(*args), ROPE2D | more, want)
        for end in (8, 32, 100)
        for args, more, want in (
            ((end,), {}, "pass"),
            ((end,), {"max_positions": end}, "pass"),
            ((end, 100.0), {}, "fail"),
        )
    ),
    ("rope2d_table_fn", picture_within(6), ROPE2D, "subject.raises"),
    ("rope2d_table_fn", picture_within(30), ROPE2D | {"max_positions": 70}, "subject.raises"),
    ("cached_model", Slots(), DECODE, "pass"),
    ("cached_model", Slots(1), DECODE, "rope.kv_cache.off_by_one"),
    ("relative_index_fn", window_of(16), SWIN | {"window": [16, 16]}, "pass equivalent"),
    ("relative_index_fn", window_of(16), SWIN | {"table_rows": 961}, "pass equivalent"),
    ("relative_index_fn", window_of(16), SWIN | {"table_rows": 500}, "fail"),
    ("relative_index_fn", window_of(16, 3), SWIN | {"window": [16, 16]}, "fail"),
    ("relative_index_fn", window_of(17), SWIN | {"window": [16, 16]}, "fail"),
]


@pytest.mark.parametrize(("convention", "subject", "spec", "want"), CASES)
def test_ends(convention, subject, spec, want):
    report = verify.check(subject, convention=convention, spec=spec)
    assert {report.status, report.causes[0].code if report.causes else ""} & set(want.split()), report


def test_words_near_ours_that_mean_something_else():
    assert words.read({"kv_heads": 2}) == ({}, ["'kv_heads' of the specification, which posenc does not know"])
