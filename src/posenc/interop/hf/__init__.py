"""Replace the position encoding of a loaded Hugging Face transformers model by posenc's.

`use(model)` replaces the position code of a model in place; the weights stay untouched. Rotary models get exact tables
and posenc's rotation of queries and keys. Models with a position bias compute attention with `posenc.attend`, which
never builds the (heads, q_len, k_len) bias and the (batch, 1, q_len, k_len) mask. `report(model)` lists the parts that
are replaced and those that are left, and `restore(model)` undoes all changes. transformers is imported when needed.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from torch import nn

from posenc.config.unrotated import KINDS
from posenc.interop.hf import patching

__all__ = ["MODEL_TYPES", "Part", "Report", "report", "restore", "use"]

# By model type: the class that builds masks and biases for its layers, and the module here that replaces them.
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
_LEFT = {  # related types that are not supported
    "longt5": "its encoder attends in blocks, to a window and to sums of the text",
    "deberta": "its attention projects queries, keys and values in one tensor with its own bias",
    "mpnet": "its attention adds a bias by distance with its own code",
}

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class Part:
    """One part of a model: its name, and the code that runs its attention or the reason why it was left."""

    name: str
    note: str

    def __str__(self) -> str:
        return f"{self.name or '(the model itself)'}: {self.note}"


@dataclass(frozen=True)
class Report:
    """The parts of a model that `use` replaced, and those that it left."""

    replaced: tuple[Part, ...]
    left: tuple[Part, ...]

    def __str__(self) -> str:
        lines = [f"replaced  {part}" for part in self.replaced] + [f"left      {part}" for part in self.left]
        return "\n".join(lines)


def use(model: Model, rope_parameters: object = None) -> Model:
    """Replace the position code of a loaded model by posenc's, in place.

    Logits stay equal up to rounding at every token that attends to something: with padding, with a cache and in
    training. Learned tables stay the model's own parameters, and `state_dict` and `save_pretrained` do not change. Call
    `use` before `torch.compile`. A second call has no effect.

    Rotary models work if their tables and rotary functions pass a trial. Angles are formed in float64. If frequencies
    depend on the length (LongRoPE, dynamic NTK), cached keys are re-rotated when the frequencies change, so queries and
    keys always have the same frequencies. This changes logits, since transformers drops such a cache or mixes
    frequencies.

    Models with a bias (`MODEL_TYPES`) never form attention weights, so they refuse `output_attentions`. A decode step,
    with one query, runs the model's own code.

    Args:
        model: A supported model with any head, or a larger model that contains one.
        rope_parameters: Other rotary parameters, as in a config.json, to extend the model's context. They are checked
            as in `posenc.config` and written into the model's configuration. rope_theta, partial_rotary_factor and the
            sections of M-RoPE keep their values if left out. If kinds of layers rotate differently, pass a mapping by
            kind. The object that `posenc write --to hf5` writes is accepted too, with max_position_embeddings next to
            rope_parameters.

    Returns:
        The same model; `report(model)` lists the parts that were replaced, and those that were left with the reason.

    Raises:
        TypeError: `model` is not a module, or rope_parameters is not a mapping.
        ValueError: Nothing in the model can be replaced, or rope_parameters do not match the model.
        ImportError: transformers is not installed.
    """
    _check(model, "use")
    hosts = _hosts(model)
    if rope_parameters is not None:
        _rotary().extend({name: host for name, host in hosts.items() if not isinstance(host, _Biased)}, rope_parameters)
    for host in hosts.values():
        if not patching.notes(host.owner) and isinstance(plan := patching.planned(host), patching.Plan):
            plan.put(host.owner)
    if not (found := report(model)).replaced:
        reasons = "\n".join(f"  {part}" for part in found.left) or "  it contains no model of transformers"
        raise ValueError(
            f"posenc.hf.use: nothing in {type(model).__name__} can be replaced:\n{reasons}\n"
            f"Pass a rotary model, or one of these types: {', '.join(MODEL_TYPES)}."
        )
    return model


def restore(model: Model) -> Model:
    """Undo every change that `use` made to a model; do nothing if there are none.

    Raises:
        TypeError: `model` is not a module.
    """
    _check(model, "restore")
    for module in model.modules():
        patching.undo(module)
    return model


def report(model: nn.Module) -> Report:
    """List the parts of a model that use posenc now, and those that do not with the reason.

    Raises:
        TypeError: `model` is not a module.
    """
    _check(model, "report")
    replaced, left = list[Part](), list[Part]()
    hosts = _hosts(model)
    for host in hosts.values():
        notes = patching.notes(host.owner)
        why = "" if notes.keys() >= {*host.rotaries} else patching.planned(host)
        for name in host.rotaries:
            part = ".".join(filter(None, (host.name, name)))
            sentence = why if isinstance(why, str) else "it can be replaced; call posenc.hf.use(model)"
            (replaced if name in notes else left).append(Part(part, notes.get(name, sentence)))
    for name, module in model.named_modules():
        is_model = any(cls.__name__ == "PreTrainedModel" for cls in type(module).__mro__)
        kind = getattr(module.config, "model_type", None) if is_model else None
        around = any(_within(part, name) or _within(name, part) for part in hosts)
        if kind and not around and not any(_within(name, part.name) for part in left):
            why = _LEFT.get(kind) or (f"positions enter by {KINDS[kind].means}" if kind in KINDS else "")
            note = f"{type(module).__name__} is of type {kind!r}, which posenc.hf does not support"
            left.append(Part(name, f"{note}: {why}" if why else note))
    return Report(tuple(replaced), tuple(left))


def _check(model: object, what: str) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"posenc.hf.{what}: model must be a loaded model of transformers; got {type(model).__name__}.")


@dataclass(frozen=True)
class _Biased:
    """A module of `_HOSTS` in a model, the counterpart of `rotary.Group` for models with a bias."""

    name: str
    owner: nn.Module
    kind: str
    rotaries = ("",)

    def plan(self) -> patching.Plan:
        """Return its replacements."""
        plan: patching.Plan = import_module(f"posenc.interop.hf.{self.kind}").planned(self.owner)
        return plan


def _rotary() -> Any:
    return import_module("posenc.interop.hf.rotary")


def _hosts(model: nn.Module) -> dict[str, Any]:
    """Return by name the modules of a model that `use` may change, in the model's order."""
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
