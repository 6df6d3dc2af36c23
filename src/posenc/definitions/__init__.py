"""The mathematical definitions of the position encodings, written from their papers.

A definition is a short, slow function in float64 NumPy that states what an encoding computes: the numbers it adds to
the token vectors (`additive`, `features`), the new token vectors (`embedded`), the matrices that rotate queries and
keys (`rotary`, `rotations`) or values and outputs (`values`), or the term it adds to the attention scores (`bias`).
It is written to be compared with the paper by eye, and the fast implementations are tested against it. It shares no
code with them and does not need torch.

Where a paper and programs disagree under one name, each has its own definition, name@version: `yarn@transformers-5`.

`steps.follow` runs a definition and returns its lines with the numbers filled in.

Conventions common to all: distance = q_pos - k_pos, so a distance >= 0 looks back; angles are radians
and inverse frequencies radians per position; heads, lanes, pairs and buckets count from 0; no causal mask.
Where a position has several axes, they are its last dimension.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from posenc.definitions import (
    additive,
    bias,
    contents,
    distances,
    embedded,
    features,
    images,
    rotary,
    rotations,
    scores,
    values,
    versions,
)


def find(name: str) -> Callable[..., Any] | None:
    """The definition registered under `name` (the function's own name, or name@version), or None if there is none."""
    if "@" in name:
        return versions.VERSIONS.get(name) or versions.BIASES.get(name)
    for module in (additive, features, embedded, rotary, rotations, bias, scores, contents, images, distances, values):
        found = vars(module).get(name)
        if inspect.isfunction(found) and found.__module__ == module.__name__ and not name.startswith("_"):
            return found
    return None
