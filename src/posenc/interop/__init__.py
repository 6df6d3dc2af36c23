"""Read and convert the checkpoints of other libraries."""

from posenc.interop.conversion import Conversion, convert_checkpoint
from posenc.interop.layouts import LAYOUTS as _LAYOUTS
from posenc.interop.plan import Plan, convert_pairing
from posenc.interop.tables import load_tables

MODEL_TYPES = tuple(sorted(_LAYOUTS))

__all__ = ["MODEL_TYPES", "Conversion", "Plan", "convert_checkpoint", "convert_pairing", "load_tables"]
