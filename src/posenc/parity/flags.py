"""A stack's own flags: fields that join a file, parameters that override those of the file, a length."""

import ast
import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from posenc import config
from posenc.config import reads
from posenc.config.misplaced import label
from posenc.config.model import open_model
from posenc.config.reading import parse as parse_json
from posenc.config.spelling import spelled

LENGTH, ORIGINAL = reads.LENGTHS
_MOST = 1 << 16


@dataclass(frozen=True)
class Given:
    """The content of a command line.

    Args:
        fields: Fields that join the configuration as the stack joins an override.
        flags: The longest text, and parameters in the words of rope_parameters, that override those of the file.
        length: The number of positions that the stack must serve; None if not given.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, Any] = field(default_factory=dict)
    length: int | None = None


def parse(text: str, stack: str) -> Given:
    """Read a stack's own flags; for llama.cpp also keys of a GGUF file as KEY=VALUE, for torchtitan a line of Python.

    Raises:
        ValueError: No flags of the stack are known, a flag is unknown, or its value is wrong or missing.

    >>> parse("-c 4096 --rope-scaling linear --rope-scale 4", "llamacpp")
    Given(fields={}, flags={'rope_type': 'linear', 'factor': 4.0}, length=4096)
    """
    if stack not in STACKS:
        raise ValueError(
            f"parity: no flags of {stack} are known; got {text[:60]!r}. Pass JSON, or flags of {', '.join(STACKS)}."
        )
    if len(text) > _MOST:
        raise ValueError(f"parity: flags must have at most {_MOST} characters; got {len(text)}.")
    if stack == "torchtitan":
        return Given(flags=_constructed(text))
    found, keys = _words(text, stack)
    length = found.pop("length", None)
    if stack != "llamacpp":
        return Given(found.pop("fields", {}), {}, length)
    flags = keys | found
    if {"factor", "rope_type"} & found.keys() == {"factor"}:
        raise ValueError("parity: --rope-scale needs --rope-scaling, because otherwise it joins the file's scaling.")
    if found.get("rope_type") == "yarn":
        if ORIGINAL not in flags:
            raise ValueError(
                "parity: --rope-scaling yarn needs --yarn-orig-ctx, or llama.cpp uses the file's longest text."
            )
        flags.setdefault(LENGTH, round(flags.get("factor", 1.0) * flags[ORIGINAL]))  # since #28030
    return Given({}, flags, length)


def meant(source: config.Source, kind: str, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return flags as fields that join a configuration, for the kind of layer that they affect."""
    model = open_model(source)
    found = spelled(model, kind)
    own = {key: value for key, value in flags.items() if key != LENGTH}
    key = "rope_scaling" if found.key == "top level" else found.key
    out: dict[str, Any] = {key: {label(model, kind): own} if found.nested else own}
    if LENGTH in flags:
        out[LENGTH] = flags[LENGTH]
    for outer, _ in reversed(model.outer):
        out = {outer: out}
    return out


def _words(text: str, stack: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of flags by name, and those of keys of a GGUF file."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"parity: flags cannot be read: {error}. Close the quotation.") from None
    found, keys, known = dict[str, Any](), dict[str, Any](), STACKS[stack]
    while words:
        flag, equals, value = words.pop(0).partition("=")
        if stack == "llamacpp" and equals and not flag.startswith("-"):
            keys |= _key(flag, value)
            continue
        if flag not in known:
            raise ValueError(f"parity: {stack} has no flag {flag[:60]!r} about positions. Known: {', '.join(known)}.")
        if not equals:
            if not words:
                raise ValueError(f"parity: {flag} needs a value.")
            value = words.pop(0)
        if flag == "--override-kv":
            key, _, typed = value.partition("=")
            keys |= _key(key, typed.partition(":")[2])
            continue
        word, make = known[flag]
        found[word] = make(flag, value)
    return found, keys


def _key(name: str, value: str) -> dict[str, Any]:
    """Return the values of a key of a GGUF file; its first part is the architecture."""
    key = name.partition(".")[2]
    if key not in _KEYS:
        raise ValueError(f"parity: {name[:80]!r} is not a key about positions. Known: ARCH.{', ARCH.'.join(_KEYS)}.")
    word, make = _KEYS[key]
    return {word: make(name, value)}


def _constructed(text: str) -> dict[str, Any]:
    """Return the fields of a line of Python that constructs torchtitan's RoPE.Config."""
    wanted = "parity: torchtitan needs a line such as CosSinRoPE.Config(dim=128, ...) with numbers and names"
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or call.args or not isinstance(call.func, ast.Attribute):
            raise ValueError("another expression")
        given = {str(one.arg): str(ast.literal_eval(one.value)) for one in call.keywords}
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{wanted}; got {text[:60]!r}: {str(error)[:80]}.") from None
    if unknown := [name for name in given if name not in _CONFIG]:
        raise ValueError(f"parity: torchtitan has no {', '.join(unknown)[:80]}. Known: {', '.join(_CONFIG)}.")
    made = {word: make(name, given[name]) for name, (word, make) in _CONFIG.items() if name in given}
    made.pop("dim", None)  # the file has the number of rotated dimensions
    return made


def _object(name: str, text: str) -> dict[str, Any]:
    found = parse_json(text.encode(), name)
    if not isinstance(found, dict):
        raise ValueError(f"parity: {name} must be a JSON object; got {type(found).__name__}.")
    return config.read(found)


def _whole(name: str, text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text[:14]) <= 10**12:
        raise ValueError(f"parity: {name} must be a whole number from 1 to {10**12}; got {text[:40]!r}.")
    return int(text)


def _number(name: str, text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"parity: {name} must be a number; got {text[:40]!r}.")
    return found


def _inverse(name: str, text: str) -> float:
    found = _number(name, text)
    if not 0 < found <= 1:
        raise ValueError(f"parity: {name} must be above 0 and at most 1; got {text[:40]!r}.")
    return 1 / found


def _one_of(words: Mapping[str, Any]) -> "_Make":
    def make(name: str, text: str) -> Any:
        if text not in words:
            raise ValueError(f"parity: {name} must be one of {', '.join(words)}; got {text[:40]!r}.")
        return words[text]

    return make


_Make = Callable[[str, str], Any]
_TYPE = _one_of({"none": "default", "linear": "linear", "yarn": "yarn"})
STACKS: Mapping[str, Mapping[str, tuple[str, _Make]]] = {
    "vllm": {"--hf-overrides": ("fields", _object), "--max-model-len": ("length", _whole)},
    "sglang": {"--json-model-override-args": ("fields", _object), "--context-length": ("length", _whole)},
    "llamacpp": {
        "-c": ("length", _whole),
        "--ctx-size": ("length", _whole),
        "--rope-scaling": ("rope_type", _TYPE),
        "--rope-scale": ("factor", _number),
        "--rope-freq-scale": ("factor", _inverse),
        "--rope-freq-base": ("rope_theta", _number),
        "--yarn-orig-ctx": (ORIGINAL, _whole),
        "--yarn-ext-factor": ("extrapolation_factor", _number),
        "--yarn-attn-factor": ("yarn_attn_factor", _number),
        "--yarn-beta-fast": ("beta_fast", _number),
        "--yarn-beta-slow": ("beta_slow", _number),
        "--override-kv": ("", _number),
    },
    "torchtitan": {},
}
_KEYS: Mapping[str, tuple[str, _Make]] = {
    "context_length": (LENGTH, _whole),
    "rope.freq_base": ("rope_theta", _number),
    "rope.scaling.type": ("rope_type", _TYPE),
    "rope.scaling.factor": ("factor", _number),
    "rope.scaling.original_context_length": (ORIGINAL, _whole),
    "rope.scaling.attn_factor": ("attn_factor", _number),
}
_CONFIG: Mapping[str, tuple[str, _Make]] = {
    "dim": ("dim", _whole),
    "max_seq_len": (LENGTH, _whole),
    "theta": ("rope_theta", _number),
    "scaling": ("rope_type", _one_of({"none": "default", "yarn": "yarn", "llama": "llama3"})),
    "rope_factor": ("factor", _number),
    "scaling_factor": ("factor", _number),
    "original_seq_len": (ORIGINAL, _whole),
    "original_max_position_embeddings": (ORIGINAL, _whole),
    "beta_fast": ("beta_fast", _number),
    "beta_slow": ("beta_slow", _number),
    "truncate": ("truncate", _one_of({"True": True, "False": False})),
    "low_freq_factor": ("low_freq_factor", _number),
    "high_freq_factor": ("high_freq_factor", _number),
}
