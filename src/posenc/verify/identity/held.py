"""A tensor of a module, with what the modules around it show: the head dimension, and the rotations of their file."""

import inspect
import math
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from posenc.verify.engine.read import BASES
from posenc.verify.identity.rules import fit

HEADS = "num_heads n_heads n_head heads num_attention_heads nheads"
HEAD_DIM = "head_dim head_size attention_head_size dim_head attn_dim_head d_kv d_k"
WIDTH = "embed_dim hidden_size d_model n_embd"  # Qwen2-VL's hidden_size is that of the text
NEAR = 2e-3  # tables of sines whose angles, up to thousands of radians, are in float32


@dataclass(frozen=True)
class Held:
    """A tensor of a module: its path, and the modules around it, innermost first."""

    path: str
    tensor: Tensor
    owners: tuple[nn.Module, ...]
    width: int | None = None  # the head dimension, if the caller knows it

    @property
    def name(self) -> str:
        """The tensor's own name."""
        return self.path.rpartition(".")[2]

    @property
    def table(self) -> Tensor:
        """The tensor without dimensions of size 1."""
        return self.tensor.detach().squeeze()

    def fact(self, names: str) -> Any:
        """Return the first number or pair among attributes of the modules around, or of their configurations."""
        for source in (s for owner in self.owners for s in (owner, *self._configs(owner))):
            for name in names.split():
                with suppress(Exception):  # Gemma 4 raises for numbers that differ from layer to layer
                    if isinstance(value := getattr(source, name, None), (bool, int, float, tuple, list)):
                        return value
        return None

    @property
    def layer_type(self) -> str:
        """The type of layer that the tensor's name begins with: Gemma 3 has frequencies for each."""
        return self.name.removesuffix("inv_freq")[:-1]

    def _configs(self, owner: nn.Module) -> list[Any]:
        config = getattr(owner, "config", None)
        with suppress(Exception):
            return [config.per_layer_config[self.layer_type], config]  # type: ignore[union-attr]
        return [config]

    def next_to(self, name: str) -> str:
        """Return the path of another tensor of the module."""
        return self.path.removesuffix(self.name) + name

    def same_as(self, other: "Held") -> bool:
        """Return whether another layer's tensor has the same numbers in the same kind of module."""
        return type(self.owners[0]) is type(other.owners[0]) and torch.equal(self.tensor, other.tensor)

    def head_dim(self) -> int | None:
        """Return the head dimension, if the modules around know it."""
        known, width, heads = (self.fact(names) for names in (HEAD_DIM, WIDTH, HEADS))
        return self.width or known or (width // heads if width and heads else self._head_dim_of_layers())

    def _head_dim_of_layers(self) -> int | None:
        """Return the head dimension that the layers next to the tensor agree on, in the nearest module that has any."""
        for owner in self.owners:
            each = (getattr(part, name, None) for part in owner.modules() for name in HEAD_DIM.split())
            if found := {value for value in each if isinstance(value, int)}:
                return found.pop() if len(found) == 1 else None
        return None


def functions(held: Held) -> list[Callable[..., Any]]:
    """Return the rotations in the file of a module's class and its methods; of several, those that others call."""
    owner = held.owners[0]
    file = sys.modules.get(type(owner).__module__)  # none if it was run, not imported
    own = dict(getattr(type(owner).forward, "__globals__", {}) if file is None else vars(file))
    own |= {name: getattr(owner, name) for name in vars(type(owner))}
    named = {n: f for n, f in own.items() if re.search("rot|rope", n, re.IGNORECASE) and inspect.isroutine(f)}
    classes = {kind for part in held.owners[-1].modules() for kind in type(part).__mro__} - {*type(owner).__mro__}
    methods = [inspect.unwrap(f) for kind in classes for f in vars(kind).values() if inspect.isfunction(f)]
    called = {name for method in methods for name in method.__code__.co_names} & {*named}
    if len(called) > 1 and (flag := held.fact("rope_interleave")) is not None:  # which of two DeepSeek-V3 calls
        called = {name for name in called if ("interleave" in name) == flag}
    return [f for name, f in named.items() if name in called or not called]


def turns(held: Held, width: int) -> tuple[str | None, str | None]:
    """Return pairing and direction of the rotations around a tensor, if these take tables or angles and agree."""
    x = torch.eye(2, width)[:, None, None]
    found: set[tuple[str, str] | None] = {None}
    for rotate in functions(held):
        for shape in ((*ones, size) for ones in ((1, 1, 1), (1, 1)) for size in (width, width // 2)):
            angle = torch.full(shape, 0.3)
            cos, sin = angle.cos(), angle.sin()
            for args in ((x, cos, sin), (x, x, cos, sin), (x, sin, cos), (x, x, sin, cos), (x, angle)):
                with suppress(Exception):
                    out = rotate(*args)
                    found.add(_turn(*(out[0] if isinstance(out, tuple) else out).reshape(2, width)))
    found.discard(None)
    return (found.pop() or (None, None)) if len(found) == 1 else (None, None)


def _turn(row: Tensor, second: Tensor) -> tuple[str, str] | None:
    """Return pairing and direction by the images of two unit vectors, rotated by 0.3; None if they are others."""
    partner, (cos, sin) = int(row[1:].abs().argmax()) + 1, (math.cos(0.3), math.sin(0.3))
    pairing = {len(row) // 2: "half", 1: "interleaved"}.get(partner)
    signed = math.copysign(sin, float(row[partner]))
    want = torch.zeros_like(row).index_put((torch.tensor([0, partner]),), torch.tensor([cos, signed]))
    if pairing is None or not torch.allclose(row, want, atol=1e-5) or abs(float(second[1]) - cos) > 1e-5:
        return None
    return pairing, "counterclockwise" if signed > 0 else "clockwise"


def repeats(rows: Tensor) -> str | None:
    """Return the pairing by which rows repeat each number, if they do."""
    if rows.shape[-1] % 2:
        return None
    each = {"half": rows.chunk(2, -1), "interleaved": (rows[..., ::2], rows[..., 1::2])}
    return next((pairing for pairing, (one, other) in each.items() if one.equal(other)), None)


def base_of(freq: np.ndarray) -> float | None:
    """Return the base of frequencies that may be rounded to a half type."""
    rule, index = fit(freq, 1e-9, 2 * len(freq)), np.arange(len(freq)) / len(freq)
    return rule.base or next((b for b in (*BASES, 256.0) if np.allclose(b**-index, freq, rtol=0.02)), None)
