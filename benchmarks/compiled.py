"""Measure compiled attention: `python benchmarks/compiled.py > benchmarks/COMPILED.md`, a quarter of an hour.

Beside plain causal SDPA in the same rounds: eager calls, compiled ones of known and of open lengths, and a bias as a
whole mask, compiled. Eight heads of 64 lanes, batch 1, float32.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import posenc
from posenc import positions
from posenc.bench import machine
from posenc.bench.measure import compare
from posenc.bench.memory import MIB, NotMeasured, peak

HEADS, LANES, LENGTH, ROUNDS = 8, 64, 4096, 7
ENCODINGS: dict[str, Callable[[], posenc.Encoding]] = {
    "T5": lambda: posenc.T5(n_heads=HEADS),
    "KERPLE": lambda: posenc.KERPLE(n_heads=HEADS),
    "Shaw": lambda: posenc.Shaw(head_dim=LANES),
    "RoPE, 16 documents": lambda: posenc.RoPE(head_dim=LANES),
}
WAYS = ("plain SDPA", "eager", "compiled", "compiled, lengths open", "mask, compiled")


def call(name: str, way: str, *, train: bool) -> Callable[[], Any]:
    """Build inputs and return one call, backwards as well in training."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, LENGTH, LANES, requires_grad=train) for _ in range(3))
    encoding = ENCODINGS[name]()
    ids = torch.arange(LENGTH) * 16 // LENGTH if "documents" in name else None

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return posenc.attend(q, k, v, encoding, positions.arange(q.shape[2]), document_ids=ids)

    def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        placed = encoding.place(positions.arange(q.shape[2]))
        bias = encoding.bias(q, k, placed, placed)
        hidden = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
        if ids is not None:
            hidden = hidden | (ids[:, None] != ids)
        zero = torch.zeros(()) if bias is None else bias
        q, k = encoding.rotate(q, k, placed)
        scale = encoding.score_scale(LANES)
        return F.scaled_dot_product_attention(q, k, v, zero.masked_fill(hidden, -torch.inf), scale=scale)

    how = {"plain SDPA": plain, "eager": ours, "compiled": torch.compile(ours, fullgraph=True)}
    how["compiled, lengths open"] = torch.compile(ours, fullgraph=True, dynamic=True)
    how["mask, compiled"] = torch.compile(masked, fullgraph=True)

    learned = [q, k, v, *([] if way == WAYS[0] else encoding.parameters())]

    def run() -> Any:
        with torch.set_grad_enabled(train):
            out = how[way](q, k, v)
            return torch.autograd.grad(out.sum(), learned) if train else out

    return run


def table(name: str, *, train: bool) -> None:
    """Print one table: ratio of time, seconds of the first call, and memory beyond the inputs."""
    print(f"\n## {name}, {'forwards and backwards' if train else 'forwards'}, {LENGTH:,} tokens\n")
    print("| | time, of plain SDPA | first call | memory |\n|---|---|---|---|")
    torch.compiler.reset()
    calls, first = {way: call(name, way, train=train) for way in WAYS}, {}
    for way, run in calls.items():
        begin = time.perf_counter()
        run()
        first[way] = time.perf_counter() - begin
    for way, found in compare(calls, WAYS[0], rounds=ROUNDS).items():
        taken = peak(partial(call, name, way, train=train))
        memory = taken.why if isinstance(taken, NotMeasured) else f"{taken.extra / MIB:,.0f} MiB"
        ratio = found if isinstance(found, str) else f"{found.ratio.middle:.2f}"
        print(f"| {way} | {ratio} | {first[way]:.1f} s | {memory} |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(2)
    print(f"# Compiled attention, measured by compiled.py\n\nMachine: {machine.sentence(machine.examine())}.")
    print(f"Medians of {ROUNDS} rounds, each candidate in each. The first call compiles.")
    for name in sys.argv[1:] or ENCODINGS:
        for train in (False, True):
            table(name, train=train)
