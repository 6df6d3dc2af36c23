"""Learned biases learn: from chance or flat, until they tell near tokens from far ones."""

import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import posenc
from posenc import positions

N_HEADS, HEAD_DIM, SEQ, SYMBOLS = 2, 8, 24, 6
POS = positions.arange(SEQ)
MAKERS = {
    "relative_bias": lambda: posenc.RelativeBias(n_heads=N_HEADS, max_distance=16),
    "t5": lambda: posenc.T5(n_heads=N_HEADS, n_buckets=16, max_distance=20),
    "shaw": lambda: posenc.Shaw(head_dim=HEAD_DIM, max_distance=16),
    "transformer_xl": lambda: posenc.TransformerXL(d_model=16, n_heads=N_HEADS, head_dim=HEAD_DIM),
    "kerple": lambda: posenc.KERPLE(n_heads=N_HEADS),
    "kerple_power": lambda: posenc.KERPLEPower(n_heads=N_HEADS),
    "alibi": lambda: posenc.ALiBi(n_heads=N_HEADS, slopes="learned"),
    "fire": lambda: posenc.FIRE(n_heads=N_HEADS),
    "dynamic_position_bias": lambda: posenc.DynamicPositionBias(n_heads=N_HEADS, width=32),
    "deberta": lambda: posenc.DeBERTa(n_heads=N_HEADS, head_dim=HEAD_DIM, n_buckets=16, max_distance=24),
    "tupe": lambda: posenc.TUPE(n_heads=N_HEADS, head_dim=HEAD_DIM, max_len=SEQ),
    "fox": lambda: posenc.FoX(d_model=2, n_heads=N_HEADS),
    "cope": lambda: posenc.CoPE(head_dim=HEAD_DIM, max_count=16),
    "dape": lambda: posenc.DAPE(n_heads=N_HEADS),
}
# of any shape; of the others some can only fall with the distance, and small networks may need more steps
SHAPES = ("relative_bias", "t5", "shaw", "dynamic_position_bias", "deberta", "tupe", "cope")


class Copier(nn.Module):
    """Attention whose values are the symbols, so that what it returns is a probability of each."""

    def __init__(self, encoding: posenc.Encoding) -> None:
        super().__init__()
        self.encoding = encoding
        self.query = nn.Parameter(torch.randn(N_HEADS, 1, HEAD_DIM))
        self.key = nn.Parameter(torch.randn(N_HEADS, 1, HEAD_DIM))

    def forward(self, symbols: Tensor, marked: Tensor) -> Tensor:
        """Queries are all the same and keys tell marked tokens: which of those, the encoding alone can say."""
        q = self.query.expand(len(symbols), -1, SEQ, -1)
        k = self.key * marked[:, None, :, None]
        v = nn.functional.one_hot(symbols, SYMBOLS).float()[:, None].expand(-1, N_HEADS, -1, -1)
        return posenc.attend(q, k, v, self.encoding, self.place(marked), causal=True).mean(1)

    def place(self, marked: Tensor) -> posenc.Placed:
        """Place tokens that say whether they are marked, for encodings that read them."""
        x = torch.stack((marked, torch.ones_like(marked)), -1)
        return self.encoding.place(POS, x if self.encoding.reads_x else None)

    def by_distance(self) -> Tensor:
        """The encoding's term in the scores of the last query, nearest key first, (heads, seq); all are marked."""
        q = self.query.detach()[None].expand(-1, -1, SEQ, -1)
        k = torch.zeros_like(q)
        with torch.no_grad():
            placed = self.place(torch.ones(1, SEQ))
            term = self.encoding.bias(q, k, placed, placed)
            if self.encoding.rescores:
                term = self.encoding.rescore(q.new_zeros(1, N_HEADS, SEQ, SEQ), q, k, placed, placed, None)
            return term[0, :, -1].flip(-1)


class Task(NamedTuple):
    """Symbols, marks, and the index of the token whose symbol each position should return; -1 for none."""

    symbols: Tensor
    marked: Tensor
    answer: Tensor


def nearest(batch: int) -> Task:
    """Return the latest marked token, itself included, of a third that are marked."""
    marked = torch.rand(batch, SEQ) < 0.3
    answer = torch.where(marked, POS, -1).cummax(-1).values
    return Task(torch.randint(SYMBOLS, (batch, SEQ)), marked.float(), answer)


def three_back(batch: int) -> Task:
    """Return the third token back; no mark helps."""
    return Task(
        torch.randint(SYMBOLS, (batch, SEQ)), torch.zeros(batch, SEQ), (POS - 3).clamp(min=-1).expand(batch, -1)
    )


def trained(encoding: posenc.Encoding, task, steps: int = 150) -> Copier:
    model = Copier(encoding)
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05)
    for _ in range(steps):
        symbols, marked, answer = task(32)
        probabilities = model(symbols, marked)
        wanted = symbols.gather(-1, answer.clamp(min=0))
        right = probabilities.gather(-1, wanted[..., None])[..., 0][answer >= 0]
        loss = -right.clamp(min=1e-6).log().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model


def accuracy(model: Copier, task) -> float:
    symbols, marked, answer = task(256)
    with torch.no_grad():
        said = model(symbols, marked).argmax(-1)
    return float((said == symbols.gather(-1, answer.clamp(min=0)))[answer >= 0].float().mean())


def flat(name: str) -> posenc.Encoding:
    """Make an encoding that starts at random where it may lean either way, and nearly flat where it may not."""
    encoding = MAKERS[name]()
    with torch.no_grad():
        for member in encoding.modules():
            if isinstance(member, posenc.KERPLE | posenc.KERPLEPower):  # DAPE has one inside
                member.log_r1.fill_(math.log(0.01))
            if isinstance(member, posenc.ALiBi):
                member.log_slope.fill_(math.log(0.01))
            if isinstance(member, posenc.FoX):  # gates that let 99 of 100 pass
                member.b.fill_(math.log(99))
    return encoding


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def without() -> dict[str, float]:
    """How often the same model is right that sees no position."""
    torch.manual_seed(0)
    return {task.__name__: accuracy(trained(posenc.NoPE(), task), task) for task in (nearest, three_back)}


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_a_bias_learns_that_near_counts_more_than_far(name: str, without) -> None:
    encoding = flat(name)
    before = Copier(encoding).by_distance()
    assert (before[:, :2].mean(-1) - before[:, 8:].mean(-1)).abs().max() < 0.5
    model = trained(encoding, nearest)
    after = model.by_distance()
    assert (after[:, 0] - after[:, 8:].amax(-1)).min() > 3
    assert accuracy(model, nearest) > 0.9 > without["nearest"] + 0.2


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", SHAPES)
def test_what_has_any_shape_learns_the_distance_at_which_the_answer_stands(name: str, without) -> None:
    model = trained(flat(name), three_back)
    after = model.by_distance()
    assert after.argmax(-1).tolist() == [3, 3]
    assert accuracy(model, three_back) > 0.9 > without["three_back"] + 0.2


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["relative_bias", "shaw", "kerple", "deberta", "fox", "cope"])
def test_with_its_gradient_cut_it_learns_nothing(name: str) -> None:
    """So that the tests above would see it, were a gradient lost on the way through attention."""
    encoding = flat(name).requires_grad_(False)
    model = trained(encoding, nearest)
    after = model.by_distance()
    assert (after[:, 0] - after[:, 8:].amax(-1)).max() < 1
    assert accuracy(model, nearest) < 0.85
