"""Properties of position signatures: whether they differ, the distance of neighbours, and their growth."""

from collections.abc import Sequence

import torch
from torch import Tensor

from posenc.encoding import Encoding
from posenc.probe import HOOKS, REFUSALS, Probe
from posenc.registry import CAP

NEAR, WINDOW, FAR = 1024, 256, (10_000, 100_000, 1_000_000)  # windows of 256 positions end at the far ones
NEIGHBOURS = 4096
BOUNDED = 1.5  # relative to the largest near value; a logarithm of the position grows by more from 1,024 to 1,000,000
SHIFTS = (1, 10, 100)
NOISE = 1e-10  # relative to the largest value in a dimension, and of all; float64 represents 65,536 radians to 1e-11
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def count_distinct(draws: Sequence[Probe]) -> dict[str, int]:
    """Return the number of positions before the first repeated signature, by dtype, in the worst draw."""
    counts = {name: len(draws[0].line(CAP)) for name in DTYPES}
    for probe in draws:
        n = 0
        while n < max(counts.values()):
            n = min(max(64, 32 * n), max(counts.values()))  # most repeat early, so start with few
            rows = silence(probe.signatures(probe.line(n)))
            here = {name: first_repetition(rows.to(DTYPES[name])) for name in ("bfloat16", "float16")}
            # signatures that differ after rounding to half precision differ in float32 as well
            here["float32"] = None if None in here.values() else first_repetition(rows.float())
            counts |= {name: min(counts[name], first) for name, first in here.items() if first is not None}
    return counts


def silence(rows: Tensor) -> Tensor:
    """Set rounding noise to zero, such as of a sine that crosses zero: it would make equal periods look different."""
    size = rows.abs()
    loud = size.amax(0)
    return rows.where((size > NOISE * loud) & (loud > NOISE * loud.max()), 0.0)


def first_repetition(rows: Tensor) -> int | None:
    """Return the first index of a row that equals an earlier one bitwise; None if all differ."""
    per_word = 8 // rows.element_size()
    words = torch.nn.functional.pad(rows, (0, -rows.shape[-1] % per_word)).contiguous().view(torch.int64)
    odd = torch.randint(-(2**62), 2**62, words.shape[-1:], generator=torch.Generator().manual_seed(0)) * 2 + 1
    mixed = words * odd  # the product wraps around; the shift then mixes upper bits into lower ones
    hashes, order = ((mixed ^ (mixed >> 32)) * odd).sum(-1).sort(stable=True)
    again = order[1:][hashes[1:] == hashes[:-1]]
    return int(again.min()) if len(again) else None


def accepts_real(probe: Probe) -> bool:
    """Return whether fractional positions are accepted."""
    try:
        probe.signatures(probe.line(2).double() / 2)
    except TypeError:
        return False
    return True


def largest_step(probe: Probe) -> float:
    """Return the largest step between neighbours among 0..4096, relative to the diameter of all signatures."""
    rows = probe.signatures(probe.line(NEIGHBOURS + 1))
    spread = torch.cat((rows[:64], rows[64::64]))  # all pairs would take a hundred times as long
    diameter = float(torch.cdist(rows, spread).max())
    return float((rows[1:] - rows[:-1]).norm(dim=-1).max()) / diameter if diameter else 0.0


def is_bounded(probe: Probe) -> bool:
    """Return whether values at far positions stay within 1.5 times the largest near one; rotated keys count as well."""
    hooks = (*HOOKS, "rotate_k")
    near = probe.signatures(probe.line(NEAR), hooks).abs().max()
    reads = probe.encoding.reads_x  # a sum along the tokens is far only with all tokens before it
    ends = [end if probe.longest is None else min(end, probe.longest + 1) for end in (FAR[:1] if reads else FAR)]
    lines = [probe.line(end) if reads else probe.line(WINDOW, start=max(end - WINDOW, 0)) for end in ends]
    far = [probe.signatures(line, hooks).abs().max() for line in lines]
    return bool(torch.stack(far).max() <= BOUNDED * near)


def shift_residual(probe: Probe) -> float | None:
    """Return the relative error of PE(p + k) = T(k) PE(p) on held-out positions, for the best matrix T(k).

    T(k) is fitted by least squares in float64; the worst of several k counts. None if nothing is embedded or rotated,
    if all positions are equal or depend on their neighbours, and if there are too few positions for a fit.
    """
    hooks = ("embed", "rotate_q", "rotate_v")
    single = probe.signatures(probe.line(1), hooks)
    if not torch.allclose(single, probe.signatures(probe.line(2), hooks)[:1]):
        return None
    seen, width = len(probe.line(CAP)), single.shape[-1]
    left = []
    for k in (k for k in SHIFTS if seen - k >= 3 * width):
        chosen = torch.randperm(seen - k, generator=probe.random)[: 4 * width + 512]
        before, after = probe.signatures(chosen, hooks), probe.signatures(chosen + k, hooks)
        if bool((before == before[:1]).all()):
            return None
        half = len(chosen) // 2
        matrix = torch.linalg.lstsq(before[:half], after[:half], driver="gelsd").solution
        left.append(float((before[half:] @ matrix - after[half:]).norm() / after[half:].norm()))
    return max(left, default=None)


def depends_on_length(encoding: Encoding) -> bool:
    """Return whether the encoding must be resolved for a length, or differs between lengths."""
    near, *others = (Probe(encoding, torch.float32, length=n) for n in (64, 128, CAP))
    near.signatures(near.line(1))  # an error here is not about the length
    try:
        Probe(encoding, torch.float32, length=None).signatures(near.line(1))
    except REFUSALS:
        return True
    pos = near.line(16)
    return any(not torch.equal(near.signatures(pos), other.signatures(pos)) for other in others)
