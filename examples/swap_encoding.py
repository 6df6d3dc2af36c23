# %% [markdown]
"""Swap the position encoding in your own attention: three lines in the code, one name to change.

`MyAttention` below is an ordinary attention module; posenc needs only the lines marked with a hook. First a test shows
whether it distinguishes any order, then a small language model around it learns Python's help texts, byte by byte, once
for each name.

    python examples/swap_encoding.py [--steps 250] [--encodings nope,rope,mine]
"""

# %%
import argparse
import math
import sys
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional as F

import posenc
from posenc import positions

D_MODEL, HEADS, LAYERS, SEQ, BATCH, VOCAB = 64, 4, 2, 32, 16, 128
DIMS = posenc.Dims(d_model=D_MODEL, n_heads=HEADS, head_dim=D_MODEL // HEADS, max_len=SEQ)


# %% The parts
class Recency(posenc.Bias):
    """Your own encoding: subtract the square root of the distance, more so in later heads."""

    def at(self, h, q, k):
        return -((q - k).abs().float().sqrt()) * (h + 1)


def make(name):
    torch.manual_seed(0)
    return Recency(n_heads=HEADS) if name == "mine" else posenc.create(name, dims=DIMS)


class MyAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(D_MODEL, 3 * D_MODEL), nn.Linear(D_MODEL, D_MODEL)

    def forward(self, x, encoding, placed, causal=True):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        out = posenc.attend(q, k, v, encoding, placed, causal=causal)  # hooks 2 to 4: rotates q, k and v, adds a bias
        return self.out(out.transpose(1, 2).flatten(2))


class MyModel(nn.Module):
    def __init__(self, encoding):
        super().__init__()
        self.encoding = encoding
        self.tokens = nn.Embedding(VOCAB, D_MODEL)
        nn.init.normal_(self.tokens.weight, std=0.4)
        self.attention = nn.ModuleList(MyAttention() for _ in range(LAYERS))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(D_MODEL, 4 * D_MODEL), nn.GELU(), nn.Linear(4 * D_MODEL, D_MODEL))
            for _ in range(LAYERS)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(D_MODEL) for _ in range(2 * LAYERS + 1))
        self.head = nn.Linear(D_MODEL, VOCAB)

    def forward(self, tokens):
        placed = self.encoding.place(positions.arange(tokens.shape[1]))  # the step before the hooks: once per pass
        x = self.encoding.embed(self.tokens(tokens), placed)  # hook 1: adds to the embeddings
        for i in range(LAYERS):
            x = x + self.attention[i](self.norms[2 * i](x), self.encoding, placed)
            x = x + self.mlp[i](self.norms[2 * i + 1](x))
        return self.head(self.norms[-1](x))


@torch.no_grad()
def differs(encoding, arrangement):
    """Return the relative change of the outputs for four words if only their order changes (no causal mask)."""
    torch.manual_seed(0)
    attention, words, arrangement = MyAttention(), torch.randn(1, 4, D_MODEL), torch.tensor(arrangement)
    placed = encoding.place(positions.arange(4))
    out, moved = (attention(encoding.embed(x, placed), encoding, placed, False) for x in (words, words[:, arrangement]))
    return float((moved - out[:, arrangement]).norm() / out.norm())


def train(encoding, text, steps):
    """Return bits per byte on the last tenth of the text after training on the rest."""
    torch.manual_seed(0)  # the same start and the same batches for every encoding
    model, window, end = MyModel(encoding), torch.arange(SEQ + 1), len(text) * 9 // 10
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    draw = torch.Generator().manual_seed(1)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 6e-3 * min(1, (step + 1) / 20) * (1 - step / steps)
        batch = text[torch.randint(end - SEQ, (BATCH, 1), generator=draw) + window]
        loss = F.cross_entropy(model(batch[:, :-1]).transpose(1, 2), batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    with torch.no_grad():
        batch = text[torch.arange(end, len(text) - SEQ, SEQ)[:400, None] + window]
        return float(F.cross_entropy(model(batch[:, :-1]).transpose(1, 2), batch[:, 1:])) / math.log(2)


# %% The run
def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=250, help="training steps for each encoding")
    parser.add_argument("--encodings", default="nope,sinusoidal,rope,alibi,shaw,mine")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)  # small models gain nothing from more, and the numbers do not depend on the cores

    prose = " ".join(" ".join(topics[key] for key in sorted(topics)).split())
    text = torch.tensor(list(prose.encode("ascii", "ignore")))
    print(f"{'':<14}untrained, outputs change      bits per byte after {options.steps} steps")
    print(f"{'encoding':<14}{'if shuffled':>12}{'if reversed':>13}      (less is better)")
    found = {}
    for name in options.encodings.split(","):
        shuffled, backwards = differs(make(name), [0, 2, 1, 3]), differs(make(name), [3, 2, 1, 0])
        bits = train(make(name), text, options.steps)
        found[name] = (shuffled, bits)
        print(f"{name:<14}{shuffled:>12.1%}{backwards:>13.1%}      {bits:.3f} {'#' * round(10 * bits)}")
    print(
        "\nOutputs that only move with their words count as unchanged. Without a causal mask nope distinguishes no\n"
        "order, and an encoding that is equal in both directions (alibi, mine) cannot tell a sentence from its mirror\n"
        "image; the mask in training helps both. One seed and few steps give no ranking: use posenc study for that."
    )
    blind = [name for name, (shuffled, _) in found.items() if (shuffled < 1e-5) != (name == "nope")]
    behind = [name for name, (_, bits) in found.items() if "nope" in found and bits > found["nope"][1]]
    if blind or behind:
        sys.exit(f"swap_encoding: cannot distinguish an order: {blind}; no better than nope: {behind}.")


if __name__ == "__main__":
    main([] if "ipykernel" in sys.modules else None)  # a notebook has other arguments
