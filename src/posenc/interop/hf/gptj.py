"""GPT-J and CodeGen: positions are looked up in a table of sines and cosines.

Each attention holds one; since transformers 5.24, one module for all of them.
"""

from typing import Any

import torch
from torch import Tensor, nn

from posenc.encodings import RoPE
from posenc.interop.hf import copied, patching, tables, turning


def holds_table(module: nn.Module) -> bool:
    """Whether a module holds such a table."""
    return "embed_positions" in module._buffers and hasattr(module, "pos_embd_dim")


def planned(host: Any) -> tuple[RoPE, Tensor] | str:
    """Return the encoding and its table (max_positions, rotary_dim), sines first; or a sentence why not."""
    theirs = next(module for module in host.modules() if holds_table(module)).embed_positions
    if theirs.is_meta:
        return "its tables have no values yet: they are on the meta device"
    try:
        rope: Any = RoPE.from_config(tables.plain(host.config))
    except (ValueError, TypeError) as error:
        return str(error)
    cos, sin = rope.place(torch.arange(len(theirs))).parts
    table = torch.cat((sin, cos), -1)
    coarse = 0.02 if theirs.dtype in (torch.bfloat16, torch.float16) else 0.0
    tolerance = turning.TOLERANCE + coarse + 3e-7 * len(theirs)
    if table.shape != theirs.shape or bool((table - theirs.float().cpu()).abs().max() > tolerance):
        return "its tables are others than its configuration says"
    return rope, table


def replace(host: Any, callers: list[Any], rope: RoPE, table: Tensor, function_name: str) -> None:
    """Put exact tables and the turn into a model."""
    for module in host.modules():
        if holds_table(module):
            patching.swap(module, embed_positions=table)
    module = callers[0]
    turn = turning.SineFirst(rope.pairing)
    turn.widths(module.head_dim, n_pairs=rope.rotary_dim // 2)
    cls = patching.own_class(module)
    functions: dict[str, Any] = {"forward": copied.Copied(cls, "forward", {function_name: turn})}
    if hasattr(module, "_get_embed_positions"):
        functions["_get_embed_positions"] = _get_embed_positions
    patching.replace(callers, **functions)


def _get_embed_positions(module: Any, position_ids: Tensor) -> Tensor:
    """Return the table (batch, max_positions, rotary_dim) without a copy for each text."""
    table: Tensor = module.embed_positions
    return table.to(position_ids.device).expand(len(position_ids), -1, -1)
