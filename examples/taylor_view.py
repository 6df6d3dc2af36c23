# %% [markdown]
"""The Taylor view of position (Su 2021): which terms of f(x + p) depend on one position, and which on two.

To second order f(x + p) is a constant, terms of single positions, and p_m · H_mn p_n, the only term of two positions.
With sinusoids it is a function of m - n if H is the identity; in a model, H must be measured. This script measures it
in a small language model that learns from Python's help texts. Cell marks make it a notebook.

    python examples/taylor_view.py
"""

# %% How p_m · H p_n depends on m - n, by the kind of H
import sys
from pydoc_data.topics import topics

import numpy as np
import torch
from torch.nn import functional as F

import posenc
from posenc import measure
from posenc.nn import LanguageModel

D_MODEL, SEQ, STEPS, TEXTS = 32, 24, 250, 4
ALPHABET = " abcdefghijklmnopqrstuvwxyz"
encoding = posenc.Sinusoidal(d_model=D_MODEL)
random = np.random.default_rng(0)
blocks = {
    "identity": np.eye(D_MODEL),
    "diagonal": np.diag(random.uniform(0, 1, D_MODEL)),
    "general": random.standard_normal((D_MODEL, D_MODEL)),
}


def row(label, cells):
    print(f"{label:<22}" + "".join(f"{cell:>13}" for cell in cells))


print("the mean square of p_m · H p_n over all positions, by what it depends on")
row("H", ["m - n", "m + n", "both"])
parts = {name: measure.relative_parts(encoding, range(SEQ), block=h).shares for name, h in blocks.items()}
for name, shares in parts.items():
    row(name, [f"{share:.1%}" for share in shares.values()])

# %% A model that adds sinusoids, trained for some seconds
torch.set_num_threads(1)  # small models gain nothing from more, and the numbers do not depend on the cores
prose = "".join(c if c in ALPHABET else " " for c in " ".join(topics[key] for key in sorted(topics)).lower())
text = torch.tensor([ALPHABET.index(c) for c in " ".join(prose.split())])
torch.manual_seed(0)
model = LanguageModel(vocab_size=len(ALPHABET), d_model=D_MODEL, n_layers=2, n_heads=4, encoding=encoding)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(STEPS):
    batch = text[torch.randint(len(text) - SEQ, (32, 1)) + torch.arange(SEQ + 1)]
    loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"\na model of {STEPS} steps predicts the next letter at a loss of {loss.item():.2f} (uniform guess: 3.30)")

# %% Is p small? Tokens and positions as the model adds them
questions = [measure.taylor_question(model, text[i : i + SEQ]) for i in range(0, 5000 * TEXTS, 5000)]
scale = D_MODEL**0.5  # the model multiplies its table of tokens by it
tables = measure.embedding_tables(model.embedding.tokens.weight, questions[0].p, token_scale=scale)
print(f"\nmean length of positions over that of tokens: {tables.ratio:.2f}, so p is not small")
print(f"squares on the diagonal of the covariance: tokens {tables.token_diagonal:.0%}", end="")
print(f", positions {tables.position_diagonal:.0%}")

# %% The share of each term in the effect of positions on the loss, for p itself and scaled down
print(f"\nthe effect of p, times a factor, on the loss: sums over {TEXTS} texts")
row("factor", ["f(x+p)-f(x)", "slope", "curvature", "interaction", "remainder"])
sums, interactions = {}, []
for factor in (1.0, 1 / 4, 1 / 16, 1 / 64):
    found = [measure.taylor_terms(f, x, factor * p) for f, x, p in questions]
    interactions = interactions or [terms.interaction for terms in found]
    sums[factor] = {name: sum(terms.totals[name] for terms in found) for name in found[0].totals}
    row(f"{factor:g}", [f"{total:.5f}" for total in (sum(sums[factor].values()), *sums[factor].values())])
print(
    "slope and curvature depend on one position each, the interaction on two; the remainder is of third order and above"
)

# %% How diagonal is H_mn, and how does the interaction depend on m - n?
f, x, _ = questions[0]
block = measure.interaction_block(f, x, 20, 17)
diagonal = measure.diagonal_share(block)
of_block = measure.relative_parts(encoding, range(SEQ), block=block).shares
seen = sum(interactions)[:-1, :-1]  # the last letter is only predicted
distances = measure.distance_shares(seen)
print(f"\nH of tokens 20 and 17: {diagonal:.1%} of its squares are on the diagonal; for noise {1 / D_MODEL:.1%}")
row("if H were equal for all", ["m - n", "m + n", "both"])
row("", [f"{share:.1%}" for share in of_block.values()])
print(f"m - n explains {distances.difference:.1%} of the measured interactions, by chance it would explain", end=" ")
print(f"{distances.chance[0]:.1%}:\nhere this term gives no distance by itself; H is not diagonal.")

# %% The checks
identity, by_diagonal, general = parts.values()
if identity["difference"] < 1 - 1e-9 or by_diagonal["mixed"] > 1e-9 or general["mixed"] < 0.5:
    sys.exit("taylor_view: the parts are not those of the identity, a diagonal and a general matrix.")
remainders = [abs(terms["remainder"]) / abs(sum(terms.values())) for terms in sums.values()]
if tables.ratio < 0.5 or not remainders[-1] < 0.05 < remainders[0]:
    sys.exit("taylor_view: p is small, or the remainder does not vanish with it.")
if max(diagonal, of_block["difference"], distances.difference) > 0.25:
    sys.exit("taylor_view: H is diagonal, or the interaction relative, in this model after all.")
