"""Loaded models of Hugging Face transformers whose positions enter by posenc.

`use(model)` replaces what a model does with positions, in place, and the weights stay where they are. Rotary models get
exact tables and posenc's turn of queries and keys. Models with a position bias get their attention run by
`posenc.attend`, so that the (heads, q_len, k_len) bias and the (batch, 1, q_len, k_len) mask are never built.
`report(model)` says what is replaced and what is left, `restore(model)` puts everything back. transformers is imported
when they are called.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

from torch import nn

from posenc.interop.hf import patching

__all__ = ["MODEL_TYPES", "Part", "Report", "report", "restore", "use"]

# The class that builds masks and biases for its layers -> the module here that routes it.
_HOSTS = {
    "transformers.models.t5.modeling_t5.T5Stack": "t5",
    "transformers.models.mt5.modeling_mt5.MT5Stack": "t5",
    "transformers.models.bloom.modeling_bloom.BloomModel": "bloom",
    "transformers.models.mpt.modeling_mpt.MptModel": "mpt",
    "transformers.models.deberta_v2.modeling_deberta_v2.DebertaV2Encoder": "deberta",
    "transformers.models.roformer.modeling_roformer.RoFormerEncoder": "roformer",
}
MODEL_TYPES = ("bloom", "deberta-v2", "mpt", "mt5", "t5")

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class Part:
    """One part of a model: where it stands, and what runs its attention or why it was left."""

    name: str
    note: str

    def __str__(self) -> str:
        return f"{self.name or '(the model itself)'}: {self.note}"


@dataclass(frozen=True)
class Report:
    """What `use` replaced in a model, and what it left."""

    replaced: tuple[Part, ...]
    left: tuple[Part, ...]

    def __str__(self) -> str:
        lines = [f"replaced  {part}" for part in self.replaced] + [f"left      {part}" for part in self.left]
        return "\n".join(lines)


def use(model: Model, rope_parameters: object = None) -> Model:
    """Let a loaded model's positions enter by posenc, in place.

    Logits stay equal to rounding at every token that attends to something, padded, cached and in training; learned
    tables stay the model's own parameters, and `state_dict` and `save_pretrained` do not change. Call it before
    `torch.compile`; twice is harmless.

    Rotary models, any whose tables and rotary functions pass a trial: angles are formed in float64, and where
    frequencies depend on the length (LongRoPE, dynamic NTK), cached keys are turned on when it changes, so that a query
    meets keys of its own frequencies alone. There logits change: transformers drops such a cache or mixes frequencies.

    T5, mT5, BLOOM, MPT and DeBERTa-v2: attention weights are never formed, so these refuse `output_attentions`.

    Args:
        model: A model of these, any head on top; larger models that hold one too.
        rope_parameters: Other rotary parameters, as in a config.json, to extend the model's context: checked as
            `posenc.config` does and written into its configuration. What they leave out of rope_theta,
            partial_rotary_factor and the sections of M-RoPE stays. By kind of layer where kinds differ.

    Returns:
        The same model; `report(model)` says what was replaced, what was left, and why.

    Raises:
        TypeError: `model` is no module, or rope_parameters is no mapping.
        ValueError: It holds nothing that can be replaced, or rope_parameters do not fit; the sentence says why.
        ImportError: transformers is not installed.
    """
    _check(model, "use")
    interface = import_module("posenc.interop.hf.interface")
    interface.register()
    _rotary().route(model, rope_parameters)
    for host in _hosts(model).values():
        if not patching.is_patched(host) and _family(host).refuses(host) is None:
            _family(host).route(host)
            if not getattr(_family(host), "forms_weights", False):
                patching.refuse_weights(host)
    if not (said := report(model)).replaced:
        reasons = "\n".join(f"  {part}" for part in said.left) or "  it holds no model of transformers"
        raise ValueError(
            f"posenc.hf.use: nothing in {type(model).__name__} can be replaced:\n{reasons}\n"
            f"Pass a rotary model, or one of these types: {', '.join(MODEL_TYPES)}."
        )
    for owner in _owners(model):
        interface.choose(owner)
    return model


def restore(model: Model) -> Model:
    """Take out everything that `use` put into a model; without effect where it put in nothing.

    Raises:
        TypeError: `model` is no module.
    """
    _check(model, "restore")
    for module in model.modules():
        patching.undo(module)
    return model


def report(model: nn.Module) -> Report:
    """Say in which parts of a model positions enter by posenc now, and in which not and why.

    Raises:
        TypeError: `model` is no module.
    """
    _check(model, "report")
    replaced, left = [], []
    for name, host, sentence in (*_parts(model), *_rotary().parts(model)):
        if (note := patching.note(host)) is not None:
            replaced.append(Part(name, note))
        else:
            left.append(Part(name, sentence() or "it can be routed; posenc.hf.use(model) does so"))
    known = [*_hosts(model), *_rotary().owners(model)]
    for name, module in model.named_modules():
        kind = getattr(getattr(module, "config", None), "model_type", None)
        around = any(_within(part, name) or _within(name, part) for part in known)
        if kind and not around and not any(_within(name, part.name) for part in left):
            left.append(Part(name, f"{type(module).__name__} is of type {kind!r}, in which posenc replaces nothing"))
    return Report(tuple(replaced), tuple(left))


def _check(model: object, what: str) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"posenc.hf.{what}: model must be a loaded model of transformers; got {type(model).__name__}.")


def _parts(model: nn.Module) -> list[tuple[str, nn.Module, Callable[[], str | None]]]:
    return [(name, host, partial(_family(host).refuses, host)) for name, host in _hosts(model).items()]


def _rotary() -> Any:
    return import_module("posenc.interop.hf.rotary")


def _hosts(model: nn.Module) -> dict[str, nn.Module]:
    return {name: module for name, module in model.named_modules() if _home(module) is not None}


def _home(module: nn.Module) -> str | None:
    found = (_HOSTS.get(f"{cls.__module__}.{cls.__qualname__}") for cls in type(module).__mro__)
    return next((home for home in found if home), None)


def _family(host: nn.Module) -> Any:
    return import_module(f"posenc.interop.hf.{_home(host)}")


def _owners(model: nn.Module) -> list[nn.Module]:
    """Return the modules whose configuration chooses the masks of routed attention: hosts, and heads around them."""
    hosts = [name for name, host in _hosts(model).items() if patching.is_patched(host)]
    named = [(name, module) for name, module in model.named_modules() if any(_within(host, name) for host in hosts)]
    return [m for _, m in named if getattr(getattr(m, "config", None), "model_type", None) in MODEL_TYPES]


def _within(name: str, outer: str) -> bool:
    return outer == "" or name == outer or name.startswith(f"{outer}.")
