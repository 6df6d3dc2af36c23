"""The class of tasks: lines with an answer, of any length, drawn from a seed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Generator, Tensor
from torch.nn.functional import pad

from posenc.study.tasks import streams
from posenc.study.tasks.lines import IGNORED, PAD, Line

SPARE = 4  # `randomised` draws from 4 times the longest line; its authors from 2048 for lines of 500
TASKS: dict[str, "Task"] = {}


@dataclass(frozen=True)
class Batch:
    """Lines of a task.

    Args:
        tokens: The input of a causal decoder.
        targets: The expected next symbol at each position; -100 where it is not counted.
        streams: Positions by the name of their stream.
    """

    tokens: Int64[Tensor, "n seq_len"]
    targets: Int64[Tensor, "n seq_len"]
    streams: Mapping[str, Int64[Tensor, "n seq_len"]]


@dataclass(frozen=True)
class Score:
    """For each line: whether all counted targets are right, how many are right, and how many are counted."""

    exact: Bool[Tensor, " n"]
    right: Int64[Tensor, " n"]
    counted: Int64[Tensor, " n"]


@dataclass(frozen=True)
class Task:
    """A task in one format.

    Args:
        name: Such as `addition:reversed`, with the format after the colon.
        symbols: The vocabulary by token id, "pad" first.
        length: The unit of a length.
        lengths: The possible lengths.
        train_lengths: Lengths for training; smaller than the source's, for small machines.
        test_lengths: Lengths for tests, the longest trained one first.
        make: Draws tokens and targets of n lines of a length.
        paper: Authors and year.
        arxiv: The paper's arXiv number.
        format: An example of a line, and the differences from the source.
        kinds: Streams other than `index` and `randomised`, which every task has.
        probes: Names of tasks with the same symbols, on which a trained model is also tested.
    """

    name: str
    symbols: tuple[str, ...]
    length: str
    lengths: range
    train_lengths: range
    test_lengths: tuple[int, ...]
    make: Callable[[int, int, Generator], Line]
    paper: str
    arxiv: str
    format: str
    kinds: Mapping[str, streams.Stream] = field(default_factory=dict)
    probes: tuple[str, ...] = ()

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of the position streams."""
        return ("index", "randomised", *self.kinds)

    def seq_len(self, length: int) -> int:
        """Return how many symbols a line of this length has; every line has the same number.

        Raises:
            ValueError: No line has this length.
        """
        return self._draw(length, 1, Generator())[0].shape[1]

    def sizes(self, longest: int | None = None) -> dict[str, int]:
        """Return how many positions each stream uses, so that a table of them can be built.

        Args:
            longest: The longest test length; by default that of `test_lengths`.
        """
        longest = longest or max(self.test_lengths)
        seq_len = self.seq_len(longest)
        # an answer may have one symbol more than the question, and `coupling` starts at 2
        return {"index": seq_len, "randomised": SPARE * seq_len, **dict.fromkeys(self.kinds, longest + 3)}

    def sample(
        self, length: int, n: int, generator: Generator, *, training: bool = True, longest: int | None = None
    ) -> Batch:
        """Draw n lines of one length; see `mixed`."""
        return self.mixed((length,), n, generator, training=training, longest=longest)

    def mixed(
        self,
        lengths: Sequence[int],
        n: int,
        generator: Generator,
        *,
        training: bool = True,
        longest: int | None = None,
    ) -> Batch:
        """Draw n lines with lengths drawn from `lengths`; shorter lines are padded on the right.

        A seed gives the same lines on every machine, in training and in tests.

        Args:
            lengths: The lengths to draw from, such as `train_lengths`.
            n: How many lines.
            generator: A generator on the CPU.
            training: Whether streams start at random.
            longest: The longest test length, up to which streams are trained; by default that of `test_lengths`.

        Raises:
            ValueError: `lengths` is empty, no line has one of them, or one is above `longest`; or n is below 1.
        """
        longest = longest or max(self.test_lengths)
        if n < 1 or not 1 <= max(lengths, default=0) <= longest:
            raise ValueError(
                f"tasks: {self.name} draws at least one line, of lengths up to the longest test length, {longest}; "
                f"got n={n} and lengths {list(lengths)}. Give longest=... to draw longer ones."
            )
        # with a seed of their own, so that neither training nor another stream changes the lines
        places = Generator().manual_seed(int(torch.randint(2**31, (), generator=generator)))
        drawn = torch.randint(len(lengths), (n,), generator=generator).bincount(minlength=len(lengths))
        lines = [self._draw(length, m, generator) for length, m in zip(lengths, drawn.tolist(), strict=True) if m]
        width = max(tokens.shape[1] for tokens, _ in lines)
        tokens, targets = (
            torch.cat([pad(line[part], (0, width - line[part].shape[1]), value=fill) for line in lines])
            for part, fill in ((0, PAD), (1, IGNORED))
        )
        sizes = self.sizes(longest)
        return Batch(tokens, targets, streams.place(self.kinds, tokens, places, training=training, sizes=sizes))

    def show(self, batch: Batch, i: int) -> str:
        """Return line i as text, with the targets in brackets."""
        tokens, targets = batch.tokens[i].tolist(), batch.targets[i].tolist()
        words, given = [], False  # given: the symbol was printed as the target before it
        for token, target, following in zip(tokens, targets, [*tokens[1:], PAD], strict=True):
            if token != PAD and not given:
                words.append(self.symbols[token])
            if target != IGNORED:
                words.append(f"[{self.symbols[target]}]")
            given = target == following
        return " ".join(words).replace("] [", " ")

    def card(self) -> dict[str, Any]:
        """Return the facts of the task as plain JSON values, with a short example."""
        example = self.sample(self.lengths[2], 1, Generator().manual_seed(0))
        words = {fact: getattr(self, fact) for fact in ("name", "length", "paper", "arxiv", "format")}
        rows = {fact: list(getattr(self, fact)) for fact in ("train_lengths", "test_lengths", "streams", "probes")}
        return words | rows | {"symbols": len(self.symbols), "example": self.show(example, 0)}

    def _draw(self, length: int, n: int, generator: Generator) -> Line:
        if length not in self.lengths:
            steps = f", in steps of {self.lengths.step}" if self.lengths.step > 1 else ""
            raise ValueError(
                f"tasks: {self.name} has lines of length {self.lengths[0]} to {self.lengths[-1]}{steps} "
                f"(a length counts {self.length}); got {length}."
            )
        return self.make(length, n, generator)


def score(
    predictions: Float[Tensor, "n seq_len symbols"] | Int64[Tensor, "n seq_len"], targets: Int64[Tensor, "n seq_len"]
) -> Score:
    """Compare logits, or predicted ids, with the targets.

    With teacher forcing a model is right at every symbol exactly if it is with greedy decoding, since the inputs are
    the same up to the first error. So `exact` is the accuracy that papers report.
    """
    if predictions.ndim > targets.ndim:
        predictions = predictions.argmax(-1)
    counted = targets != IGNORED
    right = (predictions == targets) & counted
    return Score((right == counted).all(1), right.sum(1), counted.sum(1))


def register(name: str, *, options: Mapping[str, Any] | None = None, **facts: Any) -> Callable[..., Any]:
    """Register the decorated function, with options, as the task of this name; `facts` are arguments of `Task`."""

    def decorate(make: Callable[..., Line]) -> Callable[..., Line]:
        TASKS[name] = Task(name=name, make=partial(make, **(options or {})), **facts)
        return make

    return decorate
