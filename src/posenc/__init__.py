"""posenc: position in Transformers.

Every position encoding has the same interface. Names resolve lazily (PEP 562), so the command line starts
without importing torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from posenc.needs import needs_torch

__version__ = "0.1.0"

if TYPE_CHECKING:
    from posenc import character, definitions, figures, frequencies, interop, laws, measure, nn, positions, registry
    from posenc.attention import attend, explain
    from posenc.compose import Compose, PerLayer
    from posenc.encoding import Encoding, Placed
    from posenc.encodings import *  # noqa: F403
    from posenc.families import Additive, Bias, ContentBias, Embedded, Norm, Rotary, ScoreMap, ValueRotary
    from posenc.interop import hf
    from posenc.mapped import Mapped, OnAxes
    from posenc.memory import reuse_pages
    from posenc.piecewise import Piecewise
    from posenc.registry import Card, Dims, card, create, names, register
    from posenc.rephasing import move_keys, rephase

_HOMES = {
    "attention": "attend explain",
    "compose": "Compose PerLayer",
    "encoding": "Encoding Placed",
    "families": "Additive Bias ContentBias Embedded Norm Rotary ScoreMap ValueRotary",
    "mapped": "Mapped OnAxes",
    "memory": "reuse_pages",
    "piecewise": "Piecewise",
    "rephasing": "move_keys rephase",
    "registry": "Card Dims card create names register",
}
_MODULES = [
    "character",
    "config",
    "definitions",
    "figures",
    "frequencies",
    "inspection",
    "interop",
    "laws",
    "measure",
    "nn",
    "positions",
    "precision",
    "registry",
]
_ELSEWHERE = {"hf": "interop.hf"}  # modules known by a shorter name
_HOME_OF = {name: home for home, exported in _HOMES.items() for name in exported.split()}


def __getattr__(name: str) -> Any:
    with needs_torch(f"posenc.{name}"):
        if name in _MODULES:
            return import_module(f"posenc.{name}")
        if name in _ELSEWHERE:
            return import_module(f"posenc.{_ELSEWHERE[name]}")
        # other lower-case names are submodules, which the import system finds after an AttributeError here
        home = _HOME_OF.get(name, None if name.islower() or name.startswith("_") else "encodings")
        value = getattr(import_module(f"posenc.{home}"), name, None) if home else None
    if value is None:
        raise AttributeError(f"module 'posenc' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    registry, declared = import_module("posenc.registry"), import_module("posenc.declared")
    classes = (registry.card(name).declared.cls_name for name in declared.names())
    return sorted({*globals(), *_MODULES, *_ELSEWHERE, *_HOME_OF, *classes})
