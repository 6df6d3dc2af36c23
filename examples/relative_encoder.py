# %% [markdown]
"""An encoder with relative attention restores masked letters from both sides, and must distinguish the sides.

A sixth of the letters of Python's help texts is masked; the encoder reads 32 letters at once, in both directions.
Without position it can only count the letters. Three relative encodings learn the distance and the side of a letter:
Shaw's vectors of the distance, a bias for each distance, T5's buckets. Reading the test backwards shows the effect of
direction: an encoder that uses only distances would restore as many letters.

    python examples/relative_encoder.py [--steps 250]
"""

# %%
import argparse
import sys
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional as F

import posenc
from posenc import positions
from posenc.nn import Block

D_MODEL, HEADS, LAYERS, SEQ, BATCH = 64, 4, 2, 32, 24
ALPHABET = " abcdefghijklmnopqrstuvwxyz"
MASK = len(ALPHABET)
ENCODINGS = {
    "nope": posenc.NoPE,
    "shaw": lambda: posenc.Shaw(head_dim=D_MODEL // HEADS, max_distance=8),
    "relative_bias": lambda: posenc.RelativeBias(n_heads=HEADS, max_distance=8),
    "t5": lambda: posenc.T5(n_heads=HEADS, n_buckets=16, max_distance=32, bidirectional=True),
}


# %% The parts
class Encoder(nn.Module):
    def __init__(self, encoding):
        super().__init__()
        self.encoding, self.letters = encoding, nn.Embedding(len(ALPHABET) + 1, D_MODEL)
        nn.init.normal_(self.letters.weight, std=0.4)
        self.blocks = nn.ModuleList(Block(d_model=D_MODEL, n_heads=HEADS) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(D_MODEL), nn.Linear(D_MODEL, len(ALPHABET))

    def forward(self, letters):
        placed = self.encoding.place(positions.arange(letters.shape[1]))
        x = self.encoding.embed(self.letters(letters), placed)
        for block in self.blocks:
            x = block(x, self.encoding, placed, placed, causal=False)
        return self.head(self.norm(x))


def read_text():
    """Return the help texts as numbers of letters; everything else is a space, and spaces do not repeat."""
    prose = "".join(c if c in ALPHABET else " " for c in " ".join(topics[key] for key in sorted(topics)).lower())
    return torch.tensor([ALPHABET.index(c) for c in " ".join(prose.split())])


def masked_batch(text, n, random):
    """Return windows, and the same with a sixth of the letters masked."""
    true = text[torch.randint(len(text) - SEQ, (n, 1), generator=random) + torch.arange(SEQ)]
    hidden = torch.rand(true.shape, generator=random) < 1 / 6
    return true, true.masked_fill(hidden, MASK)


def train(model, text, steps):
    # position parameters start near zero, and need a higher learning rate to leave it in so few steps
    of_encoding = set(model.encoding.parameters())
    groups = [{"params": list(of_encoding), "lr": 0.2, "weight_decay": 0.0}] if of_encoding else []
    groups.append({"params": [p for p in model.parameters() if p not in of_encoding], "lr": 6e-3})
    optimizer = torch.optim.AdamW(groups, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1, (n + 1) / 20) * (1 - n / steps))
    random = torch.Generator().manual_seed(1)
    for _ in range(steps):
        true, seen = masked_batch(text, BATCH, random)
        loss = F.cross_entropy(model(seen)[seen == MASK], true[seen == MASK])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


@torch.no_grad()
def accuracy(model, true, seen):
    return float((model(seen).argmax(-1) == true)[seen == MASK].float().mean())


@torch.no_grad()
def restore(model, seen):
    return torch.where(seen == MASK, model(seen[None]).argmax(-1)[0], seen)


def spell(letters):
    return "".join((ALPHABET + "_")[i] for i in letters)


# %% The run
def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=250, help="training steps for each encoding")
    steps = parser.parse_args(argv).steps
    torch.set_num_threads(1)  # small models gain nothing from more, and the numbers do not depend on the cores

    text = read_text()
    train_part, test_part = text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]
    true, seen = masked_batch(test_part, 400, torch.Generator().manual_seed(2))
    common = train_part.bincount().argmax()
    guess = float((true[seen == MASK] == common).float().mean())
    print(f"masked letters restored, on text not trained on, after {steps} steps (a space everywhere: {guess:.1%})\n")
    print(f"{'encoding':<15}{'restored':>9}{'backwards':>12}")
    found, models = {}, {}
    for name, make in ENCODINGS.items():
        torch.manual_seed(0)
        models[name] = Encoder(make())
        train(models[name], train_part, steps)
        forwards = accuracy(models[name], true, seen)
        backwards = accuracy(models[name], true.flip(1), seen.flip(1))
        found[name] = forwards, backwards
        print(f"{name:<15}{forwards:>9.1%}{backwards:>12.1%}")

    print(f"\n{'masked':<15}|{spell(seen[0])}|")
    for name in ENCODINGS:
        print(f"{name:<15}|{spell(restore(models[name], seen[0]))}|")
    print(f"{'text':<15}|{spell(true[0])}|")

    print(
        "\nrelative_bias after training: each key's share of a head's weight if all q.k were equal (- is to the left)"
    )
    bias = models["relative_bias"].encoding.dense(positions.arange(1, start=8), positions.arange(17))[0, :, 0]
    print("key is at     " + "".join(f"{offset:>+5}" for offset in range(-8, 9)))
    for head, row in enumerate(bias.softmax(-1).tolist()):
        print(f"head {head + 1}        " + "".join(f"{share:>5.2f}" for share in row))
    relative = ENCODINGS.keys() - {"nope"}
    if behind := sorted(name for name in relative if found[name][0] < found["nope"][0] + 0.1):
        sys.exit(f"relative_encoder: hardly better than no position: {', '.join(behind)}.")
    if astray := sorted(name for name in relative if found[name][1] > found[name][0] - 0.1):
        sys.exit(f"relative_encoder: has not learned the side: {', '.join(astray)}.")


if __name__ == "__main__":
    main([] if "ipykernel" in sys.modules else None)  # a notebook has other arguments
