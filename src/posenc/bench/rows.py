"""The measured rows: candidates and a baseline, at one length in one dtype, and their goals."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch

LONG = 8192  # beyond this number of tokens, peers that compute all scores are left out
GOALS_FROM = 2048  # tokens
QUICK = 256  # tokens of --quick
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ROTATIONS = ("formula", "blocked", "numba", "auto")  # backends of `rotate`
ON_HALVES = ("transformers", "transformers, compiled", "timm")  # peers that rotate
ON_NEIGHBOURS = (*ON_HALVES, "rotary-embedding-torch", "x-transformers", "complex product")
# speedup of a prefill of 2,048 tokens, measured outside this module on two cores; a goal is nine tenths of it
FASTER = {"t5": 1.5, "bloom": 2.2, "mpt": 3.2, "deberta": 1.7, "llama": 1.02, "qwen3": 1.02}


class Goal(NamedTuple):
    """The result that the best of some candidates should reach."""

    limit: float  # time relative to the row's baseline, or memory in sizes of q
    of: tuple[str, ...]  # names of candidates
    what: str = "time"  # or "memory"


@dataclass(frozen=True)
class Row:
    """One comparison at one length in one dtype."""

    name: str  # without length and dtype
    kind: str  # "attend", "rotary" or "models": the table of its candidates
    baseline: str  # the candidate that the others are compared with
    ours: tuple[str, ...]  # names of posenc's candidates
    peers: tuple[str, ...] = ()
    goals: tuple[Goal, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)  # further parameters of the inputs
    mode: str = "forward"  # or "train" (with gradients), "decode" (one query); of a model "prefill" or "generate"
    length: int = 4096  # tokens
    batch: int = 1
    dtype: str = "float32"
    device: str = "cpu"
    rounds: int = 15  # samples of each candidate

    @property
    def key(self) -> str:
        """The name that `--only` matches: t5.forward.4096.float32."""
        return f"{self.name}.{self.length}.{self.dtype}"

    @property
    def candidates(self) -> tuple[str, ...]:
        """The names of all candidates, the baseline first."""
        return (self.baseline, *self.ours, *self.peers)


At = dict[str, tuple[int, ...]]  # default lengths of a row, by dtype
SHORT: At = {"float32": (4096,)}
BOTH: At = {"float32": (4096,), "bfloat16": (4096,)}
FORWARDS: At = {"float32": (1024, 4096, 16384), "bfloat16": (1024, 4096)}
GPU: At = {"bfloat16": (8192, 65536)}

AUTO = ("attend:auto",)
MEMORY = Goal(4.0, AUTO, "memory")
TWO, DISTANCES = ("alibi", "t5"), ("alibi", "t5", "kerple", "relative_bias")
CONTENT = ("shaw", "transformer_xl", "fire", "deberta")
PEERS = {"alibi": ("dense", "x-transformers"), "t5": ("dense", "transformers")}
ON_GPU = {"device": "cuda", "ours": (*AUTO, "attend:flex")}
ATTENTION: list[tuple[tuple[str, ...], str, At, dict[str, Any]]] = [  # encodings, name, lengths, other fields
    (DISTANCES, "forward", FORWARDS, {"goals": (Goal(1.35, AUTO), MEMORY)}),
    (CONTENT, "forward", SHORT, {"goals": (Goal(3.5, AUTO), MEMORY)}),
    (DISTANCES, "train", SHORT, {"goals": (Goal(1.7, AUTO),), "mode": "train"}),
    (CONTENT, "train", SHORT, {"mode": "train"}),
    # a step takes milliseconds and differs from plain SDPA by tenths of a millisecond
    (DISTANCES, "decode", {"float32": (16384,)}, {"goals": (Goal(1.2, AUTO),), "mode": "decode", "rounds": 60}),
    (TWO, "documents", SHORT, {"goals": (Goal(1.0, AUTO), MEMORY), "options": {"documents": 16}}),
    (TWO, "window", SHORT, {"goals": (Goal(1.0, AUTO), MEMORY), "options": {"window": 512}}),
    (TWO, "compiled", SHORT, {"goals": (Goal(1.3, ("compiled",)),), "baseline": "attend:auto", "ours": ("compiled",)}),
    (TWO, "gpu_forward", GPU, ON_GPU),
    (TWO, "gpu_train", GPU, ON_GPU | {"mode": "train"}),
]

PAIRINGS = {"half": ON_HALVES, "interleaved": ON_NEIGHBOURS}
IN_PLACE, INTO_MEMORY, FRESH = (tuple(f"{way}:{b}" for b in ROTATIONS) for way in ("rotate_", "out", "rotate"))
GOAL = Goal(1.4, IN_PLACE + INTO_MEMORY)
TORCH_ONLY = Goal(3.0, tuple(name for name in GOAL.of if name.endswith(("formula", "blocked"))))
ROTATION: list[tuple[tuple[str, ...], str, At, dict[str, Any]]] = [  # pairings, name, lengths, other fields
    (("half", "interleaved"), "long", BOTH, {"goals": (GOAL, TORCH_ONLY)}),
    (("half",), "transposed", BOTH, {"goals": (GOAL,), "options": {"transposed": True}}),
    (("half", "interleaved"), "decode", {"float32": (1,), "bfloat16": (1,)}, {"mode": "decode", "batch": 64}),
    (("half", "interleaved"), "train", BOTH, {"mode": "train", "baseline": "copies", "ours": (*FRESH, "compiled")}),
]


def _table() -> Iterator[tuple[str, Row, At]]:
    for encodings, name, at, more in ATTENTION:
        for encoding in encodings:
            peers = PEERS.get(encoding, ("dense",)) if name in ("forward", "train") else ()
            options = {"encoding": encoding, **more.get("options", {})}
            row = Row(f"{encoding}.{name}", "attend", "plain", AUTO, peers)
            yield "attend", replace(row, **more | {"options": options}), at
    for pairings, name, at, more in ROTATION:
        for pairing in pairings:
            options = {"pairing": pairing, **more.get("options", {})}
            ours = (*IN_PLACE, *INTO_MEMORY, *FRESH, "compiled")
            row = Row(f"{name}.{pairing}", "rotary", "copy", ours, PAIRINGS[pairing])
            yield "rotary", replace(row, **more | {"options": options}), at
    for model, faster in FASTER.items():
        goal = Goal(round(1 / (0.9 * faster), 2), ("hf.use",))
        row = Row(f"hf.{model}", "models", "loaded", ("hf.use",), (), (goal,), {"model": model}, "prefill")
        command = "rotary" if model in ("llama", "qwen3") else "attend"
        yield command, row, {"float32": (2048,)}
        if command == "rotary":
            yield command, replace(row, name=f"{row.name}.generate", mode="generate", batch=4), {"float32": (128,)}


ROWS = [*_table()]  # one command each


def choose(
    command: str,
    lengths: Sequence[int] = (),
    dtypes: Sequence[str] = (),
    only: str | None = None,
    *,
    quick: bool = False,
) -> list[Row]:
    """Return the rows that match the options, in the order of measurement.

    Args:
        command: "attend" or "rotary".
        lengths: Lengths instead of each row's own; empty to keep those. A row of one token is not changed.
        dtypes: The same for dtypes.
        only: Keep rows whose key matches: a pattern with * ? [ ], or a part of the key. Without it, rows of a missing
            GPU are left out.
        quick: `QUICK` tokens, two rounds, float32 by default, without goals and without compiled candidates: a smoke
            test.
    """
    found = []
    for row, at in ((row, at) for of, row, at in ROWS if of == command):
        if row.device == "cuda" and only is None and not torch.cuda.is_available():
            continue
        for dtype in dtypes or (["float32"] if quick else at):
            own = at.get(dtype) or next(iter(at.values()))
            for length in own if own == (1,) else lengths or ([QUICK] if quick else own):
                goals = row.goals if length in own and length >= GOALS_FROM else ()
                one = replace(row, length=length, dtype=dtype, goals=goals, peers=row.peers if length <= LONG else ())
                found.append(_shorten(one) if quick else one)
    return [row for row in found if row.ours and (only is None or only in row.key or fnmatchcase(row.key, only))]


def _shorten(row: Row) -> Row:
    ours, peers = (tuple(n for n in names if "compiled" not in n) for names in (row.ours, row.peers))
    return replace(row, ours=ours, peers=peers, goals=(), rounds=2, batch=min(row.batch, 2))
