"""The spelling of a longer context in each stack: fields of config.json, flags, keys of a GGUF file, or code."""

import json
import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from posenc.config import reads
from posenc.config.model import Model, open_model
from posenc.config.models import LOCAL_BASE
from posenc.extend.stretch import LENGTH, OLD, ORIGINAL, Stretched
from posenc.parity.rules import Rules

Fields = dict[str, Any]
More = dict[str, float]  # parameters that correct the gain
_DEFAULTS = {"beta_fast": 32, "beta_slow": 1, "truncate": True}
# general.architecture of GGUF files by model type, from gguf-py/gguf/constants.py and llama.cpp's converters
ARCHITECTURES = {
    **dict.fromkeys(("llama", "mistral", "mixtral"), "llama"),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2"), "deepseek2"),
    **{name: name for name in ("qwen2", "qwen3", "gemma", "gemma2", "phi3", "cohere2", "smollm3", "stablelm", "glm4")},
    **{name: name for name in ("starcoder2", "olmo", "olmo2", "olmoe", "granite", "minicpm", "seed_oss", "exaone4")},
    **{"qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "gemma3_text": "gemma3", "gpt_oss": "gpt-oss"},
    **{"minimax_m2": "minimax-m2", "llama4_text": "llama4", "glm4_moe": "glm4moe", "gpt_neox": "gptneox"},
    **{"phi": "phi2", "ministral3": "mistral3", "ernie4_5": "ernie4_5", "cohere": "command-r", "falcon": "falcon"},
}


class RefusedError(ValueError):
    """A method that a stack cannot express."""


@dataclass(frozen=True)
class Spelled:
    """The written text, its fields, and the whole config.json if the fields are a part of one."""

    text: str
    fields: Fields = field(default_factory=dict)
    whole: Fields | None = None


def hf5(stretched: Stretched, rules: Rules, more: More) -> Spelled:
    """Spell it as a config.json of transformers 5."""
    return _file(stretched, dict(stretched.override))


def hf4(stretched: Stretched, rules: Rules, more: More) -> Spelled:
    """Spell it as a config.json of transformers 4: the base next to rope_scaling."""
    return _file(stretched, _outside(stretched))


def tensorrt_llm(stretched: Stretched, rules: Rules, more: More) -> Spelled:
    """Spell it as a config.json for TensorRT-LLM's PyTorch backend, which reads that of transformers 4."""
    fields = _outside(stretched)
    if fields["rope_scaling"] is not None:
        fields["rope_scaling"] = _without(fields["rope_scaling"], "attention_factor") | more
    return _file(stretched, fields)


def mlx(stretched: Stretched, rules: Rules, more: More) -> Spelled:
    """Spell it as a config.json for mlx-lm, which names the type `type` and checks no length."""
    fields = _outside(stretched)
    own, original = fields["rope_scaling"], fields.pop(ORIGINAL, None)
    if own is not None:
        own = {"type": own["rope_type"], **_without(own, "rope_type", "attention_factor"), **more}
        fields["rope_scaling"] = own | ({} if original is None else {ORIGINAL: original})
    if stretched.method.rope_type not in ("dynamic", "longrope"):  # dynamic NTK and LongRoPE read it as a parameter
        del fields[LENGTH]
    return _file(stretched, fields)


def vllm(stretched: Stretched, rules: Rules, more: More) -> Spelled:
    """Spell it as vLLM's flags; --hf-overrides replaces the parameters, so the base is repeated."""
    parameters = _each(stretched.override["rope_parameters"], _list_gains)
    fields = {LENGTH: _declared(stretched, rules), "rope_parameters": parameters}
    return _flags(stretched, fields, "--hf-overrides", "--max-model-len")


def sglang(stretched: Stretched, rules: Rules, more: More) -> Spelled:
    """Spell it as SGLang's flags; an override is merged into the parameters, except within text_config."""
    joins = rules.override.inside if model_of(stretched).outer else rules.override.join
    same_base = stretched.parameters["rope_theta"] == stretched.before[0].rotary.base

    def change(own: Fields) -> Fields:
        dropped = ["rope_theta"] if joins == "merge" and same_base else []
        own = _without(_list_gains(own), *dropped, "attention_factor")
        return own | more if own["rope_type"] == stretched.parameters["rope_type"] else own

    parameters = _each(stretched.override["rope_parameters"], change)
    fields = {LENGTH: _declared(stretched, rules), "rope_scaling": parameters}
    return _flags(stretched, fields, "--json-model-override-args", "--context-length")


def llamacpp(stretched: Stretched, rules: Rules, more: More) -> Spelled:
    """Spell it as llama.cpp's flags; the file's length limit, which servers enforce, grows by itself only for YaRN."""
    own, name = _of_llamacpp(stretched, rules), stretched.parameters["rope_type"]
    words = ["-c", str(stretched.target_len)]
    if name != "default":
        words += ["--rope-scaling", name, "--rope-scale", _short(own["factor"])]
    elif stretched.before[0].rotary.rope_type != "default":
        words += ["--rope-scaling", "none"]
    if name == "yarn":
        words += ["--yarn-orig-ctx", str(own[ORIGINAL])]
    for key in ("beta_fast", "beta_slow"):
        if own.get(key, _DEFAULTS[key]) != _DEFAULTS[key]:
            words += [f"--yarn-{key.replace('_', '-')}", _short(own[key])]
    if own["rope_theta"] != stretched.before[0].rotary.base or not _states_base(stretched):
        words += ["--rope-freq-base", _short(own["rope_theta"])]
    if name != "yarn" or round(own["factor"] * own[ORIGINAL]) < stretched.target_len:
        words += ["--override-kv", f"{_architecture(stretched)}.context_length=int:{stretched.target_len}"]
    for key, value in more.items():
        words += ["--override-kv", f"{_architecture(stretched)}.rope.scaling.{key}=float:{_short(value)}"]
    return Spelled(shlex.join(words))


def gguf(stretched: Stretched, rules: Rules, more: More) -> Spelled:
    """Spell it as keys of a GGUF file, one per line."""
    own, name = _of_llamacpp(stretched, rules), stretched.parameters["rope_type"]
    keys: Fields = {"context_length": stretched.target_len}
    if name != "default":
        keys |= {"rope.scaling.type": name, "rope.scaling.factor": own["factor"]}
    elif stretched.before[0].rotary.rope_type != "default":
        keys["rope.scaling.type"] = "none"
    if name == "yarn":
        keys["rope.scaling.original_context_length"] = own[ORIGINAL]
    keys["rope.freq_base"] = _short(own["rope_theta"])
    keys |= {f"rope.scaling.{key}": value for key, value in more.items()}
    return Spelled("\n".join(f"{_architecture(stretched)}.{key}={value}" for key, value in keys.items()))


def torchtitan(stretched: Stretched, rules: Rules, more: More) -> Spelled:
    """Spell it as the line of code that constructs torchtitan's rotation."""
    own, rotary = dict(stretched.parameters), stretched.after[0].rotary
    name = {"default": "none", "yarn": "yarn", "llama3": "llama"}.get(own["rope_type"])
    if name is None:
        raise _refusal(rules, stretched, f"it has no scaling for {stretched.method.title}", "--method yarn, or ntk")
    words = {"dim": rotary.rotary_dim, "max_seq_len": stretched.target_len, "theta": own["rope_theta"], "scaling": name}
    if name == "yarn":
        words |= {"rope_factor": own["factor"], "original_seq_len": own[ORIGINAL]}
        words |= {key: own[key] for key, usual in _DEFAULTS.items() if own.get(key, usual) != usual}
    if name == "llama":
        words |= {key: own[key] for key in ("low_freq_factor", "high_freq_factor", ORIGINAL)}
        words |= {"scaling_factor": own["factor"]}
    made = "ComplexRoPE" if name == "llama" or rotary.pairing == "interleaved" else "CosSinRoPE"
    return Spelled(f"{made}.Config({', '.join(f'{key}={value!r}' for key, value in words.items())})")


def axolotl(stretched: Stretched, rules: Rules, more: More) -> Spelled:
    """Spell it as Axolotl's YAML, whose overrides are set on a loaded configuration and replace the parameters."""
    _check_flat(stretched, rules)
    fields = {key: stretched.override[key] for key in ("rope_parameters", LENGTH)}
    return Spelled("\n".join(["overrides_of_model_config:", *_yaml(fields, "  ")]), fields)


def unsloth(stretched: Stretched, rules: Rules, more: More) -> Spelled:
    """Spell it as arguments of Unsloth's from_pretrained."""
    _check_flat(stretched, rules)
    fields = {"rope_parameters": stretched.override["rope_parameters"]}
    return Spelled(f"max_seq_length={stretched.target_len}, rope_parameters={fields['rope_parameters']!r}", fields)


def model_of(stretched: Stretched) -> Model:
    """Return the language model of the original configuration."""
    return open_model(stretched.before[0].source)


def _refusal(rules: Rules, stretched: Stretched, why: str, nearest: str) -> RefusedError:
    return RefusedError(
        f"write: {rules.project} {rules.version} cannot express {stretched.method.title} exactly: {why}. "
        f"Nearest: {nearest}."
    )


def _file(stretched: Stretched, fields: Fields) -> Spelled:
    """Spell fields of a config.json, and the whole file without older spellings of these fields."""
    model = model_of(stretched)
    kept = {key: fields.get(key, value) for key, value in model.fields.items() if key in fields or key not in OLD}
    inner, whole = fields, kept | fields
    for key, outer in reversed(model.outer):
        inner, whole = {key: inner}, {**outer, key: whole}
    return Spelled(json.dumps(inner, indent=2, ensure_ascii=False), fields, whole)


def _flags(stretched: Stretched, fields: Fields, override: str, length: str) -> Spelled:
    """Spell a JSON object after one flag and the length after another."""
    for key, _ in reversed(model_of(stretched).outer):
        fields = {key: fields}
    text = json.dumps(fields, separators=(",", ":"))
    return Spelled(shlex.join([override, text, length, str(stretched.target_len)]), fields)


def _outside(stretched: Stretched) -> Fields:
    """Return the fields as in transformers 4: base, share and LongRoPE's original length outside rope_scaling."""
    own, model = dict(stretched.parameters), model_of(stretched)
    around = stretched.override["rope_parameters"]
    own |= {"truncate": around["truncate"]} if "truncate" in around else {}
    base = next(iter(reads.base_keys(model.name, False, True)), "rope_theta")
    fields: Fields = {LENGTH: stretched.override[LENGTH], base: own.pop("rope_theta")}
    share = own.pop("partial_rotary_factor", None)
    if share is not None and not any(key in model.fields for key in (*reads.SHARES, *reads.WIDTHS)):
        fields[next(iter(reads.share_keys(model.name, True)), reads.SHARES[0])] = share
    if model.name in LOCAL_BASE:
        local = [one.rotary.base for one in stretched.after if one.rotary.layer_type != stretched.kind]
        fields |= dict(zip((LOCAL_BASE[model.name][0],), local, strict=False))
    if own["rope_type"] == "longrope":
        fields[ORIGINAL] = own.pop(ORIGINAL)
    fields["rope_scaling"] = None if own == {"rope_type": "default"} else own
    return fields


def _declared(stretched: Stretched, rules: Rules) -> int:
    """Return the length that a file must declare for a stack to accept the wanted length.

    Some stacks multiply it by the factor.
    """
    rule, own = rules.length, stretched.parameters
    grows = own["rope_type"] in rule.times_factor and model_of(stretched).name not in rule.not_in
    if grows and "factor" in own and rule.unless_given not in own:
        length = math.ceil(stretched.target_len / stretched.factor)
        return length + (int(length * stretched.factor) < stretched.target_len)  # they round down
    return stretched.target_len


def _each(parameters: Fields, change: Callable[[Fields], Fields]) -> Fields:
    """Apply a change to the parameters of each kind of layer, or to the single object if there is only one."""
    if not any(isinstance(value, dict) for value in parameters.values()):
        return change(parameters)
    return {key: change(value) if isinstance(value, dict) else value for key, value in parameters.items()}


def _list_gains(own: Fields) -> Fields:
    """Return LongRoPE's parameters with the gain as vLLM and SGLang read it: one for each list."""
    if own["rope_type"] != "longrope" or own.get("attention_factor") is None:
        return own
    return _without(own, "attention_factor") | dict.fromkeys(("short_mscale", "long_mscale"), own["attention_factor"])


def _without(own: Fields, *keys: str) -> Fields:
    return {key: value for key, value in own.items() if key not in keys}


def _of_llamacpp(stretched: Stretched, rules: Rules) -> Fields:
    """Return the parameters, if llama.cpp accepts them for a converted file."""
    own, shipped = dict(stretched.parameters), stretched.before[0].rotary.rope_type
    if name := next((name for name in (own["rope_type"], shipped) if name in rules.override.keeps), ""):
        why = f"the factors of {name} are a tensor in the GGUF file, which no flag or key can change"
        raise _refusal(rules, stretched, why, "a file converted from the config.json of --to hf4")
    if own["rope_type"] == "dynamic":
        raise _refusal(rules, stretched, "it has one base for texts of every length", "--method ntk")
    return own


def _states_base(stretched: Stretched) -> bool:
    """Return whether a file gives the base; converters have different defaults."""
    model = model_of(stretched)
    objects = [model.fields[key] for key in reads.SCALINGS if isinstance(model.fields.get(key), dict)]
    return any(key in fields for fields in (model.fields, *objects) for key in reads.BASES)


def _architecture(stretched: Stretched) -> str:
    """Return the prefix of a GGUF file's keys."""
    name = model_of(stretched).name
    if name not in ARCHITECTURES:
        raise RefusedError(
            f"write: the GGUF architecture of model type {name or 'null'} is unknown to posenc. "
            f"Known: {', '.join(ARCHITECTURES)}."
        )
    return ARCHITECTURES[name]


def _check_flat(stretched: Stretched, rules: Rules) -> None:
    if outer := model_of(stretched).outer:
        why = f"an override changes only the outer configuration, but the language model's is in {outer[-1][0]}"
        raise _refusal(rules, stretched, why, "--to hf5")


def _yaml(fields: Fields, indent: str) -> list[str]:
    lines = []
    for key, value in fields.items():
        if isinstance(value, dict):
            lines += [f"{indent}{key}:", *_yaml(value, indent + "  ")]
        else:
            lines.append(f"{indent}{key}: {json.dumps(value) if not isinstance(value, str) else value}")
    return lines


def _short(number: float) -> str:
    """Return a number in its shortest form: 4, 1000000, 0.878."""
    return repr(float(number)).removesuffix(".0")
