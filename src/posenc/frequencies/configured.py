"""The frequencies of a model, computed from its configuration."""

from dataclasses import dataclass
from typing import Any

from posenc import config
from posenc.config.values import short
from posenc.frequencies import scaling
from posenc.frequencies.basic import Array, geometric

_LONGEST = 10**12


@dataclass(frozen=True, eq=False)
class Frequencies:
    """The rotation of a model's queries and keys.

    Args:
        inv_freq: Radians per position, one per pair of dimensions, (n_pairs,) in float64.
        gain: The factor on the rotated dimensions of q and of k, so scores get its square; Hugging Face's
            attention_scaling, which multiplies cos and sin.
        score_factor: An additional factor on all scores.
        rotary_dim: How many dimensions rotate.
        pairing: Which dimensions form a pair.
    """

    inv_freq: Array
    gain: float
    score_factor: float
    rotary_dim: int
    pairing: config.Pairing


def from_config(
    source: config.Source,
    layer_type: str | None = None,
    *,
    pairing: config.Pairing | None = None,
    seq_len: int | None = None,
) -> Frequencies:
    """Return the frequencies of one kind of layer of a model, as transformers 5.23 computes them, but in float64.

    Args:
        source: A configuration, as for `config.read`.
        layer_type: The kind of layer, as for `config.rotary`.
        pairing: Which dimensions form a pair; None takes the pairing of the model type.
        seq_len: The length of the text in positions, for LongRoPE's list and dynamic NTK's base; None means a text
            within the trained length.

    Raises:
        ValueError: As for `config.rotary`; or the rope_type is unknown, or a list of factors is missing or does not
            have one entry per pair.
        TypeError: As for `config.rotary`; or seq_len is no integer.

    >>> found = from_config({"model_type": "gptj", "head_dim": 256, "rotary_dim": 4, "rope_theta": 1e4})
    >>> found.inv_freq.tolist(), found.pairing
    ([1.0, 0.01], 'interleaved')
    """
    if seq_len is not None and (isinstance(seq_len, bool) or not isinstance(seq_len, int)):
        raise TypeError(
            f"from_config: seq_len must be an integer; got {type(seq_len).__name__}. Pass a length or None."
        )
    if seq_len is not None and not 1 <= seq_len <= _LONGEST:
        raise ValueError(
            f"from_config: seq_len must be from 1 to {_LONGEST}; got {short(seq_len)}. Pass a length or None."
        )
    rotary = config.rotary(source, layer_type, pairing=pairing)
    return Frequencies(
        inv_freq=_inv_freq(rotary, seq_len),
        gain=_gain(rotary, seq_len),
        score_factor=_score_factor(rotary),
        rotary_dim=rotary.rotary_dim,
        pairing=rotary.pairing,
    )


def _inv_freq(rotary: config.Rotary, seq_len: int | None) -> Array:
    width, base, parameters = rotary.rotary_dim, rotary.base, rotary.parameters
    factor, original_max_len = _stretch(rotary)
    plain = geometric(width // 2, base=base, width=width)
    match rotary.rope_type:
        case "default":
            return plain
        case "linear":
            return scaling.linear(plain, factor=factor)
        case "proportional":
            slow = scaling.proportional(head_dim=width, base=base, share=parameters["share"])
            return scaling.linear(slow, factor=factor)
        case "ntk_alpha":
            base = scaling.ntk_base(base, width=width, factor=factor)
            return geometric(width // 2, base=base, width=width)
        case "dynamic":
            lengths = {"seq_len": seq_len or original_max_len, "original_max_len": original_max_len}
            base = scaling.dynamic_base(base, width=width, factor=factor, **lengths)
            return geometric(width // 2, base=base, width=width)
        case "yarn":
            ramp = {key: parameters[key] for key in ("beta_fast", "beta_slow", "truncate")}
            return scaling.yarn(width=width, base=base, factor=factor, original_max_len=original_max_len, **ramp)
        case "llama3":
            bounds = {key: parameters[key] for key in ("low_freq_factor", "high_freq_factor")}
            return scaling.llama3(plain, factor=factor, original_max_len=original_max_len, **bounds)
        case "longrope":
            return scaling.longrope(plain, _factors(rotary, seq_len))
    raise ValueError(
        f"from_config: rope_type must be one of transformers 5.23's; got {rotary.rope_type[:60]!r}. "
        f"Compute the frequencies and pass them as inv_freq."
    )


def _stretch(rotary: config.Rotary) -> tuple[Any, Any]:
    """Return factor and trained length, which config.rotary guarantees for the types that need them."""
    return rotary.factor, rotary.original_max_len


def _is_long(rotary: config.Rotary, seq_len: int | None) -> bool:
    return seq_len is not None and rotary.original_max_len is not None and seq_len > rotary.original_max_len


def _factors(rotary: config.Rotary, seq_len: int | None) -> tuple[float, ...]:
    """Return LongRoPE's list for a length."""
    key = "long_factor" if _is_long(rotary, seq_len) else "short_factor"
    factors: tuple[float, ...] = rotary.parameters.get(key, ())
    if len(factors) != rotary.rotary_dim // 2:
        raise ValueError(
            f"from_config: {key} must have {rotary.rotary_dim // 2} entries, one per rotated pair; "
            f"got {len(factors)}. Correct the file."
        )
    return factors


def _gain(rotary: config.Rotary, seq_len: int | None) -> float:
    """Return the attention factor of the configuration, or the default of its scaling."""
    parameters, (factor, original_max_len) = rotary.parameters, _stretch(rotary)
    key = "long_mscale" if _is_long(rotary, seq_len) else "short_mscale"
    if (stated := parameters.get(key, parameters.get("attention_factor"))) is not None:
        return float(stated)
    if rotary.rope_type == "longrope":
        return scaling.longrope_gain(factor, original_max_len)
    if rotary.rope_type != "yarn":
        return 1.0
    weight, all_dim = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if weight and all_dim:
        return scaling.mscale(factor, weight) / scaling.mscale(factor, all_dim)
    return scaling.mscale(factor)


def _score_factor(rotary: config.Rotary) -> float:
    """Return DeepSeek's factor on the softmax scale, which its attention applies in addition to the gain."""
    all_dim = rotary.parameters.get("mscale_all_dim")
    if not rotary.scales_scores or not all_dim or rotary.factor is None:
        return 1.0
    return scaling.mscale(rotary.factor, all_dim) ** 2
