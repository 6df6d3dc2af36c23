"""The inputs that all candidates of a row share."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from posenc import positions, registry
from posenc.bench.rows import DTYPES, HEAD_DIM, N_HEADS, Row
from posenc.encoding import Encoding, Placed

Forward = Callable[[], Tensor]


@dataclass(frozen=True)
class Setting:
    """The inputs that all candidates of a row share."""

    row: Row
    q: Tensor
    k: Tensor
    v: Tensor
    encoding: Encoding
    x: Tensor | None  # the tokens, for encodings that read them
    pos: Tensor
    k_pos: Tensor
    document_ids: Tensor | None

    def place(self) -> tuple[Placed, Placed]:
        """Place the positions of queries and keys."""
        placed = self.encoding.place(self.k_pos, self.x)
        return (placed.last(1) if self.row.mode == "decode" else placed), placed

    def scale(self) -> float:
        """Return the factor in front of q.k."""
        return self.encoding.score_scale(HEAD_DIM)

    def learned(self) -> list[Tensor]:
        """Return what gets gradients: the inputs and the encoding's parameters."""
        return [self.q, self.k, self.v, *(p for p in self.encoding.parameters() if p.requires_grad)]


def prepare(row: Row, *, empty: bool = False) -> Setting:
    """Make the inputs of a row; `empty` leaves their memory untouched, for calls that compute nothing.

    Raises:
        ValueError: The encoding is not in this version, or refuses its options.
    """
    torch.manual_seed(0)
    device, dtype, train = torch.device(row.device), DTYPES[row.dtype], row.mode == "train"
    q_len = 1 if row.mode == "decode" else row.length
    fill = torch.empty if empty else torch.randn

    def draw(length: int) -> Tensor:
        return fill(row.batch, N_HEADS, length, HEAD_DIM, dtype=dtype, device=device).requires_grad_(train)

    encoding = make_encoding(row).to(device)
    x = torch.randn(row.batch, row.length, N_HEADS * HEAD_DIM, device=device) if encoding.reads_x else None
    ids = None
    pos = positions.arange(row.length, device=device)
    if row.documents:
        ids = pos * row.documents // row.length
        pos = positions.packed(ids)
    return Setting(row, draw(q_len), draw(row.length), draw(row.length), encoding, x, pos[-q_len:], pos, ids)


def make_encoding(row: Row) -> Encoding:
    """Construct the row's encoding; what it learns is drawn, since a table of zeros could be skipped."""
    dims = registry.Dims(d_model=N_HEADS * HEAD_DIM, n_heads=N_HEADS, head_dim=HEAD_DIM, max_len=row.length)
    encoding: Encoding = registry.create(row.encoding, dims=dims, **row.options)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return encoding.to(DTYPES[row.dtype]) if row.cast else encoding
