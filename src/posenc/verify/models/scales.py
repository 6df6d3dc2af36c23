"""By what a layer multiplies its scores, held against what its configuration says."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posenc import config, frequencies
from posenc.config import kinds
from posenc.config.model import open_model
from posenc.config.reading import Checked
from posenc.verify.models.causes import Reason

CODE = "model.scores.scale"
_SAME = 1e-3  # what half precision leaves of a number that queries and keys were multiplied by
# a key of the file, and what transformers takes where it is left out; None where that is the root of head_dim
_SCALAR = {"gemma2": 256, "gemma3_text": 256, "t5_gemma_module": 256, "vaultgemma": 256}
_SCALAR |= {"t5gemma2_text": 256, "t5gemma2_decoder": 256}
_MULTIPLIER = {"granite": 1.0, "granite4_vision_text": 1.0, "granite_swa": 1.0, "granite_docling_text": 0.015625}
_MULTIPLIER |= dict.fromkeys(("granitemoe", "granitemoe_swa", "granitemoehybrid", "granitemoeshared"), 1.0)
_MULTIPLIER |= {"hyperclovax": None}  # type: ignore[dict-item]
# queries and keys are normalised, or scaled before they are turned, and scores are not
_ONE = {"diffusion_gemma_text", "embedding_gemma2_text", "gemma3n_text", "gemma4_text", "gemma4_unified_text"}
_ONE |= {"dia_decoder", "dia_encoder", "esm", "mt5", "t5", "umt5"}
_HALF_WIDTH = {"zamba2"}  # attends over the text and its first embeddings, side by side


@dataclass(frozen=True)
class Scale:
    """What scores should be multiplied by, and why.

    Args:
        value: The number.
        because: What says so, in words.
        factor: The part of it that is DeepSeek's, from mscale_all_dim.
        scalar: query_pre_attn_scalar, where that is what counts.
    """

    value: float
    because: str
    factor: float = 1.0
    scalar: float | None = None


def expected(fields: Mapping[str, Any], kind: str, head_dim: int) -> Scale:
    """Return what a configuration says of the scale of one kind of layer.

    Args:
        fields: The configuration, as config.json has it.
        kind: The kind of layer.
        head_dim: Lanes of a head, as attention gets them.

    >>> expected({"model_type": "gemma2", "query_pre_attn_scalar": 144}, "full_attention", 128).value == 144**-0.5
    True
    """
    model = open_model(Checked(dict(fields)))
    name = model.name
    if name in _SCALAR:
        scalar = float(model.fields.get("query_pre_attn_scalar") or _SCALAR[name])
        return Scale(scalar**-0.5, f"query_pre_attn_scalar {scalar:g} says", scalar=scalar)
    if name in _MULTIPLIER and (told := model.fields.get("attention_multiplier", _MULTIPLIER[name])) is not None:
        return Scale(float(told), f"attention_multiplier {told:g} says")
    if name in _ONE:
        return Scale(1.0, f"the type {name} says, which scales queries and keys instead,")
    width = head_dim / 2 if name in _HALF_WIDTH else head_dim
    factor = frequencies.from_config(dict(fields), kind).score_factor if kinds.turns(kind) else 1.0
    because = f"the root of head_dim {width:g} says" if factor == 1 else f"head_dim {width:g} and mscale_all_dim say"
    return Scale(width**-0.5 * factor, because, factor)


def explain(
    got: float, fields: Mapping[str, Any], kind: str, *, head_dim: int, rotary_dim: int | None
) -> tuple[Scale, Reason | None]:
    """Return what the scale should be, and why it is wrong; None if it is right.

    Args:
        got: What scores are multiplied by.
        fields: The configuration, as config.json has it.
        kind: The kind of layer.
        head_dim: Lanes of a head.
        rotary_dim: Lanes of a head that turn; None if none do.
    """
    want = expected(fields, kind, head_dim)
    if math.isclose(got, want.value, rel_tol=_SAME):
        return want, None
    known = [*_of_factor(want, fields, kind), *_of_widths(want, fields, head_dim, rotary_dim or head_dim)]
    return want, hold(got, want, known, head_dim)


def hold(got: float, want: Scale, known: Sequence[tuple[str, float]], head_dim: int) -> Reason | None:
    """Return why scores are multiplied by another number, None if they are not; `known`: numbers of known faults."""
    if math.isclose(got, want.value, rel_tol=_SAME):
        return None
    words = next((said for said, value in known if math.isclose(got, value, rel_tol=_SAME)), None)
    words = words or f"{got / want.value:.6g} times as much as it should"
    said = f"multiplies scores by {got:.4g} ({words}), where {want.because} {want.value:.6g}"
    help_ = "Hand the scale of the configuration to attention, once."
    return Reason(CODE, said, abs(got / want.value - 1), help_, (("head_dim", head_dim),))


def of_widths(want: Scale, head_dim: int, hidden: int) -> list[tuple[str, float]]:
    """Return scales by wrong widths, or by the right one in a wrong way."""
    found = [
        ("divided by the root of head_dim", head_dim**-0.5),
        ("not divided at all", 1.0),
        ("divided by head_dim, and not by its root", 1 / head_dim),
        ("divided by the root of head_dim twice", want.value * head_dim**-0.5),
        ("multiplied by what should divide", 1 / want.value),
    ]
    if hidden:
        found.append((f"divided by the root of the whole width {hidden}", hidden**-0.5 * want.factor))
    return found


def _of_factor(want: Scale, fields: Mapping[str, Any], kind: str) -> Iterator[tuple[str, float]]:
    """Yield faults of what is no width, with the number that each makes."""
    if want.factor != 1:
        told = config.rotary(dict(fields), kind)
        mscale = frequencies.mscale(told.factor or 1.0, told.parameters.get("mscale") or 1.0)
        yield "mscale_all_dim is not read", want.value / want.factor
        yield "the factor of mscale_all_dim is applied once and not squared", want.value / want.factor**0.5
        yield "the factor of mscale_all_dim is applied twice", want.value * want.factor
        yield "mscale stands in the place of mscale_all_dim", want.value / want.factor * mscale**2
    if want.scalar is not None:
        yield "query_pre_attn_scalar divides, and not its root", 1 / want.scalar


def _of_widths(want: Scale, fields: Mapping[str, Any], head_dim: int, rotary_dim: int) -> Iterator[tuple[str, float]]:
    """Yield scales by wrong widths, or by the right one in a wrong way."""
    told = open_model(Checked(dict(fields))).fields
    yield from of_widths(want, head_dim, told.get("hidden_size") or 0)
    latent = (told.get("kv_lora_rank") or 0) + rotary_dim
    still = head_dim - rotary_dim
    for what, width in (
        ("the lanes that turn,", rotary_dim),
        ("the lanes that do not turn,", still),
        ("the compressed keys,", latent),
    ):
        if width:
            yield f"divided by the root of {what} {width}", width**-0.5 * want.factor
