"""Rotation of queries and keys next to a copy of them: rows, and the calls that are compared."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from posenc import positions
from posenc.bench import models
from posenc.bench.attend import check_compiler
from posenc.bench.measure import Work
from posenc.bench.rows import DTYPES, Goal, Row, Template
from posenc.encodings import RoPE

BACKENDS = ("formula", "blocked", "numba", "auto")
HEAD_DIM, N_HEADS, N_KV_HEADS = 128, 32, 8
LAST = 4095  # the position of a decoded token
QUICK = 64  # tokens of --quick
PAIRINGS = ("half", "interleaved")
Pair = tuple[Tensor, Tensor]
Rotate = Callable[[Tensor, Tensor], Pair]


def templates() -> Iterator[Template]:
    """Yield all rows of `posenc bench rotary`."""
    for pairing in PAIRINGS:
        yield Template(_row(f"long.{pairing}", pairing, 1.4, 3.0))
    yield Template(_row("transposed.half", "half", 1.4, None, transposed=True))
    for pairing in PAIRINGS:
        row = replace(_row(f"decode.{pairing}", pairing, None, None), mode="decode", batch=64)
        yield Template(row, (1,), fixed=True)
        peers = tuple(name for name in PEERS if pairing in PEERS[name][1])
        names = ("copies", *_ways("rotate"), "compiled", *peers)
        yield Template(Row(f"train.{pairing}", "rotary", names, (), {"pairing": pairing}, "train"))
    yield from models.templates(("llama", "qwen3"))


def _row(name: str, pairing: str, limit: float | None, torch_only: float | None, **options: Any) -> Row:
    peers = tuple(peer for peer in PEERS if pairing in PEERS[peer][1])
    names = ("copy", *_ways("rotate_"), *_ways("out"), *_ways("rotate"), "compiled", *peers)
    goals = [] if limit is None else [Goal((*_ways("rotate_"), *_ways("out")), limit)]
    if torch_only is not None:
        goals.append(Goal(tuple(f"{way}:{b}" for way in ("rotate_", "out") for b in BACKENDS[:2]), torch_only))
    return Row(name, "rotary", names, tuple(goals), {"pairing": pairing, **options})


def _ways(way: str) -> tuple[str, ...]:
    """Return posenc's candidates of one way: "rotate_" (in place), "out" (given memory), "rotate" (new memory)."""
    return tuple(f"{way}:{backend}" for backend in BACKENDS)


@dataclass
class Setting:
    """The inputs that all candidates of a row share; memory that only some write to is made when they come."""

    row: Row
    rope: RoPE
    pos: Tensor
    q: Tensor
    k: Tensor

    @cached_property
    def placed(self) -> Any:
        """The tables of ours."""
        return self.rope.place(self.pos)

    @cached_property
    def out(self) -> Pair:
        """Memory that results are written to."""
        return fill(self.row, torch.empty)

    @cached_property
    def own(self) -> Pair:
        """Queries and keys that are rotated in place, over and over."""
        return self.q.detach().clone(), self.k.detach().clone()

    @cached_property
    def slopes(self) -> Pair:
        """The gradients that all go back from."""
        return fill(self.row, partial(torch.randn, generator=torch.Generator().manual_seed(1)))

    @property
    def half(self) -> bool:
        """Whether pairs are halves apart, and not neighbours."""
        return bool(self.row.options["pairing"] == "half")

    def tables(self) -> Pair:
        """Return cosines and sines (seq, head_dim) in float32, one number a dimension, as most libraries keep them."""
        cos, sin = (torch.cat((t, t), -1) if self.half else t.repeat_interleave(2, -1) for t in self.placed.parts)
        return cos, sin


def shape(row: Row) -> tuple[int, int, int]:
    """Return tokens, heads of q and k, and head_dim of a row."""
    return row.length, N_HEADS + N_KV_HEADS, HEAD_DIM


def tokens(row: Row) -> None:
    """Return nothing: only whole models have tokens per second."""


def prepare(row: Row) -> Setting:
    """Make the inputs of a row."""
    torch.manual_seed(0)
    q, k = (t.requires_grad_(row.mode == "train") for t in fill(row, torch.randn))
    pos = torch.tensor([LAST]) if row.length == 1 else positions.arange(row.length)
    return Setting(row, RoPE(head_dim=HEAD_DIM, pairing=row.options["pairing"]), pos, q, k)


def fill(row: Row, make: Callable[..., Tensor]) -> Pair:
    """Return queries and keys (batch, heads, seq, head_dim), their memory in the order that the row asks for."""

    def one(heads: int) -> Tensor:
        transposed = row.options.get("transposed", False)
        order = (row.length, heads) if transposed else (heads, row.length)
        made = make(row.batch, *order, HEAD_DIM, dtype=DTYPES[row.dtype])
        return made.transpose(1, 2) if transposed else made

    return one(N_HEADS), one(N_KV_HEADS)


def title(row: Row, name: str) -> str:
    """Return a candidate's name for people."""
    way, _, backend = name.partition(":")
    if backend:
        return f"{ {'rotate_': 'posenc in place', 'out': 'posenc out=', 'rotate': 'posenc'}[way] }, {backend}"
    plain = {"copy": "copy into given memory", "copies": "two copies", "compiled": "posenc, compiled"}
    return plain.get(name, name)


def maker(row: Row) -> Callable[[str], Work]:
    """Return what makes a row's candidates, over inputs that they share."""
    setting = prepare(row)
    return lambda name: make(setting, name)


def make(setting: Setting, name: str) -> Work:
    """Return one candidate.

    Raises:
        ImportError: It is a peer that is not installed.
        ValueError: It cannot run here.
    """
    way, _, backend = name.partition(":")
    q, k, rope, placed = setting.q, setting.k, setting.rope, setting.placed
    options: dict[str, Any] = {} if backend in ("", "auto") else {"backend": backend}
    if way in ("copy", "copies"):
        out = setting.out
        pairs = tuple(zip(out, (q, k), strict=True)) * (2 if way == "copies" else 1)
        return torch.no_grad()(lambda: [into.copy_(t) for into, t in pairs])
    if way == "rotate_":
        own = setting.own
        return torch.no_grad()(lambda: rope.rotate_(*own, placed, **options))
    if way == "out":
        out = setting.out
        return torch.no_grad()(lambda: rope.rotate(q, k, placed, out=out, **options))
    rotate = _rotate(setting, way, options)
    if setting.row.mode != "train":
        return torch.no_grad()(lambda: rotate(q, k))
    return lambda: torch.autograd.grad(rotate(q, k), (q, k), setting.slopes)


def _rotate(setting: Setting, way: str, options: dict[str, Any]) -> Rotate:
    """Return what makes new queries and keys."""
    rope, placed = setting.rope, setting.placed
    if way == "rotate":
        return lambda q, k: rope.rotate(q, k, placed, **options)
    if way == "compiled":
        check_compiler()
        return torch.compile(lambda q, k: rope.rotate(q, k, placed), fullgraph=True)
    return PEERS[way][0](setting)


def _transformers(setting: Setting) -> Rotate:
    """Take the function of transformers' Llama, or of its Cohere, which pairs neighbours; tables in q's dtype."""
    model = "llama" if setting.half else "cohere"
    apply = import_module(f"transformers.models.{model}.modeling_{model}").apply_rotary_pos_emb
    cos, sin = (t[None].to(setting.q.dtype) for t in setting.tables())
    return lambda q, k: apply(q, k, cos, sin)


def _transformers_compiled(setting: Setting) -> Rotate:
    rotate = _transformers(setting)
    check_compiler()
    return torch.compile(rotate)


def _rotary_embedding_torch(setting: Setting) -> Rotate:
    """Take rotary-embedding-torch, which keeps its angles."""
    from rotary_embedding_torch import RotaryEmbedding  # type: ignore[import-untyped]

    rotate, first = RotaryEmbedding(dim=HEAD_DIM).rotate_queries_or_keys, int(setting.pos[0])
    return lambda q, k: (rotate(q, offset=first), rotate(k, offset=first))


def _x_transformers(setting: Setting) -> Rotate:
    """Take x-transformers' function, its angles given."""
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb  # type: ignore[import-untyped]

    angles, scale = RotaryEmbedding(HEAD_DIM)(setting.pos[None])
    return lambda q, k: (apply_rotary_pos_emb(q, angles, scale), apply_rotary_pos_emb(k, angles, scale))


def _timm(setting: Setting) -> Rotate:
    """Take timm's function, tables in float32 as its models hold them.

    Its layers are loaded as a package of another name: `import timm` needs torchvision, and the function does not.
    """
    found = find_spec("timm")
    if found is None or found.origin is None:
        raise ImportError("no module named 'timm'")
    layers = sys.modules.setdefault("_posenc_timm_layers", ModuleType("_posenc_timm_layers"))
    layers.__path__ = [str(Path(found.origin).parent / "layers")]
    apply = import_module("_posenc_timm_layers.pos_embed_sincos").apply_rot_embed_cat
    cos, sin = setting.tables()
    both, half = torch.cat((sin, cos), -1), setting.half
    return lambda q, k: (apply(q, both, half=half), apply(k, both, half=half))


def _complex_product(setting: Setting) -> Rotate:
    """Multiply complex numbers in float32, as Meta's Llama does: a plain line of torch."""
    factors = torch.complex(*setting.placed.parts)

    def one(x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * factors).flatten(-2).to(x.dtype)

    return lambda q, k: (one(q), one(k))


PEERS: dict[str, tuple[Callable[[Setting], Rotate], tuple[str, ...]]] = {  # what makes it, and its pairings
    "transformers": (_transformers, PAIRINGS),
    "transformers, compiled": (_transformers_compiled, PAIRINGS),
    "rotary-embedding-torch": (_rotary_embedding_torch, PAIRINGS[1:]),
    "x-transformers": (_x_transformers, PAIRINGS[1:]),
    "timm": (_timm, PAIRINGS),
    "complex product": (_complex_product, PAIRINGS[1:]),
}
