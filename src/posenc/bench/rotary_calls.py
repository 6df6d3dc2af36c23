"""The calls that `posenc bench rotary` compares: each candidate of a row as a function without arguments."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from posenc import positions
from posenc.bench import rotary_models
from posenc.bench.measure import Work, tell
from posenc.bench.rotary_peers import PEERS, Tables, Turn, check_compiler
from posenc.bench.rotary_rows import BACKENDS, HEAD_DIM, LAST, N_HEADS, N_KV_HEADS, Row, ours
from posenc.bench.rows import DTYPES
from posenc.encodings import RoPE

Pair = tuple[Tensor, Tensor]


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
        """Queries and keys that are turned in place, over and over."""
        return self.q.detach().clone(), self.k.detach().clone()

    @cached_property
    def slopes(self) -> Pair:
        """The gradients that all go back from."""
        return fill(self.row, partial(torch.randn, generator=torch.Generator().manual_seed(1)))

    def tables(self) -> Tables:
        """Return what peers make theirs of: the same numbers."""
        cos, sin = self.placed.parts
        return Tables(self.row, self.pos, cos, sin, self.q.dtype)


def prepare(row: Row) -> Setting:
    """Make the inputs of a row."""
    torch.manual_seed(0)
    q, k = fill(row, torch.randn)
    if row.kind == "train":
        q, k = q.requires_grad_(), k.requires_grad_()
    pos = torch.tensor([LAST]) if row.length == 1 else positions.arange(row.length)
    return Setting(row, RoPE(head_dim=HEAD_DIM, pairing=row.pairing), pos, q, k)


def fill(row: Row, make: Callable[..., Tensor]) -> Pair:
    """Return queries and keys (batch, heads, seq, head_dim), their memory in the order that the row asks for."""

    def one(heads: int) -> Tensor:
        order = (row.length, heads) if row.transposed else (heads, row.length)
        made = make(row.batch, *order, HEAD_DIM, dtype=DTYPES[row.dtype])
        return made.transpose(1, 2) if row.transposed else made

    return one(N_HEADS), one(N_KV_HEADS)


def list_names(row: Row) -> list[str]:
    """Return the candidates of a row, the baseline first."""
    if row.is_model:
        return ["loaded", "hf.use"]
    peers = [name for name, peer in PEERS.items() if row.pairing in peer.pairings]
    if row.kind == "train":
        return ["copies", "clones", *ours("rotate"), "compiled", *peers]
    return ["copy", "clone", *ours("rotate_"), *ours("out"), *ours("rotate"), "compiled", *peers]


def title(name: str) -> str:
    """Return a candidate's name for people.

    >>> title("rotate_:blocked"), title("timm")
    ('posenc in place, blocked', 'timm')
    """
    plain = {"copy": "copy into given memory", "clone": "clone", "copies": "two copies into given memory"}
    plain |= {"clones": "two clones", "compiled": "posenc, compiled"}
    plain |= {"loaded": "as transformers loads it", "hf.use": "posenc.hf.use"}
    way, _, backend = name.partition(":")
    if backend:
        return f"{ {'rotate_': 'posenc in place', 'out': 'posenc out=', 'rotate': 'posenc'}[way] }, {backend}"
    return plain.get(name) or PEERS[name].title


def build(row: Row) -> tuple[dict[str, Work], dict[str, str]]:
    """Return the calls of a row, and why some could not be made."""
    torch.compiler.reset()  # so that no row is compiled for shapes of another
    setting = None if row.is_model else prepare(row)
    runs: dict[str, Work] = {}
    failed = {}
    for name in list_names(row):
        if "compiled" in name and not row.compiles:
            failed[name] = "--quick leaves out what has to be compiled"
            continue
        try:
            runs[name] = rotary_models.run(row, ours=name == "hf.use") if setting is None else make(setting, name)
        except ImportError as error:
            failed[name] = f"not installed: {tell(error).partition(': ')[2]}"
        except Exception as error:  # whatever a peer raises when it is made
            failed[name] = tell(error)
    return runs, failed


def make(setting: Setting, name: str) -> Work:
    """Return one candidate of a row of turns.

    Raises:
        ImportError: It is a peer that is not installed.
        ValueError: It cannot work here.
    """
    way, _, backend = name.partition(":")
    given = _in_given_memory(setting, way, backend)
    if given is not None:
        return torch.no_grad()(given)
    if name == "clones":
        return torch.no_grad()(lambda: [t.clone() for t in (setting.q, setting.k) * 2])
    turn = _turn(setting, way, backend)
    if setting.row.kind != "train":
        return torch.no_grad()(lambda: turn(setting.q, setting.k))

    def step() -> object:
        return torch.autograd.grad(turn(setting.q, setting.k), (setting.q, setting.k), setting.slopes)

    return step


def _in_given_memory(setting: Setting, way: str, backend: str) -> Work | None:
    """Return what takes no new memory, or None if this is something else."""
    q, k, rope, placed = setting.q, setting.k, setting.rope, setting.placed
    if way not in ("copy", "copies", "rotate_", "out"):
        return None
    options = _options(backend)
    if way == "rotate_":
        own_q, own_k = setting.own
        return lambda: rope.rotate_(own_q, own_k, placed, **options)
    q_out, k_out = out = setting.out
    if way == "copy":
        return lambda: (q_out.copy_(q), k_out.copy_(k))
    if way == "copies":
        return lambda: (q_out.copy_(q), k_out.copy_(k), q_out.copy_(q), k_out.copy_(k))
    return lambda: rope.rotate(q, k, placed, out=out, **options)


def _turn(setting: Setting, way: str, backend: str) -> Turn:
    """Return what makes new queries and keys."""
    rope, placed = setting.rope, setting.placed
    if way == "clone":
        return lambda q, k: (q.clone(), k.clone())
    if way == "rotate":
        options = _options(backend)
        return lambda q, k: rope.rotate(q, k, placed, **options)
    if way == "compiled":
        check_compiler()
        return torch.compile(lambda q, k: rope.rotate(q, k, placed), fullgraph=True)
    return PEERS[way].make(setting.tables())


def _options(backend: str) -> dict[str, Any]:
    """Return the keywords of a backend; "auto" is what a call without any gets."""
    assert not backend or backend in BACKENDS
    return {} if backend in ("", "auto") else {"backend": backend}
