"""Measure a training step of the study next to a plain loop: `python benchmarks/study_speed.py`, a minute.

The plain loop has the same model without positions, torch's attention, the same batches and the same optimizer.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.bench import machine
from posenc.bench.measure import Timing, compare
from posenc.study import cell
from posenc.study.config import Cell, Config
from posenc.study.subjects import Reading
from posenc.study.text import load

D, HEADS, LAYERS = 64, 4, 2
CONFIG = Config()
SUBJECT = Reading(CONFIG, load([], CONFIG))
ENCODINGS = ("nope", "rope", "alibi", "t5")


class PlainBlock(nn.Module):
    """A block of the study's model, without positions."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp_norm = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.ReLU(), nn.Linear(4 * D, D))

    def forward(self, x: Tensor) -> Tensor:
        """Run the layer."""
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.mlp_norm(x))


def plain_loop() -> Iterator[None]:
    """Train as anybody would write it, with nothing measured."""
    embedding, blocks = nn.Embedding(SUBJECT.vocab_size, D), nn.ModuleList(PlainBlock() for _ in range(LAYERS))
    norm, head = nn.LayerNorm(D), nn.Linear(D, SUBJECT.vocab_size, bias=False)
    model = nn.ModuleList([embedding, blocks, norm, head])
    optimizer = torch.optim.AdamW(model.parameters(), lr=CONFIG.lr, weight_decay=0.01, fused=True)
    random = torch.Generator().manual_seed(0)
    while True:
        tokens, targets, _ = SUBJECT.batch(random)
        x = embedding(tokens) * math.sqrt(D)
        for block in blocks:
            x = block(x)
        loss = F.cross_entropy(head(norm(x)).flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield


def study_loop(encoding: str) -> Iterator[object]:
    this = Cell(encoding, "text", f"{D}x{LAYERS}x{HEADS}", 0)
    return cell.train(cell.build(CONFIG, SUBJECT, this), CONFIG, SUBJECT, this, 10**6)


def step(loop: Iterator[object]) -> Callable[[], object]:
    return lambda: next(loop)


if __name__ == "__main__":
    torch.set_num_threads(1)
    loops = {"plain loop": step(plain_loop())} | {f"study, {name}": step(study_loop(name)) for name in ENCODINGS}
    tokens = SUBJECT.batch(torch.Generator())[0].numel()
    print(f"Machine: {machine.sentence(machine.examine())}; one thread.\n")
    print("| loop | tokens a second, of the plain loop's | middle half |\n| --- | --- | --- |")
    for name, found in compare(loops, "plain loop", rounds=41).items():
        assert isinstance(found, Timing), found
        middle, low, high = (1 / ratio for ratio in (found.ratio.median, found.ratio.high, found.ratio.low))
        print(f"| {name} | {middle:.2f} | {low:.2f} .. {high:.2f} |")
