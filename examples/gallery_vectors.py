# %% [markdown]
"""Figures of encodings of positions: the usual figures of the subject.

Each cell draws one figure; the numbers come from the code that models run. As a script it writes them all:

    python examples/gallery_vectors.py [--out gallery] [--format svg]
"""

# %%
import argparse
import sys
from pathlib import Path

import numpy as np
import torch

import posenc
from posenc import measure

try:
    from posenc import figures
except ImportError:
    print("gallery_vectors: figures need matplotlib; run: pip install 'posenc[plot]'", file=sys.stderr)
    sys.exit(2)

parser = argparse.ArgumentParser(description="Draw encodings of positions.")
parser.add_argument("--out", type=Path, default=Path("gallery"), help="the folder to write to")
parser.add_argument("--format", default="svg", help="svg, png, pdf, ...")
wanted = parser.parse_args([] if "ipykernel" in sys.modules else None)
wanted.out.mkdir(parents=True, exist_ok=True)
torch.manual_seed(0)


def keep(name, figure):
    """Write a figure; return it, so that a notebook shows it."""
    figure.savefig(wanted.out / f"{name}.{wanted.format}")
    print(f"{name:<14} {figure.axes[0].get_title(loc='left')}")
    return figure


def claim(holds, statement):
    if not holds:
        sys.exit(f"gallery_vectors: this does not hold: {statement}")
    print(f"{'':<14} {statement}")


# %% The sinusoidal heat map: 100 positions, 512 dimensions. Fast waves are above; below, values hardly change.
wide = posenc.Sinusoidal(d_model=512)
vectors = measure.heat_map(wide, np.arange(100))
still = int((np.ptp(vectors, axis=0) < 0.1).sum())
claim(still > 150, f"{still} of 512 dimensions change by less than 0.1 in 100 positions")
keep("heat_map", figures.heat_map(wide, 100))

# %% The same for a query that RoPE rotates: cosines in the first half of the dimensions, sines in the second.
keep("heat_map_rope", figures.heat_map(posenc.RoPE(head_dim=64), 200))

# %% Wavelengths: from 2π to 10,000 · 2π positions per period, evenly spaced on a logarithmic axis.
waves = measure.wavelengths(wide)[0]
claim(np.ptp(np.diff(np.log(waves))) < 1e-9, f"from {waves[0]:.2f} to {waves[-1]:,.0f} positions, by a constant ratio")
keep("wavelengths", figures.wavelengths(wide, length=2048))

# %% Lines over dimensions for five positions: all equal where waves are slow, all different where they are fast.
slow = np.ptp(measure.heat_map(wide, [0, 10, 20, 30, 40])[:, 400:], axis=0).max()
claim(slow < 0.05, f"from dimension 400 on, positions 0 to 40 differ by {slow:.2f} at most")
keep("lanes", figures.lanes(posenc.Sinusoidal(d_model=128), (0, 10, 20, 30, 40)))

# %% Codes as points in the plane, joined in order: which are bounded, which repeat, which are smooth.
codes = {
    posenc.Integer(d_model=8): (0, 1),
    posenc.Binary(d_model=8): (6, 7),
    posenc.Sine(d_model=8): (1, 2),
    posenc.Sinusoidal(d_model=8): (0, 1),
    posenc.RoPE(head_dim=8): (0, 4),
}
steps = {}
for code, lanes in codes.items():
    step = np.diff(measure.points(code, np.arange(16), lanes), axis=0)
    steps[code.name] = np.linalg.norm(step, axis=1)
for name in ("Integer", "Sinusoidal", "RoPE"):
    claim(np.ptp(steps[name]) < 1e-9, f"{name}: each step is as long as the next, {steps[name][0]:.3f}")
claim(np.ptp(steps["Binary"]) > 0.4, "Binary: steps jump")
keep("points", figures.points(*codes, pos=16, lanes=list(codes.values())))

# %% The middle position against all others: sinusoidal vectors measure near distances only.
compared = [posenc.Sinusoidal(d_model=128), posenc.Learned(d_model=128, max_len=101, init_std=0.7)]
dot = measure.by_distance(compared[0], 50, np.arange(101)).dot
claim(abs(dot - dot[::-1]).max() < 1e-9 and dot.argmax() == 50, "Sinusoidal: the same on both sides, most at 50")
keep("dot_product", figures.dot_product(*compared, middle=50, pos=101))

# %% The same for all pairs of positions: bands along the diagonal, because only the distance counts.
keep("similarity", figures.similarity(compared[0], 100))
