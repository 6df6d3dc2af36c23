"""Scores that attention should have under an encoding, and those it has under known faults."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posenc import config, definitions
from posenc.frequencies import from_config

Parts = tuple[Tensor, Tensor]  # q.k before any scale, and what is added: (batch, heads, n, n), or 0


@dataclass(frozen=True)
class Setting:
    """What is asked, in this library's words."""

    encoding: str
    heads: int
    told_heads: bool
    head_dim: int
    rotary_dim: int
    base: float
    layout: str
    inv_freq: Tensor
    scale: float
    definition: str
    far: bool
    gamma: float = 0.4
    scale_base: float = 512.0
    side: str = "first"
    gain: float = 1.0  # of the lanes that turn


def setting(spec: Mapping[str, Any]) -> Setting:
    """Read the words of a spec; what is missing gets the usual value."""
    encoding = str(spec.get("encoding") or "")
    head_dim = int(spec.get("head_dim") or 16)
    heads = spec.get("heads")
    rotary = int(spec.get("rotary_dim") or head_dim)
    base, layout = float(spec.get("base") or 10000.0), str(spec.get("layout") or "half")
    gain, factor, side = 1.0, 1.0, str(spec.get("rotary_side") or "first")
    inv_freq = geometric(rotary, base)
    if spec.get("config"):
        pairing = None if spec["config"].get("model_type") else spec.get("layout")  # a known type says it itself
        read = from_config(spec["config"], pairing=pairing) if pairing else from_config(spec["config"])
        inv_freq, rotary, gain, factor = read.inv_freq.double(), read.rotary_dim, read.gain, read.score_factor
        side = str(spec.get("rotary_side") or config.rotary(spec["config"], pairing=pairing).rotary_side)
        head_dim = int(spec.get("head_dim") or spec["config"].get("head_dim") or max(head_dim, rotary))
        layout = str(spec.get("layout") or read.pairing)
    elif spec.get("scaling") == "linear" and spec.get("factor"):
        inv_freq = inv_freq / float(spec["factor"])
    scale = 1.0 if encoding == "t5" else factor / math.sqrt(head_dim)
    name = {"alibi": "authors", "rope": "roformer"}.get(encoding, "posenc")
    return Setting(
        encoding,
        int(heads or 3),
        heads is not None,
        head_dim,
        rotary,
        base,
        layout,
        inv_freq,
        scale,
        name,
        encoding == "rope",
        float(spec.get("gamma") or 0.4),
        float(spec.get("scale_base") or 512.0),
        side,
        gain,
    )


def scores(here: Setting, q: Tensor, k: Tensor, positions: Tensor) -> Parts:
    """Return what is right: q.k of what was turned, and the bias."""
    p = positions.double()
    if here.encoding == "rope":
        return product(turn(here, q, p), turn(here, k, p)), torch.zeros(())
    if here.encoding == "xpos":
        return xpos(here, q, k, p)
    if here.encoding == "alibi":
        return product(q, k), alibi(here, p)
    return product(q, k), torch.zeros(())


def geometric(rotary: int, base: float, divisor: int | None = None) -> Tensor:
    """Return base ** (-2 i / rotary), or with another divisor."""
    return base ** (-torch.arange(0, rotary, 2).double() / (divisor or rotary))


def product(q: Tensor, k: Tensor) -> Tensor:
    """Return q.k of every pair."""
    return q @ k.transpose(-1, -2)


def turn(
    here: Setting,
    x: Tensor,
    p: Tensor,
    *,
    layout: str | None = None,
    inv_freq: Tensor | None = None,
    rotary: int | None = None,
    sign: float = 1.0,
) -> Tensor:
    """Turn lanes on one side of x (batch, heads, n, head_dim) by positions that broadcast to (batch, heads, n)."""
    rotary = here.rotary_dim if rotary is None else rotary
    angle = sign * p[..., None] * (here.inv_freq if inv_freq is None else inv_freq)
    cos, sin = angle.cos(), angle.sin()
    if here.side == "last":
        rest, turned = x[..., : x.shape[-1] - rotary], x[..., x.shape[-1] - rotary :]
    else:
        turned, rest = x[..., :rotary], x[..., rotary:]
    if (layout or here.layout) == "half":
        a, b = turned.chunk(2, -1)
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    else:
        a, b = turned[..., ::2], turned[..., 1::2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    turned = here.gain * turned
    return torch.cat((rest, turned) if here.side == "last" else (turned, rest), -1)


def xpos(here: Setting, q: Tensor, k: Tensor, p: Tensor, way: float = 1.0, k_way: float = -1.0) -> Parts:
    """Turn, and let the size of q fade with its position as that of k grows."""
    n = here.rotary_dim // 2
    zeta = (torch.arange(n).double() / n + here.gamma) / (1 + here.gamma)
    zeta = torch.cat((zeta, zeta)) if here.layout == "half" else zeta.repeat_interleave(2)
    size = zeta ** (p[:, None] / here.scale_base)
    return product(turn(here, q, p) * size**way, turn(here, k, p) * size**k_way), torch.zeros(())


def other(here: Setting) -> str:
    """Name the pairing that is not asked."""
    return "interleaved" if here.layout == "half" else "half"


def both(here: Setting, q: Tensor, k: Tensor, p: Tensor, **how: Any) -> Parts:
    """Turn q and k alike."""
    return product(turn(here, q, p, **how), turn(here, k, p, **how)), torch.zeros(())


def one_base(here: Setting, q: Tensor, k: Tensor, p: Tensor, base: float, on: str) -> Tensor:
    """Return q.k with another base on one side, "q" or "k"."""
    freq = {on: geometric(here.rotary_dim, base)}
    return product(turn(here, q, p, inv_freq=freq.get("q")), turn(here, k, p, inv_freq=freq.get("k")))


def over_heads(here: Setting) -> Tensor:
    """Return frequencies (heads, 1, pairs) that are formed over the lanes of all heads together."""
    return geometric(here.heads * here.rotary_dim, here.base).view(here.heads, 1, -1)


def index(positions: Tensor) -> Tensor:
    """Count from 0, whatever positions are given."""
    return torch.arange(len(positions)).double()


def by_head(x: Tensor) -> Tensor:
    """Return each head's number in the place of positions."""
    return torch.arange(x.shape[1]).double()[:, None].expand(-1, x.shape[2])


def backwards(here: Setting, q: Tensor, k: Tensor, p: Tensor) -> Parts:
    """Turn both sides the other way, which weights trained so cannot tell."""
    return both(here, q, k, -p.double())


def half(positions: Tensor, dtype: torch.dtype) -> Tensor:
    """Round positions to a half precision."""
    return positions.to(dtype).double()


def alibi(here: Setting, p: Tensor, slopes: str = "authors", sign: float = 1.0) -> Tensor:
    """Return the definition's bias."""
    at = p.numpy()
    found = definitions.find("alibi")
    assert found is not None
    return sign * torch.from_numpy(found(at, at, n_heads=here.heads, slopes=slopes))


def exponents_off(here: Setting, p: Tensor) -> Tensor:
    """Return the bias whose slopes begin at 1."""
    slopes = torch.tensor([2.0 ** (-8 * h / here.heads) for h in range(here.heads)]).double()
    return -slopes[:, None, None] * (p[:, None] - p[None]).abs()
