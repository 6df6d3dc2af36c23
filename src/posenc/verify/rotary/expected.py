"""What a specification asks of a rotation: width, pairing, frequencies by length, and gain."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from posenc import config, frequencies
from posenc.verify.rotary.matrix import Array

_NAMES = {  # of a scaling, as configurations spell it
    "linear": "linear", "dynamic": "dynamic", "ntk": "dynamic", "yarn": "yarn", "llama3": "llama3",
    "longrope": "longrope", "su": "longrope", "proportional": "proportional",
}  # fmt: skip


@dataclass(frozen=True)
class Expected:
    """What a specification asks of a rotation.

    Args:
        head_dim: Lanes of a head.
        rotary_dim: How many of them turn, and how wide frequencies count.
        layout: "half", "interleaved", or None where nothing is said.
        base: The base of the frequencies.
        rotary: What the configuration says, where there is one or a scaling.
        source: That configuration.
        max_positions: Positions that must work; None where nothing is said.
        definition: What it is held against.
        first: The first lane that turns.
        activation_dtype: In which dtype q and k come; None where nothing is said.
    """

    head_dim: int
    rotary_dim: int
    layout: str | None
    base: float
    rotary: config.Rotary | None
    source: Mapping[str, Any] | None
    max_positions: int | None
    definition: str
    first: int = 0
    activation_dtype: str | None = None

    @property
    def scaling(self) -> str:
        """The kind of scaling, "default" for none."""
        return "default" if self.rotary is None else self.rotary.rope_type

    @property
    def trained(self) -> int | None:
        """The length at which frequencies change; None if they depend on no length."""
        known = self.rotary is not None and self.scaling in ("dynamic", "longrope")
        return self.rotary.original_max_len if known and self.rotary is not None else None

    def plain(self, base: float | None = None, width: int | None = None) -> Array:
        """Return base^(-2i/width) for each pair."""
        width = width or self.rotary_dim
        return (base or self.base) ** (-2.0 * np.arange(self.rotary_dim // 2) / width)

    def inv_freq(self, seq_len: int) -> Array:
        """Return the frequencies for a text of a length."""
        if self.source is None:
            return self.plain()
        return self._found(seq_len).inv_freq.numpy()

    def gain(self, seq_len: int) -> float:
        """Return what multiplies turned lanes."""
        return 1.0 if self.source is None else self._found(seq_len).gain

    def _found(self, seq_len: int) -> frequencies.Frequencies:
        pairing: Any = self.layout or "half"
        return frequencies.from_config(self.source or {}, pairing=pairing, seq_len=seq_len)


def read(spec: Mapping[str, Any]) -> Expected:
    """Return what a specification asks for.

    Raises:
        ValueError: A width is missing, or the configuration says something impossible.
    """
    source = _source(spec)
    pairing: Any = spec.get("layout") or "half"
    rotary = None if source is None else config.rotary(source, pairing=pairing)
    if source is not None and rotary is not None and spec.get("rotary_dim") not in (None, rotary.rotary_dim):
        source = {key: value for key, value in source.items() if key != "model_type"}  # the spec outweighs the type
        rotary = config.rotary(source, pairing=pairing)
    head_dim = spec.get("head_dim") or (rotary and rotary.head_dim) or spec.get("dim") or spec.get("rotary_dim")
    if head_dim is None:
        raise ValueError("verify: a rotation needs head_dim in the spec, how many lanes a head has. Give head_dim=64.")
    rotary_dim = (rotary.rotary_dim if rotary is not None else None) or spec.get("rotary_dim") or head_dim
    base = rotary.base if rotary is not None else float(spec.get("base", 10000.0))
    told = spec.get("config") or {}
    name = "rope" if rotary is None or rotary.rope_type == "default" else f"{rotary.rope_type}@transformers-5"
    longest = spec.get("max_positions") or told.get("max_position_embeddings")
    if rotary is not None and rotary.rope_type == "dynamic" and longest == rotary.original_max_len:
        longest = None  # the trained length, beyond which it is to work
    last = spec.get("rotary_side") == "last" or (rotary is not None and rotary.rotary_side == "last")
    first = int(head_dim) - int(rotary_dim) if last else 0
    return Expected(
        int(head_dim), int(rotary_dim), spec.get("layout"), base, rotary, source, longest, name, first, _dtype(spec)
    )


def _dtype(spec: Mapping[str, Any]) -> str | None:
    said = spec.get("activation_dtype")
    short = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}
    return None if said is None else short.get(str(said).removeprefix("torch."), str(said).removeprefix("torch."))


def _source(spec: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a configuration for `config.rotary`: the one given, its gaps filled with the words of the spec."""
    told, scaling = spec.get("config"), spec.get("scaling")
    if told is None and scaling in (None, "none", "default"):
        return None
    source = dict(told or {})
    if (head_dim := spec.get("head_dim")) is not None:
        source.setdefault("head_dim", head_dim)
        source.setdefault("num_attention_heads", 1)
        source.setdefault("hidden_size", head_dim * source["num_attention_heads"])
    parameters = source.get("rope_parameters") or {}
    if "rope_theta" not in source and "rope_theta" not in parameters and "base" in spec:
        source["rope_theta"] = float(spec["base"])
    written = any(key in source for key in ("rotary_dim", "partial_rotary_factor", "rotary_pct", "qk_rope_head_dim"))
    rotary_dim, head_dim = spec.get("rotary_dim"), source.get("head_dim")
    if rotary_dim and head_dim and rotary_dim != head_dim and not written and "partial_rotary_factor" not in parameters:
        source["partial_rotary_factor"] = rotary_dim / head_dim
    if isinstance(scaling, Mapping):
        source.setdefault("rope_scaling", dict(scaling))
    elif scaling in _NAMES and not source.get("rope_scaling") and not parameters:
        words = ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
        source["rope_scaling"] = {"rope_type": _NAMES[scaling]} | {w: spec[w] for w in words if w in spec}
    return source
