"""Which family of encodings a model has whose specification names none, so that its faults get that family's codes."""

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc.verify.families.cache_runs import TOKENS, Bench, distance, run
from posenc.verify.families.cache_watch import FLAT, Look, watch
from posenc.verify.guard import SubjectError

FAMILIES = ("rope", "xpos", "alibi", "t5", "sinusoidal", "learned")
ADDED, BIASES = ("sinusoidal", "learned"), ("alibi", "t5")
WHOLE = ("decode.mask.", "decode.window.", "decode.cache.")  # codes of masks and caches, which no family has
# families in which a fault has a code of its own
ELSEWHERE: dict[tuple[str, str], str] = {
    **{(f, "kv_cache.query_offset_missing"): "kv_cache.query_from_zero" for f in BIASES},
    **{(f, "kv_cache.query_offset_missing"): "kv_cache.offset_ignored" for f in ADDED},
    ("alibi", "query.off_by_one"): "kv_cache.query_off_by_one",
    **{(f, "query.off_by_one"): "kv_cache.off_by_one" for f in ("xpos", "t5", *ADDED)},
    **{(f, "kv_cache.rotated_then_rotated_again"): "decode.mismatch" for f in (*BIASES, *ADDED)},
    **{(f, "window.positions_constant"): "decode.chunk_positions" for f in FAMILIES if f != "rope"},
}


def named(family: str, code: str) -> str:
    """Return the whole code of a fault.

    >>> named("rope", "kv_cache.off_by_one"), named("rope", "decode.mask.missing")
    ('rope.kv_cache.off_by_one', 'decode.mask.missing')
    """
    return code if code.startswith(WHOLE) else f"{family}.{ELSEWHERE.get((family, code), code)}"


def guess(b: Bench) -> str:
    """Return the family, from the outputs of one token said again and again.

    Vectors that are added make outputs differ; rotations leave them alike, and the product of q and k unlike; biases
    leave that alike as well. A model that shows none of these is taken for a rotation.
    """
    text = b.x[:1, :1].expand(1, TOKENS, -1)
    try:
        even, looks = b.one_pass(text), watch(b.subject, text, (TOKENS,))[0]
    except SubjectError:
        return "rope"
    if not _alike(b, even):
        return "learned" if _trained(b, text) else "sinusoidal"
    noise = 5e-2 if b.tolerance > 1e-3 else 1e-3
    return next((family for look in looks if (family := _of_bias(look, noise)) is not None), "rope")


def _alike(b: Bench, rows: Tensor) -> bool:
    return distance(rows, rows[:, :1].expand_as(rows)) <= b.tolerance


def _trained(b: Bench, text: Tensor) -> bool:
    """Return whether outputs are alike once all rows of each parameter are its first one: a table of positions."""
    try:
        model: Any = copy.deepcopy(b.subject)
        with torch.no_grad():
            for table in model.parameters():
                if table.ndim > 1 and table.shape[-1] == text.shape[-1]:
                    table.copy_(table[..., :1, :].expand_as(table).clone())
        return _alike(b, run(model, text, (TOKENS,)))
    except Exception:  # no module, or one that cannot be copied: user code decides
        return False


def _of_bias(look: Look, noise: float) -> str | None:
    """Return alibi for scores in a straight line with the distance, t5 for others that no product explains."""
    rows = look.scores.numpy()[:, -1, :TOKENS]
    lines = (rows - rows[:, -1:])[:, ::-1]  # by distance
    lines = lines[:, np.isfinite(lines).all(0)]
    spread = float(np.abs(lines).max()) if lines.shape[-1] > 3 else 0.0
    if rows.shape[-1] < TOKENS or spread < FLAT:
        return None
    if float(np.abs(np.diff(lines, n=2)).max()) < noise * spread:
        return "alibi"
    product = look.product
    flat = product is not None and float((product - product[..., :1]).abs().max()) < noise * spread
    return "t5" if flat else None
