# %% [markdown]
"""Translate Django's messages from English to Chinese: three encodings in one small translation model.

The pairs are real: Django ships its message catalogues (.po files) for zh_Hans. A tenth of the messages is held out.
English is read word by word, Chinese written character by character; placeholders such as %(name)s are one token.

    python examples/translate.py [--steps 280] [--encodings sinusoidal,alibi,rope]
"""

# %%
import argparse
import random
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from torch.nn import functional as F

import posenc
from posenc.nn import EncoderDecoder

if missing := [name for name in ("django", "polib") if find_spec(name) is None]:
    print(f"translate: the messages need {' and '.join(missing)}; run: pip install django polib", file=sys.stderr)
    sys.exit(2)
import polib

D_MODEL, HEADS, LAYERS, BATCH, MAX_SOURCE, MAX_TARGET = 96, 4, 1, 32, 20, 28
DIMS = posenc.Dims(d_model=D_MODEL, n_heads=HEADS, head_dim=D_MODEL // HEADS, max_len=64)
PAD, BEGIN, END, UNKNOWN = range(4)
TOKEN = re.compile(r"%\(\w+\)[sd]|%[sd]|\{\w*\}|[A-Za-z]+|\d+|\S")  # placeholder, word, number, or one character


# %% The parts
def read_pairs():
    """Return (English tokens, Chinese tokens) from all catalogues, each English message once, in a fixed order."""
    pairs = {}
    for file in sorted(Path(find_spec("django").origin).parent.glob("**/locale/zh_Hans/LC_MESSAGES/*.po")):
        for entry in polib.pofile(str(file)).translated_entries():
            source = TOKEN.findall(entry.msgid.lower())
            target = TOKEN.findall(entry.msgstr or entry.msgstr_plural[0])
            if 0 < len(source) <= MAX_SOURCE and 0 < len(target) <= MAX_TARGET:
                pairs.setdefault(tuple(source), tuple(target))
    ordered = sorted(pairs.items())
    random.Random(0).shuffle(ordered)
    return ordered


def to_tensors(pairs, vocabulary):
    """Return the numbers of the English tokens and of the Chinese ones, (pairs, longest) each."""
    tensors = []
    for sentences in zip(*pairs, strict=True):
        rows = [torch.tensor([*(vocabulary.get(token, UNKNOWN) for token in s), END]) for s in sentences]
        tensors.append(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD))
    return tensors


def score(model, source, target):
    """Return for each message the loss per character and the share of characters that were predicted.

    Each character is predicted from the true ones before it. An unseen character has no loss and counts
    as wrong.
    """
    logits = model(source, F.pad(target[:, :-1], (1, 0), value=BEGIN), source != PAD)
    known, real = (target > BEGIN) & (target != UNKNOWN), target != PAD
    loss = F.cross_entropy(logits.transpose(1, 2), target, reduction="none") * known
    hits = (logits.argmax(-1) == target) & known
    return loss.sum(1) / known.sum(1), hits.sum(1) / real.sum(1)


def train(model, pairs, vocabulary, steps):
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, weight_decay=0.1)
    pairs, draw = sorted(pairs, key=lambda pair: len(pair[1])), random.Random(1)  # similar lengths need little padding
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 4e-3 * min(1, (step + 1) / 30) * (1 - step / steps)
        first = min(max(0, draw.randrange(-BATCH // 2, len(pairs) - BATCH // 2)), len(pairs) - BATCH)
        loss = score(model, *to_tensors(pairs[first : first + BATCH], vocabulary))[0].mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def translate(model, source, tokens):
    """Write the likeliest characters one after another, for all messages at once."""
    written, mask = torch.full((len(source), 1), BEGIN), source != PAD
    encoded = model.encode(source, mask)
    for _ in range(MAX_TARGET + 1):
        written = torch.cat((written, model.decode(encoded, written, mask)[:, -1:].argmax(-1)), 1)
    rows = ([*row[1:], END] for row in written.tolist())
    return ["".join(tokens[i] for i in row[: row.index(END)]) for row in rows]


def build(name, vocabulary_size):
    torch.manual_seed(0)
    encoding = posenc.create(name, dims=DIMS)
    torch.manual_seed(0)  # again, since the encoding may have drawn numbers: the models should start equal
    options = {"vocab_size": vocabulary_size, "d_model": D_MODEL, "n_layers": LAYERS, "n_heads": HEADS, "dropout": 0.2}
    return EncoderDecoder(encoding=encoding, **options)


# %% The run
def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=280, help="training steps for each encoding")
    parser.add_argument("--encodings", default="sinusoidal,alibi,rope")
    options = parser.parse_args(argv)
    sys.stdout.reconfigure(encoding="utf-8")
    torch.set_num_threads(1)  # small models gain nothing from more, and the numbers do not depend on the cores

    pairs = read_pairs()
    held, known = pairs[: len(pairs) // 10], pairs[len(pairs) // 10 :]
    tokens = ["", "", "", "?", *sorted({token for pair in known for side in pair for token in side})]
    vocabulary = {token: i for i, token in enumerate(tokens) if i > UNKNOWN}
    (source, target), trained_on = to_tensors(held, vocabulary), to_tensors(known, vocabulary)
    unseen = int((target == UNKNOWN).sum()) / int((target != PAD).sum())
    print(f"{len(known)} messages to train on and {len(held)} held out, where {unseen:.0%} of the characters are new\n")
    print("              trained on |           held out                    | loss with the English")
    print("encoding      characters |  characters        loss        exact  | of another message")
    losses, astray, written = {}, {}, {}
    for name in options.encodings.split(","):
        model = build(name, len(tokens))
        train(model, known, vocabulary, options.steps)
        model.eval()
        with torch.no_grad():
            of_trained, (losses[name], hits) = score(model, *trained_on)[1], score(model, source, target)
            astray[name] = score(model, source.roll(1, 0), target)[0]
            written[name] = [translate(model, side, tokens) for side in (trained_on[0][:3], source)]
        right = sum(w == "".join(target) for w, (_, target) in zip(written[name][1], held, strict=True))
        error = losses[name].std() / len(held) ** 0.5
        print(
            f"{name:<12}{of_trained.mean():>12.1%} |{hits.mean():>12.1%}{losses[name].mean():>9.2f} ± {error:.2f}"
            f"{right:>7} of {len(held)}  |{astray[name].mean():>9.2f}"
        )
    ranked = sorted(losses, key=lambda name: float(losses[name].mean()))
    best, worst = ranked[0], ranked[-1]
    gap = losses[worst] - losses[best]
    print(
        "\nLoss in nats per character, ± its standard error over messages. Message by message, the widest gap is\n"
        f"{gap.mean():.2f} ± {gap.std() / len(held) ** 0.5:.2f} ({worst} behind {best}), from one seed: so few short "
        "messages do not\nshow which encoding translates better. They do teach words and phrases that recur. "
        "The first of each part:"
    )
    for part, pairs, texts in (("trained on", known, 0), ("held out", held, 1)):
        for i, (english, chinese) in enumerate(pairs[: (3, 6)[texts]]):
            print(f"\n{part}: {' '.join(english)}\n{'Django':>14}  {''.join(chinese)}")
            for name in written:
                print(f"{name:>14}  {written[name][texts][i]}")
    deaf = [name for name in losses if astray[name].mean() < losses[name].mean() + 0.3]
    if deaf:
        sys.exit(f"translate: the translation hardly depends on the English message: {', '.join(deaf)}.")


if __name__ == "__main__":
    main([] if "ipykernel" in sys.modules else None)  # a notebook has other arguments
