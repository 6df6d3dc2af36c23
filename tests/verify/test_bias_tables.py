"""Biases out of tables that nobody has shown."""

import pytest
import torch
from torch import nn

from bias_subjects import bucket, index, judged, steps


class T5(nn.Module):
    """A table of T5 behind `bias(heads, q_len, kv_len)`."""

    def __init__(self, both=True, local=False, turn=1, dropped=False, empty=False):
        super().__init__()
        self.table = nn.Embedding(32, 4)
        if empty:
            nn.init.zeros_(self.table.weight)
        self.both, self.local, self.turn, self.dropped = both, local, turn, dropped

    def forward(self, heads, q, k):
        start = 0 if self.local else k - q
        rel = torch.arange(k)[None] - (torch.arange(q)[:, None] + start)
        out = self.table(bucket(self.turn * rel, self.both)).permute(2, 0, 1)
        return out * 0 if self.dropped and q == 1 else out


def hide_table(module):
    return lambda h, q, k: module(h, q, k)


def ends_at_100(module):
    return lambda h, q, k: module(h, q, k) if k <= 100 else 1 / 0


class KeptByKeys:
    """A bias kept by the number of keys alone."""

    def __init__(self, bias):
        self.bias, self.kept = bias, {}

    def __call__(self, h, q, k):
        if k not in self.kept:
            self.kept[k] = self.bias(h, q, k)
        return self.kept[k]


def table_mod(change=lambda r: bucket(r, False)):
    table = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    return lambda s, b, h, q, k: s + table[change(k - q), h]


def swin_bias(make):
    table = torch.randn(400, 3, generator=torch.Generator().manual_seed(1))
    return lambda h, q, k: table[make(3, 5)].permute(2, 0, 1)


T5_BOTH, T5_PAST = {"encoding": "t5", "bidirectional": True}, {"encoding": "t5", "bidirectional": False}
SWIN = {"encoding": "swin_bias", "window": (3, 5)}
STRUCTURES = {
    "t5_module": (T5(), T5_BOTH, "pass", ""),
    "t5_past": (T5(False), T5_PAST, "pass", ""),
    "t5_hidden_table": (hide_table(T5()), T5_BOTH, "pass", ""),
    "t5_hidden_table_past": (hide_table(T5(False)), T5_PAST, "pass", ""),
    "t5_table_ends": (ends_at_100(T5()), T5_BOTH, "pass", ""),
    "t5_empty": (hide_table(T5(empty=True)), T5_BOTH, "cannot_tell", ""),
    "t5_turned": (T5(turn=-1), T5_BOTH, "fail", "t5.bucket.direction"),
    "t5_past_turned": (hide_table(T5(False, turn=-1)), T5_PAST, None, "t5.bucket.direction"),
    "t5_both_for_past": (T5(True), T5_PAST, "fail", "t5.bucket.bidirectional"),
    "t5_past_for_both": (hide_table(T5(False)), T5_BOTH, "fail", "t5.bucket.bidirectional"),
    "t5_from_zero": (T5(False, local=True), T5_PAST, "fail", "t5.kv_cache.query_from_zero"),
    "t5_dropped": (hide_table(T5(False, dropped=True)), T5_PAST, "fail", "t5.decode.bias_dropped"),
    "t5_kept_by_keys": (KeptByKeys(hide_table(T5(False))), T5_PAST, "fail", "t5.bias.state_kept"),
    "t5_random": (
        lambda h, q, k: torch.rand(h, q, k, generator=torch.Generator().manual_seed(q)),
        T5_PAST,
        "fail",
        "t5.bias.not_by_distance",
    ),
    "t5_unlike": (
        lambda h, q, k: torch.rand(4, 1, 1, generator=torch.Generator().manual_seed(q)) * steps(q, k),
        T5_PAST,
        "fail",
        "t5.mismatch",
    ),
    "swin": (swin_bias(index), SWIN, "pass", ""),
    "swin_collision": (
        swin_bias(lambda h, w: index(h, w, lambda h, w: 2 * h - 1)),
        SWIN,
        "fail",
        "swin.index.collision",
    ),
    "swin_columns": (swin_bias(lambda h, w: index(h, w, order="column")), SWIN, "fail", "swin.index.axes_swapped"),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_tables_that_are_not_known(name):
    subject, spec, *want = STRUCTURES[name]
    judged(subject, "bias_fn", spec, *want)


def test_score_mod_of_a_table():
    judged(table_mod(), "score_mod", {**T5_PAST, "heads": 4}, "pass", "")
    judged(
        table_mod(lambda r: bucket(r, False, 16)),
        "score_mod",
        {**T5_PAST, "heads": 4},
        "fail",
        "t5.bucket.bidirectional",
    )
