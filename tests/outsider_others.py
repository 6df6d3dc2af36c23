"""Other faulty position code as a stranger would write it, beside rotations."""

import math

import numpy as np
import torch
from torch import nn

from outsider_turning import fault, half, inv_freq


@fault("mrope_fn", ("mrope.section_order",), encoding="mrope", head_dim=64, base=10000.0, section=[8, 12, 12])
def mrope_with_width_first():
    def angles(position_ids):
        whole = position_ids.float()[..., None] * inv_freq(64)  # (3, seq, 32)
        return torch.cat([part[2 - i] for i, part in enumerate(whole.split([8, 12, 12], -1))], -1)

    return angles


@fault("rope2d_table_fn", ("rope2d.grid_transposed",), encoding="rope2d", head_dim=32, base=10000.0)
def cells_listed_by_columns():
    def table(h, w):
        freq = inv_freq(16)
        x, y = torch.meshgrid(torch.arange(w), torch.arange(h), indexing="ij")
        return torch.cat((x.flatten()[:, None] * freq, y.flatten()[:, None] * freq), -1)

    return table


@fault("rope2d_table_fn", ("rope2d.frequency.width",), encoding="rope2d", head_dim=32, base=10000.0)
def frequencies_of_the_whole_width():
    def table(h, w):
        freq = inv_freq(32)[:8]
        y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        return torch.cat((x.reshape(-1, 1) * freq, y.reshape(-1, 1) * freq), -1)

    return table


@fault("score_mod", ("alibi.slopes.integer_division",), encoding="alibi", heads=16, causal=True)
def exponents_by_integer_division():
    def score_mod(score, b, h, q_idx, kv_idx):
        return score + 2.0 ** (-(8 // 16) * (h + 1.0)) * (kv_idx - q_idx)

    return score_mod


@fault("bias_fn", ("alibi.buffer_slice_shifted",), encoding="alibi", heads=8, causal=True)
def queries_counted_from_zero_with_a_cache():
    def bias(heads, q_len, kv_len):
        slopes = torch.tensor([2.0 ** (-8 * (i + 1) / heads) for i in range(heads)])
        return -slopes[:, None, None] * (torch.arange(q_len)[:, None] - torch.arange(kv_len)).abs()

    return bias


@fault("bucket_fn", ("t5.bucket.formula",), encoding="t5", num_buckets=32, max_distance=128, bidirectional=True)
def logarithms_of_two_bases():
    def bucket(relative_position):
        out = (relative_position > 0).long() * 16
        n = relative_position.abs()
        far = 8 + (torch.log2(n.clamp(min=1) / 8) / math.log(128 / 8) * 8).long()
        return out + torch.where(n < 8, n, far.clamp(max=15))

    return bucket


@fault("additive_2d_module", ("learned.grid.stride",), encoding="learned2d", dim=16)
def learned_grid_filled_by_columns():
    class Grid(nn.Module):
        def __init__(self):
            super().__init__()
            self.row, self.column = nn.Embedding(50, 8), nn.Embedding(50, 8)

        def forward(self, x):
            h, w = x.shape[-2:]
            rows, columns = self.row(torch.arange(h)), self.column(torch.arange(w))
            whole = torch.cat((columns[:, None].expand(w, h, 8), rows[None].expand(w, h, 8)), -1)  # (w, h, dim)
            return x + whole.reshape(h, w, 16).permute(2, 0, 1)

    return Grid()


@fault("additive_2d_module", ("learned.grid.stride",), encoding="learned2d", dim=16, grid=[7, 9])
def learned_table_cut_by_count():
    class Grid(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(1, 63, 16))

        def forward(self, x):
            h, w = x.shape[-2:]
            return x + self.table[:, : h * w].transpose(1, 2).reshape(1, 16, h, w)

    return Grid()


@fault(
    "additive_module",
    ("sinusoidal.frequency.divisor",),
    encoding="sinusoidal",
    dim=32,
    base=10000.0,
    layout="interleaved",
)
def exponent_times_two():
    class Waves(nn.Module):
        def forward(self, x):
            n, d = x.shape[1:]
            angle = torch.arange(n)[:, None] / 10000.0 ** (torch.arange(0, d, 2) / d * 2)
            return x + torch.stack((angle.sin(), angle.cos()), -1).flatten(1)

    return Waves()


@fault("position_fn", ("positions.off_by_one",), kind="positions", padding="left")
def the_decoded_token_is_one_ahead():
    def positions(attention_mask, q_len):
        counted = attention_mask.cumsum(-1)
        if q_len == attention_mask.shape[1]:
            return (counted - 1).clamp(min=0)
        return counted[:, -q_len:]

    return positions


@fault("packed_position_fn", ("positions.packed.previous_length",), kind="positions", packed=True)
def the_length_before_stands_for_the_start():
    def positions(cu_seqlens):
        lengths = cu_seqlens.diff()
        before = torch.cat((lengths.new_zeros(1), lengths[:-1]))
        return torch.arange(int(cu_seqlens[-1])) - before.repeat_interleave(lengths)

    return positions


@fault(
    "learned_rows_fn",
    ("learned.start",),
    offset=2,
    table_rows=130,
    max_positions=128,
    padding="left",
    encoding="learned",
)
def one_row_too_far():
    return lambda attention_mask: attention_mask.cumsum(-1) * attention_mask + 2


@fault("relative_table_fn", ("relative_sinusoid.off_by_one",), encoding="relative_sinusoid", dim=32, base=10000.0)
def distances_begin_at_n():
    def table(n):
        d = np.arange(n, -n + 1, -1)[:, None] * (10000.0 ** (-np.arange(0, 32, 2) / 32))
        return torch.from_numpy(np.stack((np.sin(d), np.cos(d)), -1).reshape(len(d), 32)).float()

    return table


def cached(past):
    """Return one layer of rotary attention whose new tokens begin at what `past` reads off the cache."""
    made = torch.Generator().manual_seed(5)
    wq, wk, wv = (torch.randn(32, 32, generator=made) / 6 for _ in range(3))

    def turned(x, places):
        angle = places[:, None].float() * inv_freq(16)
        return half(x, angle.cos(), angle.sin())

    def model(x, cache=None):
        b, n, _ = x.shape
        q, k, v = ((x @ w).view(b, n, 2, 16).transpose(1, 2) for w in (wq, wk, wv))
        begin = 0 if cache is None else past(cache[0])
        places = torch.arange(begin, begin + n)
        q, k = turned(q, places), turned(k, places)
        if cache is not None:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        scores = q @ k.mT / 4
        m = k.shape[2]
        scores = scores.masked_fill(torch.ones(n, m, dtype=torch.bool).triu(m - n + 1), -torch.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, 32), (k, v)

    return model


STEPS = {"kind": "decode_equivalence", "encoding": "rope", "layers": 1, "dim": 32, "heads": 2, "head_dim": 16}


@fault("cached_model", ("rope.kv_cache.past_constant",), base=10000.0, **STEPS)
def rows_of_the_batch_are_the_past():
    return cached(lambda keys: keys.shape[0])


@fault("cached_model", ("rope.kv_cache.past_constant",), base=10000.0, **STEPS)
def heads_are_the_past():
    return cached(lambda keys: keys.shape[1])


@fault("mrope_fn", ("mrope.precision.positions_bf16",), encoding="mrope", head_dim=64, base=1e4, section=[8, 12, 12])
def axes_in_bfloat16():
    def angles(position_ids):
        whole = position_ids.to(torch.bfloat16).float()[..., None] * inv_freq(64)
        return torch.cat([part[i] for i, part in enumerate(whole.split([8, 12, 12], -1))], -1)

    return angles


@fault("score_mod", ("alibi.slopes.shared",), encoding="alibi", heads=8, causal=True)
def slopes_by_row_of_the_batch():
    return lambda score, b, h, q_idx, kv_idx: score + torch.exp2(-(b + 1.0)) * (kv_idx - q_idx)


@fault("attention", ("rope.table.too_short",), encoding="rope", head_dim=32, base=10000.0, layout="half", causal=True)
def far_tokens_share_a_row():
    def attention(q, k, v, positions):
        angle = positions.clamp(max=63)[:, None].float() * inv_freq(32)
        q, k = (half(x, angle.cos(), angle.sin()) for x in (q, k))
        scores = (q @ k.mT / 32**0.5).masked_fill(positions > positions[:, None], -torch.inf)
        return scores.softmax(-1) @ v

    return attention
