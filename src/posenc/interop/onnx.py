"""Export models with rotary encodings to ONNX, with one `RotaryEmbedding` node each for q and k (opset 23).

torch's exporter writes a rotation as a dozen small operators. `export` runs torch's exporter within `rotary_nodes`.
The node computes (a cos - b sin, b cos + a sin) from (a, b), as `RoPE` does, so only names change:

    pairing="half"          interleaved=0
    pairing="interleaved"   interleaved=1
    rotary_dim < head_dim   rotary_embedding_dim=rotary_dim

The node has one dtype for x, cos and sin. Half precision is widened before the node and rounded after it, since posenc
rounds once. Rotations that the node cannot express stay small operators: float64, `rotary_side="last"`, and frequencies
that differ between heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any, cast
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc import positions
from posenc.encoding import Placed
from posenc.families import Rotary
from posenc.kernels import eager
from posenc.kernels.eager import Pairing, Side
from posenc.versions import EXPORTS, is_exporting

__all__ = ["export", "rotary_nodes"]

OPSET = 23  # the first that has the node
_HALVES = (torch.float16, torch.bfloat16)


def export(
    module: nn.Module,
    args: tuple[Any, ...] = (),
    path: str | PathLike[str] | None = None,
    *,
    max_len: int | None = None,
    opset_version: int = OPSET,
    **options: Any,
) -> torch.onnx.ONNXProgram:
    """Export a module to ONNX with one `RotaryEmbedding` node for each tensor that a rotary encoding rotates.

    Args:
        module: A module in eval mode that calls `rope.place` and `rope.rotate`.
        args: Example inputs, as for `torch.onnx.export`.
        path: File to write; None only returns the program, which has `save(path)`.
        max_len: With None, the graph computes cos and sin from the positions, in float64 as posenc does, for any
            length. With a number, tables for positions 0 .. max_len - 1 are stored and looked up, for runtimes without
            float64; the runtime raises an error for positions beyond them.
        opset_version: 23 or later.
        options: Other options of `torch.onnx.export`: `dynamic_shapes`, `kwargs`, `input_names`, ...

    Raises:
        ImportError: onnx or onnxscript is not installed.
        RuntimeError: torch is older than 2.9.
        ValueError: The opset does not have the node, or max_len is below 1.
    """
    who = "posenc.interop.onnx.export"
    _check_torch(who)
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(f"{who}: needs onnx and onnxscript; {error}. Run pip install 'posenc[onnx]'.") from error
    if opset_version < OPSET:
        raise ValueError(
            f"{who}: opset_version must be at least {OPSET}, the first with RotaryEmbedding; got {opset_version}. For "
            "an older opset call torch.onnx.export, which writes plain operators."
        )
    with rotary_nodes(module, max_len=max_len):
        quiet = {"verbose": False, **options}
        program = torch.onnx.export(module, args, path, dynamo=True, opset_version=opset_version, **quiet)
    return cast("torch.onnx.ONNXProgram", program)  # dynamo=True returns one


@contextmanager
def rotary_nodes(module: nn.Module, *, max_len: int | None = None) -> Iterator[None]:
    """Make exports within this context rotate q and k by nodes; use it with your own exporter.

    Only exports change. Other calls run as usual, within the context and after it.

    Args:
        module: The module whose encodings get stored tables, if `max_len` is given.
        max_len: As in `export`.

    Raises:
        ValueError: max_len is below 1.

    >>> from posenc import RoPE
    >>> class Rotate(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.rope = RoPE(head_dim=4)
    ...     def forward(self, q, k, pos):
    ...         return self.rope.rotate(q, k, self.rope.place(pos))
    >>> module, q = Rotate(), torch.ones(1, 1, 3, 4)
    >>> with rotary_nodes(module):
    ...     program = torch.export.export(module, (q, q, torch.arange(3)))
    >>> sum("RotaryEmbedding" in str(node.target) for node in program.graph.nodes)
    2
    """
    if max_len is not None and max_len < 1:
        raise ValueError(f"posenc.interop.onnx: max_len must be at least 1; got {max_len}. Pass None for any length.")
    _check_torch("posenc.interop.onnx")
    stored = {} if max_len is None else _tables(module, max_len)
    plain_rotate, plain_parts = eager.rotate, Rotary.parts

    def rotate(x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing, side: Side = "first") -> Tensor:
        function = _node if is_exporting() and _fits(x, cos, side) else plain_rotate
        return function(x, cos, sin, pairing=pairing, side=side)

    def parts(self: Rotary, pos: Tensor, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> Any:
        tables = stored.get(self)
        if tables is None or pos.is_floating_point() or dtype != torch.float32 or not is_exporting():
            return plain_parts(self, pos, x, past, dtype)
        return tuple(F.embedding(pos, t.to(pos.device)) for t in tables)  # becomes one Gather

    with mock.patch.object(eager, "rotate", rotate), mock.patch.object(Rotary, "parts", parts):
        yield


def _check_torch(who: str) -> None:
    if not EXPORTS:
        raise RuntimeError(
            f"{who}: needs torch 2.9 or later, which reports whether it is exporting; got torch {torch.__version__}. "
            "Update torch, or call torch.onnx.export, which writes plain operators."
        )


def _tables(module: nn.Module, max_len: int) -> dict[Rotary, tuple[Tensor, ...]]:
    """Return the placed positions 0 .. max_len - 1 for each rotary encoding of text in a module."""
    found = [e for e in module.modules() if isinstance(e, Rotary) and e.n_axes == 1 and e.n_kv_heads is None]
    with torch.no_grad():
        return {e: e.place(positions.arange(max_len)).parts for e in found}


def _fits(x: Tensor, cos: Tensor, side: Side) -> bool:
    """Whether the node supports a rotation: x (batch, heads, seq, head_dim), the same first dimensions in all heads."""
    first = side == "first" or x.shape[-1] == 2 * cos.shape[-1]
    alike = x.ndim == 4 and (cos.ndim == 2 or (cos.ndim in (3, 4) and cos.shape[-3] == 1))
    return first and alike and x.dtype in (torch.float32, *_HALVES) and cos.dtype == torch.float32


def _node(x: Tensor, cos: Tensor, sin: Tensor, *, pairing: Pairing, side: Side) -> Tensor:
    tables = (t if t.ndim == 2 else t.squeeze(-3) for t in (cos, sin))
    cos, sin = (t.expand(x.shape[0], -1, -1) for t in tables)  # the node requires a batch dimension
    width = 2 * cos.shape[-1]
    rotated = torch.onnx.ops.rotary_embedding(
        x.float(),
        cos,
        sin,
        interleaved=pairing == "interleaved",
        rotary_embedding_dim=0 if width == x.shape[-1] else width,
    )
    return rotated.to(x.dtype)
