"""GPT-J and CodeGen: positions are looked up in a table of sines and cosines.

Each attention holds one; since transformers 5.24, one module for all of them.
"""

from typing import Any

import torch
from torch import Tensor, nn

from posenc.encodings import RoPE
from posenc.interop.hf import tables, turning
from posenc.interop.hf.patching import LeftError


def holds_table(module: nn.Module) -> bool:
    """Whether a module holds such a table."""
    return "embed_positions" in module._buffers and hasattr(module, "pos_embd_dim")


def exact(host: Any) -> tuple[RoPE, dict[nn.Module, dict[str, Tensor]]]:
    """Return the encoding of a model, and by module its table (max_positions, rotary_dim), sines first.

    Raises:
        LeftError: Its tables are others.
    """
    holders = [module for module in host.modules() if holds_table(module)]
    theirs = holders[0].embed_positions
    if theirs.is_meta:
        raise LeftError("its tables have no values yet: they are on the meta device")
    try:
        rope: Any = RoPE.from_config(tables.plain(host.config))
    except (ValueError, TypeError) as error:
        raise LeftError(str(error)) from None
    cos, sin = rope.place(torch.arange(len(theirs))).parts
    table = torch.cat((sin, cos), -1)
    coarse = 0.02 if theirs.dtype in (torch.bfloat16, torch.float16) else 0.0
    tolerance = turning.TOLERANCE + coarse + 3e-7 * len(theirs)
    if table.shape != theirs.shape or bool((table - theirs.float().cpu()).abs().max() > tolerance):
        raise LeftError("its tables are others than its configuration says")
    return rope, {module: {"embed_positions": table} for module in holders}


def get_embed_positions(module: Any, position_ids: Tensor) -> Tensor:
    """Return the table (batch, max_positions, rotary_dim) without a copy for each text."""
    table: Tensor = module.embed_positions
    return table.to(position_ids.device).expand(len(position_ids), -1, -1)
