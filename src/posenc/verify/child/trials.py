"""Trial calls that distinguish conventions: 2 if the result fits hardly any other one, 1 if its form fits, else 0."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_WIDTHS = (64, 16, 32, 128, 8, 512)
_B, _H, _S = 2, 3, 5  # all different, so that a form fits only one convention


def rate(subject: Any, convention: str, spec: Mapping[str, Any]) -> int:
    """Return how well a subject fits a convention when it is called by it, first with the widths of a specification."""
    asked = [spec.get(word) for word in ("head_dim", "dim", "rotary_dim")]
    called = subject[0] if isinstance(subject, tuple | list) else subject
    for width in dict.fromkeys([*(w for w in asked if isinstance(w, int) and 0 < w <= 1 << 14), *_WIDTHS]):
        args, kind, shape = _calls(width, spec).get(convention, ((), "", ()))
        try:
            with torch.no_grad():
                out = called(*args)
                if kind and _has_form(out, kind, shape):
                    return 1 + _is_sure(called, convention, args, out)
        except (Exception, SystemExit):
            continue
    return 0


def _calls(d: int, spec: Mapping[str, Any]) -> dict[str, tuple[tuple[Any, ...], str, tuple[int | None, ...]]]:
    """Return the arguments for a width, and the kind and the shape of the result; None is any size."""
    x = torch.randn(1, 1, 1, d).expand(_B, _H, _S, d).clone()
    q, k, v = torch.randn(3, _B, _H, _S, d)
    at, mask, tokens = torch.arange(_S), torch.ones(_B, _S, dtype=torch.long), torch.randn(_B, _S, d)
    n_axes = len(spec.get("section") or spec.get("widths") or ()) or spec.get("n_axes")
    rows = torch.stack((at, *[0 * at] * ((n_axes or 2) - 1)), -1).expand(_B, -1, -1).clone()
    indices = [torch.tensor(i) for i in (0, 1, 4, 2)]
    return {
        "hf_rope": ((x, at.expand(_B, _S)), "two", (None, None, None)),
        "meta_complex": ((_S,), "complex", (_S, None)),
        "rope_fn": ((x, at), "any", x.shape),
        "rope_axes_fn": ((x, rows), "any", x.shape),
        "rope_offset_fn": ((x, 3), "any", x.shape),
        "bshd_module": ((q.mT.reshape(_B, _S, _H, d), k.mT.reshape(_B, _S, _H, d)), "two", (_B, _S, _H, d)),
        "xpos_fn": ((q, k), "two", q.shape),
        "mrope_fn": ((at.expand(n_axes or 3, _S).clone(),), "float", (_S, None)),
        "rope2d_table_fn": ((_B, _H), "float", (_B * _H, None)),
        "relative_index_fn": ((_B, _H), "int", (_B * _H, _B * _H)),
        "additive_module": ((0 * tokens,), "any", (_B, _S, d)),
        "additive_2d_module": ((torch.zeros(_B, d, _H, _S),), "any", (_B, d, _H, _S)),
        "relative_table_fn": ((_S,), "float", (2 * _S - 1, None)),
        "slopes_fn": ((4,), "any", (4,)),
        "bias_fn": ((_H, _S, 7), "bias", (_H, _S, 7)),
        "score_mod": ((torch.tensor(0.5), *indices), "any", ()),
        "bucket_fn": ((torch.arange(-3, 3).reshape(2, 3),), "int", (2, 3)),
        "mrope_positions_fn": (([2, (1, 2, 2), 1], [1.0]), "any", (3, 7)),
        "position_fn": ((mask, _H), "any", (_B, _H)),
        "packed_position_fn": ((torch.tensor([0, 3, 5, 9], dtype=torch.int32),), "any", (9,)),
        "learned_rows_fn": ((mask,), "int", (_B, _S)),
        "cached_model": ((tokens, None), "first", (_B, _S, d)),
        "attention": ((q, k, v, at), "any", q.shape),
    }


def _has_form(out: Any, kind: str, shape: tuple[int | None, ...]) -> bool:
    if kind in ("two", "first"):
        parts = out[:1] if kind == "first" else out
        return isinstance(out, tuple | list) and len(out) == 2 and all(_has_form(t, "any", shape) for t in parts)
    t = torch.as_tensor(out)
    if kind == "bias":
        return t.is_floating_point() and torch.broadcast_shapes(t.shape, shape) == shape
    right = {"float": t.is_floating_point(), "complex": t.is_complex(), "int": not t.is_floating_point()}
    sized = t.dim() == len(shape) and all(n in (m, None) for m, n in zip(t.shape, shape, strict=True))
    return right.get(kind, True) and sized


def _is_sure(subject: Any, convention: str, args: tuple[Any, ...], out: Any) -> bool:
    """Return whether a result of the right form behaves as its convention requires."""
    if convention in ("rope_fn", "rope_axes_fn", "rope_offset_fn"):  # rows at one place rotate alike, others not
        x, where = args
        alike = convention == "rope_offset_fn" or _rows_equal(subject(x, torch.full_like(where, 3)))
        moved = [out, subject(x, where.flip(-1))] if convention == "rope_axes_fn" else [out]
        adds_nothing = bool(subject(torch.zeros_like(x), where).abs().max() == 0)
        return alike and adds_nothing and not any(map(_rows_equal, moved))
    if convention.startswith("additive"):  # the added encoding is not zero, and the same for any x
        return bool(out.abs().max() > 0 and torch.allclose(subject(args[0] + 1) - 1, out, atol=1e-4))
    if convention == "bucket_fn":  # a number from 0 that depends only on the distance
        same = subject(torch.ones(2, 3, dtype=torch.long))
        return bool(out.min() >= 0 and (same == same[0, 0]).all() and (out != out[0, 0]).any())
    if convention == "learned_rows_fn":  # rows count up along a mask of ones
        return bool((out[:, 1:] != out[:, :-1]).all())
    return convention not in ("bshd_module", "xpos_fn")


def _rows_equal(out: Tensor) -> bool:
    return torch.allclose(out, out[..., :1, :].expand_as(out), atol=1e-5)
