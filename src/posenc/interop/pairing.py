"""Weights trained with one pairing of lanes, permuted so that they give the same with the other."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from posenc import config
from posenc.interop.plan import Sort, Turn, plan

PLAIN = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


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
    found = plan({name: _sort(name, tensor) for name, tensor in state_dict.items()}, source, to, of)
    done: dict[tuple[Any, ...], Tensor] = {}
    return {name: _converted(tensor, found.turns.get(name), done) for name, tensor in state_dict.items()}


def _sort(name: str, tensor: Tensor) -> Sort:
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"convert_pairing: values must be tensors; got {type(tensor).__name__} for {name!r}. Pass a state_dict."
        )
    kind = type(tensor).__name__  # a class of its own holds something else than it shows: scales, shards
    own = type(tensor) not in (Tensor, torch.nn.Parameter, torch.nn.Buffer)
    dtype = kind if own else str(tensor.dtype).removeprefix("torch.")
    return Sort(tuple(tensor.shape), dtype, tensor.dtype in PLAIN and not own and tensor.layout == torch.strided)


def _converted(tensor: Tensor, turn: Turn | None, done: dict[tuple[Any, ...], Tensor]) -> Tensor:
    """Return the tensor itself, or its permuted copy: the same one for every name of the same memory."""
    if turn is None:
        return tensor
    place: int | tuple[Any, ...] = id(tensor)
    if tensor.device.type != "meta":
        place = (tensor.data_ptr(), tensor.device, tensor.dtype, tuple(tensor.shape), tensor.stride())
    key = (place, turn.dim, id(turn.index))
    if key not in done:
        done[key] = turn.apply(tensor)
    return done[key]
