"""Calls that tell conventions apart: 2 if the result could hardly come from another one, 1 if its form fits, else 0."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_WIDTHS = (64, 16, 32, 128, 8, 512)
_B, _H, _S = 2, 3, 5  # all different, so that a form fits one convention alone


def rate(subject: Any, convention: str, spec: Mapping[str, Any]) -> int:
    """Return how well a subject fits a convention when it is called so.

    Args:
        subject: What build() returned.
        convention: How to call it.
        spec: Its head_dim or dim is the width to try first.
    """
    trial = _TRIALS.get(convention)
    if trial is None:
        return 0
    asked = [spec.get(word) for word in ("head_dim", "dim", "rotary_dim")]
    widths = dict.fromkeys([*(w for w in asked if isinstance(w, int) and 0 < w <= 1 << 14), *_WIDTHS])
    best = 0
    for width in widths if convention in _WIDE else [0]:
        try:
            with torch.no_grad():
                best = max(best, trial(subject, width))
        except (Exception, SystemExit):
            continue
        if best:
            return best
    return best


def _hf_rope(subject: Any, d: int) -> int:
    x = torch.randn(_B, _H, _S, d)
    table = subject[0](x, torch.arange(_S)[None].expand(_B, _S))
    return 2 * (isinstance(table, Sequence) and len(table) == 2 and all(isinstance(t, Tensor) for t in table))


def _meta_complex(subject: Any, _: int) -> int:
    table = subject[0](end=_S)
    return 2 * (isinstance(table, Tensor) and table.is_complex())


def _rope_fn(subject: Any, d: int) -> int:
    """Rows at one position turn alike, others not; nothing is added."""
    x = torch.randn(1, 1, 1, d).expand(_B, _H, _S, d).clone()
    same, apart = subject(x, torch.full((_S,), 3)), subject(x, torch.arange(_S))
    if _shape(same) != x.shape or _shape(apart) != x.shape:
        return 0
    return 1 + (_rows_equal(same) and not _rows_equal(apart) and _keeps_zero(subject, x, torch.arange(_S)))


def _rope_axes_fn(subject: Any, d: int) -> int:
    """Rows at one place rotate alike, others do not, on either axis; nothing is added."""
    x = torch.randn(1, 1, 1, d).expand(_B, _H, _S, d).clone()
    places = torch.zeros(_B, _S, 2, dtype=torch.long)
    same, rows, columns = subject(x, places + 3), places.clone(), places.clone()
    rows[..., 0] = columns[..., 1] = torch.arange(_S)
    apart = [subject(x, rows), subject(x, columns)]
    if any(_shape(t) != x.shape for t in (same, *apart)):
        return 0
    moves = not any(_rows_equal(t) for t in apart)
    return 1 + (_rows_equal(same) and moves and _keeps_zero(subject, x, rows))


def _rope_offset_fn(subject: Any, d: int) -> int:
    """Rows turn by where they stand, though the argument is one number."""
    x = torch.randn(1, 1, 1, d).expand(_B, _H, _S, d).clone()
    out = subject(x, 3)
    if _shape(out) != x.shape:
        return 0
    return 1 + (not _rows_equal(out) and _keeps_zero(subject, x, 3))


def _bshd_module(subject: Any, d: int) -> int:
    return _turns_two(subject, torch.randn(_B, _S, _H, d))


def _xpos_fn(subject: Any, d: int) -> int:
    return _turns_two(subject, torch.randn(_B, _H, _S, d))


def _turns_two(subject: Any, x: Tensor) -> int:
    out = subject(x, x.clone())
    return int(isinstance(out, Sequence) and [_shape(t) for t in out] == [x.shape, x.shape])


def _mrope_fn(subject: Any, _: int) -> int:
    out = subject(torch.arange(_S).expand(3, _S).clone())
    return 2 * (_floats(out) and out.dim() == 2 and out.shape[0] == _S)


def _rope2d_table_fn(subject: Any, _: int) -> int:
    out = subject(_B, _H)
    return 2 * (_floats(out) and out.dim() == 2 and out.shape[0] == _B * _H)


def _relative_index_fn(subject: Any, _: int) -> int:
    out = subject(_B, _H)
    return 2 * (isinstance(out, Tensor) and not _floats(out) and tuple(out.shape) == (_B * _H, _B * _H))


def _additive_module(subject: Any, d: int) -> int:
    return _adds(subject, torch.zeros(_B, _S, d))


def _additive_2d_module(subject: Any, d: int) -> int:
    return _adds(subject, torch.zeros(_B, d, _H, _S))


def _adds(subject: Any, x: Tensor) -> int:
    """What is added is something, and the same for any x."""
    code = subject(x)
    if _shape(code) != x.shape:
        return 0
    return 1 + bool(code.abs().max() > 0 and torch.allclose(subject(x + 1) - 1, code, atol=1e-4))


def _relative_table_fn(subject: Any, _: int) -> int:
    out = subject(_S)
    return 2 * (_floats(out) and out.dim() == 2 and out.shape[0] == 2 * _S - 1)


def _slopes_fn(subject: Any, _: int) -> int:
    out = subject(4)
    return 2 * (torch.as_tensor(out).numel() == 4)


def _bias_fn(subject: Any, _: int) -> int:
    out = subject(_H, _S, 7)
    return 2 * (_floats(out) and torch.broadcast_shapes(out.shape, (_H, _S, 7)) == (_H, _S, 7))


def _score_mod(subject: Any, _: int) -> int:
    out = subject(torch.tensor(0.5), *(torch.tensor(i) for i in (0, 1, 4, 2)))
    return 2 * (isinstance(out, Tensor) and out.numel() == 1)


def _bucket_fn(subject: Any, _: int) -> int:
    """A bucket is a number from 0 that depends on the distance alone."""
    apart, same = subject(torch.arange(-3, 3).reshape(2, 3)), subject(torch.ones(2, 3, dtype=torch.long))
    if _shape(apart) != (2, 3) or _floats(apart):
        return 0
    return 1 + bool(apart.min() >= 0 and (same == same[0, 0]).all() and (apart != apart[0, 0]).any())


def _mrope_positions_fn(subject: Any, _: int) -> int:
    return 2 * (_shape(torch.as_tensor(subject([2, (1, 2, 2), 1], [1.0]))) == (3, 7))


def _learned_rows_fn(subject: Any, _: int) -> int:
    """Rows count up along a mask of ones."""
    out = subject(torch.ones(_B, _S, dtype=torch.long))
    if _shape(out) != (_B, _S) or _floats(out):
        return 0
    return 1 + bool((out[:, 1:] != out[:, :-1]).all())


def _position_fn(subject: Any, _: int) -> int:
    out = subject(torch.ones(_B, _S, dtype=torch.long), _H)
    return 2 * (_shape(out) == (_B, _H))


def _packed_position_fn(subject: Any, _: int) -> int:
    out = subject(torch.tensor([0, 3, 5, 9], dtype=torch.int32))
    return 2 * (_shape(out) == (9,))


def _cached_model(subject: Any, d: int) -> int:
    out = subject(torch.randn(_B, _S, d), None)
    return 2 * (isinstance(out, tuple | list) and len(out) == 2 and _shape(out[0]) == (_B, _S, d))


def _attention(subject: Any, d: int) -> int:
    q, k, v = (torch.randn(_B, _H, _S, d) for _ in range(3))
    return 2 * (_shape(subject(q, k, v, torch.arange(_S))) == q.shape)


def _shape(out: Any) -> tuple[int, ...] | None:
    return tuple(out.shape) if isinstance(out, Tensor) else None


def _floats(out: Any) -> bool:
    return isinstance(out, Tensor) and out.is_floating_point()


def _rows_equal(out: Tensor) -> bool:
    return torch.allclose(out, out[..., :1, :].expand_as(out), atol=1e-5)


def _keeps_zero(subject: Any, x: Tensor, where: Any) -> bool:
    return bool(subject(torch.zeros_like(x), where).abs().max() == 0)


_TRIALS: dict[str, Callable[[Any, int], int]] = {
    "hf_rope": _hf_rope,
    "meta_complex": _meta_complex,
    "rope_fn": _rope_fn,
    "rope_axes_fn": _rope_axes_fn,
    "rope_offset_fn": _rope_offset_fn,
    "bshd_module": _bshd_module,
    "xpos_fn": _xpos_fn,
    "mrope_fn": _mrope_fn,
    "rope2d_table_fn": _rope2d_table_fn,
    "additive_module": _additive_module,
    "additive_2d_module": _additive_2d_module,
    "relative_table_fn": _relative_table_fn,
    "relative_index_fn": _relative_index_fn,
    "slopes_fn": _slopes_fn,
    "bias_fn": _bias_fn,
    "score_mod": _score_mod,
    "bucket_fn": _bucket_fn,
    "mrope_positions_fn": _mrope_positions_fn,
    "position_fn": _position_fn,
    "packed_position_fn": _packed_position_fn,
    "learned_rows_fn": _learned_rows_fn,
    "cached_model": _cached_model,
    "attention": _attention,
}
_WIDE = {
    *("hf_rope", "rope_fn", "rope_axes_fn", "rope_offset_fn", "bshd_module", "xpos_fn"),
    *("additive_module", "additive_2d_module", "cached_model", "attention"),
}
