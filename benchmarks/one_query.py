"""Measure one query beside a cache: `python benchmarks/one_query.py > benchmarks/ONE_QUERY.md`, some minutes.

Each row runs plain SDPA, `attend` with RoPE's cached keys and with ALiBi, and a sum that reads k and v once, which is
what the bus allows, interleaved: medians of ratios to plain SDPA.
"""

import torch
from torch.nn import functional as F

import posenc
from posenc import positions
from posenc.bench import machine
from posenc.bench.measure import Timing, compare

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CACHES = (  # batch, heads, heads of k, head_dim
    (1, 8, 8, 64),
    (1, 32, 8, 64),
    (1, 32, 8, 128),
    (1, 32, 1, 128),
    (4, 8, 8, 64),
)
LENGTHS = (256, 1024, 4096, 16384)
NAMES = ("plain SDPA", "attend, RoPE", "attend, ALiBi", "k and v read once")


def row(cache: tuple[int, int, int, int], n: int, dtype: torch.dtype) -> list[Timing | str]:
    """Time one cache of n keys."""
    batch, heads, n_kv, width = cache
    q, k, v = (torch.randn(batch, h, m, width).to(dtype) for h, m in ((heads, 1), (n_kv, n), (n_kv, n)))
    rope, alibi, pos = posenc.RoPE(head_dim=width), posenc.ALiBi(n_heads=heads), positions.arange(n)
    turned, steep = rope.place(pos), alibi.place(pos)
    now, here = turned.last(1), steep.last(1)
    candidates = {
        NAMES[0]: lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=heads > n_kv),
        NAMES[1]: lambda: posenc.attend(q, k, v, rope, now, turned, rotated=True),
        NAMES[2]: lambda: posenc.attend(q, k, v, alibi, here, steep),
        NAMES[3]: lambda: (k.view(torch.float32).sum(), v.view(torch.float32).sum()),
    }
    return list(compare(candidates, NAMES[0], rounds=15).values())


def said(found: Timing | str) -> str:
    """Return a ratio and its middle half, or why there is none."""
    return (
        found
        if isinstance(found, str)
        else f"{found.ratio.middle:.2f} ({found.ratio.low:.2f} .. {found.ratio.high:.2f})"
    )


if __name__ == "__main__":
    print(f"# One query and all keys, measured by one_query.py\n\nMachine: {machine.sentence(machine.examine())}.")
    print("Ratios to plain SDPA in the same round, median (and middle half); a call's time in microseconds.")
    for dtype in DTYPES:
        print(f"\n## {str(dtype).removeprefix('torch.')}\n")
        print("| batch x heads (of k) x head_dim | keys | plain SDPA | " + " | ".join(NAMES[1:]) + " |")
        print("|---|---|---|" + "---|" * len(NAMES[1:]))
        for cache in CACHES:
            for n in LENGTHS:
                with torch.no_grad():
                    plain, *others = row(cache, n, dtype)
                assert isinstance(plain, Timing)  # compare raises where the baseline does
                shape = "{} x {} ({}) x {}".format(*cache)
                print(
                    f"| {shape} | {n:,} | {plain.seconds.middle * 1e6:,.0f} | {' | '.join(map(said, others))} |",
                    flush=True,
                )
