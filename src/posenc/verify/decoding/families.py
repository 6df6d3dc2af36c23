"""Which family of encodings a model has whose specification names none."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from posenc.verify import guard
from posenc.verify.decoding.runs import TOKENS, Bench
from posenc.verify.decoding.watch import Look, watch
from posenc.verify.decoding.words import FAMILIES


def of(b: Bench, spec: Mapping[str, Any]) -> str:
    """Return the family whose words are used: as told, else as it looks."""
    told = str(spec.get("encoding"))
    if not b.family:
        b.family = told if told in FAMILIES else guess(b)
    return b.family


def guess(b: Bench) -> str:
    """Return the family, from what one pass makes of one token said again and again.

    Codes that are added make outputs differ; turns leave them alike and the product of q and k unlike; biases leave
    that alike as well. What shows none of these is taken for a turn.
    """
    text = b.x[:1, :1].expand(1, TOKENS, -1)
    try:
        even, looks = b.one_pass(text), watch(b.subject, text, (TOKENS,))[0]
    except guard.SubjectError:
        return "rope"
    if not _alike(b, even):
        return "learned" if _trained(b, text) else "sinusoidal"
    noise = 5e-2 if b.tolerance > 1e-3 else 1e-3
    return next((family for look in looks if (family := _of_bias(look, noise)) is not None), "rope")


def _alike(b: Bench, rows: Tensor) -> bool:
    return b.distance(rows, rows[:, :1].expand_as(rows)) <= b.tolerance


def _trained(b: Bench, text: Tensor) -> bool:
    """Whether outputs are alike once all rows of some parameter are its first one: a table of positions."""
    if not isinstance(b.subject, nn.Module):
        return False
    try:
        model = copy.deepcopy(b.subject)
    except Exception:
        return False
    for table in model.parameters():
        if table.ndim < 2 or table.shape[-1] != text.shape[-1] or table.shape[-2] < TOKENS:
            continue
        with torch.no_grad():
            kept = table.clone()
            table.copy_(table[..., :1, :].expand_as(table).clone())
            try:
                if _alike(b, Bench(model, None, text, text, b.tolerance).one_pass(text)):
                    return True
            except guard.SubjectError:
                pass
            table.copy_(kept)
    return False


def _of_bias(look: Look, noise: float) -> str | None:
    """Return alibi for scores in a straight line with the distance, t5 for others that no product explains."""
    n = look.scores.shape[-2]
    if look.scores.shape[-1] < n or n < TOKENS:
        return None
    apart = look.scores - look.scores.diagonal(dim1=-2, dim2=-1)[..., None]
    lines = torch.stack([torch.nanmean(apart.diagonal(-d, -2, -1), -1) for d in range(n)], -1)
    lines = lines[:, lines.isfinite().all(0)]
    spread = float(lines.abs().max()) if lines.shape[-1] > 3 else 0.0
    if spread < 1e-3:
        return None
    if float(lines.diff(n=2).abs().max()) < noise * spread:
        return "alibi"
    product = look.product
    flat = product is not None and float((product - product[..., :1]).abs().max()) < noise * spread
    return "t5" if flat else None
