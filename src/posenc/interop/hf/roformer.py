"""RoFormer, whose attention layers rotate by a method, with a table in `state_dict`."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from posenc.encodings import RoPE
from posenc.interop.hf import patching
from posenc.interop.hf.patching import LeftError, Plan
from posenc.interop.hf.rotation import TOLERANCE, Rotation

_METHOD = "apply_rotary_position_embeddings"


def planned(host: Any) -> Plan:
    """Replace the method of each attention layer; the table is a parameter and stays."""
    layers = [getattr(block, name).self for block in host.layer for name in ("attention", "crossattention")
              if hasattr(block, name)]  # fmt: skip
    patching.check_own(layers, _METHOD)
    rope = RoPE(head_dim=layers[0].attention_head_size, pairing="interleaved")
    table = torch.cat(rope.place(torch.arange(3)).parts[::-1], -1)[None, None]  # sines first
    q, k = (torch.linspace(-1, 1, 3 * table.shape[-1]).view(1, 1, 3, -1) * i for i in (1, 2))
    rotate = partial(_rotate, rotation=Rotation(["q", "k", "cos", "sin"], "interleaved"))
    theirs = getattr(patching.own_class(layers[0]), _METHOD)(table, q, k)
    if any(bool((a - b).abs().max() > TOLERANCE) for a, b in zip(rotate(None, table, q, k), theirs, strict=True)):
        raise LeftError(f"its method {_METHOD} does not rotate pairs of dimensions (2k, 2k + 1)")
    note = f"rotates queries and keys of {len(layers)} attention layers by {rope}, with the model's own table"
    methods: patching.Methods = {_METHOD: rotate}
    return Plan(layers, {host: note}, dict.fromkeys(layers, methods), counted=_METHOD)


def _rotate(
    module: Any, sinusoidal_pos: Tensor, q: Tensor, k: Tensor, v: Tensor | None = None, *, rotation: Rotation
) -> tuple[Tensor, ...]:
    sin, cos = sinusoidal_pos[:, 0].chunk(2, -1)  # (1, 1, seq, head_dim)
    rotated = rotation(q, k, cos, sin)
    return (*rotated, rotation(v, v, cos, sin)[0]) if v is not None else rotated
