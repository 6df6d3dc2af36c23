"""Loaded models of Hugging Face transformers with their attention run by `posenc.attend`.

`use(model)` takes the position bias out of the model's own attention: the (heads, q_len, k_len) bias and the
(batch, 1, q_len, k_len) mask are never built, and the weights stay where they are. `report(model)` says what is
replaced and what is left, `restore(model)` puts everything back. transformers is imported when they are called.
"""

from dataclasses import dataclass
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


def use(model: Model) -> Model:
    """Route a loaded model's attention through `posenc.attend`, in place.

    Logits stay equal to rounding at every token that attends to something, padded, cached and in training; learned
    tables stay the model's own parameters, and `state_dict` and `save_pretrained` do not change. Attention weights
    are never formed, so the model refuses `output_attentions`. Call it before `torch.compile`; twice is harmless.

    Args:
        model: T5, mT5, BLOOM, MPT or DeBERTa-v2, any head on top; larger models that hold one too.

    Returns:
        The same model.

    Raises:
        TypeError: `model` is no module.
        ValueError: It holds nothing that can be routed; the sentence says why.
        ImportError: transformers is not installed.
    """
    _check(model, "use")
    interface = import_module("posenc.interop.hf.interface")
    interface.register()
    for host in _hosts(model).values():
        if not patching.is_patched(host) and _family(host).refuses(host) is None:
            _family(host).route(host)
            patching.refuse_weights(host)
    routed = [host for host in _hosts(model).values() if patching.is_patched(host)]
    if not routed:
        reasons = "\n".join(f"  {part}" for part in report(model).left) or "  it holds no model of transformers"
        raise ValueError(
            f"posenc.hf.use: nothing in {type(model).__name__} can be routed through posenc.attend:\n{reasons}\n"
            f"Pass a model of one of these types: {', '.join(MODEL_TYPES)}."
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
    """Say which parts of a model run through `posenc.attend` now, and which do not and why.

    Raises:
        TypeError: `model` is no module.
    """
    _check(model, "report")
    hosts = _hosts(model)
    replaced, left = [], []
    for name, host in hosts.items():
        if (note := patching.note(host)) is not None:
            replaced.append(Part(name, note))
        else:
            left.append(Part(name, _family(host).refuses(host) or "it can be routed; posenc.hf.use(model) does so"))
    for name, module in model.named_modules():
        kind = getattr(getattr(module, "config", None), "model_type", None)
        around = any(_within(host, name) or _within(name, host) for host in hosts)
        if kind and not around and not any(_within(name, part.name) for part in left):
            left.append(Part(name, f"{type(module).__name__} is of type {kind!r}, which posenc does not route"))
    return Report(tuple(replaced), tuple(left))


def _check(model: object, what: str) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"posenc.hf.{what}: model must be a loaded model of transformers; got {type(model).__name__}.")


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
