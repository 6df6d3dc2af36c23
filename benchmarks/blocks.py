"""Measure what blocks owe to how they lie in memory: `python benchmarks/blocks.py > benchmarks/BLOCKS.md`, ten seconds.

Each claim of a comment in posenc.attention beside what it replaced, interleaved: medians and middle halves of ratios.
"""

import torch

from posenc.bench import machine
from posenc.bench.measure import compare
from posenc.kernels import pages

HEADS, ROWS, LANES, KEYS = 8, 256, 64, 3840


def products(width: int) -> None:
    """Multiply queries with the vectors of so many distances."""
    torch.bmm(q, vectors[:, :width].mT, out=memory[: HEADS * ROWS * width].view(HEADS, ROWS, width))


def fresh(*, large: bool) -> None:
    """Write to memory that the process never touched."""
    out = torch.empty(HEADS * ROWS * 4112)
    if large:
        pages.enlarge(out)
    out.fill_(1.0)


q, vectors = torch.randn(HEADS, ROWS, LANES), torch.randn(HEADS, KEYS + 512, LANES)
memory, scores = torch.empty(HEADS * ROWS * (KEYS + 512)), torch.randn(1, HEADS, ROWS, KEYS)[..., -ROWS:]
corner, hidden = torch.ones(ROWS, ROWS, dtype=torch.bool).triu(1), torch.tensor(-torch.inf)
TABLES = {
    "rows.LINE: rows of whole cache lines, and one number less": {
        "4,112 columns": lambda: products(KEYS + 272),
        "4,111 columns": lambda: products(KEYS + 271),
    },
    "spans.hide: a corner by where, and by masked_fill_": {
        "where": lambda: torch.where(corner, hidden, scores, out=scores),
        "masked_fill_": lambda: scores.masked_fill_(corner, -torch.inf),
    },
    "scratch: 33 MiB of large pages, and as the system gives them": {
        "large": lambda: fresh(large=True),
        "as given": lambda: fresh(large=False),
    },
}

if __name__ == "__main__":
    print(f"# Blocks, measured by blocks.py\n\nMachine: {machine.sentence(machine.examine())}.")
    for title, candidates in TABLES.items():
        print(f"\n## {title}\n")
        for name, found in compare(candidates, next(iter(candidates)), rounds=15).items():
            said = (
                found
                if isinstance(found, str)
                else "{:.2f}, {:.2f} .. {:.2f}".format(*(found.ratio.middle, found.ratio.low, found.ratio.high))
            )
            print(f"- {name}: {said}")
