# %% [markdown]
"""Figures of how scores depend on the distance between two tokens.

Mean cosines under several laws of frequencies, scores with their spread, biases by head, mapped distances, and the
error of angles in each dtype. Each cell draws one figure. As a script it writes them all:

    python examples/gallery_distance.py [--out gallery] [--format svg]
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
    print("gallery_distance: figures need matplotlib; run: pip install 'posenc[plot]'", file=sys.stderr)
    sys.exit(2)

parser = argparse.ArgumentParser(description="Draw how scores depend on the distance.")
parser.add_argument("--out", type=Path, default=Path("gallery"), help="the folder to write to")
parser.add_argument("--format", default="svg", help="svg, png, pdf, ...")
wanted = parser.parse_args([] if "ipykernel" in sys.modules else None)
wanted.out.mkdir(parents=True, exist_ok=True)
torch.manual_seed(0)


def keep(name, figure):
    """Write a figure; return it, so that a notebook shows it."""
    figure.savefig(wanted.out / f"{name}.{wanted.format}")
    print(f"{name:<22} {figure.get_suptitle() or figure.axes[0].get_title(loc='left')}")
    return figure


def claim(holds, statement):
    if not holds:
        sys.exit(f"gallery_distance: this does not hold: {statement}")
    print(f"{'':<22} {statement}")


# %% Infinitely many pairs: with base^-t the mean cosine falls like the logarithm of the distance; with powers of t it
# vanishes within some tens of tokens; with one frequency for all it never falls.
slow = measure.zeros(lambda x: measure.continuous_limit(x).real, 1.0, 8000.0, step=10.0)[0]
fast = measure.zeros(lambda x: measure.law_limit(x, "t").real, 1.0, 5.0)[0]
claim(abs(slow - 6166.028) < 0.001, f"base 10,000: above zero up to {slow:,.1f} tokens")
claim(abs(fast - np.pi) < 1e-6, f"θ = t: above zero up to {fast:.4f}, which is π")
keep("oscillatory_integrals", figures.oscillatory_integrals())

# %% Real models have a finite number of pairs: they follow the limit, and then oscillate around it.
error = abs(measure.finite_size_error(np.arange(1, 2000), 64, 10000.0)).max()
claim(error < 0.2, f"64 pairs stay within {error:.2f} of the limit up to 2,000 tokens")
keep("finite_size", figures.finite_size())

# %% Scores of random content under RoPE: the mean falls with distance, at two rates for two bases.
bases = [posenc.RoPE(head_dim=128), posenc.RoPE(head_dim=128, base=500_000.0)]
keep("profile", figures.profile(*bases, distance=513))

# %% Biases by head: ALiBi's heads reach from a few tokens to thousands.
alibi = posenc.ALiBi(n_heads=8)
curves = measure.bias_curve(alibi, np.arange(129))
claim(abs(curves[0, 128] + 64) < 1e-9 and abs(curves[7, 128] + 0.5) < 1e-9, "at 128 tokens head 0 takes 64, head 7 0.5")
keep("bias", figures.bias_curves(alibi))

# %% The same as matrices of query and key.
keep("bias_matrix", figures.bias_matrix(alibi))

# %% Self-Extend lets a model that was trained on short texts read long ones: far positions share groups.
extended = posenc.SelfExtend(head_dim=64, window=32, group=8)
seen = measure.effective_distance(extended, 256)[-1, 0]
claim(seen < 64, f"with a window of 32 and groups of 8, the distance 255 is seen as {seen:.0f}")
keep("effective_distance", figures.effective_distance(extended, 256))

# %% Angles that are computed in bfloat16 are useless after some hundred tokens.
error = measure.phase_error(bases[0], [100_000], "bfloat16")[0]
wrong = measure.phase_error(bases[0], [100_000], "bfloat16", formula=True)[0]
claim(
    error < 0.01 < 1 < wrong,
    f"position 100,000 in bfloat16: {error:.4f} radians off; angles computed in it, {wrong:.2f}",
)
keep("precision", figures.precision(bases[0]))
