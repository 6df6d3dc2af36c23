"""Models with rotary encodings as ONNX: q and k turn in one `RotaryEmbedding` node each (opset 23).

The exporter of torch would write a turn as a dozen small operators. `export` is that exporter within `rotary_nodes`.
The node turns (a, b) into (a cos - b sin, b cos + a sin), as `RoPE` does, so that nothing but names change:

    pairing="half"          interleaved=0
    pairing="interleaved"   interleaved=1
    rotary_dim < head_dim   rotary_embedding_dim=rotary_dim

The node has one precision for x, cos and sin. Half precision is widened before the node and rounded after it, since
posenc rounds a turn once. What the node cannot say stays small operators: float64, `rotary_side="last"`, and
frequencies that belong to a head.
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
    """Export a module to ONNX with one `RotaryEmbedding` node for each tensor that a rotary encoding turns.

    Args:
        module: Calls `rope.place` and `rope.rotate`; in eval mode.
        args: Example inputs, as `torch.onnx.export` takes them.
        path: File to write; None returns the program alone, which has `save(path)`.
        max_len: None: cos and sin are computed in the graph from the positions, in float64 as posenc does, for any
            length. A number: they are stored for positions 0 .. max_len - 1 and looked up, for runtimes without
            float64; a position beyond them is the runtime's error.
        opset_version: 23 or later.
        options: The others of `torch.onnx.export`: `dynamic_shapes`, `kwargs`, `input_names`, ...

    Raises:
        ImportError: onnx or onnxscript is not installed.
        RuntimeError: torch is older than 2.9.
        ValueError: An opset without the node, or a max_len below 1.
    """
    who = "posenc.interop.onnx.export"
    _check_torch(who)
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(f"{who}: needs onnx and onnxscript; {error}. pip install 'posenc[onnx]'.") from error
    if opset_version < OPSET:
        raise ValueError(
            f"{who}: opset_version must be {OPSET} or later, because RotaryEmbedding is not in those before; got "
            f"{opset_version}. torch.onnx.export writes plain operators for them."
        )
    with rotary_nodes(module, max_len=max_len):
        quiet = {"verbose": False, **options}
        program = torch.onnx.export(module, args, path, dynamo=True, opset_version=opset_version, **quiet)
    return cast("torch.onnx.ONNXProgram", program)  # dynamo=True returns one


@contextmanager
def rotary_nodes(module: nn.Module, *, max_len: int | None = None) -> Iterator[None]:
    """While it lasts, exports of this process turn q and k by nodes; for exporters of one's own.

    Only what is being exported changes: a call with numbers runs as ever, and so does all after it.

    Args:
        module: Whose encodings get stored tables, if there are any.
        max_len: As in `export`.

    Raises:
        ValueError: A max_len below 1.

    >>> from posenc import RoPE
    >>> class Turn(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.rope = RoPE(head_dim=4)
    ...     def forward(self, q, k, pos):
    ...         return self.rope.rotate(q, k, self.rope.place(pos))
    >>> turn, q = Turn(), torch.ones(1, 1, 3, 4)
    >>> with rotary_nodes(turn):
    ...     program = torch.export.export(turn, (q, q, torch.arange(3)))
    >>> sum("RotaryEmbedding" in str(node.target) for node in program.graph.nodes)
    2
    """
    if max_len is not None and max_len < 1:
        raise ValueError(f"posenc.interop.onnx: max_len must be at least 1; got {max_len}. None computes tables.")
    _check_torch("posenc.interop.onnx")
    stored = {} if max_len is None else _tables(module, max_len)
    plain_turn, plain_parts = eager.turn, Rotary.parts

    def turn(x: Tensor, cos: Tensor, sin: Tensor, *, pairing: Pairing, side: Side = "first") -> Tensor:
        turned = _node if is_exporting() and _fits(x, cos, side) else plain_turn
        return turned(x, cos, sin, pairing=pairing, side=side)

    def parts(self: Rotary, pos: Tensor, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> Any:
        tables = stored.get(self)
        if tables is None or pos.is_floating_point() or dtype != torch.float32 or not is_exporting():
            return plain_parts(self, pos, x, past, dtype)
        return tuple(F.embedding(pos, t.to(pos.device)) for t in tables)  # becomes one Gather

    with mock.patch.object(eager, "turn", turn), mock.patch.object(Rotary, "parts", parts):
        yield


def _check_torch(who: str) -> None:
    if not EXPORTS:
        raise RuntimeError(
            f"{who}: needs torch 2.9 or later, whose exporter says when it exports; got torch {torch.__version__}. "
            "Update torch, or call torch.onnx.export, which writes plain operators."
        )


def _tables(module: nn.Module, max_len: int) -> dict[Rotary, tuple[Tensor, ...]]:
    """Return what `place` makes of positions 0 .. max_len - 1, for each encoding of text that a module has."""
    found = [e for e in module.modules() if isinstance(e, Rotary) and e.n_axes == 1 and e.n_kv_heads is None]
    with torch.no_grad():
        return {e: e.place(positions.arange(max_len)).parts for e in found}


def _fits(x: Tensor, cos: Tensor, side: Side) -> bool:
    """Whether a turn is one that the node can say: (batch, heads, seq, lanes), of which the first ones turn, alike."""
    lanes = side == "first" or x.shape[-1] == 2 * cos.shape[-1]
    alike = x.ndim == 4 and (cos.ndim == 2 or (cos.ndim in (3, 4) and cos.shape[-3] == 1))
    return lanes and alike and x.dtype in (torch.float32, *_HALVES) and cos.dtype == torch.float32


def _node(x: Tensor, cos: Tensor, sin: Tensor, *, pairing: Pairing, side: Side) -> Tensor:
    tables = (t if t.ndim == 2 else t.squeeze(-3) for t in (cos, sin))
    cos, sin = (t.expand(x.shape[0], -1, -1) for t in tables)  # the node wants the batch
    width = 2 * cos.shape[-1]
    turned = torch.onnx.ops.rotary_embedding(
        x.float(),
        cos,
        sin,
        interleaved=pairing == "interleaved",
        rotary_embedding_dim=0 if width == x.shape[-1] else width,
    )
    return turned.to(x.dtype)
