"""Learned tables resized to another size: the interpolation rules of programs, by name.

All rules compute in float32 or wider and return the table's own dtype.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from posenc.config.values import short
from posenc.families.numbers import wide

Rule = str | Mapping[str, Any]
# Arguments of torch's interpolate, as these programs pass them. `offset` is added to the new size before it is divided
# by the old one, so the sampling points are not the centres of the new cells.
RULES_2D: dict[str, dict[str, Any]] = {
    "timm": {"mode": "bicubic", "antialias": True},  # resample_abs_pos_embed; OpenCLIP
    "transformers": {"mode": "bicubic"},  # ViT, DINOv2, CLIP, SigLIP
    "torchvision": {"mode": "bicubic", "align_corners": True},  # interpolate_embeddings
    "dinov2": {"mode": "bicubic", "offset": 0.1},  # the authors' code, and that of DINO
    "siglip2": {"mode": "bilinear", "antialias": True},  # in transformers
    "qwen3_vl": {"mode": "bilinear", "align_corners": True},  # four corners of the table at even steps
    "bilinear": {"mode": "bilinear"},  # BEiT in transformers
}
RULES_1D: dict[str, dict[str, Any]] = {
    "ends": {"mode": "linear", "align_corners": True},
    "cells": {"mode": "linear"},  # SAM
    "steps": {},  # Long-CLIP: see `_in_steps`
}
_READ = ("mode", "antialias", "align_corners", "offset")


def resized_image(
    table: Float[Tensor, "cells n"], size: tuple[int, int], wanted: tuple[int, int], rule: Rule, who: str
) -> Float[Tensor, "wanted n"]:
    """Return a table of rows * columns vectors for another size, interpolated as an image.

    Raises:
        ValueError: The rule is unknown.
    """
    given = dict(_found(rule, RULES_2D, ("bicubic", "bilinear", "nearest", "nearest-exact", "area"), who))
    if size == wanted:  # as these programs do; an offset would shift the table
        return table.detach().clone()
    image = wide(table.detach()).T.unflatten(-1, size)[None]
    if offset := given.pop("offset", 0.0):
        given["scale_factor"] = tuple((new + offset) / old for new, old in zip(wanted, size, strict=True))
    else:
        given["size"] = wanted
    scaled = F.interpolate(image, **given)
    if scaled.shape[-2:] != wanted:
        raise ValueError(f"{who}: an offset must keep the size {wanted}; got offset={offset}. Pass 0.1.")
    return scaled[0].flatten(1).T.to(table)


def resized_differences(table: Tensor, size: tuple[int, int], wanted: tuple[int, int], rule: Rule, who: str) -> Tensor:
    """Return a table ((2 rows - 1)(2 columns - 1), n) of differences for another size, interpolated as an image."""
    old, new = ((2 * rows - 1, 2 * columns - 1) for rows, columns in (size, wanted))
    return resized_image(table, old, new, rule, who)


def resized_rows(table: Float[Tensor, "rows n"], wanted: int, rule: Rule, who: str) -> Float[Tensor, "wanted n"]:
    """Return a one-dimensional table of `wanted` vectors, interpolated along it.

    Raises:
        ValueError: The rule is unknown.
    """
    given = dict(_found(rule, RULES_1D, ("linear", "nearest", "nearest-exact", "area"), who))
    rows = wide(table.detach())
    if not given:
        return _in_steps(rows, wanted).to(table)
    return F.interpolate(rows.T[None], size=wanted, **given)[0].T.to(table)


def _in_steps(rows: Tensor, wanted: int) -> Tensor:
    """Put row i of the new table at i * old / new, and extrapolate linearly beyond the last row."""
    places = torch.arange(wanted, dtype=torch.float64, device="cpu") * len(rows) / wanted
    below = places.floor().clamp(max=max(len(rows) - 2, 0)).long()
    share = (places - below).to(rows)[:, None]
    below = below.to(rows.device)
    return torch.lerp(rows[below], rows[(below + 1).clamp(max=len(rows) - 1)], share)


def _found(rule: Rule, rules: Mapping[str, dict[str, Any]], modes: tuple[str, ...], who: str) -> dict[str, Any]:
    if isinstance(rule, str) and rule in rules:
        return rules[rule]
    if isinstance(rule, Mapping) and rule.get("mode") in modes and rule.keys() <= {*_READ}:
        return dict(rule)
    raise ValueError(
        f"{who}: rule must be {', '.join(map(repr, rules))}, or a mapping of {', '.join(_READ)} whose mode is one of "
        f"{', '.join(modes)}; got {short(rule)}. The rules give different tables: use the rule of the program that the "
        "table came from."
    )
