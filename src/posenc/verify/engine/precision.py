"""Rounding to half precision as a fault: any stage of a formula, in bfloat16 or float16."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from posenc.verify.engine.records import Array, Fault

SHORT = {"bfloat16": "bf16", "float16": "fp16"}


def rounded(values: Any, dtype: str | None) -> Array:
    """Return values rounded to a half precision dtype, as float64; None leaves them unchanged.

    >>> rounded([256.0, 257.0], "bfloat16").tolist()
    [256.0, 256.0]
    """
    exact = np.asarray(values, dtype=np.float64)
    if dtype is None:
        return exact
    held = torch.from_numpy(np.ascontiguousarray(exact)).to(getattr(torch, dtype)).double().numpy()
    return held.reshape(exact.shape)


def faults(family: str, stages: Mapping[str, str] | tuple[str, ...]) -> Iterator[Fault]:
    """Yield the faults of rounding each stage of a formula.

    Args:
        family: The first word of the finding codes.
        stages: The model's parameter of each stage, which holds a dtype's name or None, by the stage's name; a tuple if
            the parameters are called round_STAGE.
    """
    named = stages if isinstance(stages, Mapping) else {stage: f"round_{stage}" for stage in stages}
    for stage, parameter in named.items():
        for dtype, short in SHORT.items():
            yield Fault(f"{family}.precision.{stage}_{short}", {parameter: dtype}, {"dtype": dtype})
