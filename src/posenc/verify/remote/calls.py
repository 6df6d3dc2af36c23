"""The calls of each convention by name, and stand-ins for the objects that a check would call."""

import itertools
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from torch import Tensor

from posenc.verify.guard import NotAnsweredError

_X = ("x", "positions")
FUNCTIONS: Mapping[str, Mapping[str, tuple[str, ...]]] = {  # convention: function: its arguments
    "hf_rope": {"rotary": ("x", "position_ids"), "apply": ("q", "k", "cos", "sin")},
    "meta_complex": {"table": ("end",), "apply": ("q", "k", "table")},
    "rope_fn": {"rope": _X},
    "rope_axes_fn": {"rope": _X},
    "rope_offset_fn": {"rope": ("x", "offset")},
    "lucidrains": {"rotate_queries_or_keys": ("x", "offset")},
    "bshd_module": {"forward": ("q", "k")},
    "xpos_fn": {"xpos": ("q", "k")},
    "mrope_fn": {"angles": ("position_ids",)},
    "mrope_positions_fn": {"positions": ("segments", "time_steps")},
    "rope2d_table_fn": {"table": ("h", "w")},
    "additive_module": {"forward": ("x",)},
    "additive_2d_module": {"forward": ("x",)},
    "relative_table_fn": {"table": ("n",)},
    "relative_index_fn": {"index": ("h", "w")},
    "slopes_fn": {"slopes": ("n_heads",)},
    "bias_fn": {"bias": ("heads", "q_len", "kv_len")},
    "score_mod": {"score_mod": ("score", "b", "h", "q_idx", "kv_idx")},
    "bucket_fn": {"bucket": ("relative_position",)},
    "position_fn": {"positions": ("attention_mask", "q_len")},
    "packed_position_fn": {"positions": ("cu_seqlens",)},
    "learned_rows_fn": {"rows": ("attention_mask",)},
    "cached_model": {"model": ("x", "cache")},
    "attention": {"attention": ("q", "k", "v", "positions")},
}


class Channel(Protocol):
    """What answers calls."""

    def ask(self, function: str, instance: int, args: Mapping[str, Any]) -> Any:
        """Return the answer to one call.

        Raises:
            NotAnsweredError: There is no answer to this call.
            SubjectError: The subject cannot be asked any more.
            RuntimeError: The subject reports an error of its own.
        """


class Remote:
    """A function that is answered elsewhere; a deep copy of it is another instance, in its state at the start."""

    def __init__(
        self, channel: Channel, function: str, names: tuple[str, ...], instances: Iterator[int], instance: int = 0
    ) -> None:
        self.channel, self.function, self.names = channel, function, names
        self.instances, self.instance = instances, instance

    def __deepcopy__(self, memo: dict[Any, Any]) -> "Remote":
        """Return a new instance; functions that are copied together share it."""
        key = ("posenc instance", self.instance)
        if key not in memo:
            memo[key] = next(self.instances)
        return Remote(self.channel, self.function, self.names, self.instances, memo[key])

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Return the answer to a call."""
        given = dict(zip(self.names, args, strict=False)) | named
        tensors = [value for value in given.values() if isinstance(value, Tensor)]
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            raise NotAnsweredError("gradients are not asked of a program or a recording")
        return self.channel.ask(self.function, self.instance, given)


def subject(convention: str, channel: Channel) -> Any:
    """Return what a check of a convention calls, answered by a channel.

    Raises:
        ValueError: The convention is one of Python objects only.
    """
    if convention not in FUNCTIONS:
        raise ValueError(
            f"verify: {convention} is a convention of Python objects; a program can be asked by {', '.join(FUNCTIONS)}."
        )
    instances = itertools.count(1)
    made = [Remote(channel, name, names, instances) for name, names in FUNCTIONS[convention].items()]
    if convention == "lucidrains":
        return SimpleNamespace(rotate_queries_or_keys=made[0])
    return tuple(made) if len(made) > 1 else made[0]
