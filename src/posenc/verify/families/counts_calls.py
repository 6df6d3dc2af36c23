"""Calls of functions of masks and of document bounds, and their results."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from posenc.verify import guard
from posenc.verify.engine.records import Array
from posenc.verify.families.bias_calls import invoke


class Call:
    """One call of a text; calls for later columns follow those for earlier ones.

    Args:
        mask: (batch, total): the number of each token's document, from 1, and 0 for padding.
        q_len: The call returns positions of this many last columns.
        text: Calls with the same name belong to one text.
        prompt: Columns before the first decode step; all if there is none.

    Attributes:
        kind: "prefill" (the whole mask), "decode" (its last column) or "chunk" (its last columns, after others).
        asked: The mask of the requested columns; `earlier` columns are before them.
        columns, steps: The index of each column of the mask, and of the requested ones, from 0.
        count, right: The number of tokens before each token, in its row and in its document.
        tokens, past: Tokens of each row, and those before the requested columns.
        last: The number of each row's last document.
        length, previous: The tokens of each token's document, and of the document before it.
        bounds: Between the documents of the first row.
    """

    def __init__(self, mask: Array, q_len: int, text: str, prompt: int = 0) -> None:
        self.mask, self.q_len, self.text = mask, q_len, text
        self.total = mask.shape[1]
        self.prompt = prompt or self.total
        self.kind = "prefill" if q_len == self.total else "decode" if q_len == 1 else "chunk"
        self.earlier = self.total - q_len
        self.asked = mask[:, self.earlier :]
        self.columns = np.arange(self.total, dtype=np.float64)[None]
        self.steps = self.columns[:, :q_len]
        self.count = (mask > 0).cumsum(1) - 1.0
        self.tokens = self.count[:, -1:] + 1
        self.past = self.tokens - (self.asked > 0).sum(1, keepdims=True)
        self.last = mask.max(1, keepdims=True)
        document = mask.astype(int)
        lengths = np.stack([np.bincount(row, minlength=document.max() + 1) for row in document]) * 1.0
        lengths[:, 0] = 0
        self.length = np.take_along_axis(lengths, document, 1)
        self.previous = np.take_along_axis(lengths, np.maximum(document - 1, 0), 1)
        self.right = self.count - np.take_along_axis(lengths.cumsum(1) - lengths, document, 1)
        self.bounds = [0, *lengths[0].cumsum()[1:].astype(int).tolist()]


def text_of(total: int, pads: Sequence[int] = (0,), side: str = "left", steps: int = 0, chunk: int = 0) -> list[Call]:
    """Return the calls of a prefill of so many columns, whole or in chunks, and of the decode steps after it."""
    columns = np.arange(total)
    mask = np.stack([columns >= n if side == "left" else columns < total - n for n in pads])
    whole = np.concatenate([mask.astype(np.float64), np.ones((len(pads), steps))], 1)
    name = f"{total} columns, with {list(pads)} padded on the {side}, in chunks of {chunk or total}"
    ends = pairwise([*range(0, total, chunk or total), *range(total, total + steps + 1)])
    return [Call(whole[:, :end], end - begin, name, total) for begin, end in ends]


def packed(texts: Sequence[Sequence[int | str]], pads: Sequence[int] = (0,)) -> Call:
    """Return a call on rows of documents of these lengths, with padding before each row and behind short ones."""
    rows = [list(map(int, text)) for text in texts]
    total = max(sum(lengths) + n for lengths, n in zip(rows, pads, strict=True))
    mask = np.zeros((len(rows), total))
    for row, lengths, n in zip(mask, rows, pads, strict=True):
        row[n : n + sum(lengths)] = np.repeat(np.arange(1.0, len(lengths) + 1), lengths)
    call = Call(mask, total, f"documents of {rows} tokens, after {list(pads)} padded slots")
    call.bounds = np.cumsum([0, *rows[0]]).tolist()  # a mask cannot show empty documents at the end
    return call


def ask(subject: Any, call: Call, convention: str) -> Array:
    """Return the result of a call, of any dtype and of any shape that broadcasts to (batch, q_len).

    Raises:
        SubjectError: The result cannot be used, with masks of int64 or bool, or with bounds of int32 or int64.
    """
    given = torch.from_numpy(call.mask.astype(np.int64))
    words, dtypes = f"attention_mask of {tuple(given.shape)}", [torch.int64, torch.bool][: 2 - (call.mask.max() > 1)]
    if convention == "packed_position_fn":
        given, words, dtypes = torch.tensor(call.bounds), f"cu_seqlens={call.bounds}", [torch.int32, torch.int64]
    more = [call.q_len] if convention == "position_fn" else []
    what = f"{'rows' if convention == 'learned_rows_fn' else 'positions'}({', '.join(map(str, [words, *more]))})"
    errors: list[guard.SubjectError] = []
    for dtype in dtypes:
        try:
            return _flat(invoke(subject, given.to(dtype), *more, what=what), call.asked.shape, what)
        except guard.SubjectError as error:
            errors.append(error)
            if error.cause.code != "subject.raises":
                raise error from errors[0]
    raise errors[0]


def _flat(found: Any, shape: tuple[int, ...], what: str) -> Array:
    """Accept lists, (q_len,), (1, q_len) and a dimension of 1 between or in front."""
    found = guard.array(found, what) if isinstance(found, list) else found
    if isinstance(found, torch.Tensor) and found.ndim == 3 and 1 in found.shape[:2]:
        found = found.flatten(0, 1)
    if isinstance(found, torch.Tensor) and found.numel() == shape[1]:
        found = found.flatten().expand(shape)
    return guard.shaped(found, shape, what).detach().double().numpy()
