"""Attention with each position bias next to plain SDPA: rows, and the calls that are compared."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import posenc
from posenc import attention, positions, registry
from posenc.bench import models
from posenc.bench.measure import Work, first_line
from posenc.bench.rows import DTYPES, Goal, Row, Template
from posenc.encoding import Encoding, Placed
from posenc.families import Bias

N_HEADS, HEAD_DIM = 8, 64
QUICK = 256  # tokens of --quick
DECODES = 60  # rounds of a step, which takes milliseconds and differs from plain SDPA by tenths of one
PEERS = {"alibi": ("x-transformers",), "t5": ("transformers",)}
Forward = Callable[[], Tensor]


def templates() -> Iterator[Template]:
    """Yield all rows of `posenc bench attend`."""
    for name in ("alibi", "t5", "kerple", "relative_bias"):
        row = _row(f"{name}.forward", name, 1.35, "dense", *PEERS.get(name, ()))
        yield Template(row, (256, 1024, 4096, 16384))
        yield Template(_row(f"{name}.train", name, 1.7, "dense", mode="train"))
        yield Template(replace(_row(f"{name}.decode", name, 1.2, mode="decode"), rounds=DECODES), (16384,))
    for name in ("shaw", "transformer_xl", "fire", "deberta"):
        options = {"max_distance": 64} if name == "shaw" else {}
        yield Template(_row(f"{name}.forward", name, 3.5, "dense", encoding_options=options))
        yield Template(_row(f"{name}.train", name, None, "dense", mode="train", encoding_options=options))
    yield from models.templates(("t5", "bloom", "mpt", "deberta"))
    yield Template(_row("t5.bidirectional", "t5", 1.35, causal=False, encoding_options={"bidirectional": True}))
    for name in ("alibi", "t5"):
        yield Template(_row(f"{name}.documents", name, 1.0, documents=16))
        yield Template(_row(f"{name}.window", name, 1.0, window=512))
        compiled = Row(f"{name}.compiled", "attend", ("attend:auto", "compiled"), options={"encoding": name})
        yield Template(replace(compiled, goals=(Goal(("compiled",), 1.3),)), dtypes=("float32",))
        yield Template(_row(f"{name}.long", name, 1.35), (65536,), ("float32",), is_long=True)
        for mode in ("forward", "train"):
            row = replace(_row(f"{name}.gpu_{mode}", name, None, mode=mode), device="cuda")
            row = replace(row, candidates=(*row.candidates, "attend:flex"))
            yield Template(row, (8192, 65536), ("bfloat16",), is_long=True)


def _row(name: str, encoding: str, limit: float | None, *peers: str, mode: str = "forward", **options: Any) -> Row:
    goals = () if limit is None else (Goal(("attend:auto",), limit),)
    if mode == "forward":
        goals = (*goals, Goal(("attend:auto",), 4.0, "memory"))
    options["encoding"] = encoding
    return Row(name, "attend", ("plain", "attend:auto", *peers), goals, options, mode)


@dataclass(frozen=True)
class Setting:
    """The inputs that all candidates of a row share."""

    row: Row
    q: Tensor
    k: Tensor
    v: Tensor
    encoding: Encoding
    x: Tensor | None  # the tokens, for encodings that read them
    pos: Tensor
    k_pos: Tensor
    document_ids: Tensor | None

    @property
    def causal(self) -> bool:
        """Whether keys behind a query are hidden."""
        return bool(self.row.options.get("causal", True))

    def place(self) -> tuple[Placed, Placed]:
        """Place the positions of queries and keys."""
        placed = self.encoding.place(self.k_pos, self.x)
        return (placed.last(1) if self.row.mode == "decode" else placed), placed

    def scale(self) -> float:
        """Return the factor in front of q.k."""
        return self.encoding.score_scale(HEAD_DIM)

    def learned(self) -> list[Tensor]:
        """Return what gets gradients: the inputs and the encoding's parameters."""
        return [self.q, self.k, self.v, *(p for p in self.encoding.parameters() if p.requires_grad)]

    def options(self, backend: str) -> dict[str, Any]:
        """Return the options of `attend`."""
        given = {key: value for key, value in self.row.options.items() if key in ("causal", "window", "rotated")}
        return given | {"document_ids": self.document_ids, "backend": backend}


def shape(row: Row) -> tuple[int, int, int]:
    """Return q_len, heads and head_dim of a row."""
    return (1 if row.mode == "decode" else row.length), N_HEADS, HEAD_DIM


def tokens(row: Row) -> None:
    """Return nothing: only whole models have tokens per second."""


def prepare(row: Row, *, empty: bool = False) -> Setting:
    """Make the inputs of a row; `empty` leaves their memory untouched, for calls that compute nothing.

    Raises:
        ValueError: The encoding is not in this version, or refuses its options.
    """
    torch.manual_seed(0)
    device, train = torch.device(row.device), row.mode == "train"
    fill = torch.empty if empty else torch.randn

    def draw(length: int) -> Tensor:
        drawn = fill(row.batch, N_HEADS, length, HEAD_DIM, dtype=DTYPES[row.dtype], device=device)
        return drawn.requires_grad_(train)

    dims = registry.Dims(d_model=N_HEADS * HEAD_DIM, n_heads=N_HEADS, head_dim=HEAD_DIM, max_len=row.length)
    encoding = registry.create(row.options["encoding"], dims=dims, **row.options.get("encoding_options", {}))
    with torch.no_grad():
        for parameter in encoding.parameters():  # a learned table of zeros could be skipped
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    encoding = encoding.to(device)
    x = torch.randn(row.batch, row.length, N_HEADS * HEAD_DIM, device=device) if encoding.reads_x else None
    pos, ids, (q_len, *_) = positions.arange(row.length, device=device), None, shape(row)
    if documents := row.options.get("documents"):
        ids = pos * documents // row.length
        pos = positions.packed(ids)
    return Setting(row, draw(q_len), draw(row.length), draw(row.length), encoding, x, pos[-q_len:], pos, ids)


def maker(row: Row) -> Callable[[str], Work]:
    """Return what makes a row's candidates, over inputs that they share."""
    setting = prepare(row)
    return lambda name: make(setting, name)


def make(setting: Setting, name: str) -> Work:
    """Return a candidate: "plain", "attend" with a backend behind a colon, "compiled", or a peer.

    Raises:
        ValueError: It cannot run here.
        ImportError: It is a peer that is not installed.
    """
    kind, _, backend = name.partition(":")
    forward, learned = MAKERS[kind](setting, backend) if kind in ("attend", "compiled") else MAKERS[name](setting)
    if setting.row.mode != "train":
        return torch.no_grad()(forward)
    seeded = torch.Generator(setting.q.device).manual_seed(1)  # all candidates go back from the same gradient
    slope = torch.randn(setting.q.shape, generator=seeded, dtype=setting.q.dtype, device=setting.q.device)
    return lambda: torch.autograd.grad(forward(), learned, slope, allow_unused=True)


def title(row: Row, name: str) -> str:
    """Return a candidate's name for people; of "auto" with the backend that it takes."""
    kind, _, backend = name.partition(":")
    if kind == "attend":
        return f"posenc, auto: {taken(row)}" if backend == "auto" else f"posenc, {backend}"
    causal = row.options.get("causal", True) and row.mode != "decode"
    return {
        "plain": "plain causal SDPA" if causal else "plain SDPA",
        "compiled": "posenc, compiled",
        "dense": "SDPA, mask built",
        "transformers": "transformers T5, SDPA",
        "x-transformers": "x-transformers ALiBi",
    }[name]


def taken(row: Row) -> str:
    """Return the backend that `attend` takes by itself."""
    return next((v.backend for v in verdicts(row) if v.verdict == "taken"), "none")


def verdicts(row: Row) -> list[attention.Verdict]:
    """Return what `explain` says of a row; nothing is computed and no input is filled."""
    setting = prepare(row, empty=True)
    with torch.set_grad_enabled(row.mode == "train"):
        given = setting.q, setting.k, setting.v, setting.encoding, *setting.place()
        return attention.explain(*given, **setting.options("auto"))


def explain_row(row: Row) -> dict[str, Any]:
    """Return what each backend says of a row and the memory it would take, measuring nothing."""
    from posenc.bench import report

    found = report.describe(row) | {"verdicts": []}
    if row.device == "cuda" and not torch.cuda.is_available():
        return found | {"skipped": "not asked: there is no GPU here that torch can use"}
    try:
        said = verdicts(row)
    except Exception as error:  # an encoding may be missing, or refuse
        return found | {"skipped": f"not asked: {first_line(error)}"}
    return found | {"verdicts": [v._asdict() | {"of_q": v.memory / report.q_bytes(row)} for v in said]}


def verdict_lines(row: dict[str, Any]) -> list[str]:
    """Return what the backends say of a row, as lines."""
    if row["skipped"]:
        return [row["title"], f"  {row['skipped']}"]
    lines = [row["title"]]
    for said in row["verdicts"]:
        size = f"{said['memory'] / 2**20:,.1f} MiB, {said['of_q']:,.1f} q"
        lines.append(f"  {said['backend']:18} {size:>24}  {said['verdict']}")
    return lines


def _plain(setting: Setting) -> tuple[Forward, list[Tensor]]:
    causal = setting.causal and setting.row.mode != "decode"
    q, k, v = setting.q, setting.k, setting.v
    return (lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal)), [q, k, v]


def _attend(setting: Setting, backend: str) -> tuple[Forward, list[Tensor]]:
    options = setting.options(backend)
    fixed = None if setting.row.mode == "train" else setting.place()

    def forward() -> Tensor:
        placed = fixed or setting.place()  # what place() learns needs a graph of its own in every step
        return posenc.attend(setting.q, setting.k, setting.v, setting.encoding, *placed, **options)

    return forward, setting.learned()


def _compiled(setting: Setting, _: str) -> tuple[Forward, list[Tensor]]:
    if setting.row.device == "cpu":
        check_compiler()
    forward, learned = _attend(setting, "auto")
    return torch.compile(forward, fullgraph=True), learned


def _dense(setting: Setting) -> tuple[Forward, list[Tensor]]:
    """Build the matrix of biases with -inf ahead, and give it to SDPA as a mask: what most projects do."""

    def forward() -> Tensor:
        mask = _matrix(setting).to(setting.q.dtype)
        return F.scaled_dot_product_attention(setting.q, setting.k, setting.v, attn_mask=mask, scale=setting.scale())

    return forward, setting.learned()


def _matrix(setting: Setting) -> Tensor:
    """Return the whole bias, -inf where a query may not look."""
    encoding = setting.encoding
    if isinstance(encoding, Bias) and not encoding.reads_x:
        return encoding.dense(setting.pos, setting.k_pos, causal=setting.causal)
    bias = encoding.bias(setting.q, setting.k, *setting.place())
    if bias is None:
        raise ValueError(f"{encoding.name} has no bias that a mask could hold")
    seen = torch.ones(bias.shape[-2:], dtype=torch.bool, device=bias.device).tril(bias.shape[-1] - bias.shape[-2])
    return bias.masked_fill(~seen, -torch.inf) if setting.causal else bias


def _transformers(setting: Setting) -> tuple[Forward, list[Tensor]]:
    """Take transformers' own T5 bias, computed in each call as its first layer does, through SDPA."""
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(num_heads=N_HEADS, is_decoder=setting.causal)
    layer = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).to(setting.row.device)
    length, q, k, v = setting.row.length, setting.q, setting.k, setting.v
    unseen = torch.full((length, length), -torch.inf, device=q.device).triu(1)

    def forward() -> Tensor:
        bias = layer.compute_bias(length, length)
        mask = (bias + unseen if setting.causal else bias).to(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)

    return forward, [q, k, v, *layer.relative_attention_bias.parameters()]


def _x_transformers(setting: Setting) -> tuple[Forward, list[Tensor]]:
    """Take x-transformers' ALiBi and its attention through SDPA; it keeps the matrix from call to call."""
    from x_transformers.attend import Attend  # type: ignore[import-untyped]
    from x_transformers.x_transformers import AlibiPositionalBias  # type: ignore[import-untyped]

    bias, length = AlibiPositionalBias(heads=N_HEADS).to(setting.row.device), setting.row.length
    attend, q, k, v = Attend(causal=setting.causal, heads=N_HEADS, flash=True), setting.q, setting.k, setting.v
    return (lambda: attend(q, k, v, attn_bias=bias(length, length).to(q.dtype))[0]), [q, k, v]


MAKERS: dict[str, Callable[..., tuple[Forward, list[Tensor]]]] = {
    "plain": _plain,
    "attend": _attend,
    "compiled": _compiled,
    "dense": _dense,
    "transformers": _transformers,
    "x-transformers": _x_transformers,
}


def check_compiler() -> None:
    """Raise unless torch.compile finds a C++ compiler for the CPU.

    Raises:
        ValueError: There is none.
    """
    names = [os.environ.get("CXX", ""), "g++", "clang++", "cl"]
    if not any(name and shutil.which(name) for name in names):
        raise ValueError("there is no C++ compiler, without which torch.compile makes nothing for the CPU")
