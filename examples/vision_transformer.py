# %% [markdown]
"""A vision transformer with 2-D positions, trained on small images and tested on larger ones.

It reads scikit-learn's handwritten digits, 8 x 8, with every pixel a token. Then the same digits are enlarged to
16 x 16: the same patch size, four times as many tokens. The choice of positions decides the result: counted further
(0..15, twice as far as in training), or interpolated, so that the larger image covers the square of the smaller one.
Positions may be real numbers, so a formula accepts them directly; a learned table is resized instead.

    python examples/vision_transformer.py [--steps 200]
"""

# %%
import argparse
import sys

import torch
from torch import nn
from torch.nn import functional as F

import posenc
from posenc import positions
from posenc.nn import Block

try:
    from sklearn.datasets import load_digits
except ImportError:
    print("vision_transformer: the digits come with scikit-learn; run: pip install scikit-learn", file=sys.stderr)
    sys.exit(2)

SMALL, LARGE, D_MODEL, HEADS, LAYERS, BATCH, N_TEST = 8, 16, 48, 2, 2, 24, 300
ENCODINGS = {  # eight pixels need shorter waves than ten thousand words, hence base=10
    "nope": lambda: posenc.NoPE(n_axes=2),
    "learned_2d": lambda: posenc.Learned2D(d_model=D_MODEL, height=SMALL, width=SMALL, init_std=0.6),
    "sinusoidal_nd": lambda: posenc.SinusoidalND(d_model=D_MODEL, base=10.0),
    "axial_rope": lambda: posenc.AxialRoPE(head_dim=D_MODEL // HEADS, base=10.0),
}


# %% The parts
class VisionTransformer(nn.Module):
    def __init__(self, encoding):
        super().__init__()
        self.encoding, self.pixel = encoding, nn.Linear(1, D_MODEL)
        self.blocks = nn.ModuleList(Block(d_model=D_MODEL, n_heads=HEADS) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(D_MODEL), nn.Linear(D_MODEL, 10)

    def forward(self, images, pos):
        placed = self.encoding.place(pos)
        x = self.encoding.embed(self.pixel(images.flatten(1)[..., None]), placed)
        for block in self.blocks:
            x = block(x, self.encoding, placed, placed, causal=False)
        return self.head(self.norm(x).mean(1))


def train(model, images, labels, steps):
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=steps)
    random, pos = torch.Generator().manual_seed(1), positions.grid(SMALL, SMALL)
    for _ in range(steps):
        chosen = torch.randint(len(images), (BATCH,), generator=random)
        loss = F.cross_entropy(model(images[chosen], pos), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


@torch.no_grad()
def accuracy(model, images, labels, pos):
    return float((model(images, pos).argmax(-1) == labels).float().mean())


def interpolated(pos):
    """Return the places of the large image's pixels in the small one: their centres, half a pixel from the border."""
    return (pos.double() + 0.5) * SMALL / LARGE - 0.5


def test(model, images, labels):
    """Return accuracies: at the trained size; enlarged, with counted positions; enlarged, with interpolated ones."""
    small, large = positions.grid(SMALL, SMALL), positions.grid(LARGE, LARGE)
    enlarged = F.interpolate(images[:, None], size=(LARGE, LARGE), mode="bilinear")[:, 0]
    trained = accuracy(model, images, labels, small)
    if not isinstance(model.encoding, posenc.Learned2D):
        return trained, *(accuracy(model, enlarged, labels, pos) for pos in (large, interpolated(large)))
    try:  # a table has no rows outside its size, nor between its rows
        counted = accuracy(model, enlarged, labels, large)
    except ValueError:
        counted = None
    model.encoding = model.encoding.resized(LARGE, LARGE)
    return trained, counted, accuracy(model, enlarged, labels, large)


# %% The run
def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=200, help="training steps for each encoding")
    steps = parser.parse_args(argv).steps
    torch.set_num_threads(1)  # small models gain nothing from more, and the numbers do not depend on the cores

    pixels, labels = map(torch.tensor, load_digits(return_X_y=True))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images, labels = pixels[order].float().unflatten(1, (SMALL, SMALL)) / 16, labels[order]
    shown = F.interpolate(images[None, :1], size=(LARGE, LARGE), mode="bilinear")[0, 0]
    for y in range(LARGE):
        lines = (picture[y].tolist() if y < len(picture) else [] for picture in (images[0], shown))
        small, large = ("".join(" .:-=+*#%@"[int(9 * v)] * 2 for v in line) for line in lines)
        print(f"    {small:<20}{large}".rstrip())

    print(f"\naccuracy on {N_TEST} digits  trained at 8 x 8 |  16 x 16, counted  16 x 16, interpolated")
    found = {}
    for name, make in ENCODINGS.items():
        torch.manual_seed(0)
        model = VisionTransformer(make())
        train(model, images[N_TEST:], labels[N_TEST:], steps)
        found[name] = test(model, images[:N_TEST], labels[:N_TEST])
        trained, counted, between = ("refused" if a is None else f"{a:.1%}" for a in found[name])
        print(f"{name:<22}{trained:>18} |{counted:>18}{between:>23}")
    print(
        "\nnope treats the image as a bag of pixels. Counted positions put three quarters of the large image where\n"
        "training had no pixels. learned_2d refuses them and was resized (bicubic, antialiased) for the last column;\n"
        "sinusoidal_nd and axial_rope were given the interpolated coordinates, -0.25 to 7.25 in steps of a half."
    )
    seeing = [found[name] for name in ENCODINGS if name != "nope"]
    if any(trained < found["nope"][0] + 0.2 or between < trained - 0.2 for trained, _, between in seeing):
        sys.exit("vision_transformer: 2-D positions do not help, or do not carry over to the larger images.")
    if any(counted > between - 0.2 for _, counted, between in seeing if counted is not None):
        sys.exit("vision_transformer: counted positions do as well as interpolated ones.")


if __name__ == "__main__":
    main([] if "ipykernel" in sys.modules else None)  # a notebook has other arguments
