"""RoFormer: its attentions turn by a method, and by a table that `state_dict` holds."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from posenc.encodings import RoPE
from posenc.interop.hf import patching
from posenc.interop.hf.turning import TOLERANCE, Pair

routed = "apply_rotary_position_embeddings"  # its attention stays its own


def refuses(host: nn.Module) -> str | None:
    """Return why this encoder cannot be routed, or None."""
    for module in attentions(host):
        if sentence := patching.taken(module, "apply_rotary_position_embeddings"):
            return sentence
    module = attentions(host)[0]
    table, turn = _table(module), _turn(module)
    q, k = (torch.linspace(-1, 1, 3 * table.shape[-1]).view(1, 1, 3, -1) * i for i in (1, 2))
    theirs = patching.own_class(module).apply_rotary_position_embeddings(table, q, k)
    ours = _apply(module, table, q, k, turn=turn)
    same = all(bool((a - b).abs().max() < TOLERANCE) for a, b in zip(ours, theirs, strict=True))
    return None if same else "its method apply_rotary_position_embeddings turns otherwise than by pairs (2k, 2k + 1)"


def route(host: nn.Module) -> None:
    """Replace the method of each attention; the table is a parameter, and stays."""
    layers = attentions(host)
    patching.replace(layers, apply_rotary_position_embeddings=partial(_apply, turn=_turn(layers[0])))


def said(host: nn.Module) -> str:
    """Return in a few words what runs."""
    layers = attentions(host)
    rope = RoPE(head_dim=layers[0].attention_head_size, pairing="interleaved")
    return f"turns queries and keys of {len(layers)} attentions by {rope}, by the model's own table"


def _apply(
    module: Any, sinusoidal_pos: Tensor, q: Tensor, k: Tensor, v: Tensor | None = None, *, turn: Pair
) -> tuple[Tensor, ...]:
    sin, cos = sinusoidal_pos[:, 0].chunk(2, -1)  # (1, 1, seq, head_dim)
    turned = turn(q, k, cos, sin)
    return (*turned, turn(v, v, cos, sin)[0]) if v is not None else turned


def _turn(module: Any) -> Pair:
    turn = Pair("interleaved")
    turn.widths(n_pairs=module.attention_head_size // 2)
    return turn


def _table(module: Any) -> Tensor:
    """Return sines and cosines (1, 1, 3, head_dim) of three positions."""
    rope = RoPE(head_dim=module.attention_head_size)
    cos, sin = rope.place(torch.arange(3)).parts
    return torch.cat((sin, cos), -1)[None, None]


def attentions(host: Any) -> list[Any]:
    """Return the attentions of an encoder."""
    return [getattr(block, name).self for block in host.layer for name in ("attention", "crossattention")
            if hasattr(block, name)]  # fmt: skip
