"""Right position code that looks odd, as a stranger would write it: (build, convention, spec)."""

import math

import numpy as np
import torch
from torch import nn

from outsider_turning import HALF, PAIRS, apply, half, inv_freq, pair

INNOCENT = {}


def right(style, **spec):
    def keep(build):
        assert build.__name__ not in INNOCENT
        INNOCENT[build.__name__] = (build, style, spec)
        return build

    return keep


@right("rope_fn", **HALF)
def compiled():
    @torch.compile(backend="eager")
    def rope(x, positions):
        angle = positions[:, None].float() * inv_freq(32)
        return half(x, angle.cos(), angle.sin())

    return lambda x, positions: rope(x, positions)


@right("rope_fn", **HALF)
def in_place_on_a_clone():
    def rope(x, positions):
        angle = positions[:, None].float() * inv_freq(32)
        y, before = x.clone(), x[..., :16].clone()
        y[..., :16].mul_(angle.cos()).sub_(x[..., 16:] * angle.sin())
        y[..., 16:].mul_(angle.cos()).add_(before * angle.sin())
        return y

    return rope


@right("rope_fn", **HALF)
def float32_comes_back_for_any_type():
    def rope(x, positions):
        angle = positions[:, None].float() * inv_freq(32)
        return half(x.float(), angle.cos(), angle.sin())

    return rope


@right("bshd_module", **PAIRS)
def clockwise_on_both_sides():
    class Rope(nn.Module):
        def forward(self, q, k):
            angle = -(torch.arange(q.shape[1]).float()[:, None] * inv_freq(32))[:, None]
            return pair(q, angle.cos(), angle.sin()), pair(k, angle.cos(), angle.sin())

    return Rope()


@right("bshd_module", **PAIRS)
def both_sides_stay_sorted():
    class Rope(nn.Module):
        def forward(self, q, k):
            angle = (torch.arange(7, q.shape[1] + 7).float()[:, None] * inv_freq(32))[:, None]
            q, k = (torch.cat((x[..., 0::2], x[..., 1::2]), -1) for x in (q, k))
            return half(q, angle.cos(), angle.sin()), half(k, angle.cos(), angle.sin())

    return Rope()


@right("hf_rope", **HALF)
def tables_in_float64():
    class Wide(nn.Module):
        def forward(self, x, position_ids):
            angle = position_ids.double()[..., None] * 10000.0 ** (-torch.arange(0, 32, 2).double() / 32)
            return (t(torch.cat((angle, angle), -1)) for t in (torch.cos, torch.sin))

    def turn(q, k, cos, sin):
        return tuple(x.to(y.dtype) for x, y in zip(apply(q.double(), k.double(), cos, sin), (q, k), strict=True))

    return lambda x, position_ids: tuple(Wide()(x, position_ids)), turn


@right("meta_complex", **PAIRS)
def a_table_that_is_longer_than_asked():
    def table(end):
        angle = torch.outer(torch.arange(2 * end).double(), 10000.0 ** (-torch.arange(0, 32, 2).double() / 32))
        return torch.complex(angle.cos(), angle.sin())

    def turn(q, k, table):
        w = table[: q.shape[1]][None, :, None]
        return pair(q, w.real, w.imag).to(q), pair(k, w.real, w.imag).to(k)

    return table, turn


@right("lucidrains", **PAIRS)
def a_module_with_learned_frequencies_that_are_frozen():
    class Rotary(nn.Module):
        def __init__(self):
            super().__init__()
            self.freqs = nn.Parameter(inv_freq(32), requires_grad=False)

        def rotate_queries_or_keys(self, t, seq_dim=None, offset=0, scale=None):
            angle = (torch.arange(t.shape[seq_dim or -2]) + offset)[:, None] * self.freqs
            angle = angle.repeat_interleave(2, -1)
            other = torch.stack((-t[..., 1::2], t[..., 0::2]), -1).flatten(-2)
            return t * angle.cos() * (scale or 1.0) + other * angle.sin() * (scale or 1.0)

    return Rotary()


@right("slopes_fn", encoding="alibi", order="any")  # heads can be exchanged: with weights of their own they learn it so
def slopes_from_the_last_head():
    def slopes(n_heads):
        near = 2 ** math.floor(math.log2(n_heads))
        found = [2 ** (-8 * i / near) for i in range(1, near + 1)]
        found += [2 ** (-4 * i / near) for i in range(1, 2 * (n_heads - near) + 1, 2)]
        return found[::-1]

    return slopes


@right("slopes_fn", encoding="alibi")
def slopes_as_an_array():
    def slopes(n_heads):
        near = 1 << (n_heads.bit_length() - 1)
        first = np.exp2(-8.0 * np.arange(1, near + 1) / near)
        return np.concatenate((first, np.exp2(-4.0 * np.arange(1, 2 * (n_heads - near), 2) / near)))

    return slopes


@right("bias_fn", encoding="alibi", heads=8, causal=True)
def rises_towards_the_last_key():
    def bias(heads, q_len, kv_len):
        slopes = torch.exp2(-8 * (torch.arange(heads) + 1.0) / heads)
        return (slopes.view(1, -1, 1, 1) * (torch.arange(kv_len) - kv_len + 1)).expand(1, heads, q_len, kv_len)

    return bias


@right("score_mod", encoding="alibi", heads=8, causal=True)
def no_bias_for_keys_ahead():
    def score_mod(score, b, h, q_idx, kv_idx):
        return score - torch.exp2(-(h + 1.0)) * (q_idx - kv_idx).clamp(min=0)

    return score_mod


@right("bucket_fn", encoding="t5", num_buckets=32, max_distance=128, bidirectional=False)
def buckets_by_edges():
    edges = list(range(1, 17))
    edges += [math.ceil(16 * (128 / 16) ** (i / 16) - 1e-9) for i in range(1, 16)]

    def bucket(relative_position):
        behind = (-relative_position).clamp(min=0)
        return torch.bucketize(behind, torch.tensor(edges), right=True).int()

    return bucket


@right("rope2d_table_fn", encoding="rope2d", head_dim=32, base=100.0)
def a_grid_by_division():
    def table(h, w):
        cell = np.arange(h * w)
        freq = 100.0 ** (-np.arange(0, 16, 2) / 16)
        return torch.from_numpy(np.hstack((np.outer(cell % w, freq), np.outer(cell // w, freq)))).float()

    return table


@right("mrope_fn", encoding="mrope", head_dim=64, base=10000.0, section=[8, 12, 12])
def one_hot_choice_of_axes():
    axis = torch.tensor([0] * 8 + [1] * 12 + [2] * 12)
    choice = nn.functional.one_hot(axis, 3).float()

    def angles(position_ids):
        return torch.einsum("as,pa->sp", position_ids.float(), choice) * inv_freq(64)

    return angles


@right("position_fn", kind="positions", padding="left")
def counted_row_by_row():
    def positions(attention_mask, q_len):
        rows = []
        for row in attention_mask.tolist():
            start = row.index(1) if 1 in row else 0
            rows.append([max(i - start, 0) for i in range(len(row))][-q_len:])
        return torch.tensor(rows, dtype=torch.int32)

    return positions


@right("packed_position_fn", kind="positions", packed=True)
def documents_by_search():
    def positions(cu_seqlens):
        at = torch.arange(int(cu_seqlens[-1]))
        return at - cu_seqlens[torch.searchsorted(cu_seqlens.long(), at, right=True) - 1]

    return positions


@right("cached_model", kind="decode_equivalence", encoding="rope", layers=1, dim=32, heads=2, head_dim=16, base=10000.0)
def a_list_of_chunks_counted_backwards():
    made = torch.Generator().manual_seed(3)
    wq, wk, wv = (torch.randn(32, 32, generator=made) / 6 for _ in range(3))

    def turned(x, places):
        angle = places[:, None] * inv_freq(16)
        return half(x, angle.cos(), angle.sin())

    def model(x, cache=None):
        b, n, _ = x.shape
        q, k, v = ((x @ w).view(b, n, 2, 16).transpose(1, 2) for w in (wq, wk, wv))
        cache = [*(cache or []), (k, v)]  # keys as they are: they turn when they are read
        k, v = (torch.cat([chunk[i] for chunk in cache], 2) for i in (0, 1))
        m = k.shape[2]
        ago = torch.arange(m - 1, -1, -1).float()  # the newest token stands at 0, older ones behind it
        scores = turned(q, -ago[m - n :]) @ turned(k, -ago).mT / 4
        scores = scores.masked_fill(torch.ones(n, m, dtype=torch.bool).triu(m - n + 1), -torch.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, 32), cache

    return model


@right("additive_module", encoding="sinusoidal", dim=32, base=10000.0, layout="interleaved")
def waves_that_grow_with_the_text():
    class Waves(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.zeros(0, 32)

        def forward(self, x):
            while len(self.table) < x.shape[1]:
                p = len(self.table)
                row = [f(p / 10000.0 ** (2 * i / 32)) for i in range(16) for f in (math.sin, math.cos)]
                self.table = torch.cat((self.table, torch.tensor([row])))
            return torch.add(x, self.table[: x.shape[1]].to(x))

    return Waves()
