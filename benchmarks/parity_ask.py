"""Ask the code of one stack what it makes of configurations: read cases from stdin, write answers to stdout.

Run by parity_check.py in a process of its own, with the stack's published package unpacked in DIR:

    python benchmarks/parity_ask.py hf|vllm|sglang|mlx-lm DIR < cases.json > answers.json

What a stack imports besides its rotary classes (kernels, platforms, loggers) is replaced by stand-ins that are false
and do nothing, so that the classes run on a CPU. An answer is {"inv_freq", "gain"} or {"error"}.
"""

import ast
import json
import logging
import math
import sys
import types
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

Case = dict[str, Any]
Answer = dict[str, Any]


class Nothing:
    """A stand-in: false, and itself again whatever is done with it."""

    def __bool__(self) -> bool:
        return False

    def __call__(self, *given: Any, **more: Any) -> Any:
        """Return itself."""
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, key: Any) -> Any:
        return self

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return ()


class StandIns:
    """Imports the modules of a package's rotary code from its source, and stand-ins for all its other modules."""

    def __init__(self, package: str, folder: Path, real: str, known: dict[str, Any]) -> None:
        self.package, self.folder, self.real, self.known = package, folder, real, known

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Find a module of the package."""
        if name.split(".")[0] not in (self.package, "triton", "flashinfer", "aiter"):
            return None
        if name.startswith(self.real):
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        """Make a stand-in, or the parent of the source."""
        module = types.ModuleType(spec.name)
        module.__path__ = [str(self.folder.joinpath(*spec.name.split(".")))]
        known = self.known
        module.__getattr__ = lambda name: _attribute(name, known)  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Run nothing."""


def _attribute(name: str, known: dict[str, Any]) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return known.get(name, Nothing())


def loaded(fields: dict[str, Any]) -> Any:
    """Return a configuration as the installed transformers loads it."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[fields["model_type"]].from_dict(dict(fields))


def hf(case: Case, folder: Path) -> Answer:
    """Ask the model's own rotary module of transformers, at the last position of the text."""
    import torch

    settings = loaded(case["fields"])
    names = {"llama": "Llama", "qwen3": "Qwen3", "deepseek_v3": "DeepseekV3", "phi3": "Phi3", "gpt_oss": "GptOss"}
    names |= {"stablelm": "StableLm", "gemma3_text": "Gemma3"}
    kind = settings.model_type
    module = import_module(f"transformers.models.{kind.removesuffix('_text')}.modeling_{kind.removesuffix('_text')}")
    rotary = getattr(module, f"{names[kind]}RotaryEmbedding")(settings)
    rotary(torch.zeros(1), torch.tensor([[case["text"] - 1]]))
    return {"inv_freq": rotary.inv_freq.tolist(), "gain": float(rotary.attention_scaling)}


def _rotated(module: Any, head_dim: int, rotary_dim: int, half: bool, text: int) -> Answer:
    """Rotate unit vectors at position 1 in a batch that holds the text's last position."""
    import torch

    unit = torch.zeros(2, head_dim)
    first = slice(0, rotary_dim // 2) if half else slice(0, rotary_dim, 2)
    second = slice(rotary_dim // 2, rotary_dim) if half else slice(1, rotary_dim, 2)
    unit[:, first] = 1.0
    unit = unit if half else unit[:, None, :]
    rotate = getattr(module, "forward_native", module.forward)
    out = rotate(torch.tensor([1, text - 1]), unit.clone(), unit.clone())[0][0].double().flatten()
    cos, sin = out[first], out[second]
    return {"inv_freq": torch.atan2(sin, cos).tolist(), "gain": float((cos**2 + sin**2).sqrt()[-1])}


def _known(base: type, extra: dict[str, Any]) -> dict[str, Any]:
    def yes() -> bool:
        return True

    return {"is_cpu": yes, "CustomOp": base, "PluggableLayer": base, "BaseFusedOp": base, **extra}


def _base() -> type:
    from torch import nn

    class Base(nn.Module):
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__()

        register = staticmethod(lambda name: lambda cls: cls)
        enabled = classmethod(lambda cls: False)

    return Base


def _functions(path: Path, names: set[str], given: dict[str, Any]) -> dict[str, Any]:
    """Run some functions of a file without the rest of it."""
    tree = ast.parse(path.read_text("utf-8"))
    body = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name in names]
    space = dict(given)
    code = ast.Module([ast.parse("from __future__ import annotations").body[0], *body], [])
    exec(compile(code, str(path), "exec"), space)  # the published source that is under test
    return space


def vllm(case: Case, folder: Path) -> Answer:
    """Load by transformers, set what is overridden, and ask vLLM's get_rope."""
    settings, override = loaded(case["fields"]), case.get("override", {})
    source = folder / "vllm"
    if "vllm" not in sys.modules:
        served = types.SimpleNamespace(model_config=types.SimpleNamespace(max_model_len=None))
        known = _known(_base(), {"get_current_vllm_config": lambda: served, "served": served})
        sys.meta_path.insert(
            0,
            StandIns("vllm", folder, "vllm.model_executor.layers.rotary_embedding", known),  # type: ignore[arg-type]
        )
    rotary = import_module("vllm.model_executor.layers.rotary_embedding")
    rotary._ROPE_DICT.clear()  # in which 4 and 4.0 are one key
    given = {
        "logger": logging.getLogger("vllm"),
        "math": math,
        "ALLOWED_LAYER_TYPES": ("full_attention", "sliding_attention"),
    }
    given["ALLOWED_ATTENTION_LAYER_TYPES"] = given["ALLOWED_LAYER_TYPES"]
    patch = _functions(
        source / "transformers_utils/config.py", {"patch_legacy_rope_type", "is_rope_parameters_nested"}, given
    )
    patch["patch_legacy_rope_type"](settings.rope_parameters)
    settings.standardize_rope_params()
    for key, value in override.items():
        setattr(settings, key, value)
    own, width = dict(settings.rope_parameters), getattr(settings, "head_dim", None)
    width = width or settings.hidden_size // settings.num_attention_heads
    latent = settings.model_type == "deepseek_v3"
    if latent:
        width = settings.qk_rope_head_dim
        if own["rope_type"] != "default":  # as models/deepseek_v2.py does
            own["rope_type"] = "deepseek_llama_scaling" if own.get("attention_factor") == 1.0 else "deepseek_yarn"
    original = own.get("original_max_position_embeddings", settings.max_position_embeddings)
    served = import_module("vllm.config").served
    served.model_config.max_model_len = case.get("length") or original
    made = rotary.get_rope(
        width, max_position=settings.max_position_embeddings, is_neox_style=not latent, rope_parameters=own
    )
    dim = getattr(made, "rotary_dim", width)
    return _rotated(made, width, dim, not latent, min(case["text"], settings.max_position_embeddings))


def sglang(case: Case, folder: Path) -> Answer:
    """Load by transformers, join what is overridden, and ask SGLang's get_rope."""
    settings, override = loaded(case["fields"]), case.get("override", {})
    if "sglang" not in sys.modules:
        known = _known(_base(), {"get_device": lambda: "cpu", "publish_role": lambda: None})
        sys.meta_path.insert(
            0,
            StandIns("sglang", folder, "sglang.srt.layers.rotary_embedding", known),  # type: ignore[arg-type]
        )
    factory = import_module("sglang.srt.layers.rotary_embedding.factory")
    factory._ROPE_DICT.clear()  # in which 4 and 4.0 are one key
    for key, value in override.items():  # as srt/utils/hf_transformers/config.py does
        current = getattr(settings, key, None)
        both = key in ("rope_scaling", "rope_parameters") and isinstance(current, dict)
        setattr(settings, key, {**current, **value} if both else value)
    own, width = dict(settings.rope_parameters), getattr(settings, "head_dim", None)
    width = width or settings.hidden_size // settings.num_attention_heads
    latent = settings.model_type == "deepseek_v3"
    if latent:
        width, own["rope_type"] = settings.qk_rope_head_dim, "deepseek_yarn"  # as models/deepseek_v2.py does
    made = factory.get_rope(
        *(width, width, settings.max_position_embeddings, own.get("rope_theta", 10000)),
        is_neox_style=not latent,
        rope_scaling=own,
        partial_rotary_factor=own.get("partial_rotary_factor", 1.0),
    )
    dim = getattr(made, "rotary_dim", width)
    return _rotated(made, width, dim, not latent, min(case["text"], settings.max_position_embeddings))


def mlx_lm(case: Case, folder: Path) -> Answer:
    """Fill the model's ModelArgs and ask mlx-lm's initialize_rope."""
    import mlx.core as mx

    fields = case["fields"]
    if "mlx_lm" not in sys.modules:
        for name in ("mlx_lm", "mlx_lm.models"):
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__path__ = [str(folder.joinpath(*name.split(".")))]
    module = import_module(f"mlx_lm.models.{fields['model_type']}")
    needed = {"hidden_size": 256, "intermediate_size": 8, "rms_norm_eps": 1e-6, "vocab_size": 8}
    needed |= {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": True}
    args = module.ModelArgs.from_dict({**needed, **fields})
    width = fields.get("qk_rope_head_dim") or args.head_dim or args.hidden_size // args.num_attention_heads
    made = import_module("mlx_lm.models.rope_utils").initialize_rope(
        width, args.rope_theta, False, args.rope_scaling, args.max_position_embeddings
    )
    unit = mx.concatenate([mx.ones((1, 1, 1, width // 2)), mx.zeros((1, 1, 1, width // 2))], axis=-1)
    if type(made).__name__ == "DynamicNTKScalingRoPE":  # its base follows the length: see which one it passes on
        passed: dict[str, float] = {}
        utils = import_module("mlx_lm.models.rope_utils")
        utils.mx = types.SimpleNamespace(fast=types.SimpleNamespace(rope=lambda *given, **more: passed.update(more)))
        made(unit, offset=case["text"] - 1)
        utils.mx = mx
        return {"inv_freq": [passed["base"] ** (-2 * k / width) for k in range(width // 2)], "gain": 1.0}
    out = made(unit, offset=1)[0, 0, 0].tolist()
    cos, sin = out[: width // 2], out[width // 2 :]
    gains = [math.hypot(c, s) for c, s in zip(cos, sin, strict=True)]
    return {"inv_freq": [math.atan2(s, c) for c, s in zip(cos, sin, strict=True)], "gain": gains[-1]}


def main() -> None:
    """Answer the cases, one after the other."""
    ask = {"hf": hf, "vllm": vllm, "sglang": sglang, "mlx-lm": mlx_lm}[sys.argv[1]]
    logging.disable(logging.CRITICAL)
    answers = []
    for case in json.load(sys.stdin):
        try:
            answers.append(ask(case, Path(sys.argv[2])))
        except Exception as error:  # what the stack raises is the answer
            answers.append({"error": f"{type(error).__name__}: {error}"[:200]})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
