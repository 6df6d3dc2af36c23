"""What is measured: rows of candidates next to a baseline, at one length in one dtype, and their goals."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch

LONG = 8192  # tokens beyond which peers, which form all scores, are measured only with --full
OURS = ("attend", "rotate", "rotate_", "out", "compiled", "hf.use")  # names of posenc's candidates, before any colon
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Goal:
    """What the best of some candidates is to reach.

    Args:
        ours: Names of candidates.
        limit: Of time in those of the row's baseline, or of memory in sizes of q.
        what: "time" or "memory".
        from_len: Tokens from which on the goal was set.
    """

    ours: tuple[str, ...]
    limit: float
    what: str = "time"
    from_len: int = 4096


@dataclass(frozen=True)
class Row:
    """One comparison at one length in one dtype.

    Args:
        name: Of the row, without length and dtype.
        kind: "attend", "rotary" or "model": which module makes the candidates.
        candidates: Their names, the baseline first.
        goals: Of posenc's candidates.
        options: What else the module that makes the candidates reads.
        mode: "forward", "train" (with gradients) or "decode" (one query); of a model "forward", "prefill", "generate".
        length: Tokens.
        rounds: How often each candidate is sampled.
    """

    name: str
    kind: str
    candidates: tuple[str, ...]
    goals: tuple[Goal, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    mode: str = "forward"
    length: int = 4096
    batch: int = 1
    dtype: str = "float32"
    device: str = "cpu"
    rounds: int = 15

    @property
    def key(self) -> str:
        """The name that `--only` is matched with: t5.forward.4096.float32."""
        return f"{self.name}.{self.length}.{self.dtype}"


class Template(NamedTuple):
    """A row, and where it is measured unless the user names lengths and dtypes."""

    row: Row
    lengths: tuple[int, ...] = (4096,)
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    fixed: bool = False  # the length is no option: a decoded token is one token
    is_long: bool = False  # measured with --full only


def choose(
    templates: Iterable[Template],
    lengths: Sequence[int] = (),
    dtypes: Sequence[str] = (),
    only: str | None = None,
    *,
    full: bool = False,
    quick: int | None = None,
) -> list[Row]:
    """Return the rows that the options ask for, in the order in which they are measured.

    Args:
        templates: All rows of a command.
        lengths: Lengths instead of each row's own; empty for those.
        dtypes: The same for dtypes.
        only: Keep rows whose key matches: a pattern with * ? [ ], or a part of the key.
        full: Add what takes long.
        quick: A small length for all, two rounds, float32 unless asked otherwise, without goals and without what has
            to be compiled: shows that it runs.
    """
    found = []
    for row, own_lengths, own_dtypes, fixed, is_long in templates:
        if is_long and not full:
            continue
        for length in own_lengths if fixed else lengths or ([quick] if quick else own_lengths):
            for dtype in dtypes or (["float32"] if quick else own_dtypes):
                one = replace(row, length=length, dtype=dtype)
                one = replace(one, goals=() if quick else tuple(g for g in row.goals if length >= g.from_len or fixed))
                if length > LONG and not full:
                    one = replace(one, candidates=row.candidates[:1] + ours(row.candidates[1:]))
                if quick:
                    names = tuple(name for name in one.candidates if "compiled" not in name)
                    one = replace(one, candidates=names, rounds=2, batch=min(row.batch, 2))
                elif length > 32768 and row.device == "cpu":
                    one = replace(one, rounds=1)
                found.append(one)
    return [row for row in found if only is None or matches(row.key, only)]


def ours(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return which of some candidates are posenc's.

    >>> ours(("copy", "out:numba", "timm"))
    ('out:numba',)
    """
    return tuple(name for name in names if name.partition(":")[0] in OURS)


def matches(key: str, pattern: str) -> bool:
    """Return whether a row's key fits a pattern with * ? [ ], or holds a text without them."""
    return fnmatchcase(key, pattern) if set(pattern) & set("*?[") else pattern in key
