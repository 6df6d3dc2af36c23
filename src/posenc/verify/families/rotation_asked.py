"""What a specification asks of a rotation: width, pairing, frequencies by length of the text, and gain."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import numpy as np

from posenc import config, frequencies
from posenc.verify.engine.records import Array

ByLength = Callable[[int], Array]  # frequencies of a text of so many tokens
LENGTH = "original_max_position_embeddings"
NAMES = {"ntk": "dynamic", "su": "longrope"}  # other names of a scaling
KINDS = ("default", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional")
PARAMETERS = (  # of scalings, which a specification may have next to their name
    *("factor", LENGTH, "low_freq_factor", "high_freq_factor", "attention_factor", "beta_fast", "beta_slow"),
    *("mscale", "mscale_all_dim", "truncate", "short_factor", "long_factor", "alpha"),
)


@dataclass(frozen=True, eq=False)
class Asked:
    """What a specification asks of a rotation.

    Args:
        head_dim: Dimensions of a head.
        rotary_dim: How many of them rotate, over which exponents count.
        layout: "half", "interleaved", or None where nothing is said.
        base: The base of the frequencies.
        source: The configuration, where there is one or a scaling.
        rotary: What that says.
        max_positions: Positions that must work; None where nothing is said.
        first: The first dimension that rotates.
        activation_dtype: The dtype of q and k; None where nothing is said.
        xpos: The base and gamma of xPos's decay; None for a rotation without.
    """

    head_dim: int
    rotary_dim: int
    layout: str | None
    base: float
    source: Mapping[str, Any] | None = None
    rotary: config.Rotary | None = None
    max_positions: int | None = None
    first: int = 0
    activation_dtype: str | None = None
    xpos: tuple[float, float] | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n_pairs(self) -> int:
        """How many pairs of dimensions rotate."""
        return self.rotary_dim // 2

    @property
    def scaling(self) -> str:
        """The kind of scaling, "default" for none."""
        return "default" if self.rotary is None else self.rotary.rope_type

    @property
    def factor(self) -> float:
        """The factor of the scaling, 1 for none."""
        return (self.rotary.factor if self.rotary is not None else None) or 1.0

    @property
    def original(self) -> int:
        """The length before scaling, 1 where none is known."""
        return (self.rotary.original_max_len if self.rotary is not None else None) or 1

    @property
    def trained(self) -> int | None:
        """The length at which frequencies change; None if they depend on no length."""
        return self.original if self.scaling in ("dynamic", "longrope") else None

    @property
    def definition(self) -> str:
        """What a subject is compared with."""
        name = "xpos" if self.xpos else "rope"
        return name if self.scaling == "default" else f"{self.scaling}@transformers-5"

    def plain(self, base: float | None = None, width: float | None = None, n_pairs: int | None = None) -> Array:
        """Return base^(-2i/width) for each pair i."""
        pairs = np.arange(self.n_pairs if n_pairs is None else n_pairs)
        return np.asarray((base or self.base) ** (-2.0 * pairs / (width or self.rotary_dim)))

    @cached_property
    def inv_freq(self) -> ByLength:
        """Frequencies as a function of the length of the text."""
        return Fixed(self.plain()) if self.source is None else _read_once(self, lambda found: found.inv_freq.numpy())

    @cached_property
    def gain(self) -> Callable[[int], float]:
        """What multiplies rotated dimensions, as a function of the length of the text."""
        return Fixed(1.0) if self.source is None else _read_once(self, lambda found: float(found.gain))

    def changed(self, **parameters: Any) -> ByLength | None:
        """Return the frequencies by other parameters of the scaling, or another rope_theta; None if there are none."""
        source = dict(self.source or {})
        key = next((k for k in ("rope_parameters", "rope_scaling") if isinstance(source.get(k), Mapping)), None)
        if key is not None:
            source[key] = {**source[key], **parameters}
        source.update({name: value for name, value in parameters.items() if name in ("rope_theta", LENGTH)})
        other = replace(self, source=source)
        try:
            other.inv_freq(self.original)
        except (ValueError, TypeError, ZeroDivisionError):
            return None
        return other.inv_freq


def _read_once(asked: Asked, of: Callable[[frequencies.Frequencies], Any]) -> Callable[[int], Any]:
    """Return something of the frequencies of a configuration by length, computed once for each."""
    pairing: Any = asked.layout or "half"

    @cache
    def found(seq_len: int) -> Any:
        return of(frequencies.from_config(asked.source or {}, pairing=pairing, seq_len=seq_len))

    def at(seq_len: int) -> Any:
        return found(max(seq_len, asked.trained or 1))

    return at if asked.trained is not None else Fixed(found(1))


@dataclass(frozen=True, eq=False)
class Fixed:
    """A function of the length that has one value for all."""

    value: Any

    def __call__(self, seq_len: int) -> Any:
        """Return the value."""
        return self.value


def read(spec: Mapping[str, Any]) -> Asked:
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
    _agree(spec, rotary)
    head_dim = spec.get("head_dim") or (rotary and rotary.head_dim) or spec.get("dim") or spec.get("rotary_dim")
    if head_dim is None:
        raise ValueError("verify: a rotation needs head_dim in the spec, the dimensions of a head. Give head_dim=64.")
    rotary_dim = (rotary.rotary_dim if rotary is not None else None) or spec.get("rotary_dim") or head_dim
    is_last = spec.get("rotary_side") == "last" or (rotary is not None and rotary.rotary_side == "last")
    dtype = spec.get("activation_dtype")
    return Asked(
        head_dim=int(head_dim),
        rotary_dim=int(rotary_dim),
        layout=spec.get("layout"),
        base=rotary.base if rotary is not None else float(spec.get("base", 10000.0)),
        source=source,
        rotary=rotary,
        max_positions=_longest(spec, rotary),
        first=int(head_dim) - int(rotary_dim) if is_last else 0,
        activation_dtype=None if dtype is None else str(dtype).removeprefix("torch."),
        parameters=dict(rotary.parameters) if rotary is not None else {},
    )


def _agree(spec: Mapping[str, Any], rotary: config.Rotary | None) -> None:
    """Refuse a scaling next to a configuration that has another one.

    Raises:
        ValueError: Likewise.
    """
    said = spec.get("scaling")
    said = said.get("rope_type", said.get("type")) if isinstance(said, Mapping) else said
    said = {"none": "default"}.get(str(said), NAMES.get(str(said), said))
    if said in KINDS and rotary is not None and rotary.rope_type != said:
        found = rotary.rope_type
        raise ValueError(f"verify: scaling is {said!r}, and the config's is {found!r}. Say one of them in the spec.")


def _longest(spec: Mapping[str, Any], rotary: config.Rotary | None) -> int | None:
    """Return how many positions must work."""
    longest = spec.get("max_positions") or (spec.get("config") or {}).get("max_position_embeddings")
    if rotary is not None and rotary.rope_type == "dynamic" and longest == rotary.original_max_len:
        return None  # the trained length, beyond which it is to work
    return None if longest is None else int(longest)


def _source(spec: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a configuration for `config.rotary`: the one given, its gaps filled with the words of the spec."""
    said, scaling = spec.get("config"), spec.get("scaling")
    if said is None and scaling in (None, "none", "default"):
        return None
    source = dict(said or {})
    if (head_dim := spec.get("head_dim")) is not None:
        source.setdefault("head_dim", head_dim)
        source.setdefault("num_attention_heads", 1)
        source.setdefault("hidden_size", head_dim * source["num_attention_heads"])
    _add_scaling(source, spec)
    own = source.get("rope_parameters") or source.get("rope_scaling") or {}
    if "rope_theta" not in source and "rope_theta" not in own and "base" in spec:
        source["rope_theta"] = float(spec["base"])
    if said is None and spec.get("base") not in (None, own.get("rope_theta", spec.get("base"))):
        raise ValueError(f"verify: base is {spec['base']:g}, and rope_theta {own['rope_theta']:g}. Say one of them.")
    written = {"rotary_dim", "partial_rotary_factor", "rotary_pct", "qk_rope_head_dim"} & {*source, *own}
    if (rotary_dim := spec.get("rotary_dim")) and head_dim and rotary_dim != head_dim and not written:
        source["partial_rotary_factor"] = rotary_dim / head_dim
    return source


def _add_scaling(source: dict[str, Any], spec: Mapping[str, Any]) -> None:
    """Add a spec's scaling to a configuration that has none.

    Raises:
        ValueError: No scaling is called so.
    """
    scaling = spec.get("scaling")
    if scaling in (None, "none", "default") or source.get("rope_scaling") or source.get("rope_parameters"):
        return
    own = dict(scaling) if isinstance(scaling, Mapping) else {"rope_type": NAMES.get(str(scaling), scaling)}
    own |= {word: spec[word] for word in PARAMETERS if spec.get(word) is not None and word not in own}
    kind = own.get("rope_type", own.get("type"))
    kind = own["rope_type"] = NAMES.get(str(kind), kind)
    source["rope_scaling"] = own
    if kind == "dynamic" and own.get(LENGTH):  # transformers reads the trained length of this one in another place
        source["max_position_embeddings"] = own[LENGTH]
    elif spec.get("max_positions"):
        source.setdefault("max_position_embeddings", spec["max_positions"])
