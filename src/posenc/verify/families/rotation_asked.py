"""The rotation that a specification declares: width, pairing, frequencies by length of the text, and gain."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from posenc import config, frequencies
from posenc.verify.engine.records import Array

ByLength = Callable[[int], Array]  # number of tokens -> frequencies
LENGTH = "original_max_position_embeddings"
OLD = {"su": "longrope", "none": "default"}  # other names of a scaling
KINDS = ("default", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional", "ntk_alpha")
PARAMETERS = (  # of scalings; a specification may give them next to the name
    *("factor", LENGTH, "low_freq_factor", "high_freq_factor", "attention_factor", "beta_fast", "beta_slow"),
    *("mscale", "mscale_all_dim", "truncate", "short_factor", "long_factor", "alpha"),
)


@dataclass(frozen=True, eq=False)
class Asked:
    """The rotation that a specification declares."""

    head_dim: int
    rotary_dim: int  # exponents are counted over this width
    n_pairs: int
    first: int  # first rotated dimension
    layout: str | None  # "half", "interleaved", or None if not declared
    base: float
    scaling: str  # "default" for none
    factor: float  # 1 for none
    original: int  # length before scaling; 1 if unknown
    trained: int | None  # length at which frequencies change
    parameters: Mapping[str, Any]  # more parameters of the scaling
    source: Mapping[str, Any]  # the given configuration, or one made of the specification's words
    max_positions: int | None  # the length that must work
    activation_dtype: str | None
    xpos: tuple[float, float] | None  # base and gamma of xPos's decay

    def plain(self, base: float | None = None, width: float | None = None, n_pairs: int | None = None) -> Array:
        """Return base^(-2i/width) for each pair i."""
        pairs = np.arange(n_pairs or self.n_pairs)
        return np.asarray((base or self.base) ** (-2.0 * pairs / (width or self.rotary_dim)))

    def inv_freq(self, seq_len: int) -> Array:
        """Return the frequencies of a text of so many tokens."""
        return _formed(self, max(seq_len, self.trained) if self.trained else 1)[0]

    def gain(self, seq_len: int) -> Array:
        """Return the factor of rotated dimensions."""
        return _formed(self, max(seq_len, self.trained) if self.trained else 1)[1]

    def changed(self, **parameters: Any) -> ByLength | None:
        """Return the frequencies with changed parameters of the scaling or another rope_theta; None if not possible."""
        other = self.other(**parameters)
        return None if other is None else other.inv_freq

    def other(self, **parameters: Any) -> "Asked | None":
        """Return the rotation with changed parameters of the scaling or another rope_theta; None if not possible."""
        source = dict(self.source)
        for key in ("rope_parameters", "rope_scaling"):
            if isinstance(source.get(key), Mapping):
                source[key] = {**source[key], **parameters}
        source |= {name: value for name, value in parameters.items() if name in ("rope_theta", LENGTH)}
        other = replace(self, source=source)
        try:
            other.inv_freq(self.original)
        except (ValueError, TypeError, ZeroDivisionError):
            return None
        return other


@lru_cache(4096)
def _formed(asked: Asked, seq_len: int) -> tuple[Array, Array]:
    pairing: Any = asked.layout or "half"
    found = frequencies.from_config(asked.source, pairing=pairing, seq_len=seq_len)
    return found.inv_freq, np.array([found.gain])


def read(spec: Mapping[str, Any], *, is_xpos: bool = False) -> Asked:
    """Return the rotation that a specification declares."""
    source = _source(spec)
    pairing: Any = spec.get("layout") or "half"
    rotary = config.rotary(source, pairing=pairing)
    if spec.get("rotary_dim") not in (None, rotary.rotary_dim):  # the specification overrides the type
        source.pop("model_type", None)
        rotary = config.rotary(source, pairing=pairing)
    said = spec.get("scaling")
    said = said.get("rope_type", said.get("type")) if isinstance(said, Mapping) else said
    names = {rotary.rope_type, *(["dynamic"] if rotary.rope_type == "ntk_alpha" else [])}  # HunYuan's name
    if OLD.get(str(said), said) in {*KINDS} - names:
        found = rotary.rope_type
        raise ValueError(f"verify: scaling is {said!r}, but the config's is {found!r}. Declare only one of them.")
    head_dim, original = int(spec.get("head_dim") or rotary.head_dim), rotary.original_max_len or 1
    is_last = "last" in (spec.get("rotary_side"), rotary.rotary_side)
    longest = spec.get("max_positions") or (spec.get("config") or {}).get("max_position_embeddings")
    if rotary.rope_type == "dynamic" and longest == original:
        longest = None  # the trained length; the code must work beyond it
    dtype = spec.get("activation_dtype")
    return Asked(
        head_dim=head_dim,
        rotary_dim=rotary.rotary_dim,
        n_pairs=rotary.rotary_dim // 2,
        first=head_dim - rotary.rotary_dim if is_last else 0,
        layout=spec.get("layout"),
        base=rotary.base,
        scaling=rotary.rope_type,
        factor=rotary.factor or 1.0,
        original=original,
        trained=original if rotary.rope_type in ("dynamic", "longrope") else None,
        parameters=rotary.parameters,
        source=source,
        max_positions=None if longest is None else int(longest),
        activation_dtype=None if dtype is None else str(dtype).removeprefix("torch."),
        xpos=(float(spec.get("scale_base", 512.0)), float(spec.get("gamma", 0.4))) if is_xpos else None,
    )


def _source(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration for `config.rotary`: the given one, completed with the words of the specification."""
    source, is_given = dict(spec.get("config") or {}), bool(spec.get("config"))
    head_dim, rotary_dim = spec.get("head_dim"), spec.get("rotary_dim")
    if not is_given and not (head_dim := head_dim or spec.get("dim") or rotary_dim):
        raise ValueError("verify: a rotation needs head_dim in the spec, the dimensions of a head. Give head_dim=64.")
    if head_dim:
        source = {"head_dim": head_dim, "num_attention_heads": 1, **source}
        source.setdefault("hidden_size", head_dim * source["num_attention_heads"])
    scaling = spec.get("scaling")
    if scaling not in (None, "none", "default") and not (source.get("rope_scaling") or source.get("rope_parameters")):
        given = dict(scaling) if isinstance(scaling, Mapping) else {"rope_type": scaling}
        name = str(given.get("rope_type", given.get("type")))
        words = {word: spec[word] for word in PARAMETERS if spec.get(word) is not None}
        source["rope_scaling"] = {**words, **given, "rope_type": OLD.get(name, name)}
        if name == "dynamic" and source["rope_scaling"].get("alpha"):
            source["rope_scaling"]["rope_type"] = "ntk_alpha"  # only HunYuan's has alpha
        if name == "dynamic" and source["rope_scaling"].get(LENGTH):
            source["max_position_embeddings"] = source["rope_scaling"][LENGTH]  # transformers reads it here
        elif spec.get("max_positions"):
            source.setdefault("max_position_embeddings", spec["max_positions"])
    own = source.get("rope_parameters") or source.get("rope_scaling") or {}
    if not is_given and spec.get("base") not in (None, own.get("rope_theta", spec.get("base"))):
        raise ValueError(f"verify: base is {spec['base']:g}, but rope_theta {own['rope_theta']:g}. Declare only one.")
    if "rope_theta" not in {**own, **source} and ("base" in spec or not is_given):
        source["rope_theta"] = float(spec.get("base") or 10000.0)
    is_said = {"rotary_dim", "partial_rotary_factor", "rotary_pct", "qk_rope_head_dim"} & {*source, *own}
    if rotary_dim and head_dim and rotary_dim != head_dim and not is_said:
        source["partial_rotary_factor"] = rotary_dim / head_dim
    return source
