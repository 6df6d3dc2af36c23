"""What `posenc bench attend` measures: rows with a name, a goal, and the candidates beside posenc."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import torch

N_HEADS, HEAD_DIM = 8, 64
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
QUICK_LENGTH = 256
DECODES = 60  # rounds of a step, which takes milliseconds and differs from plain SDPA by tenths of one
_LONG = (4096, 2**62)


@dataclass(frozen=True)
class Goal:
    """What the row's own candidate is to reach."""

    ratio: float | None = None  # time, to plain SDPA in the same round
    of_q: float | None = None  # extra memory, in sizes of q
    of_dense: float | None = None  # extra memory, in that of SDPA with a built mask
    total_mib: float | None = None  # memory of the whole process


@dataclass(frozen=True)
class Row:
    """One comparison at one length in one dtype: a call of `attend`, plain SDPA, and peers."""

    name: str
    encoding: str
    goal: Goal
    length: int = 0
    batch: int = 1
    dtype: str = "float32"
    options: dict[str, Any] = field(default_factory=dict)  # of the encoding
    mode: str = "forward"  # or "train" (with gradients), "decode" (one query), "model" (of transformers, whole)
    causal: bool = True
    window: int | None = None
    documents: int | None = None
    rotated: bool = False
    cast: bool = False  # what is learned has the row's dtype, as in a model that was cast
    device: str = "cpu"
    backends: tuple[str, ...] = ("auto",)  # the goal is for the first
    peers: tuple[str, ...] = ()
    rounds: int = 15
    growth: bool = False
    lengths: tuple[int, ...] = (4096,)  # where it is measured unless the user says
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    ratio_at: tuple[int, int] = _LONG  # lengths, from .. to, for which the goal's ratios were set
    half_ratio: float | None = None  # the goal's ratio in half precision, where it is another

    @property
    def key(self) -> str:
        """The name that `--only` is matched with: t5.forward.4096.float32."""
        return f"{self.name}.{self.length}.{self.dtype}"

    @property
    def q_bytes(self) -> int:
        """The size of q."""
        q_len = 1 if self.mode == "decode" else self.length
        return self.batch * N_HEADS * q_len * HEAD_DIM * DTYPES[self.dtype].itemsize

    def small(self) -> "Row":
        """Return the same at a small length, to load code with."""
        return replace(self, length=min(self.length, 512))


def choose(
    lengths: list[int], dtypes: list[str], only: str | None, *, full: bool = False, quick: bool = False
) -> list[Row]:
    """Return the rows that the options ask for, in the order in which they are measured.

    Args:
        lengths: Lengths instead of each row's own; empty for those.
        dtypes: The same for dtypes.
        only: Keep rows whose key matches: a pattern with * ? [ ], or a part of the key.
        full: Add what takes long: 65,536 tokens, and growth up to there.
        quick: Length 256 and two rounds, float32 unless asked otherwise: proves that it runs, measures little.
    """
    rows = []
    for row in _templates(full):
        for length in _lengths(row, lengths, quick):
            for dtype in dtypes or (["float32"] if quick else row.dtypes):
                rows.append(_settle(row, length, dtype, quick))
    return [row for row in rows if only is None or matches(row.key, only)]


def _lengths(row: Row, lengths: list[int], quick: bool) -> tuple[int, ...] | list[int]:
    if row.growth:
        return (QUICK_LENGTH // 4, QUICK_LENGTH) if quick else row.lengths
    return lengths or ((QUICK_LENGTH,) if quick else row.lengths)


def _settle(row: Row, length: int, dtype: str, quick: bool) -> Row:
    goal = Goal() if quick else row.goal  # so small sizes reach nothing and miss nothing
    if not row.ratio_at[0] <= length <= row.ratio_at[1]:
        goal = replace(goal, ratio=None, of_dense=None)
    elif row.half_ratio is not None and dtype != "float32":
        goal = replace(goal, ratio=row.half_ratio)
    rounds = 2 if quick else 1 if length > 32768 and row.device == "cpu" else row.rounds
    return replace(row, length=length, dtype=dtype, goal=goal, rounds=rounds)


def matches(key: str, pattern: str) -> bool:
    """Tell whether a row's key fits a pattern with * ? [ ], or holds a text without them."""
    return fnmatchcase(key, pattern) if set(pattern) & set("*?[") else pattern in key


def _templates(full: bool) -> Iterator[Row]:
    yield from _forward()
    yield from _masked()
    yield from _content()
    yield from _train()
    yield from _decode()
    yield from _models()
    if full:
        goal = Goal(ratio=1.3, of_q=4.0, total_mib=4096.0)
        for name in ("alibi", "t5"):
            grow = Row(f"{name}.growth", name, goal, growth=True, dtypes=("float32",))
            yield replace(grow, lengths=(1024, 4096, 16384, 65536))
    yield from _gpu()


def _forward() -> Iterator[Row]:
    peers = {"alibi": ("dense", "naive", "flex", "x-transformers"), "t5": ("dense", "naive", "flex", "transformers")}
    for name in ("alibi", "t5", "kerple", "sandwich", "relative_bias"):
        row = Row(f"{name}.forward", name, Goal(ratio=1.3, of_q=4.0), ratio_at=(4096, 16384))
        yield replace(
            row, lengths=(256, 1024, 4096, 16384), backends=("auto", "distance"), peers=peers.get(name, ("dense",))
        )
    lanes = Row("alibi.lanes", "alibi", Goal(ratio=1.25, of_q=4.0), backends=("lanes",))
    yield replace(lanes, lengths=(1024, 4096, 16384))
    tupe = Row("tupe.forward", "tupe", Goal(ratio=2.1, of_q=4.0), peers=("dense",))
    yield replace(tupe, lengths=(256, 1024, 4096))
    yield replace(tupe, name="tupe.cast", cast=True, dtypes=("bfloat16",), peers=())
    yield replace(tupe, name="tupe.batch", batch=16, causal=False, lengths=(128, 512))
    for name in ("alibi", "t5", "kerple"):
        options = {"bidirectional": True} if name == "t5" else {}
        row = Row(f"{name}.bidirectional", name, Goal(ratio=1.1, of_q=4.0), causal=False, options=options)
        yield replace(row, lengths=(4096, 16384), backends=("auto", "distance"))


def _masked() -> Iterator[Row]:
    for name in ("alibi", "t5"):
        row = Row(f"{name}.documents", name, Goal(ratio=1.0, of_q=4.0), documents=16, lengths=(4096, 16384))
        yield row
        yield replace(row, name=f"{name}.window", documents=None, window=512)


def _content() -> Iterator[Row]:
    for name, forward in (("shaw", 2.0), ("transformer_xl", 2.3), ("fire", 3.5), ("fox", 1.4), ("deberta", 3.0)):
        options = {"max_distance": 64} if name == "shaw" else {}
        yield Row(f"{name}.forward", name, Goal(ratio=forward), options=options, peers=("dense",))
        yield Row(f"{name}.train", name, Goal(ratio=3.0), options=options, mode="train", peers=("dense",))


def _train() -> Iterator[Row]:
    for name, peers in (("t5", ("dense", "flex", "transformers")), ("kerple", ("dense",))):
        row = Row(f"{name}.train", name, Goal(ratio=1.5, of_dense=0.2), mode="train", peers=peers)
        yield replace(row, half_ratio=1.65)  # half precision rounds what float32 keeps between two products
    yield Row("alibi.train", "alibi", Goal(ratio=1.5), mode="train", backends=("auto", "lanes"), peers=("dense",))


def _decode() -> Iterator[Row]:
    for name in ("alibi", "t5", "kerple", "sandwich", "relative_bias"):
        peers = ("dense",) if name == "t5" else ()
        row = Row(f"{name}.decode", name, Goal(ratio=1.1), mode="decode", lengths=(16384,), peers=peers)
        yield replace(row, rounds=DECODES)
    rope = Row("rope.decode", "rope", Goal(ratio=1.1), mode="decode", rotated=True, lengths=(16384,))
    yield replace(rope, rounds=DECODES)


def _models() -> Iterator[Row]:
    for name, encoding, causal in (
        ("t5", "t5", False),
        ("bloom", "alibi", True),
        ("mpt", "alibi", True),
        ("deberta", "deberta", False),
    ):
        row = Row(f"hf.{name}", encoding, Goal(), mode="model", causal=causal, dtypes=("float32",))
        yield replace(row, lengths=(2048,), options={"bidirectional": True} if name == "t5" else {})


def _gpu() -> Iterator[Row]:
    lanes = Row("alibi.gpu_lanes", "alibi", Goal(ratio=1.2), device="cuda", backends=("lanes",), dtypes=("bfloat16",))
    lanes = replace(lanes, lengths=(8192, 65536))
    yield lanes
    yield replace(lanes, name="alibi.gpu_lanes_train", mode="train")
    flex = Row("t5.gpu_flex", "t5", Goal(ratio=1.6), device="cuda", backends=("flex",), dtypes=("bfloat16",))
    flex = replace(flex, lengths=(8192, 65536))
    yield flex
    yield replace(flex, name="t5.gpu_flex_train", mode="train")
