"""Frequencies, gain and score factor from resolved parameters: one implementation of each formula."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posenc import frequencies

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Rotation:
    """A rotation with numeric parameters; lengths in positions, widths in head dimensions.

    Args:
        formula: The name of the formula, as in `rules.FORMULAS`.
        width: The number of rotated head dimensions.
        base: The file's rope_theta.
        max_len: The longest text in the file.
        parameters: The formula's parameters: factor, original, beta_fast, ...
        gain: Steps in order; the first one that applies gives the gain.
        times: Parameters that multiply the gain.
        lists: When each of LongRoPE's lists is used.
        length: The length at which dynamic NTK computes its base.
        served: The length for which a server allocates memory, if a choice depends on it.
    """

    formula: str
    width: int
    base: float
    max_len: int | None
    parameters: Mapping[str, Any]
    gain: tuple[str, ...] = ("one",)
    times: tuple[str, ...] = ()
    lists: str = "text>original"
    length: str = "text"
    trained: str = "max_len"
    served: int | None = None

    def inv_freq(self, text: int) -> Array:
        """Return radians per position, one for each pair, for a text length."""
        p, width, base = self.parameters, self.width, self.base
        plain = frequencies.geometric(width // 2, base=base, width=width)
        match self.formula:
            case "plain":
                return plain
            case "linear":
                return frequencies.linear(plain, factor=p["factor"])
            case "ntk":
                grown = frequencies.ntk_base(base, width=width, factor=p["factor"])
                return frequencies.geometric(width // 2, base=grown, width=width)
            case "ntk_slowed":  # vLLM: the base grows by the factor, and all pairs rotate slower, the first too
                slow = frequencies.geometric(width // 2, base=base * p["factor"], width=width)
                return frequencies.linear(slow, factor=p["factor"] ** (2 / width))
            case "dynamic":
                grown = frequencies.dynamic_base(base, width=width, factor=p["factor"], **self._dynamic(text))
                return frequencies.geometric(width // 2, base=grown, width=width)
            case "yarn":
                ramp = {key: p[key] for key in ("beta_fast", "beta_slow", "truncate")}
                lengths = {"factor": p["factor"], "original_max_len": p["original"]}
                return frequencies.yarn(width=width, base=base, **lengths, **ramp)
            case "llama3":
                turns = {key: p[key] for key in ("low_freq_factor", "high_freq_factor")}
                return frequencies.llama3(plain, factor=p["factor"], original_max_len=p["original"], **turns)
            case "longrope":
                return frequencies.longrope(plain, p["long_factor" if self.is_long(text) else "short_factor"])
            case "proportional":
                slow = frequencies.proportional(head_dim=width, base=base, share=p["share"])
                return frequencies.linear(slow, factor=p.get("factor") or 1.0)
        raise ValueError(f"parity: unknown formula {self.formula!r}.")

    def _dynamic(self, text: int) -> dict[str, int]:
        """Return the length at which the base is computed, and the trained one."""
        max_len: Any = self.max_len
        at = {"text": text, "max_len": max_len, "max_len*factor": round(max_len * self.parameters["factor"])}
        trained = self.parameters.get("max_trained_positions") if self.trained != "max_len" else None
        return {"seq_len": at[self.length], "original_max_len": trained or max_len}

    def is_long(self, text: int) -> bool:
        """Return whether LongRoPE uses the list for long texts."""
        original = self.parameters["original"]
        served = text if self.served is None else self.served
        long: dict[str, bool] = {
            "text>original": text > original,
            "text>original+1": text > original + 1,
            "served>original": served > original,
            "long": True,
        }
        return long[self.lists]

    def gains(self, text: int) -> float:
        """Return the factor of the rotated dimensions of q and of k."""
        found = next(gain for step in self.gain if (gain := self._gain(step, text)) is not None)
        for key in self.times:
            found *= 1.0 if self.parameters.get(key) is None else self.parameters[key]
        return float(found)

    def _gain(self, step: str, text: int) -> float | None:
        """Return the gain by one step, None if the step does not apply."""
        p = self.parameters
        if step == "one":
            return 1.0
        if step == "attention_factor":
            return None if p.get(step) is None else float(p[step])
        if step == "list_mscale":
            stated = p.get("long_mscale" if self.is_long(text) else "short_mscale")
            return None if stated is None else float(stated)
        if step.startswith("longrope"):
            ratio = (self.max_len or 0) / p["original"]
            factor = ratio if step == "longrope_ratio" else p.get("factor")
            stated = ratio if factor is None and step == "longrope_factor" else factor
            return frequencies.longrope_gain(stated, p["original"])  # type: ignore[arg-type]
        weight, whole = p.get("mscale"), p.get("mscale_all_dim")
        if step == "mscale":
            return frequencies.mscale(p["factor"])
        if step == "all_dim_ratio":  # llama.cpp: mscale counts as 1
            return None if not whole else frequencies.mscale(p["factor"]) / frequencies.mscale(p["factor"], whole)
        given = bool(weight and whole) if step == "ratio_if_truthy" else weight is not None and whole is not None
        if step != "ratio" and not given:
            return None
        return frequencies.mscale(p["factor"], weight or 0.0) / frequencies.mscale(p["factor"], whole or 0.0)


def score_factor(factor: float | None, weight: float) -> float:
    """Return the factor of all scores in DeepSeek's attention: mscale of the factor at a weight, squared."""
    return 1.0 if factor is None else frequencies.mscale(factor, weight) ** 2


def mean_cos(one: Array, other: Array, distance: int) -> float | None:
    """Return the mean over pairs of the cosine of the angle between two rotations at a distance; 1 is no difference.

    None if different numbers of pairs rotate.

    >>> mean_cos(np.array([1.0, 0.5]), np.array([1.0, 0.5]), 8000)
    1.0
    """
    return None if len(one) != len(other) else float(np.cos((one - other) * distance).mean())


def same(one: Sequence[float] | Array, other: Sequence[float] | Array) -> bool:
    """Return whether numbers agree within one part in a million, which is float32's precision."""
    return len(one) == len(other) and bool(np.allclose(one, other, rtol=1e-6, atol=0.0))
