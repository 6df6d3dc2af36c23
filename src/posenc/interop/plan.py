"""Weights trained with one pairing of lanes, permuted so that they give the same with the other.

Which tensors are permuted, how, and why the others are not, is decided from names and shapes alone.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posenc import config
from posenc.config.model import Model, open_model
from posenc.config.values import short
from posenc.interop.heads import Layers, read_layers
from posenc.interop.layouts import layout
from posenc.interop.names import Found, read

_WHO = "convert_pairing"
_SHOWN = 6
_PLAIN = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class Sort(NamedTuple):
    """Shape of a tensor, and its dtype in the words of whoever holds it; `plain` if it is a floating one that is exact.

    Only float64, float32, float16 and bfloat16 are plain: what is narrower comes with scales of blocks of rows.
    """

    shape: tuple[int, ...]
    dtype: str
    plain: bool


class Turn(NamedTuple):
    """Where lanes change places in a tensor: in so many entries along `dim` behind each start."""

    dim: int
    starts: tuple[int, ...]
    rotary_dim: int
    to: config.Pairing

    def apply(self, tensor: Tensor) -> Tensor:
        """Return a permuted copy, bit for bit what the tensor held."""
        lanes = torch.arange(self.rotary_dim)
        order = lanes.view(2, -1).T if self.to == "interleaved" else lanes.view(-1, 2).T
        index = torch.arange(tensor.shape[self.dim])
        for start in self.starts:
            index[start : start + self.rotary_dim] = start + order.flatten()
        return tensor.detach().index_select(self.dim, index.to(tensor.device))


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


def convert_pairing(
    state_dict: Mapping[str, Tensor],
    source: config.Source,
    to: config.Pairing,
    *,
    of: config.Pairing | None = None,
) -> dict[str, Tensor]:
    """Permute queries and keys so that code which pairs lanes otherwise gives the same logits.

    Pair k has the lanes k and k + rotary_dim / 2 in "half" and the lanes 2k and 2k + 1 in "interleaved". Rows of the
    projections move with their biases, norms and LoRA factors, in the lanes of each head that turn; what the scores
    are summed over stays the same set. The model's code must then rotate with the new pairing: most types have no key
    for it. Names that look like queries or keys and are not understood are an error, for a model with one projection
    left as it was runs and is wrong.

    Args:
        state_dict: Tensors by name, as transformers and PEFT name them: the whole model, or its LoRA factors alone.
            Neither it nor a tensor in it is changed.
        source: The model's configuration, as for `config.read`.
        to: The new pairing.
        of: The present pairing; None takes what the model type has.

    Returns:
        A new dict with the same names in the same order. Tensors that are not permuted are the caller's own objects,
        and names that shared one tensor share its permuted copy.

    Raises:
        ValueError: The weights have that pairing already, are quantized, or are of a type whose layout is unknown;
            names or shapes are not understood; or the configuration is refused.
        TypeError: A value is no tensor.

    Source: the rotate-half form of GPT-NeoX and of Hugging Face's Llama, against the paper's (Su et al. 2021, 3.4.2).

    >>> llama = {"model_type": "llama", "hidden_size": 4, "num_attention_heads": 1, "num_hidden_layers": 1}
    >>> names = [f"model.layers.0.self_attn.{part}_proj.bias" for part in "qk"]
    >>> turned = convert_pairing({name: torch.arange(4.0) for name in names}, llama, "interleaved")
    >>> turned[names[0]].tolist()
    [0.0, 2.0, 1.0, 3.0]
    """
    turns = plan({name: _sort(name, tensor) for name, tensor in state_dict.items()}, source, to, of).turns
    done: dict[tuple[Any, ...], Tensor] = {}  # by memory, so that what was shared is shared
    out = dict(state_dict)
    for name, turn in turns.items():
        x = out[name]
        place = id(x) if x.is_meta else (x.data_ptr(), x.device, x.dtype, x.shape, x.stride())
        if (place, turn) not in done:
            done[place, turn] = turn.apply(x)
        out[name] = done[place, turn]
    return out


def _sort(name: str, tensor: Tensor) -> Sort:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{_WHO}: values must be tensors; got {type(tensor).__name__} for {name!r}. Pass a state_dict.")
    # a class of its own holds something else than it shows: scales, shards
    own = type(tensor) not in (Tensor, torch.nn.Parameter, torch.nn.Buffer)
    dtype = type(tensor).__name__ if own else str(tensor.dtype).removeprefix("torch.")
    return Sort(tuple(tensor.shape), dtype, tensor.dtype in _PLAIN and not own and tensor.layout == torch.strided)


def plan(
    tensors: Mapping[str, Sort], source: config.Source, to: config.Pairing, of: config.Pairing | None = None
) -> Plan:
    """Decide what is permuted; as `convert_pairing`, which has the tensors themselves.

    Raises:
        ValueError: See `convert_pairing`.
        TypeError: A name is no string, or the configuration has a value of a wrong kind.
    """
    for word, value, usual in (("to", to, "half"), ("of", of, None)):
        if value not in ("half", "interleaved", usual):
            raise ValueError(f"{_WHO}: {word} must be 'half' or 'interleaved'; got {short(value)}.")
    model = open_model(source)
    kept, layers = layout(model), read_layers(model, of)
    if layers.pairing == to:
        raise ValueError(
            f"{_WHO}: these weights are {to} already, so there is nothing to do; got to={short(to)}. "
            f"If the weights differ from what {model.name} has, say which they are with of."
        )
    turns, left, wrong = dict[str, Turn](), dict[str, str](), dict[str, str]()
    held: dict[str, str] = defaultdict(str)  # of queries and keys, by each attention
    for name, sort in tensors.items():
        if not isinstance(name, str):
            raise TypeError(f"{_WHO}: names of tensors must be strings; got {short(name)}. Pass a state_dict.")
        found = read(name, kept)
        try:
            decided = _decide(found, sort, layers, to)
        except ValueError as error:
            wrong[name] = str(error)
            continue
        if isinstance(decided, Turn):
            turns[name] = decided
            held[found.module] += found.parts[0] if found.parts and found.role == "weight" else ""
        elif decided:
            left[name] = decided
    _refuse(model, turns, wrong, held)
    return Plan(model.name, layers.pairing, to, turns, left)


def _decide(found: Found, sort: Sort, layers: Layers, to: config.Pairing) -> Turn | str | None:
    """Return how a tensor turns, why its queries or keys are left as they are, or None if it holds none.

    Raises:
        ValueError: It is not understood.
    """
    if found.role in ("still", "left"):
        return found.why or None
    if found.layer is None:
        raise ValueError(found.why)
    heads = layers.find(found.layer)
    if found.role == "columns" and not (heads and heads.values_are_keys):
        return None
    if heads is None:
        return "in a layer that does not rotate"
    if found.role == "unknown":
        raise ValueError(found.why)
    if not sort.plain:
        raise ValueError(f"quantized, as {sort.dtype}")
    dim = {"columns": 1, "lanes": len(sort.shape) - 1}.get(found.role, 0)
    if not 0 <= dim < len(sort.shape) <= 2:
        raise ValueError(f"has {len(sort.shape)} dimensions")
    size = sort.shape[dim]
    if found.parts:
        starts = heads.starts(found.parts, size)
    elif size % heads.head_dim or not size:
        raise ValueError(f"has {size} lanes where heads have {heads.head_dim}")
    else:
        starts = tuple(range(heads.first, size, heads.head_dim))
    return Turn(dim, starts, heads.rotary_dim, to)


def _refuse(model: Model, turns: Mapping[str, Turn], wrong: Mapping[str, str], held: Mapping[str, str]) -> None:
    """Raise if anything was not understood, if a query has no key, or if nothing turns."""
    quantized = [name for name, why in wrong.items() if why.startswith("quantized")]
    needed = {"q"} if model.fields.get("num_kv_shared_layers") else {"q", "k"}
    single = [module for module, parts in held.items() if parts and not needed <= set(parts)]
    if quantized:
        raise ValueError(
            f"{_WHO}: quantized queries and keys cannot be permuted, because their scales hold for blocks of rows; "
            f"got {_list(quantized)}. Convert the weights before they are quantized."
        )
    if wrong:
        listed = _list(f"{name} ({why})" for name, why in wrong.items())
        raise ValueError(
            f"{_WHO}: what looks like queries or keys in {len(wrong)} tensors is not understood as {model.name} has "
            f"them, so nothing was converted; got {listed}."
        )
    if single:
        raise ValueError(
            f"{_WHO}: queries and keys must be converted together; got only one of them in {_list(single)}. "
            f"Pass the whole checkpoint."
        )
    if not turns:
        raise ValueError(
            f"{_WHO}: there are no queries or keys that turn among these tensors; got names that {model.name} does not "
            f"have. Pass its state_dict or LoRA factors."
        )


def _list(names: Iterable[str]) -> str:
    shown = list(names)
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ", ".join(name[:200] if name.isprintable() else ascii(name[:200]) for name in shown[:_SHOWN]) + more
