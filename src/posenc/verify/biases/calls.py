"""Calls of biases: a subject's numbers as float64 matrices of heads, queries and keys, however it was written."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posenc.verify import guard
from posenc.verify.report import Cause

HIDDEN = -9000.0  # what is below hides a key: -10000 was BERT's way to say -inf


class Probe(NamedTuple):
    """One call: the queries are the last q_len of k_len positions."""

    heads: int
    q_len: int
    k_len: int

    @property
    def cached(self) -> bool:
        """Say whether there are keys from before the first query."""
        return self.q_len < self.k_len

    def distance(self) -> Tensor:
        """Return query minus key, (q_len, k_len)."""
        return (torch.arange(self.q_len)[:, None] + self.k_len - self.q_len) - torch.arange(self.k_len)


@dataclass
class Seen:
    """What one call returned.

    Args:
        probe: The call.
        bias: (heads, q_len, k_len), float64.
        eps: The rounding of its numbers.
        raw: The tensor as it was returned.
        window: How many keys a query sees, its own being the first; None where all are seen.
        hides_at: What is as low as this hides a key.
    """

    probe: Probe
    bias: Tensor
    eps: float
    raw: Tensor
    window: int | None = None
    hides_at: float = HIDDEN


class Meter:
    """Measures a bias."""

    counts_heads = True
    """Any number of heads can be asked for."""

    window: int | None = None
    """How many keys a query sees, as the spec says; None where it says nothing."""

    def says(self, probe: Probe) -> str:
        """Return the call in words."""
        raise NotImplementedError

    def see(self, probe: Probe) -> Seen:
        """Return what the call returns.

        Raises:
            SubjectError: It cannot be used.
        """
        raise NotImplementedError


@dataclass
class BiasMeter(Meter):
    """Measures `bias(heads, q_len, kv_len)`.

    Args:
        subject: The callable.
        kept: The tensors that it returned so far, by call.
    """

    subject: Callable[..., Any]
    kept: dict[Probe, Tensor] = field(default_factory=dict)
    last: Tensor | None = None

    def says(self, probe: Probe) -> str:
        """Return the call in words."""
        return f"bias({probe.heads}, {probe.q_len}, {probe.k_len})"

    def see(self, probe: Probe) -> Seen:
        """Return what the call returns, broadcast."""
        what, want = self.says(probe), tuple(probe)
        self.last = None
        raw = invoke(self.subject, *probe, what=what)
        if not isinstance(raw, Tensor):
            guard.shaped(raw, want, what)
        self.last = raw.detach().clone()
        found = self.last
        while found.ndim > 3 and found.shape[0] == 1:
            found = found[0]
        try:
            found = found.expand(want)
        except RuntimeError:
            guard.shaped(raw, want, what)
        _usable(found, what)
        self.kept.setdefault(probe, self.last)
        return Seen(probe, found.double(), _eps(found), self.last, self.window)


@dataclass
class ScoreMeter(Meter):
    """Measures `score_mod(score, b, h, q_idx, kv_idx)`: what is returned for a score of 0, and what becomes of others.

    Args:
        subject: The callable.
        gain: By what the score is multiplied; None before it is known.
    """

    subject: Callable[..., Any]
    counts_heads = False

    def says(self, probe: Probe) -> str:
        """Return the call in words."""
        return f"score_mod(score, b, h, q, k) for {probe.heads} heads and {probe.k_len} keys"

    def see(self, probe: Probe) -> Seen:
        """Return what is added to a score of 0 in the first row of the batch."""
        found = self.scores(probe, 0.0, 0)
        _usable(found, self.says(probe))
        return Seen(probe, found.double(), _eps(found), found, self.window)

    def scores(self, probe: Probe, score: float, b: int) -> Tensor:
        """Return what becomes of one score in all places, (heads, q_len, k_len)."""
        heads, q_len, k_len = probe
        h, q, k = (torch.arange(n) for n in probe)
        q = q + k_len - q_len
        at = torch.tensor(score), torch.tensor(b)
        what = f"score_mod({score:g}, {b}, h, q, k) with h < {heads}, q and k < {k_len}"

        def over_all(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Any:
            turned: Callable[..., Any] = self.subject
            for axes in ((None, None, None, None, 0), (None, None, None, 0, None), (None, None, 0, None, None)):
                turned = torch.vmap(turned, in_dims=axes)
            return turned(s, b, h, q, k)

        def one_by_one(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Any:
            each = [torch.as_tensor(self.subject(s, b, i, j, t)) for i in h for j in q for t in k]
            return torch.stack(each).reshape(tuple(probe))

        try:
            found = guard.call(over_all, *at, h, q, k, what=what)
        except guard.SubjectError as error:
            if error.cause.code != "subject.raises" or heads * q_len * k_len > 20_000:
                raise
            # plain Python such as `if kv_idx > q_idx` is right too, a number at a time
            found = guard.call(one_by_one, *at, h, q, k, what=what)
        return guard.shaped(found, tuple(probe), what)


def invoke(subject: Callable[..., Any], *args: Any, what: str) -> Any:
    """Call a subject, by keywords where it takes nothing else.

    Raises:
        SubjectError: As `guard.call`.
    """
    handed: Any = subject
    if not callable(handed):
        message = f"{what} cannot be called: build() returned a {type(subject).__name__}"
        raise guard.SubjectError(Cause("subject.raises", message, 1.0, {"call": what}, "Return the function."))
    try:
        told = list(inspect.signature(subject).parameters.values())
    except (TypeError, ValueError):
        told = []
    free = [p for p in told if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named = [p.name for p in told if p.kind is p.KEYWORD_ONLY]
    if told and not any(p.kind is p.VAR_POSITIONAL for p in told) and len(free) < len(args) <= len(free) + len(named):
        rest = dict(zip(named, args[len(free) :], strict=False))
        return guard.call(subject, *args[: len(free)], what=what, **rest)
    return guard.call(subject, *args, what=what)


def _usable(found: Tensor, what: str) -> None:
    """Refuse what no score can be added to: complex numbers, and +inf.

    Raises:
        SubjectError: It is one of these.
    """
    if found.is_complex():
        message = f"{what} returns complex numbers ({found.dtype}), and scores are real."
        raise guard.SubjectError(Cause("subject.shape", message, 1.0, {"call": what}, "Return real numbers."))
    if bool((found == float("inf")).any()):
        share = float((found == float("inf")).double().mean())
        message = f"{what} returns +inf in {share:.1%} of its numbers: a softmax over them is NaN."
        raise guard.SubjectError(Cause("subject.not_finite", message, share, {"call": what}, "Hide keys by -inf."))


def _eps(t: Tensor) -> float:
    """Return the rounding to allow: of the dtype, and never finer than float32, in which most compute."""
    return max(torch.finfo(t.dtype).eps, 1.2e-7) if t.is_floating_point() else 1.2e-7
