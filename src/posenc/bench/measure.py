"""Time: candidates by turns, round after round, each compared with the baseline of its own round.

A machine's clock drifts over minutes, and a round lasts seconds: a ratio taken within a round leaves the drift out.
"""

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

Work = Callable[[], object]
LEAST_ROUNDS, TRIES = 3, 5
PREEMPTIONS, FAULTS = "ru_nivcsw", "ru_minflt"  # how often the process lost its core; pages that it was given
_SAMPLE_S = 0.01  # a sample lasts at least this long, so that the clock and the scheduler matter little
_STEADY_S = 1.0  # a sample that lasts longer is kept as it is: a preemption is a hundredth of it, and none is without


class Spread(NamedTuple):
    """The median of some numbers and the middle half of them."""

    low: float
    median: float
    high: float


class Timing(NamedTuple):
    """What `compare` found of one candidate."""

    seconds: Spread  # of one call
    ratio: Spread  # to the baseline in the same round
    rounds: int
    disturbed: int  # samples in which a thread was pushed off its core however often they were taken again


def compare(
    candidates: Mapping[str, Work],
    baseline: str,
    *,
    rounds: int = 15,
    budget_s: float = math.inf,
    settle: Work | None = None,
) -> dict[str, Timing | str]:
    """Time candidates by turns; one that raises gets its error's first line in place of a timing.

    Args:
        candidates: What to call, by name.
        baseline: The candidate whose time in the same round is 1.
        rounds: How often each is sampled.
        budget_s: Seconds after which no further round begins, once there were three.
        settle: Waits for what a call began (`torch.cuda.synchronize`); None where a call returns when it is done.

    >>> found = compare({"one": lambda: sum(range(1000)), "ten": lambda: sum(range(10_000))}, "one", rounds=3)
    >>> sorted(found), found["one"].ratio.median
    (['one', 'ten'], 1.0)
    """
    found: dict[str, Timing | str] = {}
    repeats = {}
    for name, run in candidates.items():
        try:
            run()  # which may compile
            seconds = clock(run, settle)
        except Exception as error:  # a peer may raise anything, and the others are measured all the same
            if name == baseline:
                raise
            found[name] = first_line(error)
        else:
            repeats[name] = max(1, math.ceil(_SAMPLE_S / max(seconds, 1e-7)))
    samples: dict[str, list[tuple[float, bool]]] = {name: [] for name in repeats}
    begin = time.perf_counter()
    for done in range(rounds):
        if done >= LEAST_ROUNDS and time.perf_counter() - begin > budget_s:
            break
        gc.collect()
        for name in repeats:
            samples[name].append(sample(candidates[name], repeats[name], settle))
    for name, taken in samples.items():
        ratios = [own[0] / plain[0] for own, plain in zip(taken, samples[baseline], strict=True)]
        found[name] = Timing(spread([s for s, _ in taken]), spread(ratios), len(taken), sum(d for _, d in taken))
    return {name: found[name] for name in candidates}


def sample(run: Work, repeats: int, settle: Work | None = None) -> tuple[float, bool]:
    """Return the seconds of one call, and whether a thread lost its core in each of five tries.

    One preempted thread on two cores costs 16 ms, more than many a call takes. A call that nobody times comes first: in
    the round since the last one, other candidates filled the caches, and a hypervisor may have taken back what memory
    was freed, which costs more than many a call and which no loop over a model's layers meets.
    """
    collects = gc.isenabled()
    gc.disable()  # a collection of what others left is nobody's time; `compare` collects between rounds
    try:
        if (seconds := clock(run, settle)) > _STEADY_S:
            return seconds, False
        for _ in range(TRIES):
            before = count(PREEMPTIONS)
            seconds = clock(run, settle, repeats)
            if count(PREEMPTIONS) == before or seconds * repeats > _STEADY_S:
                return seconds, False
        return seconds, True
    finally:
        if collects:
            gc.enable()


def count(what: str) -> int:
    """Return a count of `getrusage` for this process so far, or -1 where the system keeps none (Windows)."""
    try:
        import resource
    except ImportError:
        return -1
    return int(getattr(resource.getrusage(resource.RUSAGE_SELF), what))


def spread(numbers: list[float]) -> Spread:
    """Return the median and the quartiles.

    >>> spread([3.0, 1.0, 2.0])
    Spread(low=1.5, median=2.0, high=2.5)
    """
    return Spread(*statistics.quantiles(numbers if len(numbers) > 1 else 2 * numbers, n=4, method="inclusive"))


def first_line(error: BaseException) -> str:
    """Return an error as one short sentence.

    >>> first_line(KeyError("a")), first_line(ValueError("q has no heads."))
    ("KeyError: 'a'", 'q has no heads')
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    plain = isinstance(error, (ValueError, NotImplementedError))  # whose texts are written for people
    text = type(error).__name__ if not lines else lines[0] if plain else f"{type(error).__name__}: {lines[0]}"
    return text.rstrip(".") if len(text) <= 240 else f"{text[:239].rstrip()}…"


def clock(run: Work, settle: Work | None = None, repeats: int = 1) -> float:
    """Return the seconds of one call."""
    if settle:
        settle()
    begin = time.perf_counter()
    for _ in range(repeats):
        run()
    if settle:
        settle()
    return (time.perf_counter() - begin) / repeats
