# %% [markdown]
"""Several documents in one row: with `pos` and `document_ids` each gives the same result as by itself.

A row that is filled with one document after another wastes no slot on padding. It needs two arguments: the positions,
which restart in each document (`pos`), and the document of each token (`document_ids`). Each is left out once, to show
what breaks.

    python examples/packed_documents.py [--seed 0]
"""

# %%
import argparse
import sys
from pydoc_data.topics import topics

import torch

import posenc
from posenc import positions
from posenc.nn import LanguageModel

D_MODEL, HEADS, LAYERS = 64, 4, 2
ENCODINGS = ("nope", "learned", "sinusoidal", "rope", "alibi", "t5")
DIMS = posenc.Dims(d_model=D_MODEL, n_heads=HEADS, head_dim=D_MODEL // HEADS, max_len=2048)
WAYS = {  # the arguments of the model, by which ones are passed
    "both": lambda ids: {"pos": positions.packed(ids), "document_ids": ids},
    "no pos": lambda ids: {"document_ids": ids},
    "no document_ids": lambda ids: {"pos": positions.packed(ids)},
    "neither": lambda ids: {},
}


# %% The parts
def build(name, seed):
    torch.manual_seed(seed)
    encoding = posenc.create(name, dims=DIMS)
    model = LanguageModel(vocab_size=256, d_model=D_MODEL, n_layers=LAYERS, n_heads=HEADS, encoding=encoding)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.normal_()  # as if trained: T5's bias starts small, which would hide the differences
    return model.eval()


@torch.no_grad()
def differences(model, documents):
    """Return for each way the largest difference between logits in the packed row and those of single documents."""
    row = torch.cat(documents)[None]
    ids = torch.cat([torch.full((len(d),), i) for i, d in enumerate(documents)])
    alone = torch.cat([model(d[None]) for d in documents], 1)
    return {way: float((model(row, **arguments(ids)) - alone).abs().max()) for way, arguments in WAYS.items()}


def influence(model, ids, tokens):
    """Return whether the output of each token changes if another one is replaced: (outputs, inputs)."""
    with torch.no_grad():
        base = model(tokens[None], **WAYS["both"](ids))
        changed = tokens.repeat(len(tokens), 1)
        changed.fill_diagonal_(ord("#"))
        return (model(changed, **WAYS["both"](ids)) - base).abs().amax(-1).T > 1e-4


# %% The run
def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args(argv).seed
    torch.set_num_threads(1)  # small models gain nothing from more, and the numbers do not depend on the cores

    names = ("pass", "break", "numbers", "lambda")
    documents = [torch.tensor(list(topics[name].strip().encode())) for name in names]
    lengths = [len(d) for d in documents]
    print(f"One row of {sum(lengths)} bytes: " + ", ".join(f"{n} ({m})" for n, m in zip(names, lengths, strict=True)))
    print(f"Padded to the longest, {len(names)} rows would need {len(names) * max(lengths)} slots.\n")

    print("Largest difference between a document's logits in the row and by itself; 'same' is below 0.0001:\n")
    print(f"{'encoding':<12}" + "".join(f"{way:>17}" for way in WAYS))
    found = {name: differences(build(name, seed), documents) for name in ENCODINGS}
    for name, by_way in found.items():
        cells = ("same" if gap < 1e-4 else f"{gap:.2f}" for gap in by_way.values())
        print(f"{name:<12}" + "".join(f"{cell:>17}" for cell in cells))
    print(
        "\nWithout document_ids every encoding leaks: documents read those before them. Without pos only the absolute\n"
        "encodings differ: distances within a document stay the same, and the others depend only on distances."
    )
    short = [d[:n] for d, n in zip(documents, (6, 9, 12, 7), strict=True)]
    ids = torch.cat([torch.full((len(d),), i) for i, d in enumerate(short)])
    moved = influence(build("rope", seed), ids, torch.cat(short))
    print("\nWhich token attends to which, by replacing each byte in turn (rope; rows are outputs, # is influence):\n")
    for reader, row in enumerate(moved.tolist()):
        print("   ", f"{names[ids[reader]]:<9}", "".join(" #"[seen] * 2 for seen in row).rstrip())

    own = (ids[:, None] == ids) & torch.ones_like(moved).tril()
    if any(not by_way["both"] < 1e-4 for by_way in found.values()) or (moved & ~own).any():
        sys.exit("packed_documents: a document in the row differs from the document by itself.")
    if any(by_way["no document_ids"] < 1e-4 for by_way in found.values()):
        sys.exit("packed_documents: nothing leaks without document_ids, so this example proves nothing.")


if __name__ == "__main__":
    main([] if "ipykernel" in sys.modules else None)  # a notebook has other arguments
