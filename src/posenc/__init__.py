"""posenc: position in Transformers.

Every position encoding has the same interface. Names resolve lazily (PEP 562), so the command line starts
without importing torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from posenc.needs import needs_torch

__version__ = "0.1.0"

if TYPE_CHECKING:  # `as` exports a name to type checkers that read an installed package
    from posenc import character as character
    from posenc import config as config
    from posenc import definitions as definitions
    from posenc import figures as figures
    from posenc import frequencies as frequencies
    from posenc import inspection as inspection
    from posenc import interop as interop
    from posenc import languages as languages
    from posenc import laws as laws
    from posenc import measure as measure
    from posenc import nn as nn
    from posenc import positions as positions
    from posenc import precision as precision
    from posenc import registry as registry
    from posenc.attention import attend as attend
    from posenc.attention import explain as explain
    from posenc.compose import Compose as Compose
    from posenc.compose import PerLayer as PerLayer
    from posenc.encoding import Encoding as Encoding
    from posenc.encodings import *  # noqa: F403
    from posenc.families import Additive as Additive
    from posenc.families import Bias as Bias
    from posenc.families import ContentBias as ContentBias
    from posenc.families import Embedded as Embedded
    from posenc.families import Norm as Norm
    from posenc.families import Rotary as Rotary
    from posenc.families import ScoreMap as ScoreMap
    from posenc.families import Table as Table
    from posenc.families import ValueRotary as ValueRotary
    from posenc.interop import hf as hf
    from posenc.mapped import Mapped as Mapped
    from posenc.mapped import OnAxes as OnAxes
    from posenc.memory import reuse_pages as reuse_pages
    from posenc.piecewise import Piecewise as Piecewise
    from posenc.placed import Placed as Placed
    from posenc.registry import Card as Card
    from posenc.registry import Dims as Dims
    from posenc.registry import card as card
    from posenc.registry import create as create
    from posenc.registry import names as names
    from posenc.registry import register as register
    from posenc.rephasing import move_keys as move_keys
    from posenc.rephasing import rephase as rephase
    from posenc.verify.identity.identify import identify as identify

_HOMES = {
    "attention": "attend explain",
    "compose": "Compose PerLayer",
    "encoding": "Encoding Placed",
    "families": "Additive Bias ContentBias Embedded Norm Rotary ScoreMap Table ValueRotary",
    "mapped": "Mapped OnAxes",
    "memory": "reuse_pages",
    "piecewise": "Piecewise",
    "rephasing": "move_keys rephase",
    "registry": "Card Dims card create names register",
    "verify.identity.identify": "identify",
}
_MODULES = [
    "character",
    "config",
    "definitions",
    "figures",
    "frequencies",
    "inspection",
    "interop",
    "languages",
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
