"""Caches of models whose frequencies depend on the length: re-rotate cached keys to the current frequencies.

LongRoPE has two sets of frequencies: its keys are re-rotated once in the cache, when a text outgrows the first set.
The frequencies of dynamic NTK change with every token: its keys stay as cached, and a copy is re-rotated for attention,
so rounding errors do not accumulate.
"""

import inspect
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from posenc.encodings import LongRoPE
from posenc.families import Rotary
from posenc.interop.hf import copied, patching
from posenc.interop.hf.interface import CACHES
from posenc.interop.hf.patching import LeftError
from posenc.interop.hf.rotation import Rotation
from posenc.interop.hf.tables import Places
from posenc.rephasing import rephase

_PREPARE = "prepare_inputs_for_generation"
_STATE = "_posenc_rotated"  # on a layer of a cache: the encoding of its keys, and their positions
_IN_PLACE = ("DynamicLayer", "DynamicSlidingWindowLayer", "StaticLayer", "StaticSlidingWindowLayer")


def check(callers: Iterable[nn.Module]) -> None:
    """Raise an error if the caches of these attention layers cannot be re-rotated."""
    for module in callers:
        if _cache_argument(module) is None:
            name = type(module).__name__
            raise LeftError(f"its frequencies depend on the length, but {name} has no cache argument with a known name")


def forward(module: Any, *args: Any, copy: Any, places: Places, rotations: tuple[Rotation, ...], **kwargs: Any) -> Any:
    """Run an attention layer with a cache that re-rotates its keys."""
    bound = inspect.signature(patching.own_class(module).forward).bind_partial(module, *args, **kwargs)
    name = _cache_argument(module) or ""
    cache = bound.arguments.get(name)
    if cache is None:
        return copy(module, *args, **kwargs)
    for rotation in rotations:
        rotation.called = False
    bound.arguments[name] = RephasedCache(cache, places, rotations, _kind(module, places))
    return copy(*bound.args, **bound.kwargs)


def keep_caches(model: nn.Module) -> dict[nn.Module, patching.Methods]:
    """Return the replacements that keep a cache where frequencies change; Phi-3's models drop it there."""
    methods: dict[nn.Module, patching.Methods] = {}
    for module in model.modules():
        for cls in type(module).__mro__:
            prepare = vars(cls).get(_PREPARE)
            if prepare is not None and "original_max_position_embeddings" in copied.mentions(prepare):
                if _PREPARE not in vars(module):
                    methods[module] = {_PREPARE: partial(_prepare, cls=cls)}
                break
    return methods


def _prepare(module: Any, *args: Any, cls: Any, **kwargs: Any) -> Any:
    """Call the method of the parent of the class that drops caches."""
    return super(cls, module).prepare_inputs_for_generation(*args, **kwargs)


class RephasedCache:
    """A cache for one attention layer that returns all keys with the frequencies of the newest ones."""

    def __init__(self, cache: Any, places: Places, rotations: tuple[Rotation, ...], kind: str | None) -> None:
        self._cache, self._places, self._rotations, self._kind = cache, places, rotations, kind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def update(self, k: Tensor, v: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Add keys and values, and return all of them."""
        cache = self._cache
        if not any(rotation.called for rotation in self._rotations) or self._kind not in self._places.last:
            return cache.update(k, v, layer_idx, *args, **kwargs)  # type: ignore[no-any-return]  # this layer does not rotate
        now, pos = self._places.last[self._kind]
        layers = getattr(cache, "self_attention_cache", cache).layers
        before, known = _state(layers, layer_idx, now, pos, self._places.encodings[self._kind])
        pos = torch.cat((known, pos.expand(len(known), -1)), -1)
        if _same(before, now):
            before = now
        elif isinstance(now, LongRoPE) and type(layers[layer_idx]).__name__ in _IN_PLACE:
            _rephase_layer(layers[layer_idx], known, before, now)
            before = now
        else:
            k = rephase(k, pos[:, -k.shape[-2] :], now, before)
        k, v = cache.update(k, v, layer_idx, *args, **kwargs)
        setattr(layers[layer_idx], _STATE, (before, pos))
        return (k if before is now else rephase(k, _of_slots(pos, k.shape[-2]), before, now)), v


def _state(layers: Any, layer_idx: int, now: Rotary, pos: Tensor, encoding: Rotary) -> tuple[Rotary, Tensor]:
    """Return the encoding of the cached keys and their positions (batch, n); of an empty cache, those of the next."""
    batch = pos.shape[0]
    layer = layers[layer_idx] if layer_idx < len(layers) else None
    n = int(layer.get_seq_length()) if layer is not None and layer.is_initialized else 0
    if not n:
        return now, pos.new_zeros(batch, 0)
    state: tuple[Rotary, Tensor] | None = getattr(layer, _STATE, None)
    if state is None:  # filled before `use`: assume one forward pass of texts without gaps
        known = pos[:, :1] - n + torch.arange(n, device=pos.device)
        state = encoding.resolve(n), known.clamp(min=0)  # type: ignore[assignment]
    before, known = state  # type: ignore[misc]
    held = layer.keys.shape[0]  # type: ignore[union-attr]
    if held > len(known) > 0 and held % len(known) == 0:  # beams, or several answers to one text
        known = known.repeat_interleave(held // len(known), 0)
    return before, known[..., :n].to(pos.device)  # a cropped cache has lost its last keys


def _rephase_layer(layer: Any, known: Tensor, before: Rotary, now: Rotary) -> None:
    keys = layer.keys
    rephased = rephase(keys, _of_slots(known, keys.shape[-2]).to(keys.device), before, now)
    if hasattr(layer, "max_cache_len"):  # CUDA graphs replay from a static cache's addresses
        keys.copy_(rephased)
    else:
        layer.keys = rephased


def _of_slots(pos: Tensor, n: int) -> Tensor:
    """Return the positions of n slots: the last n of a window, and zeros for unused slots."""
    if pos.shape[-1] >= n:
        return pos[..., pos.shape[-1] - n :]
    return torch.cat((pos, pos.new_zeros(*pos.shape[:-1], n - pos.shape[-1])), -1)


def _same(before: Rotary, now: Rotary) -> bool:
    return before is now or (before.gain() == now.gain() and torch.equal(before.frequencies(), now.frequencies()))


def _cache_argument(module: nn.Module) -> str | None:
    named = inspect.signature(patching.own_class(module).forward).parameters
    return next((name for name in CACHES if name in named), None)


def _kind(module: Any, places: Places) -> str | None:
    if None in places.encodings:
        return None
    kind = getattr(module, "layer_type", None)
    return kind if kind is not None else module.config.layer_types[module.layer_idx]  # type: ignore[no-any-return]
