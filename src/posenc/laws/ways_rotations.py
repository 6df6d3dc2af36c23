"""The ways to rotate q and k: together or one by one, into new memory, into slots, in place, with norms, by formula."""

from collections.abc import Iterator
from contextlib import suppress

import torch
from torch import Tensor

from posenc.encoding import Placed
from posenc.families.rotary import Rotary


def rotated(encoding: Rotary, q: Tensor, k: Tensor, placed: Placed) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the ways to rotate queries and keys that have different positions."""
    n = q.shape[2]
    q, ahead = q[:, :, n // 2 :], placed.rows(n // 2, n)
    wanted = encoding.rotate_q(q, ahead), encoding.rotate_k(k, placed)
    slots = torch.full_like(q, torch.nan), torch.full_like(k, torch.nan)
    narrow = slots[0].bfloat16(), slots[1].bfloat16()
    own = q.clone(), k.clone()
    encoding.rotate_(*own, ahead, placed)
    ways = {
        "rotate": encoding.rotate(q, k, ahead, placed),
        "rotate into slots": encoding.rotate(q, k, ahead, placed, out=slots),
        "rotate_": own,
    }
    for way, got in ways.items():
        yield from ((way, g, w) for g, w in zip(got, wanted, strict=True))
    got = encoding.rotate(q, k, ahead, placed, out=narrow)
    yield from (("rotate into bfloat16", g.float(), w.bfloat16().float()) for g, w in zip(got, wanted, strict=True))
    for slots in ((narrow[0], torch.empty_like(k)), (torch.empty_like(q), narrow[1])):
        got = encoding.rotate(q, k, ahead, placed, out=slots)
        yield from (
            ("rotate into slots of two precisions", g.to(q.dtype), w.to(g.dtype).to(q.dtype))
            for g, w in zip(got, wanted, strict=True)
        )
    yield from _half_in_place(encoding, q, k, ahead, placed)
    yield from _by_formula(encoding, q, k, ahead, placed)
    yield from _normed(encoding, q, k, (ahead, placed))
    with suppress(ValueError):  # some encodings rotate whole heads only, and refuse
        part = encoding.of_slice()
        lanes = slice(encoding.rotary_dim) if encoding.rotary_side == "first" else slice(-encoding.rotary_dim, None)
        yield "of_slice", part.rotate_k(k[..., lanes], placed), wanted[1][..., lanes]


def _half_in_place(
    encoding: Rotary, q: Tensor, k: Tensor, ahead: Placed, placed: Placed
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the rotation with one side in place and the other written into a cache of bfloat16."""
    wanted = encoding.rotate_q(q, ahead), encoding.rotate_k(k, placed)
    for own in (q.clone(), torch.empty_like(k).bfloat16()), (torch.empty_like(q).bfloat16(), k.clone()):
        mine = own[0] if own[0].dtype == q.dtype else q, own[1] if own[1].dtype == k.dtype else k
        got = encoding.rotate(*mine, ahead, placed, out=own)
        rounded = (w.to(t.dtype).to(w.dtype) for w, t in zip(wanted, own, strict=True))
        yield from (("rotate, one in place", g.to(w.dtype), w) for g, w in zip(got, rounded, strict=True))


def _by_formula(
    encoding: Rotary, q: Tensor, k: Tensor, ahead: Placed, placed: Placed
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the rotation by the plain formula, into new memory and in place."""
    try:
        made = encoding.rotate(q, k, ahead, placed, backend="formula")
    except (TypeError, ValueError):  # the rotation is more than cosines and sines
        return
    own = q.clone(), k.clone()
    encoding.rotate_(*own, ahead, placed, backend="formula")
    wanted = encoding.rotate_q(q, ahead), encoding.rotate_k(k, placed)
    yield from (("rotate by the formula", g, w) for g, w in zip((*made, *own), wanted * 2, strict=True))


def _normed(
    encoding: Rotary, q: Tensor, k: Tensor, places: tuple[Placed, Placed]
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the rotation with fused norms, of queries only and of both, and the norms followed by the rotation."""
    width = q.shape[-1]
    weights = torch.linspace(0.5, 2.0, width, dtype=q.dtype), torch.linspace(1.5, -1.0, width, dtype=q.dtype)
    norms = [torch.nn.RMSNorm(width, eps=eps, dtype=q.dtype) for eps in (1e-6, 1e-2)]
    for norm, weight in zip(norms, weights, strict=True):
        norm.weight.data = weight
    for both in (False, True):
        try:
            got = encoding.rotate(q, k, *places, q_norm=norms[0], k_norm=norms[1] if both else None)
        except (TypeError, ValueError):  # the rotation is more than cosines and sines, so it fuses no norms
            return
        wanted = encoding.rotate_q(norms[0](q), places[0]), encoding.rotate_k(norms[1](k) if both else k, places[1])
        yield from (("rotate with norms", g, w) for g, w in zip(got, wanted, strict=True))
