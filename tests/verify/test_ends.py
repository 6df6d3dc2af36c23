"""What ends, says so, and is right before it, is right; what is declared must be reached."""

import pytest
import torch
from torch import nn

from posenc import verify
from posenc.verify import spec as words


def status(subject, convention, **spec):
    report = verify.check(subject, convention=convention, spec=spec)
    return report.status, report.causes[0].code if report.causes else ""


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


@pytest.mark.parametrize("end", [256, 512, 2048, 10**6])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_attention_with_a_table(layout, end):
    rope = {"encoding": "rope", "head_dim": 16, "layout": layout}
    assert status(Attention(layout, end), "attention", **rope) == ("pass", "")
    assert status(Attention(layout, end), "attention", **rope, max_positions=end) == ("pass", "")
    if end < 10**6:
        assert status(Attention(layout, end - 1), "attention", **rope, max_positions=end) == ("fail", "subject.raises")


def test_attention_whose_pairing_nobody_asked_about():
    for layout in ("half", "interleaved"):
        assert status(Attention(layout, 10**6), "attention", encoding="rope", head_dim=16) == ("pass", "")
        found = status(Attention(layout, 10**6, 500000.0), "attention", encoding="rope", head_dim=16, base=20000.0)
        assert found == ("fail", "rope.config.theta_not_read")
        other = status(Attention(layout, 10**6), "attention", encoding="rope", head_dim=16, base=20000.0)
        assert other == ("fail", "rope.config.theta_not_read")
    wrong = status(Attention("half", 10**6), "attention", encoding="rope", head_dim=16, layout="interleaved")
    assert wrong == ("fail", "rope.layout.wrong_pairing")


def test_a_configuration_without_a_type_leaves_the_pairing_to_the_spec():
    config = {"head_dim": 16, "rope_theta": 10000.0, "max_position_embeddings": 4096}
    rope = {"encoding": "rope", "head_dim": 16, "config": config}
    assert status(Attention("interleaved", 10**6), "attention", **rope, layout="interleaved") == ("pass", "")


def mrope_within(end, base=1e6):
    axis = torch.tensor([0] * 2 + [1] * 3 + [2] * 3)
    return lambda ids: within(ids, end).T[:, axis] * rates(16, base)


@pytest.mark.parametrize("end", [100, 4096, 5000])
def test_mrope_with_a_table(end):
    mrope = {"encoding": "mrope", "head_dim": 16, "base": 1e6, "section": [2, 3, 3]}
    assert status(mrope_within(end), "mrope_fn", **mrope) == ("pass", "")
    assert status(mrope_within(end), "mrope_fn", **mrope, max_positions=end) == ("pass", "")
    assert status(mrope_within(end, 1e4), "mrope_fn", **mrope, max_positions=end)[0] == "fail"
    assert status(mrope_within(end - 1), "mrope_fn", **mrope, max_positions=32769)[1] == "subject.raises"


def picture_within(end, base=10000.0):
    def table(h, w):
        if max(h, w) > end:
            raise ValueError(f"{end} x {end} at most")
        y, x = (t.flatten().double() for t in torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij"))
        return torch.cat((x[:, None] * rates(8, base), y[:, None] * rates(8, base)), 1)

    return table


@pytest.mark.parametrize("end", [8, 32, 100])
def test_pictures_with_a_table(end):
    rope2d = {"encoding": "rope2d", "head_dim": 16}
    assert status(picture_within(end), "rope2d_table_fn", **rope2d) == ("pass", "")
    assert status(picture_within(end), "rope2d_table_fn", **rope2d, max_positions=end) == ("pass", "")
    assert status(picture_within(end, 100.0), "rope2d_table_fn", **rope2d)[0] == "fail"
    assert status(picture_within(6), "rope2d_table_fn", **rope2d) == ("fail", "subject.raises")
    assert status(picture_within(30), "rope2d_table_fn", **rope2d, max_positions=70)[1] == "subject.raises"


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


def test_a_cache_with_room_for_few_rows():
    decode = {"kind": "decode_equivalence", "encoding": "rope", "dim": 16, "heads": 1}
    assert status(Slots(), "cached_model", **decode) == ("pass", "")
    assert status(Slots(1), "cached_model", **decode) == ("fail", "rope.kv_cache.off_by_one")


def window_of(size, wide=0):
    def index(h, w):
        y, x = (t.flatten() for t in torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij"))
        return (y[:, None] - y + size - 1) * (2 * size - 1 - wide) + x[:, None] - x + size - 1

    return index


def test_one_table_for_the_largest_window():
    assert status(window_of(16), "relative_index_fn", encoding="swin_bias", window=[16, 16])[0] in (
        "pass",
        "equivalent",
    )
    assert status(window_of(16), "relative_index_fn", encoding="swin_bias", table_rows=961)[0] in ("pass", "equivalent")
    assert status(window_of(16), "relative_index_fn", encoding="swin_bias", table_rows=500)[0] == "fail"
    assert status(window_of(16, 3), "relative_index_fn", encoding="swin_bias", window=[16, 16])[0] == "fail"
    assert status(window_of(17), "relative_index_fn", encoding="swin_bias", window=[16, 16])[0] == "fail"


def test_words_near_ours_that_mean_something_else():
    assert words.read({"kv_heads": 2}) == ({}, ["'kv_heads' of the specification, which is no word that posenc reads"])
