"""Which tensors of a checkpoint are permuted, how, and why the others are not: decided from names and shapes alone."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from jaxtyping import Int64
from torch import Tensor

from posenc import config
from posenc.config.values import short
from posenc.interop.heads import Heads, Layers
from posenc.interop.names import Found, Reader, Where

_WHO = "convert_pairing"
_SHOWN = 6
_PAIRINGS = ("half", "interleaved")
Index = Int64[Tensor, " rows"]


@dataclass(frozen=True)
class Sort:
    """Shape of a tensor, and its dtype in the words of whoever holds it; `plain` if it is a floating one that is exact.

    Only float64, float32, float16 and bfloat16 are plain: what is narrower comes with scales of blocks of rows.
    """

    shape: tuple[int, ...]
    dtype: str
    plain: bool


@dataclass(frozen=True)
class Turn:
    """New lanes of a tensor: entry i along `dim` is the old entry index[i]."""

    dim: int
    index: Index

    def apply(self, tensor: Tensor) -> Tensor:
        """Return a permuted copy, bit for bit what the tensor held."""
        return tensor.detach().index_select(self.dim, self.index.to(tensor.device))


@dataclass(frozen=True)
class Plan:
    """What is done to a checkpoint.

    Args:
        model_type: The type of the language model.
        of: The present pairing.
        to: The new one.
        turns: The tensors that are permuted.
        left: Names of queries and keys that are not, with the reason.
    """

    model_type: str
    of: config.Pairing
    to: config.Pairing
    turns: Mapping[str, Turn] = field(repr=False)
    left: Mapping[str, str] = field(repr=False)

    def counts(self) -> dict[str, int]:
        """Return how many names were left for each reason."""
        return dict(Counter(self.left.values()))


def plan(
    tensors: Mapping[str, Sort], source: config.Source, to: config.Pairing, of: config.Pairing | None = None
) -> Plan:
    """Decide what is permuted.

    Args:
        tensors: Shape and dtype of every tensor, by name.
        source: The model's configuration.
        to: The new pairing.
        of: The present one; None for what the model type has.

    Raises:
        ValueError: See `convert_pairing`.
        TypeError: A name is no string, or the configuration has a value of a wrong kind.
    """
    for word, value in (("to", to), ("of", of)):
        if value not in _PAIRINGS and not (word == "of" and value is None):
            raise ValueError(f"{_WHO}: {word} must be 'half' or 'interleaved'; got {short(value)}.")
    layers = Layers(source, of)
    present = layers.pairing
    if present == to:
        raise ValueError(
            f"{_WHO}: these weights are {present} already, so there is nothing to do; got to={short(to)}. "
            f"If the weights differ from what {layers.model.name} has, say which they are with of."
        )
    return _Planner(layers, to).plan(tensors)


class _Planner:
    """Sorts names into what turns, what is left and what is wrong."""

    def __init__(self, layers: Layers, to: config.Pairing) -> None:
        self._layers, self._to = layers, to
        self._turns: dict[str, Turn] = {}
        self._left: dict[str, str] = {}
        self._wrong: dict[str, str] = {}
        self._seen: dict[str, set[str]] = defaultdict(set)

    def plan(self, tensors: Mapping[str, Sort]) -> Plan:
        reader = Reader(self._layers.layout)
        for name, sort in tensors.items():
            if not isinstance(name, str):
                raise TypeError(f"{_WHO}: names of tensors must be strings; got {short(name)}. Pass a state_dict.")
            self._take(name, sort, reader.read(name))
        self._refuse()
        model = self._layers.model
        return Plan(model.name, self._layers.pairing, self._to, self._turns, self._left)

    def _take(self, name: str, sort: Sort, found: Found) -> None:
        if found.role == "still":
            return
        if found.role == "left":
            self._left[name] = found.why
            return
        if found.where is None:
            self._wrong[name] = found.why
            return
        try:
            heads = self._layers.heads(found.where.layer, extra=found.where.extra)
            if heads is None:
                if found.role != "columns":
                    self._left[name] = "in a layer that does not rotate"
                return
            self._turn(name, sort, found, found.where, heads)
        except ValueError as error:
            self._wrong[name] = str(error)

    def _turn(self, name: str, sort: Sort, found: Found, where: Where, heads: Heads) -> None:
        if found.role == "unknown":
            raise ValueError(found.why)
        if found.role == "columns" and not heads.values_are_keys:
            return
        if not sort.plain:
            raise ValueError(f"quantized, as {sort.dtype}")
        dim = {"rows": 0, "lanes": len(sort.shape) - 1, "columns": 1}[found.role]
        if len(sort.shape) <= dim or dim < 0 or len(sort.shape) > 2:
            raise ValueError(f"has {len(sort.shape)} dimensions")
        size = sort.shape[dim]
        if found.parts is not None:
            starts = heads.starts(found.parts, size)
            self._seen[where.module] |= set(found.parts.order) if found.base else set()
        elif size % heads.head_dim or not size:
            raise ValueError(f"has {size} lanes where heads have {heads.head_dim}")
        else:
            starts = tuple(range(heads.first, size, heads.head_dim))
        self._turns[name] = Turn(dim, _index(size, starts, heads.rotary_dim, self._to))

    def _refuse(self) -> None:
        """Raise if anything was not understood, if a query has no key, or if nothing turns."""
        model = self._layers.model.name
        quantized = [name for name, why in self._wrong.items() if why.startswith("quantized")]
        if quantized:
            raise ValueError(
                f"{_WHO}: quantized queries and keys cannot be permuted, because their scales hold for blocks of rows; "
                f"got {_list(quantized)}. Convert the weights before they are quantized."
            )
        if self._wrong:
            raise ValueError(
                f"{_WHO}: what looks like queries or keys in {len(self._wrong)} tensors is not understood as {model} "
                f"has them, so nothing was converted; got {_list(f'{n} ({why})' for n, why in self._wrong.items())}."
            )
        needed = {"q"} if self._layers.model.fields.get("num_kv_shared_layers") else {"q", "k"}
        single = [module for module, parts in self._seen.items() if parts and not needed <= parts]
        if single:
            raise ValueError(
                f"{_WHO}: queries and keys must be converted together; got only one of them in {_list(single)}. "
                f"Pass the whole checkpoint."
            )
        if not self._turns:
            raise ValueError(
                f"{_WHO}: there are no queries or keys that turn among these tensors; got names that {model} does not "
                f"have. Pass its state_dict or LoRA factors."
            )


def _list(names: Iterable[str]) -> str:
    shown = list(names)
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ", ".join(name[:200] if name.isprintable() else ascii(name[:200]) for name in shown[:_SHOWN]) + more


@lru_cache(maxsize=64)
def _index(size: int, starts: tuple[int, ...], rotary_dim: int, to: config.Pairing) -> Index:
    """Return where each row comes from.

    Pair k has the lanes k and k + rotary_dim / 2 in "half", 2k and 2k + 1 in "interleaved".
    """
    half = rotary_dim // 2
    lanes = torch.arange(rotary_dim)
    order = lanes.view(2, half).T.flatten() if to == "interleaved" else lanes.view(half, 2).T.flatten()
    index = torch.arange(size)
    for start in starts:
        index[start : start + rotary_dim] = start + order
    return index
