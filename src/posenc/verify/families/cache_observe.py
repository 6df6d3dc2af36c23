"""What is asked of a model with a cache: its outputs, and steps far into a text."""

import copy
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from posenc.verify.engine import CannotTellError, Fault
from posenc.verify.engine.records import FLOAT32, Array
from posenc.verify.families import cache_names, cache_table
from posenc.verify.families.cache_runs import TOKENS, bench, dependence, distance
from posenc.verify.guard import SubjectError

# one pass is compared with a prefill and steps, steps from the first token on, equal parts, uneven parts
STEPS = ((5, *[1] * 7), (8, *[1] * 4), (1,) * 12)
PARTS = ((4, 4, 4), (5, 3, 4), (1, 5, 6))
SHORT = 64  # tokens up to which rounded angles do not count
SLOW = 0.1  # seconds of processors for a pass, after which no longer one is tried
SEVERAL = "parts of several tokens next to a cache"


class Observer:
    """A subject on its bench, and what is known of it so far.

    Attributes:
        refused: What could not be asked, and why.
        first: The position from which on steps are wrong; None where they are wrong from the start.
        farthest: The last position up to which steps are right.
        slow: A longer pass would take too long.

    Raises:
        CannotTellError: The model draws random numbers.
        SubjectError: No call of it can be used.
    """

    def __init__(self, subject: Any, spec: Mapping[str, Any]) -> None:
        self.bench = bench(subject, spec)
        if self.of_one_pass("repeat") > self.bench.tolerance and isinstance(subject, nn.Module) and subject.training:
            subject.eval()
            self.bench = bench(subject, spec)
        if self.of_one_pass("repeat") > self.bench.tolerance and self.bench.same(self._seeded(), self._seeded()):
            raise CannotTellError(
                "the model draws random numbers (dropout?), so that no two passes can be compared: call eval()"
            )
        self.refused: dict[str, str] = {}
        self.first: int | None = None
        self.farthest = TOKENS - 1
        self.slow = False
        self.name = str(spec.get("encoding"))
        layers = spec.get("layers")
        self.layers = layers if isinstance(layers, int) and layers > 0 else None

    def _seeded(self) -> Tensor:
        torch.manual_seed(3)
        return self.bench.one_pass(self.bench.x)

    @property
    def family(self) -> str:
        """The family whose codes are used: as the specification says, else as the model looks."""
        if self.name not in cache_names.FAMILIES:
            self.name = cache_names.guess(self.bench)
        return self.name

    def tables(self) -> cache_table.Tables | None:
        """Return what one pass shows of positions; None where no scores are seen."""
        lengths = cache_table.LENGTHS if self.first is None else (self.first + 3,)
        return cache_table.read(self.bench, self.family, self.layers, lengths)

    def of_one_pass(self, what: str) -> float:
        """Return the error of one pass by itself: "repeat", "ahead", "batch", "length" or "order"."""
        b = self.bench
        if what == "repeat":
            return distance(b.one_pass(b.x), b.full)
        if what == "ahead":
            return float(np.triu(dependence(b), 1).max())
        if what == "batch":
            return distance(b.one_pass(b.x[1:2]), b.full[1:2])
        if what == "length":
            return distance(b.one_pass(b.x[:, :5]), b.full[:, :5])
        return 0.0 if b.moved(b.x) > b.tolerance else 1.0

    def outputs(self, chunks: tuple[int, ...]) -> Array:
        """Return the errors of each call; none where a part of several tokens is refused."""
        try:
            return self.bench.errors(self.bench.x, chunks, self.bench.full)
        except SubjectError as error:
            if error.cause.code != "subject.raises" or chunks in STEPS:
                raise
            self.refused[SEVERAL] = error.cause.message
            return np.zeros(0)

    def repeated(self) -> Array:
        """Return how far a prefill and steps are from themselves, run again."""
        b = self.bench
        return np.array([distance(b.run(b.x, STEPS[0]), b.run(b.x, STEPS[0]))])

    def again(self) -> Array:
        """Return the errors of everything again: on the same object, and on a fresh copy in another order."""
        b = self.bench
        found = [b.errors(b.x, chunks, b.full) for chunks in (STEPS[1], (TOKENS,), STEPS[0], STEPS[2])]
        if b.spare is not None and b.spare is not b.subject:
            fresh = copy.deepcopy(b.spare)
            if isinstance(fresh, nn.Module) and isinstance(b.subject, nn.Module):
                fresh.train(b.subject.training)
            found += [b.errors(b.x, chunks, b.full, fresh) for chunks in (STEPS[2], STEPS[0])]
        return np.concatenate(found)

    def steps_lose_order(self) -> bool:
        """Return whether single tokens come out alike in whatever order earlier ones came."""
        x, ones = self.bench.x[:, :4], (1, 1, 1, 1)
        return self.bench.same(self.bench.run(x[:, [2, 0, 1, 3]], ones)[:, -1], self.bench.run(x, ones)[:, -1])

    def of_calls(self, wrong: Mapping[tuple[int, ...], Any], *, unseen: bool) -> Fault | None:
        """Return the fault that the wrong calls of each pattern name.

        Args:
            wrong: Which calls of each pattern are wrong.
            unseen: No scores are seen, so that outputs must say more.
        """
        steps = [wrong[chunks] for chunks in STEPS if chunks in wrong]
        parts = [wrong[chunks] for chunks in PARTS if len(wrong.get(chunks, ()))]
        if len(steps) < len(STEPS):
            return None
        five, eight, single = steps
        if not any(calls.any() for calls in steps):
            return Fault("decode.chunk_positions") if any(calls.any() for calls in parts) else None
        if parts and not any(calls.any() for calls in parts):
            return Fault("decode.single_token_path")
        if not single.any():
            return Fault("kv_cache.counts_calls" if parts and parts[0].any() else "kv_cache.count_too_early")
        if not five[1]:
            return Fault("offset.ignored_by_cache" if eight[1] else "kv_cache.offset_double_counted")
        if unseen and self.steps_lose_order():
            biased = self.family in cache_names.BIASES
            return Fault("decode.bias_dropped" if biased else "kv_cache.offset_ignored")
        return None

    def far(self, n: int) -> Array:
        """Return the errors of steps behind a long prefill; none where one pass refuses that many tokens."""
        b, x = self.bench, self.bench.text(n + 3)
        began = time.process_time()
        try:
            wanted = b.one_pass(x)
        except SubjectError as error:
            self.refused[f"positions beyond {self.farthest}"] = error.cause.message
            return np.zeros(0)
        self.slow = time.process_time() - began > SLOW
        errors = b.errors(x, (n, 1, 1, 1), wanted) / self._growth(n)
        if errors.max() > b.tolerance:
            self.first = self._first_wrong(n + 3)
        else:
            self.farthest = n + 2
        return errors

    def _growth(self, n: int) -> float:
        """Return how far the tolerance grows with the angles, which are rounded in float32."""
        return 1.0 + (4 * n * FLOAT32 / self.bench.tolerance if n > SHORT else 0.0)

    def _first_wrong(self, end: int) -> int | None:
        """Return the least length behind which a step is wrong; None if single steps are right behind all lengths."""
        text = self.bench.text(end)

        def is_wrong(n: int) -> bool:
            return bool(self.bench.errors(text[:, : n + 1], (n, 1))[1] / self._growth(n) > self.bench.tolerance)

        wrong = next((n for n in range(end - 3, end) if is_wrong(n)), None)
        right = self.farthest
        while wrong is not None and wrong - right > 1:
            middle = (wrong + right) // 2
            wrong, right = (middle, right) if is_wrong(middle) else (wrong, middle)
        return wrong
