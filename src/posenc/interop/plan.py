"""Permute the weights of one pairing of dimensions so that they give the same results with the other.

The permutations, and the reasons for leaving tensors unchanged, depend only on names and shapes.
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
    """The shape of a tensor, the name of its dtype, and whether it is a plain floating tensor.

    Only float64, float32, float16 and bfloat16 are plain. Narrower dtypes come with scales for blocks of rows.
    """

    shape: tuple[int, ...]
    dtype: str
    plain: bool


class Permutation(NamedTuple):
    """A permutation of `rotary_dim` entries along `dim` from each start."""

    dim: int
    starts: tuple[int, ...]
    rotary_dim: int
    to: config.Pairing

    def apply(self, tensor: Tensor) -> Tensor:
        """Return a permuted copy with the same bits."""
        lanes = torch.arange(self.rotary_dim)
        order = lanes.view(2, -1).T if self.to == "interleaved" else lanes.view(-1, 2).T
        index = torch.arange(tensor.shape[self.dim])
        for start in self.starts:
            index[start : start + self.rotary_dim] = start + order.flatten()
        return tensor.detach().index_select(self.dim, index.to(tensor.device))


@dataclass(frozen=True)
class Plan:
    """The conversion of a checkpoint.

    Args:
        model_type: The type of the language model.
        of: The present pairing.
        to: The new pairing.
        turns: The permutation of each tensor that is permuted.
        left: Names of queries and keys that are not permuted, with the reason.
    """

    model_type: str
    of: config.Pairing
    to: config.Pairing
    turns: Mapping[str, Permutation] = field(repr=False)
    left: Mapping[str, str] = field(repr=False)

    def counts(self) -> dict[str, int]:
        """Return the number of names that were left for each reason."""
        return dict(Counter(self.left.values()))


def convert_pairing(
    state_dict: Mapping[str, Tensor],
    source: config.Source,
    to: config.Pairing,
    *,
    of: config.Pairing | None = None,
) -> dict[str, Tensor]:
    """Permute queries and keys so that code with the other pairing gives the same logits.

    Pair k has the dimensions k and k + rotary_dim / 2 in "half", and 2k and 2k + 1 in "interleaved". Within the rotated
    dimensions of each head, rows of the projections move together with their biases, norms and LoRA factors, so q·k
    keeps its value. Afterwards the model's code must rotate with the new pairing, for which most types have no key.
    Names that look like queries or keys but are not known raise an error, since a model with one projection left
    unchanged would run and give wrong results.

    Args:
        state_dict: Tensors by name, as in transformers and PEFT: the whole model, or only its LoRA factors. It stays
            unchanged, and so do its tensors.
        source: The model's configuration, as for `config.read`.
        to: The new pairing.
        of: The present pairing; None for that of the model type.

    Returns:
        A new dict with the same names in the same order. Tensors that are not permuted are the caller's own objects.
        Names that shared one tensor share its permuted copy.

    Raises:
        ValueError: The weights have that pairing already, are quantized, or are of a type whose layout is unknown;
            names or shapes are not known; or the configuration is refused.
        TypeError: A value is not a tensor.

    Source: the rotate-half form of GPT-NeoX and Hugging Face's Llama, and the paper's form (Su et al. 2021, 3.4.2).

    >>> llama = {"model_type": "llama", "hidden_size": 4, "num_attention_heads": 1, "num_hidden_layers": 1}
    >>> names = [f"model.layers.0.self_attn.{part}_proj.bias" for part in "qk"]
    >>> converted = convert_pairing({name: torch.arange(4.0) for name in names}, llama, "interleaved")
    >>> converted[names[0]].tolist()
    [0.0, 2.0, 1.0, 3.0]
    """
    turns = plan({name: _sort(name, tensor) for name, tensor in state_dict.items()}, source, to, of).turns
    done: dict[tuple[Any, ...], Tensor] = {}  # by memory, so that shared tensors stay shared
    out = dict(state_dict)
    for name, permutation in turns.items():
        x = out[name]
        place = id(x) if x.is_meta else (x.data_ptr(), x.device, x.dtype, x.shape, x.stride())
        if (place, permutation) not in done:
            done[place, permutation] = permutation.apply(x)
        out[name] = done[place, permutation]
    return out


def _sort(name: str, tensor: Tensor) -> Sort:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{_WHO}: values must be tensors; got {type(tensor).__name__} for {name!r}. Pass a state_dict.")
    # subclasses of Tensor may hold other data than they show, such as scales or shards
    own = type(tensor) not in (Tensor, torch.nn.Parameter, torch.nn.Buffer)
    dtype = type(tensor).__name__ if own else str(tensor.dtype).removeprefix("torch.")
    return Sort(tuple(tensor.shape), dtype, tensor.dtype in _PLAIN and not own and tensor.layout == torch.strided)


def plan(
    tensors: Mapping[str, Sort], source: config.Source, to: config.Pairing, of: config.Pairing | None = None
) -> Plan:
    """Plan the permutations of `convert_pairing` from shapes and dtypes, without the tensors.

    Raises:
        ValueError: See `convert_pairing`.
        TypeError: A name is not a string, or the configuration has a value of a wrong type.
    """
    for word, value, usual in (("to", to, "half"), ("of", of, None)):
        if value not in ("half", "interleaved", usual):
            raise ValueError(f"{_WHO}: {word} must be 'half' or 'interleaved'; got {short(value)}.")
    model = open_model(source)
    kept, layers = layout(model), read_layers(model, of)
    if layers.pairing == to:
        raise ValueError(
            f"{_WHO}: these weights are {to} already, so there is nothing to do; got to={short(to)}. "
            f"If they do not have the usual pairing of {model.name}, pass their pairing as of."
        )
    turns, left, wrong = dict[str, Permutation](), dict[str, str](), dict[str, str]()
    held: dict[str, str] = defaultdict(str)  # the letters of queries and keys found in each attention
    for name, sort in tensors.items():
        if not isinstance(name, str):
            raise TypeError(f"{_WHO}: names of tensors must be strings; got {short(name)}. Pass a state_dict.")
        found = read(name, kept)
        try:
            decided = _decide(found, sort, layers, to)
        except ValueError as error:
            wrong[name] = str(error)
            continue
        if isinstance(decided, Permutation):
            turns[name] = decided
            held[found.module] += found.parts[0] if found.parts and found.role == "weight" else ""
        elif decided:
            left[name] = decided
    _refuse(model, turns, wrong, held)
    return Plan(model.name, layers.pairing, to, turns, left)


def _decide(found: Found, sort: Sort, layers: Layers, to: config.Pairing) -> Permutation | str | None:
    """Return a tensor's permutation, the reason why its queries or keys are left, or None if it has neither.

    Raises:
        ValueError: The tensor is not known.
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
        raise ValueError(f"has {size} entries where heads have {heads.head_dim}")
    else:
        starts = tuple(range(heads.first, size, heads.head_dim))
    return Permutation(dim, starts, heads.rotary_dim, to)


def _refuse(model: Model, turns: Mapping[str, Permutation], wrong: Mapping[str, str], held: Mapping[str, str]) -> None:
    """Raise an error if a tensor was not known, if queries lack keys, or if nothing rotates."""
    quantized = [name for name, why in wrong.items() if why.startswith("quantized")]
    needed = {"q"} if model.fields.get("num_kv_shared_layers") else {"q", "k"}
    single = [module for module, parts in held.items() if parts and not needed <= set(parts)]
    if quantized:
        raise ValueError(
            f"{_WHO}: quantized queries and keys cannot be permuted, because blocks of rows share scales; got "
            f"{_list(quantized)}. Convert the weights before they are quantized."
        )
    if wrong:
        listed = _list(f"{name} ({why})" for name, why in wrong.items())
        raise ValueError(
            f"{_WHO}: tensors that look like queries or keys do not match the layout of {model.name}, so nothing was "
            f"converted; got {listed}."
        )
    if single:
        raise ValueError(
            f"{_WHO}: queries and keys must be converted together; got only one of them in {_list(single)}. "
            f"Pass the whole checkpoint."
        )
    if not turns:
        raise ValueError(
            f"{_WHO}: none of these tensors has queries or keys that rotate; got names that {model.name} does not "
            f"have. Pass its state_dict or LoRA factors."
        )


def _list(names: Iterable[str]) -> str:
    shown = list(names)
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ", ".join(name[:200] if name.isprintable() else ascii(name[:200]) for name in shown[:_SHOWN]) + more
