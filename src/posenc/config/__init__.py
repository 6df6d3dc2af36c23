"""Read the position encoding of model configurations safely, in old and new spellings.

This package does not import torch, and nothing in a file is executed, imported or fetched.
"""

from posenc.config.kinds import layer_types
from posenc.config.model import ConfigWarning
from posenc.config.models import TYPES as _TYPES
from posenc.config.models import Pairing
from posenc.config.reading import Source, read
from posenc.config.rotation import Rotary, rotary

MODEL_TYPES = tuple(sorted(_TYPES))

__all__ = ["MODEL_TYPES", "ConfigWarning", "Pairing", "Rotary", "Source", "layer_types", "read", "rotary"]
