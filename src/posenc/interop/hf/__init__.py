"""Loaded models of Hugging Face transformers whose positions enter by posenc.

`use(model)` replaces what a model does with positions, in place, and the weights stay where they are. Rotary models get
exact tables and posenc's turn of queries and keys. Models with a position bias get their attention run by
`posenc.attend`, so that the (heads, q_len, k_len) bias and the (batch, 1, q_len, k_len) mask are never built.
`report(model)` says what is replaced and what is left, `restore(model)` puts everything back. transformers is imported
when they are called.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from torch import nn

from posenc.config.unrotated import KINDS
from posenc.interop.hf import patching

__all__ = ["MODEL_TYPES", "Part", "Report", "report", "restore", "use"]

# What builds masks and biases for its layers, by model type -> the module here that routes it.
_HOSTS = {
    "bloom": ("BloomModel", "alibi"),
    "deberta-v2": ("DebertaV2Encoder", "deberta"),
    "falcon": ("FalconModel", "alibi"),
    "mpt": ("MptModel", "alibi"),
    "mt5": ("MT5Stack", "t5"),
    "switch_transformers": ("SwitchTransformersStack", "t5"),
    "t5": ("T5Stack", "t5"),
    "umt5": ("UMT5Stack", "t5"),
    "roformer": ("RoFormerEncoder", "roformer"),
}
MODEL_TYPES = tuple(_HOSTS)[:-1]  # those with a bias
_LEFT = {  # types that a user may look for among them
    "longt5": "its encoder attends block by block, to a window and to sums of the text",
    "deberta": "its attention projects queries, keys and values in one tensor, with a bias of its own",
    "mpnet": "its attention adds buckets of distances to scores in code of its own",
}

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

    Models with a bias (`MODEL_TYPES`): attention weights are never formed, so these refuse `output_attentions`. One
    query alone, a step of generation, goes the model's own way.

    Args:
        model: A model of these, any head on top; larger models that hold one too.
        rope_parameters: Other rotary parameters, as in a config.json, to extend the model's context: checked as
            `posenc.config` does and written into its configuration. What they leave out of rope_theta,
            partial_rotary_factor and the sections of M-RoPE stays. By kind of layer where kinds differ. Or the object
            that `posenc write --to hf5` writes, which has max_position_embeddings next to rope_parameters.

    Returns:
        The same model; `report(model)` says what was replaced, what was left, and why.

    Raises:
        TypeError: `model` is no module, or rope_parameters is no mapping.
        ValueError: It holds nothing that can be replaced, or rope_parameters do not fit; the sentence says why.
        ImportError: transformers is not installed.
    """
    _check(model, "use")
    hosts = _hosts(model)
    if rope_parameters is not None:
        _rotary().extend({name: host for name, host in hosts.items() if not isinstance(host, _Biased)}, rope_parameters)
    for host in hosts.values():
        if not patching.said(host.owner) and isinstance(plan := patching.planned(host), patching.Plan):
            plan.put(host.owner)
    if not (said := report(model)).replaced:
        reasons = "\n".join(f"  {part}" for part in said.left) or "  it holds no model of transformers"
        raise ValueError(
            f"posenc.hf.use: nothing in {type(model).__name__} can be replaced:\n{reasons}\n"
            f"Pass a rotary model, or one of these types: {', '.join(MODEL_TYPES)}."
        )
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
    replaced, left = list[Part](), list[Part]()
    hosts = _hosts(model)
    for host in hosts.values():
        notes = patching.said(host.owner)
        why = "" if notes.keys() >= {*host.rotaries} else patching.planned(host)
        for name in host.rotaries:
            part = ".".join(filter(None, (host.name, name)))
            sentence = why if isinstance(why, str) else "it can be routed; posenc.hf.use(model) does so"
            (replaced if name in notes else left).append(Part(part, notes.get(name, sentence)))
    for name, module in model.named_modules():
        is_model = any(cls.__name__ == "PreTrainedModel" for cls in type(module).__mro__)
        kind = getattr(module.config, "model_type", None) if is_model else None
        around = any(_within(part, name) or _within(name, part) for part in hosts)
        if kind and not around and not any(_within(name, part.name) for part in left):
            why = _LEFT.get(kind) or (f"positions enter by {KINDS[kind].said}" if kind in KINDS else "")
            said = f"{type(module).__name__} is of type {kind!r}, in which posenc replaces nothing"
            left.append(Part(name, f"{said}: {why}" if why else said))
    return Report(tuple(replaced), tuple(left))


def _check(model: object, what: str) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"posenc.hf.{what}: model must be a loaded model of transformers; got {type(model).__name__}.")


@dataclass(frozen=True)
class _Biased:
    """A host of the table above, as `rotary.Group` is one of rotary modules."""

    name: str
    owner: nn.Module
    kind: str
    rotaries = ("",)

    def plan(self) -> patching.Plan:
        """Return what to put into it."""
        plan: patching.Plan = import_module(f"posenc.interop.hf.{self.kind}").planned(self.owner)
        return plan


def _rotary() -> Any:
    return import_module("posenc.interop.hf.rotary")


def _hosts(model: nn.Module) -> dict[str, Any]:
    """Return by name the modules of a model in which positions enter, in the order of its modules."""
    homes = {f"transformers.models.{folder}.modeling_{folder}.{cls}": kind
             for folder, (cls, kind) in ((key.replace("-", "_"), row) for key, row in _HOSTS.items())}  # fmt: skip
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        full = (f"{cls.__module__}.{cls.__qualname__}" for cls in type(module).__mro__)
        kind = next((homes[path] for path in full if path in homes), None)
        if kind is not None and getattr(getattr(module, "config", None), "alibi", True):  # Falcon may rotate
            found[name] = _Biased(name, module, kind)
    found = {**_rotary().find(model, without=found), **found}
    return {name: found[name] for name, _ in model.named_modules() if name in found}


def _within(name: str, outer: str) -> bool:
    return outer == "" or name == outer or name.startswith(f"{outer}.")
