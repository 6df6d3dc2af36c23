"""GPT-J and CodeGen, which look positions up in a table of sines and cosines.

Each attention layer has one; since transformers 5.24, one module has it for all layers.
"""

from typing import Any

import torch
from torch import Tensor, nn

from posenc.encodings import RoPE
from posenc.interop.hf import rotation, tables
from posenc.interop.hf.patching import LeftError


def holds_table(module: nn.Module) -> bool:
    """Whether a module has such a table."""
    return "embed_positions" in module._buffers and hasattr(module, "pos_embd_dim")


def exact(host: Any) -> tuple[RoPE, dict[nn.Module, dict[str, Tensor]]]:
    """Return the encoding of a model, and by module its table (max_positions, rotary_dim), sines first.

    Raises:
        LeftError: The model's tables differ from its configuration, or have no values.
    """
    holders = [module for module in host.modules() if holds_table(module)]
    theirs = holders[0].embed_positions
    if theirs.is_meta:
        raise LeftError("its tables are on the meta device and have no values yet")
    try:
        rope: Any = RoPE.from_config(tables.plain(host.config))
    except (ValueError, TypeError) as error:
        raise LeftError(str(error)) from None
    cos, sin = rope.place(torch.arange(len(theirs))).parts
    table = torch.cat((sin, cos), -1)
    coarse = 0.02 if theirs.dtype in (torch.bfloat16, torch.float16) else 0.0
    tolerance = rotation.TOLERANCE + coarse + 3e-7 * len(theirs)
    if table.shape != theirs.shape or bool((table - theirs.float().cpu()).abs().max() > tolerance):
        raise LeftError("its tables differ from its configuration")
    return rope, {module: {"embed_positions": table} for module in holders}


def get_embed_positions(module: Any, position_ids: Tensor) -> Tensor:
    """Return the table (batch, max_positions, rotary_dim) as a view without copies."""
    table: Tensor = module.embed_positions
    return table.to(position_ids.device).expand(len(position_ids), -1, -1)
