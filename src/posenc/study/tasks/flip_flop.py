"""Flip-flop language modelling (Liu et al. 2023, arXiv 2306.00946)."""

from typing import Any

import torch
from torch import Generator

from posenc.study.tasks.lines import Line, integers, predicted
from posenc.study.tasks.task import register

SYMBOLS = ("pad", "w", "r", "i", "0", "1")
WRITE, READ, IGNORE, ZERO = range(1, 5)
FACTS: dict[str, Any] = {
    "symbols": SYMBOLS,
    "length": "symbols of a line, including the last bit",
    "lengths": range(4, 4097, 2),
    "train_lengths": range(64, 65),  # the source: 512
    "test_lengths": (64, 128, 256),
    "paper": "Liu et al. 2023",
    "arxiv": "2306.00946",
}


@register(
    "flip_flop",
    options={"ignored": 0.8},
    format="w 1 i 0 r 1 (read the last written bit; 0.8 of all instructions are ignored: FFL(0.8))",
    probes=("flip_flop:sparse", "flip_flop:dense"),
    **FACTS,
)
@register("flip_flop:sparse", options={"ignored": 0.98}, format="w 1 i 0 r 1 (0.98 are ignored: FFL(0.98))", **FACTS)
@register("flip_flop:dense", options={"ignored": 0.1}, format="w 1 i 0 r 1 (0.1 are ignored: FFL(0.1))", **FACTS)
def flip_flop(length: int, n: int, generator: Generator, ignored: float) -> Line:
    """Draw instructions, each with a bit; only the bits after a read are counted."""
    steps = length // 2
    draws = torch.rand(n, steps, generator=generator, dtype=torch.float64)
    # writes and reads are equally frequent; the first is a write, the last a read
    kinds = torch.where(draws < ignored, IGNORE, torch.where(draws < (1 + ignored) / 2, WRITE, READ))
    kinds[:, 0], kinds[:, -1] = WRITE, READ
    bits = integers(0, 1, (n, steps), generator)
    written = torch.where(kinds == WRITE, torch.arange(steps), 0).cummax(1).values
    bits = torch.where(kinds == READ, bits.gather(1, written), bits)
    line = torch.stack((kinds, bits + ZERO), 2).flatten(1)
    return predicted(line, (line == READ).roll(1, 1))
