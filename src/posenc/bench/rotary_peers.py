"""How other libraries turn queries and keys, each called as its own models call it, with tables made beforehand."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posenc.bench.peers import compiler
from posenc.bench.rotary_rows import PAIRINGS, Row

Turn = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Tables(NamedTuple):
    """What a turn is made with: positions, and their cosines and sines in float32."""

    row: Row
    pos: Tensor  # (seq,)
    cos: Tensor  # (seq, n_pairs)
    sin: Tensor
    dtype: torch.dtype  # of queries and keys

    def wide(self) -> tuple[Tensor, Tensor]:
        """Return tables with a number for each lane, as its pair is laid out, which most libraries keep."""
        half = self.row.pairing == "half"
        cos, sin = (torch.cat((t, t), -1) if half else t.repeat_interleave(2, -1) for t in (self.cos, self.sin))
        return cos, sin


class Peer(NamedTuple):
    """Another way to the same turn."""

    title: str
    package: str | None  # that it needs beside torch
    pairings: tuple[str, ...]
    make: Callable[[Tables], Turn]


def transformers(tables: Tables) -> Turn:
    """Take the function of transformers' Llama, or of its Cohere, which pairs neighbours; tables in q's dtype.

    Raises:
        ImportError: transformers is not installed.
    """
    model = "llama" if tables.row.pairing == "half" else "cohere"
    apply: Any = importlib.import_module(f"transformers.models.{model}.modeling_{model}").apply_rotary_pos_emb
    cos, sin = (t[None].to(tables.dtype) for t in tables.wide())

    def turn(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        turned: tuple[Tensor, Tensor] = apply(q, k, cos, sin)
        return turned

    return turn


def compiled(make: Callable[[Tables], Turn], tables: Tables) -> Turn:
    """Compile what another one makes.

    Raises:
        ValueError: torch.compile cannot work here.
    """
    check_compiler()
    return torch.compile(make(tables))


def torchtune(tables: Tables) -> Turn:
    """Take torchtune's module, on (batch, seq, heads, lanes).

    Raises:
        ImportError: torchtune is not installed.
    """
    module = _load("torchtune", "modules", "position_embeddings")
    lanes, longest = 2 * tables.cos.shape[-1], int(tables.pos.max()) + 1
    rotary = module.RotaryPositionalEmbeddings(lanes, max_seq_len=longest)

    def turn(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        pos = tables.pos.expand(q.shape[0], -1)
        turned = (rotary(t.transpose(1, 2), input_pos=pos).transpose(1, 2) for t in (q, k))
        return next(turned), next(turned)

    return turn


def rotary_embedding_torch(tables: Tables) -> Turn:
    """Take rotary-embedding-torch, which keeps its angles.

    Raises:
        ImportError: rotary-embedding-torch is not installed.
    """
    from rotary_embedding_torch import RotaryEmbedding  # type: ignore[import-untyped]

    rotary = RotaryEmbedding(dim=2 * tables.cos.shape[-1])
    first = int(tables.pos[0])
    return lambda q, k: (
        rotary.rotate_queries_or_keys(q, offset=first),
        rotary.rotate_queries_or_keys(k, offset=first),
    )


def x_transformers(tables: Tables) -> Turn:
    """Take x-transformers' function, its angles given.

    Raises:
        ImportError: x-transformers is not installed.
    """
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb  # type: ignore[import-untyped]

    angles, scale = RotaryEmbedding(2 * tables.cos.shape[-1])(tables.pos[None])
    return lambda q, k: (apply_rotary_pos_emb(q, angles, scale), apply_rotary_pos_emb(k, angles, scale))


def timm(tables: Tables) -> Turn:
    """Take timm's function, tables in float32 as its models hold them.

    Raises:
        ImportError: timm is not installed.
    """
    apply = _load("timm", "layers", "pos_embed_sincos").apply_rot_embed_cat
    cos, sin = tables.wide()
    both, half = torch.cat((sin, cos), -1), tables.row.pairing == "half"
    return lambda q, k: (apply(q, both, half=half), apply(k, both, half=half))


def complex_product(tables: Tables) -> Turn:
    """Multiply complex numbers in float32, as Meta's Llama does: a plain line of torch."""
    factors = torch.complex(tables.cos, tables.sin)

    def one(x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * factors).flatten(-2).to(x.dtype)

    return lambda q, k: (one(q), one(k))


def check_compiler() -> None:
    """Raise unless torch.compile can work on this CPU.

    Raises:
        ValueError: It cannot.
    """
    if not compiler():
        raise ValueError("there is no C++ compiler, without which torch.compile makes nothing for the CPU")


_NEIGHBOURS = ("interleaved",)
PEERS: dict[str, Peer] = {
    "transformers": Peer("transformers", "transformers", PAIRINGS, transformers),
    "transformers-compiled": Peer("transformers, compiled", "transformers", PAIRINGS, partial(compiled, transformers)),
    "torchtune": Peer("torchtune", "torchtune", _NEIGHBOURS, torchtune),
    "rotary-embedding-torch": Peer(
        "rotary-embedding-torch", "rotary_embedding_torch", _NEIGHBOURS, rotary_embedding_torch
    ),
    "x-transformers": Peer("x-transformers", "x_transformers", _NEIGHBOURS, x_transformers),
    "timm": Peer("timm", "timm", PAIRINGS, timm),
    "complex": Peer("complex product, as Meta's", None, _NEIGHBOURS, complex_product),
}


def _load(package: str, folder: str, module: str) -> Any:
    """Import a module of a package; alone, where the package needs others that are not here or do not load.

    `import timm` needs torchvision and `import torchtune` torchao, neither of which the turn does.

    Raises:
        ImportError: It is not installed, or the module needs more too.
    """
    try:
        return importlib.import_module(f"{package}.{folder}.{module}")
    except Exception:  # whatever a package raises that does not load; the next line tells what is missing
        found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise ImportError(f"no module named {package!r}")
    alias = f"_posenc_bench_{package}"
    alone = sys.modules.setdefault(alias, ModuleType(alias))
    alone.__path__ = [str(Path(found.origin).parent / folder)]
    return importlib.import_module(f"{alias}.{module}")
