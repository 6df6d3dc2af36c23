"""Count in a fresh process what clones of 64 MiB cost in pages: argument "stock", "keep" or "undo"."""

import resource
import sys

import torch

import posenc


def faults(x, clones=4):
    """Return the page faults of some clones, one at a time."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(clones):
        x.clone()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


if __name__ == "__main__":
    x = torch.ones(16 * 2**20)
    said = [posenc.reuse_pages()] if sys.argv[1] != "stock" else []
    faults(x, 24)  # blocks find their places in the heap
    if sys.argv[1] == "undo":
        said.append(posenc.reuse_pages(keep=False))
    print(*said, faults(x) / 4)
