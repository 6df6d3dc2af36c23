"""What `posenc bench rotary` measures: rows with a name, and the goals set for a CPU of two cores."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from posenc.bench.rows import DTYPES, matches

BACKENDS = ("formula", "blocked", "numba", "auto")
HEAD_DIM, N_HEADS, N_KV_HEADS = 128, 32, 8
LAST = 4095  # the position of a decoded token
PAIRINGS: tuple[Literal["half", "interleaved"], ...] = ("half", "interleaved")
State = Literal["any", "fresh", "reused"]


@dataclass(frozen=True)
class Goal:
    """What the best of some candidates is to reach beside another."""

    title: str
    ours: tuple[str, ...]  # names of candidates
    beside: str  # the name of another
    limit: float  # of the quotient of their times, round by round
    state: State = "any"  # of the allocator, for which it was set


@dataclass(frozen=True)
class Row:
    """One turn of queries and keys, or one model, in one dtype: a baseline, ours, and peers."""

    name: str
    kind: Literal["forward", "train", "prefill", "generate"]
    goals: tuple[Goal, ...] = ()
    dtype: str = "float32"
    pairing: Literal["half", "interleaved"] = "half"
    batch: int = 1
    length: int = 4096
    transposed: bool = False  # memory is (batch, seq, heads, lanes)
    compiles: bool = True  # whether what torch.compile makes is measured as well
    rounds: int = 15

    @property
    def key(self) -> str:
        """The name that `--only` is matched with: long.half.float32."""
        return f"{self.name}.{self.dtype}"

    @property
    def is_model(self) -> bool:
        """Whether a whole model runs."""
        return self.kind in ("prefill", "generate")

    @property
    def baseline(self) -> str:
        """The candidate whose time is 1."""
        return "loaded" if self.is_model else "copies" if self.kind == "train" else "copy"

    @property
    def bytes(self) -> int:
        """The size of queries and keys."""
        return self.batch * (N_HEADS + N_KV_HEADS) * self.length * HEAD_DIM * DTYPES[self.dtype].itemsize


def ours(way: str, backends: tuple[str, ...] = BACKENDS) -> tuple[str, ...]:
    """Return the names of posenc's candidates of one way: "rotate_" (in place), "out", "rotate" (fresh output).

    >>> ours("out", ("numba",))
    ('out:numba',)
    """
    return tuple(f"{way}:{backend}" for backend in backends)


def choose(
    lengths: list[int] | None = None,
    dtypes: list[str] | None = None,
    only: str | None = None,
    *,
    quick: bool = False,
) -> list[Row]:
    """Return the rows that the options ask for, in the order in which they are measured.

    Args:
        lengths: Tokens instead of 4,096, for rows of a long sequence.
        dtypes: Instead of float32 and bfloat16.
        only: Keep rows whose key matches: a pattern with * ? [ ], or a part of the key.
        quick: 64 tokens, 2 rounds, float32 unless asked otherwise, nothing compiled: proves that it runs.

    >>> [row.key for row in choose(only="decode*float32")]
    ['decode.half.float32', 'decode.interleaved.float32']
    """
    found = []
    for dtype in dtypes or (["float32"] if quick else ["float32", "bfloat16"]):
        for row in _templates(dtype):
            sizes = (lengths or ([64] if quick else [row.length])) if row.length > 1 else [1]
            for length in sizes:
                own = replace(row, dtype=dtype, length=length)
                if quick:
                    own = replace(own, goals=(), rounds=2, compiles=False, batch=min(row.batch, 2))
                elif length != row.length or dtype == "float16":
                    own = replace(own, goals=())
                found.append(own)
    return [row for row in found if only is None or matches(row.key, only)]


def _templates(dtype: str) -> Iterator[Row]:
    half_precision = dtype != "float32"
    for pairing in PAIRINGS:
        yield Row(f"long.{pairing}", "forward", _long(half_precision), pairing=pairing)
    moved = (*_given(1.5 if half_precision else 1.3), _fresh(BACKENDS))
    yield Row("transposed.half", "forward", moved, transposed=True)
    for pairing in PAIRINGS:
        goals = _given(3.0 if half_precision else 1.5)
        yield Row(f"decode.{pairing}", "forward", goals, pairing=pairing, batch=64, length=1)
    for pairing in PAIRINGS:
        both = Goal("forwards and backwards, best", ours("rotate"), "clones", 1.5)
        yield Row(f"train.{pairing}", "train", (both,), pairing=pairing)
    yield Row("llama.prefill", "prefill", batch=1, length=1024)
    yield Row("llama.generate", "generate", batch=4, length=128)


def _long(half_precision: bool) -> tuple[Goal, ...]:
    torch_only = ("formula", "blocked")
    given = (*ours("rotate_"), *ours("out"))
    return (
        *_given(1.5 if half_precision else 1.3),
        Goal("in place, torch alone", ours("rotate_", torch_only), "copy", 4.5 if half_precision else 2.5),
        _fresh(BACKENDS),
        replace(_fresh(torch_only), title="fresh, torch alone"),
        Goal("compiled", ("compiled",), "copy", 1.5, "reused"),
        Goal("a tenth of transformers", given, "transformers", 0.1, "fresh"),
        Goal("a fifth of it compiled", given, "transformers-compiled", 0.2, "fresh"),
    )


def _given(limit: float) -> tuple[Goal, Goal]:
    """Return the goals in memory that is given."""
    best = Goal("in place, best", ours("rotate_"), "copy", limit)
    return best, replace(best, title="out=, best", ours=ours("out"))


def _fresh(backends: tuple[str, ...]) -> Goal:
    return Goal("fresh, best", ours("rotate", backends), "clone", 1.3, "fresh")
