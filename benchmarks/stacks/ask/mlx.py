"""Ask real mlx-lm models what they rotate, one token at each position (mlx and mlx-cpu run on Linux)."""

import sys
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
from mlx.utils import tree_map
from mlx_lm import utils
from mlx_lm.models import base
from mlx_lm.models import cache as caches

from ask import common
from ask.common import STAGE, Answer, Job, positions, score, text_of
from ask.decode import Table, decode, temperature

ROPES = ("rope", "rotary_emb", "_rope", "rope_global", "rope_local")
STILL = ("mamba", "linear_attention", "conv", "recurrent", "mlp", "moe")
HOLDS_KEYS = ("KVCache", "RotatingKVCache", "ChunkedKVCache", "QuantizedKVCache", "ConcatenateKVCache")
ATTENDED: list[tuple[Any, float]] = []  # query and scale, in the order of calls
ROTATED: dict[int, dict[int, tuple[Any, Any]]] = {}  # before and after, by layer and position
DYNAMIC: dict[int, Any] = {}  # ropes whose base depends on the length of the text
REAL = base.scaled_dot_product_attention


def attend(queries: Any, keys: Any, values: Any, cache: Any = None, scale: Any = None, mask: Any = None, *rest: Any,
           **more: Any) -> Any:  # fmt: skip
    """Note the query, then attend."""
    ATTENDED.append((np.array(queries[0, 0, 0].astype(mx.float32)), scale))
    return REAL(queries, keys, values, cache, scale, None if isinstance(mask, str) else mask, *rest, **more)


class Recorder:
    """A rope that notes what goes into it and out of it."""

    def __init__(self, real: Any, layer: int) -> None:
        self.real, self.layer = real, layer

    def __call__(self, x: Any, *given: Any, **more: Any) -> Any:
        """Rotate: the first call of a layer at a position is of q or k."""
        out = self.real(x, *given, **more)
        if type(self.real).__name__ == "DynamicNTKScalingRoPE":
            DYNAMIC[self.layer] = self.real
        offset = int(more.get("offset", given[0] if given else 0))
        seen = tuple(np.array(one[0, 0, 0].astype(mx.float32)) for one in (x, out))
        ROTATED.setdefault(self.layer, {}).setdefault(offset, seen)
        return out

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


class Empty:
    """A cache at some offset that holds nothing."""

    def __init__(self, at: int) -> None:
        self.offset, self._idx, self.keys, self.values = at, at, None, None
        self.step, self.max_size, self.start_position, self.state = 256, 4096, 0, None

    def update_and_fetch(self, k: Any, v: Any) -> tuple[Any, Any]:
        """Return the token's own keys and values."""
        self.keys = k
        return k, v

    def make_mask(self, *given: Any, **more: Any) -> None:
        """Return no mask."""

    def maybe_trim_front(self) -> None:
        """Trim nothing."""

    def __bool__(self) -> bool:
        return True


def _at(cache: Any, at: int) -> Any:
    """Return a cache that stands at a position."""
    if isinstance(cache, caches.CacheList):
        return caches.CacheList(*[_at(one, at) for one in cache.caches])
    return Empty(at) if type(cache).__name__ in HOLDS_KEYS else cache


def ask(job: Job) -> Answer:
    """Answer a job."""
    cls, arguments = utils._get_classes(job["config"])
    given = arguments.from_dict(job["config"])
    STAGE[0] = "build"
    model = cls(given)
    mx.random.seed(0)
    model.update(tree_map(_random, model.parameters()))
    for name, module in list(sys.modules.items()):
        if name.startswith("mlx_lm.models") and getattr(module, "scaled_dot_product_attention", None) is REAL:
            module.scaled_dot_product_attention = attend
    for i, layer in enumerate(model.layers):
        for _, module in layer.named_modules():
            for key in [key for key in ROPES if callable(module.get(key))]:
                object.__setattr__(module, key, Recorder(module.pop(key), i))
    for seen in (ATTENDED, ROTATED, DYNAMIC):
        seen.clear()
    STAGE[0] = "forward"
    for at in positions(job):
        own = model.make_cache() if hasattr(model, "make_cache") else [caches.KVCache() for _ in model.layers]
        mx.eval(model(mx.array([[5]]), cache=[_at(one, at) for one in own]))
    STAGE[0] = "measure"
    return _digest(job, len(model.layers)) | {"model": cls.__module__}


def _random(p: Any) -> Any:
    return mx.random.normal(p.shape) * 0.2 if p.ndim >= 2 and mx.issubdtype(p.dtype, mx.floating) else p


def _attending(text: Answer, n: int, n_calls: int) -> list[int]:
    """Return the layers with attention, from the configuration."""
    kinds = text.get("layer_types") or text.get("layers_block_type")
    if kinds:
        return [i for i in range(n) if i < len(kinds) and kinds[i] not in STILL]
    if text.get("full_attention_interval"):
        return [i for i in range(n) if (i + 1) % text["full_attention_interval"] == 0]
    return list(range(n)) if n_calls == n else sorted(ROTATED)


def _digest(job: Job, n: int) -> Answer:
    """Sort the calls of attention and of ropes into layers."""
    table, at = Table(), positions(job)
    each = len(ATTENDED) // len(at)  # calls of attention at a position
    attending = _attending(text_of(job["config"]), n, each)
    for i in range(n):
        if i not in attending:
            table.add({"attention": False})
            continue
        layer: Answer = {"attention": True, "temperature": None, "score": None}
        q = None
        if each == len(attending):
            calls = ATTENDED[attending.index(i) :: each]
            q = np.array([one for one, _ in calls])
            layer |= {"temperature": temperature(q, at), "score": score(calls[0][1], job["config"])}
            layer["head_dim"] = q.shape[-1]
        found = _rotation(i, q, at)
        table.add(layer | {"rotates": found is not None} | (found or {}))
    return table.answer()


def _rotation(layer: int, q: Any, at: list[int]) -> Answer | None:
    """Decode a layer's rope, or its query if none was seen."""
    if layer in DYNAMIC:  # rotate a text as a whole
        rope, last = DYNAMIC[layer], at[-1] + 1
        one = mx.random.normal((rope.dims,))
        out = rope(mx.broadcast_to(one, (1, 1, last, rope.dims)))
        return decode(np.array(one)[None].repeat(len(at), 0), np.array(out[0, 0].astype(mx.float32))[at], at)
    if layer in ROTATED:
        seen = [ROTATED[layer][one] for one in sorted(ROTATED[layer])]
        return decode(np.array([one for one, _ in seen]), np.array([one for _, one in seen]), sorted(ROTATED[layer]))
    if q is None:
        return None
    found = decode(q[:1].repeat(len(at), 0), q, at)
    return found and found | {"gain": None}


if __name__ == "__main__":
    common.run(ask, mlx_lm.__version__)
