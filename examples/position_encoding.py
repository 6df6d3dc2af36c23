# %% [markdown]
"""Position encoding by hand: from whole numbers to rotations, with four dimensions, number by number.

Each step repairs a fault of the step before: numbers, binary digits, sines, sines with cosines, rotations of
queries and keys. All numbers come from the code that models run. As a script it prints them;
examples/position_encoding.ipynb is the notebook.

    python examples/position_encoding.py

"""

# %%
import math
import sys

import numpy as np
import torch

import posenc
from posenc import measure


def show(title, rows, digits=4):
    """Print a table of numbers."""
    print(title)
    for label, numbers in rows:
        print(f"  {label:<14}" + "  ".join(f"{float(number):{digits + 4}.{digits}f}" for number in numbers))


# %% [markdown]
"""1. The number itself. It grows without bound, and in bfloat16 the first two positions with one value come soon."""

# %%
pos = torch.arange(8)
integer = posenc.Integer(d_model=1)
show("the number", [(f"position {p}", integer.vectors(pos)[p]) for p in (0, 1, 7)], digits=1)
collision = measure.collisions(integer, 4096)["bfloat16"]
print(f"in bfloat16 position {collision['position']} has the value of position {collision['same_as']}")

# %% [markdown]
"""2. Binary digits. Bounded and distinct, but 3 and 4 differ in all three digits, and 4 and 5 in one."""

# %%
digits = posenc.Binary(d_model=3).vectors(pos)
show("binary", [(f"position {p}", digits[p]) for p in range(8)], digits=0)
steps = (digits[1:] != digits[:-1]).sum(1).tolist()
print(f"digits that change from each position to the next: {steps}")

# %% [markdown]
"""3. Sines. Each digit is a square wave, half as fast as the one to its right. Sines are smooth waves of that
kind. But sin 1 is sin(pi - 1) as well: a sine alone does not determine where the wave goes."""

# %%
sine = posenc.Sine(d_model=3).vectors(pos)
show("sines", [(f"position {p}", sine[p]) for p in range(4)])
jumps = np.linalg.norm(np.diff(sine.double().numpy(), axis=0), axis=1)
print(f"the longest step between neighbours: {jumps.max():.4f}; of binary digits: {math.sqrt(max(steps)):.4f}")

# %% [markdown]
"""4. Sines with cosines (Vaswani et al. 2017), d_model = 4, base 10,000: two pairs, with the frequencies 1 and
1/100."""

# %%
sinusoidal = posenc.Sinusoidal(d_model=4)
inv_freq = measure.frequencies_of(sinusoidal)[0]
table = measure.heat_map(sinusoidal, range(4))
show("frequencies", [("per position", inv_freq)])
show("sin, cos, sin, cos", [(f"position {p}", table[p]) for p in range(4)])

# %% [markdown]
"""5. Dot products. Of two positions it is a sum of cosines of their distance, and depends on nothing else. Every
vector has the length root 2, so half of it is the cosine similarity."""

# %%
show("positions 1, 3", [("products", table[1] * table[3]), ("dot product", [table[1] @ table[3]])])
show("positions 0, 2", [("dot product", [table[0] @ table[2]]), ("cos 2 + cos .02", [math.cos(2) + math.cos(0.02)])])
show("similarity", [(f"position {p}", row) for p, row in enumerate(measure.similarity(table, cosine=True))])

# %% [markdown]
"""6. T(k). A step by k is one linear map for all positions, p(m + k) = T(k) p(m): a rotation of each pair by k
times its frequency. Here is T(1); applied to position 2 it gives position 3."""

# %%
step = np.zeros((4, 4))
for pair, angle in enumerate(1 * inv_freq):
    cos, sin = math.cos(angle), math.sin(angle)
    step[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = [[cos, sin], [-sin, cos]]
show("T(1)", [(f"row {row}", step[row]) for row in range(4)])
show("T(1) p(2)", [("computed", step @ table[2]), ("position 3", table[3])])

# %% [markdown]
"""7. How similarity falls. With ever more pairs the mean cosine becomes an integral, (Ci(s) - Ci(s / 10000)) / ln
10000, which falls with the logarithm of the distance s. 64 pairs swing around it."""

# %%
distance = np.array([1.0, 10.0, 100.0, 1000.0])
finite = measure.cosine_by_distance(10_000.0 ** (-np.arange(64) / 64), distance)
show("distance", [("", distance), ("64 pairs", finite), ("the integral", measure.continuous_limit(distance).real)])

# %% [markdown]
"""8. RoPE (Su et al. 2021). Attention compares queries with keys, so rotate these. A query (1, 0, 1, 0) at
position 3 and an equal key at position 1 score what the sinusoids gave, cos 2 + cos .02, and the same holds for
any query and key two positions apart."""

# %%
rope = posenc.RoPE(head_dim=4, pairing="interleaved")
q = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64).reshape(1, 1, 1, 4)


def score(q, k, q_pos, k_pos):
    """Return the dot product of a query and a key, each rotated by its own position."""
    q_placed, k_placed = (rope.place(torch.tensor([pos]), dtype=q.dtype) for pos in (q_pos, k_pos))
    return (rope.rotate_q(q, q_placed) * rope.rotate_k(k, k_placed)).sum().item()


show("scores", [("at 3 and 1", [score(q, q, 3, 1)]), ("at 1002, 1000", [score(q, q, 1002, 1000)])])
torch.manual_seed(0)
other_q, other_k = torch.randn(2, 1, 1, 1, 4, dtype=torch.float64)
near, far = score(other_q, other_k, 3, 1), score(other_q, other_k, 1002, 1000)
show("of random q, k", [("at 3 and 1", [near]), ("at 1002, 1000", [far])])

# %% What was claimed
if abs(near - far) > 1e-9 or abs(score(q, q, 3, 1) - (math.cos(2) + math.cos(0.02))) > 1e-9:
    sys.exit("position_encoding: scores of RoPE depend on more than the distance.")
if not np.allclose(step @ table[2], table[3], atol=1e-6):
    sys.exit("position_encoding: T(1) is not one step.")
