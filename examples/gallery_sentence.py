# %% [markdown]
"""Figures of a sentence and its positions: which embeddings are similar, and one dot product number by number.

The tokens' own vectors are random, so all similarity comes from equal words and from positions. As a script:

    python examples/gallery_sentence.py [--out gallery] [--format svg]
"""

# %%
import argparse
import sys
from pathlib import Path

import numpy as np
import torch

import posenc
from posenc import measure, positions

try:
    from posenc import figures
except ImportError:
    print("gallery_sentence: figures need matplotlib; run: pip install 'posenc[plot]'", file=sys.stderr)
    sys.exit(2)

parser = argparse.ArgumentParser(description="Draw which embeddings of a sentence are similar.")
parser.add_argument("--out", type=Path, default=Path("gallery"), help="the folder to write to")
parser.add_argument("--format", default="svg", help="svg, png, pdf, ...")
wanted = parser.parse_args([] if "ipykernel" in sys.modules else None)
wanted.out.mkdir(parents=True, exist_ok=True)
torch.manual_seed(0)


def keep(name, figure):
    """Write a figure; return it, so that a notebook shows it."""
    figure.savefig(wanted.out / f"{name}.{wanted.format}")
    print(f"{name}.{wanted.format} is written.\n")
    return figure


# %% Without positions, equal words are equal wherever they stand. Sinusoidal vectors make neighbours similar, and
# separate equal words the more, the larger their distance. A learned table, before training, separates them without
# making neighbours similar.
D_MODEL = 128
SENTENCE = "the dog saw the cat and the cat saw the bird near the tree"
WORDS = SENTENCE.split()
vocabulary = sorted(set(WORDS))
table = torch.randn(len(vocabulary), D_MODEL)
tokens = table[[vocabulary.index(word) for word in WORDS]][None]
pos = positions.arange(len(WORDS))
ways = {
    "none": posenc.NoPE(),
    "sinusoidal": posenc.Sinusoidal(d_model=D_MODEL),
    "learned, untrained": posenc.Learned(d_model=D_MODEL, max_len=len(WORDS), init_std=0.7),
}
with torch.no_grad():
    embedded = {title: e.embed(tokens, e.place(pos))[0].numpy() for title, e in ways.items()}
the = [i for i, word in enumerate(WORDS) if word == "the"]
others = [(i, i + 1) for i in range(len(WORDS) - 1)]
print(f"{'cosines':<20} 'the' at 0 and {', '.join(map(str, the[1:]))}{'':<16} neighbours, mean")
found = {}
for title, rows in embedded.items():
    cosine = measure.similarity(rows, cosine=True)
    found[title] = cosine[the[0], the[1:]], float(np.mean([cosine[i, j] for i, j in others]))
    print(f"{title:<20} {'  '.join(f'{c:.2f}' for c in found[title][0]):<36} {found[title][1]:.2f}")
if not (abs(found["none"][0] - 1).max() < 1e-6 and found["sinusoidal"][1] > 0.2 > found["learned, untrained"][1]):
    sys.exit("gallery_sentence: the three ways do not differ as they should.")
keep("sentence", figures.sentence_similarity(embedded, WORDS))

# %% One dot product of two sinusoidal vectors with four dimensions, number by number, and the two most common mistakes:
# dimensions in two orders, and the dot product used as the cosine.
worked = figures.work_out(1, 3)
print(f"dot product of positions 1 and 3: {worked.dot:.4f} = cos(2) + cos(0.02); of 2 and 4: {worked.dot_shifted:.4f}")
print(f"cosine: {worked.cosine:.4f}, the dot product over 2")
print(f"dimensions mixed: {worked.mixed:.4f}, and one position further on {worked.mixed_shifted:.4f}")
if abs(worked.dot - worked.dot_shifted) > 1e-9 or abs(worked.mixed - worked.mixed_shifted) < 0.1:
    sys.exit("gallery_sentence: mixing the dimensions makes no difference.")
keep("worked_example", figures.worked_example(1, 3))
