"""Compare attention with plain attention, and rotation with a copy, in processor time of one thread.

`python benchmarks/processor_time.py [ROUNDS]` prints a table; what else runs on the machine disturbs it little. Calls
take turns, and each ratio is the least of all rounds over that of the peer in the same rounds.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

import posenc
from posenc import attend, positions
from posenc.bench import machine

HEADS, HEAD_DIM = 8, 64
FORWARDS = ("alibi", "t5", "kerple", "shaw", "transformer_xl", "fire", "deberta", "tupe")
TRAINED = ("alibi", "t5", "kerple", "relative_bias")
Call = Callable[[], Any]


def attention(n: int, names: tuple[str, ...], *, learns: bool) -> dict[str, Call]:
    """Return calls of causal attention at n tokens, plain first; with gradients of all that learns, or without."""
    q, k, v = (torch.randn(1, HEADS, n, HEAD_DIM, requires_grad=learns) for _ in range(3))
    pos, dims = positions.arange(n), posenc.Dims(d_model=HEADS * HEAD_DIM, n_heads=HEADS, head_dim=HEAD_DIM, max_len=n)

    def of(run: Callable[[], torch.Tensor], learned: list[torch.Tensor]) -> Call:
        def call() -> None:
            with torch.set_grad_enabled(learns):
                out = run()
                if learns:
                    torch.autograd.grad(out, [q, k, v, *learned], torch.ones_like(out), allow_unused=True)

        return call

    calls = {"plain": of(lambda: scaled_dot_product_attention(q, k, v, is_causal=True), [])}
    for name in names:
        encoding = posenc.create(name, dims=dims)
        calls[name] = of(lambda e=encoding: attend(q, k, v, e, pos), [*encoding.parameters()])
    return calls


def rotation(dtype: torch.dtype) -> dict[str, Call]:
    """Return calls that rotate queries and keys of 32 heads and 2,048 tokens, a copy of both first."""
    rope, pos = posenc.RoPE(head_dim=128), positions.arange(2048)
    q, k = (torch.randn(1, 32, 2048, 128, dtype=dtype) for _ in range(2))
    out, placed = (torch.empty_like(q), torch.empty_like(k)), rope.place(pos)
    calls: dict[str, Call] = {"copy": lambda: (out[0].copy_(q), out[1].copy_(k))}
    for backend in ("numba", "blocked"):
        calls[f"{backend}, in place"] = lambda b=backend: rope.rotate_(q, k, placed, backend=b)
        calls[f"{backend}, into memory"] = lambda b=backend: rope.rotate(q, k, placed, out=out, backend=b)
    return calls


def ratios(calls: dict[str, Call], rounds: int) -> dict[str, float]:
    """Return the least processor time of each call over that of the first."""
    best = dict.fromkeys(calls, float("inf"))
    with torch.no_grad():
        for number in range(rounds + 1):  # the first does not count
            for name, call in calls.items():
                begin = time.process_time()
                call()
                spent = time.process_time() - begin
                best[name] = min(best[name], spent) if number else best[name]
    first = next(iter(best.values()))
    return {name: spent / first for name, spent in best.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    print(f"{machine.sentence(machine.examine())}\n")
    print("| what | peer | ratios |\n|---|---|---|")
    rows: list[tuple[str, dict[str, Call]]] = [
        ("attention forwards, 4,096 tokens", attention(4096, FORWARDS, learns=False)),
        ("attention with gradients, 4,096 tokens", attention(4096, TRAINED, learns=True)),
        ("attention forwards, 16,384 tokens", attention(16_384, ("alibi", "t5"), learns=False)),
        ("rotation, float32", rotation(torch.float32)),
        ("rotation, bfloat16", rotation(torch.bfloat16)),
    ]
    for what, calls in rows:
        (peer, _), *found = ratios(calls, rounds).items()
        print(f"| {what} | {peer} | {', '.join(f'{name} {ratio:.2f}' for name, ratio in found)} |", flush=True)
