"""Time candidates in turn, round after round, each relative to the baseline of its own round.

A machine's clock drifts over minutes, but a round lasts seconds: a ratio within one round cancels the drift.
"""

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

Work = Callable[[], object]
LEAST_ROUNDS, TRIES = 3, 5
PREEMPTIONS, FAULTS = "ru_nivcsw", "ru_minflt"  # preemptions of the process; page faults
_SAMPLE_S = 0.01  # a sample lasts at least this long, so that the clock and the scheduler matter little
_STEADY_S = 1.0  # longer samples are kept as they are: every one has preemptions, each about a hundredth of it


class Spread(NamedTuple):
    """The median of some numbers, and their quartiles."""

    low: float
    median: float
    high: float


class Timing(NamedTuple):
    """The result of `compare` for one candidate."""

    seconds: Spread  # of one call
    ratio: Spread  # to the baseline in the same round
    rounds: int
    disturbed: int  # samples with a preempted thread even after all retries


def compare(
    candidates: Mapping[str, Work],
    baseline: str,
    *,
    rounds: int = 15,
    budget_s: float = math.inf,
    settle: Work | None = None,
) -> dict[str, Timing | str]:
    """Time candidates in turn; one that raises gets the first line of its error instead of a timing.

    Args:
        candidates: The calls, by name.
        baseline: The candidate whose time in the same round is 1.
        rounds: The number of samples of each.
        budget_s: Seconds after which no further round starts, once there are three.
        settle: Waits for asynchronous work of a call (`torch.cuda.synchronize`); None for synchronous calls.

    >>> found = compare({"one": lambda: sum(range(1000)), "ten": lambda: sum(range(10_000))}, "one", rounds=3)
    >>> sorted(found), found["one"].ratio.median
    (['one', 'ten'], 1.0)
    """
    found: dict[str, Timing | str] = {}
    repeats = {}
    for name, run in candidates.items():
        try:
            run()  # this call may compile
            seconds = clock(run, settle)
        except Exception as error:  # a peer may raise any error; the others are still measured
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

    A preempted thread on two cores costs 16 ms, more than many calls take. An untimed call comes first: since the last
    round, other candidates have filled the caches, and a hypervisor may have reclaimed freed memory. That costs more
    than many calls, and a loop over a model's layers does not pay it.
    """
    collects = gc.isenabled()
    gc.disable()  # garbage of other candidates must not count; `compare` collects between rounds
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
    """Return a count of `getrusage` for this process so far, or -1 if the system has none (Windows)."""
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
    plain = isinstance(error, (ValueError, NotImplementedError))  # their texts are written for people
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
