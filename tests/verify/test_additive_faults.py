"""Codes added to a sequence: each fault is planted here, in code of its own, and named."""

import math

import pytest
import torch
from torch import nn

from additive_subjects import (
    LOW,
    ODD_BASE,
    PLAIN,
    SIN,
    T2T,
    Adds,
    B,
    Coarse,
    D,
    Drops,
    Grows,
    Trains,
    arange,
    halves,
    judge,
    omega,
    table_module,
    woven,
)

k = torch.arange(D // 2, dtype=torch.float64)


def by_rule(ws, wc, d=D, make=None):
    def code(n):
        p = torch.arange(n, dtype=torch.float64)[:, None]
        out = torch.zeros(n, d, dtype=torch.float64)
        out[:, 0::2], out[:, 1::2] = torch.sin(p * ws), torch.cos(p * wc)
        return out.float()

    return Adds(code)


def rows_for_columns(n):
    angle = torch.arange(n, dtype=torch.float64)[:, None] * omega(D).repeat_interleave(2)
    angle[0::2], angle[1::2] = torch.sin(angle[0::2]), torch.cos(angle[1::2])
    return angle.float()


class KeepsFirst(nn.Module):
    """Keeps the code of the longest call and takes its end."""

    pe = None

    def forward(self, x):
        n = x.shape[1]
        if self.pe is None or len(self.pe) < n:
            self.pe = woven(torch.arange(n), omega(D), D)
        return x + self.pe[-n:].to(x.dtype)


class Counts(nn.Module):
    """Goes on counting where the last call ended."""

    past = 0

    def forward(self, x):
        p = torch.arange(x.shape[1]) + self.past
        self.past += x.shape[1]
        return x + woven(p, omega(D), D)


def keeps_in_closure():
    kept = []

    def forward(x):
        if not kept or len(kept[0]) < x.shape[1]:
            kept[:] = [woven(torch.arange(x.shape[1]), omega(D), D)]
        return x + kept[0][-x.shape[1] :]

    return forward


SEQUENCE_FAULTS = {
    "axis_batch": (table_module(D, cut=lambda pe, x: pe[: x.size(0)][:, None]), SIN, "sinusoidal.axis.batch"),
    "axis_batch_raises": (table_module(D, cut=lambda pe, x: pe[: x.size(0)]), SIN, "sinusoidal.axis.batch"),
    "single_row": (table_module(D, cut=lambda pe, x: pe[x.size(1)]), SIN, "sinusoidal.slice.single_row"),
    "last_row": (table_module(D, cut=lambda pe, x: pe[x.size(1) - 1]), SIN, "sinusoidal.slice.single_row"),
    "tail": (
        table_module(D, cut=lambda pe, x: pe[-x.size(1) :]),
        SIN,
        "sinusoidal.slice.tail",
    ),
    "precedence": (by_rule(*[torch.exp(-2 * k)] * 2), SIN, "sinusoidal.frequency.precedence"),
    "precedence_exp_k": (by_rule(*[torch.exp(-k)] * 2), SIN, "sinusoidal.frequency.precedence"),
    "not_paired": (
        by_rule(B ** (-2 * (2 * k) / D), B ** (-2 * (2 * k + 1) / D)),
        SIN,
        "sinusoidal.frequency.exponent_not_paired",
    ),
    "not_paired_own": (
        by_rule(B ** (-2 * k / D), B ** (-(2 * k + 1) / D)),
        SIN,
        "sinusoidal.frequency.exponent_not_paired",
    ),
    "not_paired_cos": (
        by_rule(B ** (-2 * k / D), B ** (-2 * (k + 1) / D)),
        SIN,
        "sinusoidal.frequency.exponent_not_paired",
    ),
    "divisor": (by_rule(*[B ** (-k / D)] * 2), SIN, "sinusoidal.frequency.divisor"),
    "divisor_half": (by_rule(*[B ** (-4 * k / D)] * 2), SIN, "sinusoidal.frequency.divisor"),
    "divisor_t2t": (by_rule(T2T, T2T), {**SIN, "variant": "paper"}, "sinusoidal.frequency.divisor"),
    "divisor_paper": (by_rule(omega(D), omega(D)), {**SIN, "variant": "tensor2tensor"}, "sinusoidal.frequency.divisor"),
    "inverted": (by_rule(*[B ** (2 * k / D)] * 2), SIN, "sinusoidal.frequency.inverted"),
    "integer": (by_rule(*[B ** (0 * k)] * 2), SIN, "sinusoidal.frequency.integer_division"),
    "swapped": (
        Adds(lambda n: halves(arange(n), omega(D), D, torch.cos, torch.sin)),
        {**SIN, "layout": "half"},
        "sinusoidal.layout.halves_swapped",
    ),
    "cos_first": (
        Adds(lambda n: woven(arange(n), omega(D), D, torch.cos, torch.sin)),
        {**SIN, "layout": "interleaved"},
        "sinusoidal.layout.cos_first",
    ),
    "halves": (
        Adds(lambda n: halves(arange(n), omega(D), D)),
        {**SIN, "layout": "interleaved"},
        "sinusoidal.layout.halves",
    ),
    "interleaved": (Adds(PLAIN), {**SIN, "layout": "half"}, "sinusoidal.layout.interleaved"),
    "one_wave": (
        Adds(lambda n: woven(arange(n), omega(D), D, torch.sin, torch.sin)),
        SIN,
        "sinusoidal.layout.one_wave",
    ),
    "rows": (Adds(rows_for_columns), SIN, "sinusoidal.axis.rows_for_columns"),
    "base": (Adds(PLAIN), ODD_BASE, "sinusoidal.temperature_hardwired"),
    "other_base": (Adds(lambda n: woven(arange(n), omega(D, 777.0), D)), SIN, "sinusoidal.frequency.base"),
    "start": (Adds(lambda n: woven(arange(n) + 1, omega(D), D)), SIN, "sinusoidal.start"),
    "start_2": (Adds(lambda n: woven(arange(n), omega(D), D)), {**SIN, "start": 2}, "sinusoidal.start"),
    "start_9": (Adds(lambda n: woven(arange(n) + 9, omega(D), D)), SIN, "sinusoidal.start"),
    "reversed": (Adds(lambda n: woven(n - 1 - arange(n), omega(D), D)), SIN, "sinusoidal.position.reversed"),
    "normalised": (Adds(lambda n: woven(arange(n) / n, omega(D), D)), SIN, "sinusoidal.position.normalised"),
    "twice": (Adds(PLAIN, lambda x, c: x + c + c), SIN, "sinusoidal.added_twice"),
    "scaled": (Adds(PLAIN, lambda x, c: x + c * D**-0.5), SIN, "sinusoidal.scaled"),
    "x_scaled": (Adds(PLAIN, lambda x, c: x * D**0.5 + c), SIN, "sinusoidal.input.scaled"),
    "sum_scaled": (Adds(PLAIN, lambda x, c: (x + c) * D**0.5), SIN, "sinusoidal.input.scaled"),
    "x_lost": (Adds(PLAIN, lambda x, c: c.expand_as(x)), SIN, "sinusoidal.input.lost"),
    "not_used": (Adds(PLAIN, lambda x, c: x), SIN, "sinusoidal.not_used"),
    "severed": (Adds(PLAIN, lambda x, c: x.detach() + c), SIN, "sinusoidal.grad.severed"),
    "trains": (Trains(), SIN, "sinusoidal.trainable"),
    "grows": (Grows(past=False), SIN, "sinusoidal.table.growth_ignores_past"),
    "keeps": (KeepsFirst(), SIN, "sinusoidal.state_kept"),
    "drops": (Drops(True), SIN, "sinusoidal.dropout_in_eval"),
    "clamped": (
        table_module(D, 32, cut=lambda pe, x: pe[torch.arange(x.size(1)).clamp(max=31)]),
        SIN,
        "sinusoidal.table.too_short",
    ),
    "wrapped": (
        table_module(D, 32, cut=lambda pe, x: pe[torch.arange(x.size(1)) % 32]),
        SIN,
        "sinusoidal.table.growth_ignores_past",
    ),
    "too_short": (table_module(D, 32), {**SIN, "max_positions": 64}, "sinusoidal.table.too_short"),
    "positions_bf16": (Coarse("p"), LOW, "sinusoidal.precision.positions_bf16"),
    "frequencies_bf16": (Coarse("w"), LOW, "sinusoidal.precision.frequencies_bf16"),
    "product_bf16": (Coarse("a"), LOW, "sinusoidal.precision.product_bf16"),
    "in_place": (lambda x: x.add_(PLAIN(x.shape[1])), SIN, "subject.writes_input"),
    "odd": (
        Adds(lambda n: torch.zeros(n, 15).index_copy_(1, torch.arange(1, 15, 2), torch.zeros(n, 8))),
        {**SIN, "dim": 15},
        "sinusoidal.width.odd",
    ),
    "unknown": (Adds(lambda n: woven(arange(n) ** 1.5, omega(D), D)), SIN, "sinusoidal.mismatch"),
    "unknown_lane": (Adds(lambda n: PLAIN(n) * (1 + 0.3 * (torch.arange(D) == 5))), SIN, "sinusoidal.mismatch"),
    "x_changed": (Adds(PLAIN, lambda x, c: torch.relu(x + c)), SIN, "sinusoidal.input.changed"),
    "infinite": (Adds(lambda n: PLAIN(n) + math.inf), SIN, "subject.not_finite"),
    "float_factor": (by_rule(*[2 * math.pi * omega(D)] * 2), SIN, "sinusoidal.frequency.factor"),
    "table_fp16": (Adds(lambda n: PLAIN(n).half().float()), SIN, "sinusoidal.precision.table_fp16"),
    "inv_freq_fp16": (by_rule(*[omega(D).half().double()] * 2), SIN, "sinusoidal.precision.frequencies_fp16"),
    "positions_always_bf16": (
        Adds(lambda n: woven(arange(n).bfloat16(), omega(D), D)),
        SIN,
        "sinusoidal.precision.positions_bf16",
    ),
    "positions_always_fp16": (
        Adds(lambda n: woven(arange(n).half(), omega(D), D)),
        SIN,
        "sinusoidal.precision.positions_fp16",
    ),
    "width_hardwired": (by_rule(*[B ** (-2 * k / 50)] * 2), SIN, "sinusoidal.frequency.divisor"),
    "two_faults": (
        Adds(lambda n: woven(arange(n), omega(D, B), D, torch.cos, torch.sin)),
        {**ODD_BASE, "layout": "interleaved"},
        "sinusoidal.layout.cos_first",
    ),
    "counter": (Counts(), SIN, "sinusoidal.state_kept"),
    "closure": (keeps_in_closure(), SIN, "sinusoidal.state_kept"),
    "log10": (by_rule(*[torch.exp(-2 * k * math.log10(B) / D)] * 2), SIN, "sinusoidal.frequency.logarithm"),
}


@pytest.mark.parametrize("name", SEQUENCE_FAULTS)
def test_a_fault_of_a_sequence_is_named(name):
    subject, spec, expected = SEQUENCE_FAULTS[name]
    assert judge(subject, "additive_module", spec) in [("fail", code) for code in expected.split("|")]
