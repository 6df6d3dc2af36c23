"""The training and test data of cells: a text, or a task's lines."""

import math
from typing import Any, Protocol

import torch
from jaxtyping import Float, Int64
from torch import Generator, Tensor
from torch.nn import functional as F

from posenc.nn import LanguageModel
from posenc.study import tasks
from posenc.study.config import TEXT, Cell, Config
from posenc.study.text import Text

# Never marked undertrained: at the trained length they lack positions, not training.
EXCUSED = ("nope", "binary")
# With a stricter limit: on the built-in text 2.6 bits per byte instead of 3.2.
DEMANDING = {"rope": 2.6 / 3.2}
LEARNED = 0.9  # required share of lines without an error at the longest trained length
TEST_SEED = 2**31 - 1  # different from every seed of a study
TOGETHER = 4096  # tokens per forward pass of a test
Batch = tuple[Int64[Tensor, "n seq"], Int64[Tensor, "n seq"], Int64[Tensor, "n seq"] | None]


class Subject(Protocol):
    """A source of training batches (tokens, targets with -100 where ignored, and positions) and of tests."""

    vocab_size: int
    max_len: int
    original_max_len: int

    def batch(self, random: Generator) -> Batch:
        """Draw the batch of one training step."""

    def test(self, model: LanguageModel, device: torch.device, *, share: float = 1.0) -> dict[str, Any]:
        """Return the test results of a cell; `share` runs only that share of the tests."""

    def undertrained(self, cell: Cell, result: dict[str, Any]) -> bool:
        """Return whether a cell has learned too little at the trained length to be compared."""


def find(config: Config, label: str, text: Text | None) -> Subject:
    """Return the subject of a task's label."""
    if label != TEXT:
        return Solving(config, label)
    assert text is not None
    return Reading(config, text)


class Reading:
    """Text as bytes: the loss at every length of context, on the same bytes.

    Args:
        config: The study.
        text: The text; its end is held out for tests.
    """

    def __init__(self, config: Config, text: Text) -> None:
        self.config, self.limit = config, text.undertrained_above
        self.train, self.held_out = text.split(config)
        self.vocab_size = len(text.alphabet)
        self.max_len, self.original_max_len = max(config.test_lens), config.train_len
        self._window = torch.arange(config.train_len + 1)

    def batch(self, random: Generator) -> Batch:
        """Draw windows of the training text."""
        n = max(1, self.config.tokens_per_step // self.config.train_len)
        starts = torch.randint(len(self.train) - self.config.train_len, (n, 1), generator=random)
        windows = self.train[starts + self._window]
        return windows[:, :-1], windows[:, 1:], None

    def test(self, model: LanguageModel, device: torch.device, *, share: float = 1.0) -> dict[str, Any]:
        """Return bits per byte by length of context, and by position in the longest window."""
        longest, means, errors = self.max_len, {}, {}
        by_position = torch.empty(0)
        for context in self.config.test_lens:
            last = longest if context == longest else self.config.target_bytes
            bits = self.measure(model, device, context, last=last, share=share)
            if context == longest:
                by_position = bits.mean(0)
            of_window = bits[:, -self.config.target_bytes :].mean(1)
            means[str(context)] = round(float(of_window.mean()), 4)
            errors[str(context)] = round(float(of_window.std() / len(of_window) ** 0.5), 4)
        width = max(1, longest // 64)
        bins = [round(float(part.mean()), 4) for part in by_position.split(width)]
        return {
            "bits_by_length": means,
            "bits_by_length_stderr": errors,
            "bits_by_position": {"edges": [*range(0, longest, width), longest], "bits": bins},
        }

    @torch.no_grad()
    def measure(
        self, model: LanguageModel, device: torch.device, context: int, *, last: int, share: float = 1.0
    ) -> Float[Tensor, "windows last"]:
        """Return bits per byte for each window and each of its last bytes.

        Windows end at the same bytes for every context, so a longer context only adds earlier bytes.
        """
        # no byte is a target twice, even in a short text
        room = (len(self.held_out) - self.max_len) // self.config.target_bytes
        windows = max(2, min(math.ceil(self.config.windows * share), room))
        ends = torch.linspace(self.max_len, len(self.held_out) - 1, windows).long()
        found = []
        for end in ends.split(max(1, TOGETHER // context)):
            window = self.held_out[end[:, None] + torch.arange(-context, 1)].to(device)
            logits = model(window[:, :-1], last=last)
            loss = F.cross_entropy(logits.transpose(1, 2), window[:, -last:], reduction="none")
            found.append(loss.cpu() / math.log(2))
        return torch.cat(found)

    def undertrained(self, cell: Cell, result: dict[str, Any]) -> bool:
        """Return whether the loss at the trained length is above the text's limit, or is not a number."""
        trained = result["bits_by_length"][str(self.config.train_len)]
        return cell.encoding not in EXCUSED and not trained <= self.limit * DEMANDING.get(cell.encoding, 1.0)


class Solving:
    """Lines of a task: the share of lines without an error at every length.

    Args:
        config: The study.
        label: The task's label, with its format and its position stream.
    """

    def __init__(self, config: Config, label: str) -> None:
        self.config = config
        self.task, self.stream = tasks.split(label)
        self.trained, self.tested = config.lengths_of(label)
        self.vocab_size = len(self.task.symbols)
        self.max_len = self.task.sizes(max(self.tested))[self.stream]
        self.original_max_len = self.task.seq_len(max(self.trained))
        self._n = max(1, config.tokens_per_step // self.original_max_len)

    def batch(self, random: Generator) -> Batch:
        """Draw lines of the trained lengths."""
        lines = self.task.mixed(self.trained, self._n, random, longest=max(self.tested))
        return lines.tokens, lines.targets, lines.streams[self.stream]

    def test(self, model: LanguageModel, device: torch.device, *, share: float = 1.0) -> dict[str, Any]:
        """Return the shares of lines without an error and of correct symbols by length, for the task and its probes."""
        n = math.ceil(self.config.lines * share)
        found = self._scores(model, device, self.task, n)
        probes = {name: self._scores(model, device, tasks.find(name), n) for name in self.task.probes}
        return found | {"lines": n, "probes": probes}

    @torch.no_grad()
    def _scores(self, model: LanguageModel, device: torch.device, task: tasks.Task, n: int) -> dict[str, Any]:
        exact, right = {}, {}
        for length in self.tested:
            lines = task.sample(length, n, Generator().manual_seed(TEST_SEED), training=False, longest=max(self.tested))
            predicted = [
                model(tokens.to(device), pos.to(device)).argmax(-1).cpu()
                for tokens, pos in zip(
                    *(t.split(max(1, TOGETHER // lines.tokens.shape[1]))
                      for t in (lines.tokens, lines.streams[self.stream])),
                    strict=True,
                )
            ]  # fmt: skip
            score = tasks.score(torch.cat(predicted), lines.targets)
            exact[str(length)] = round(float(score.exact.double().mean()), 4)
            right[str(length)] = round(float(score.right.sum() / score.counted.sum()), 4)
        return {"exact_by_length": exact, "right_by_length": right}

    def undertrained(self, cell: Cell, result: dict[str, Any]) -> bool:
        """Return whether too few lines of the longest trained length are without an error."""
        longest = max((n for n in self.tested if n <= max(self.trained)), default=self.tested[0])
        return not result["exact_by_length"][str(longest)] >= LEARNED
