"""A longer context in a stack's own keys or flags, checked by the stack's rules before it is returned."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from posenc.config.reading import Checked
from posenc.extend import spellings
from posenc.extend.spellings import More, RefusedError, Spelled
from posenc.extend.stretch import Stretched
from posenc.parity import flags, measured
from posenc.parity.compare import Meaning
from posenc.parity.evaluate import same
from posenc.parity.loading import ALIASES, choose
from posenc.parity.read import Reading, read
from posenc.parity.rules import Rules

_UNREAD = {"beta_fast": 32, "beta_slow": 1, "truncate": True}  # the values that stacks use which do not read these keys
_NEAREST = {
    "linear": "--method yarn, or ntk",
    "dynamic": "--method ntk, whose base is the same for texts of every length",
    "llama3": "--method yarn",
    "longrope": "--method yarn",
}
_OWN = "checked by the rules of transformers; Unsloth itself scales linearly if it finds no scaling."
_LOST = (
    "LLaMA-Factory 0.9.5 cannot express this: it sets rope_scaling without rope_theta, which transformers 5 then "
    "loses, and uses max_position_embeddings as the trained length"
)


@dataclass(frozen=True)
class Destination:
    """A stack that a longer context can be written for.

    Args:
        name: Its name in options.
        stack: The stack whose rules check the output, as for `loading.choose`.
        spell: Returns the spelling; None if the stack cannot express any.
        loaded: Whether the fields are set on a configuration that transformers has loaded.
        by_hand: Whether the user must multiply the scale of the softmax, because the stack has no gain.
        instead: Alternatives for parameters that the stack does not read.
        remark: Other advice.
    """

    name: str
    stack: str
    spell: Callable[[Stretched, Rules, More], Spelled] | None
    loaded: bool = False
    by_hand: bool = False
    instead: Mapping[str, str] = field(default_factory=dict, hash=False)
    remark: str = ""


_FLAGS = dict.fromkeys(("beta_fast", "beta_slow"), "--to llamacpp, which has a flag for it")
DESTINATIONS: Mapping[str, Destination] = {
    one.name: one
    for one in (
        Destination("hf5", "hf5", spellings.hf5),
        Destination("hf4", "hf4", spellings.hf4),
        Destination("vllm", "vllm", spellings.vllm),
        Destination("sglang", "sglang", spellings.sglang),
        Destination("llamacpp", "llamacpp", spellings.llamacpp),
        Destination("gguf", "llamacpp", spellings.gguf, instead=_FLAGS),
        Destination("mlx-lm", "mlx-lm", spellings.mlx),
        Destination("tensorrt-llm", "tensorrt-llm", spellings.tensorrt_llm),
        Destination("torchtitan", "torchtitan", spellings.torchtitan, by_hand=True),
        Destination("axolotl", "hf5", spellings.axolotl, loaded=True),
        Destination("unsloth", "hf5", spellings.unsloth, loaded=True, remark=_OWN),
        Destination("llamafactory", "hf5", None, remark=_LOST),
    )
}


@dataclass(frozen=True)
class Written:
    """A longer context, written for a stack.

    Args:
        to: The destination.
        rules: The rules that checked it.
        text: The fields, flags, keys or line of code.
        whole: The whole config.json if the fields are a part of one, else None.
        dropped: Older spellings in the file that must be removed.
        score_scale: The factor by which the user must multiply the scale of the softmax; 1 if the stack needs none.
        remarks: Other advice, one sentence each.
    """

    to: str
    rules: Rules
    text: str
    whole: Mapping[str, Any] | None
    dropped: tuple[str, ...]
    score_scale: float
    remarks: tuple[str, ...]


def write(stretched: Stretched, to: str) -> Written:
    """Write a longer context in a stack's own keys or flags.

    The rules of `posenc.parity` check the output: frequencies, gain and score factor of texts up to the wanted length
    are those of transformers 5, and the stack accepts that length. Unknown rules are listed in remarks.

    Args:
        stretched: The longer context, from `stretch`.
        to: A name of `DESTINATIONS`, or with a version: vllm@0.33.0.

    Raises:
        RefusedError: The stack cannot express it; the message names what it does not read, and the nearest alternative.
        ValueError: The stack or its version is unknown; the message lists the known ones.

    >>> from posenc.extend.stretch import stretch
    >>> qwen = {"model_type": "qwen3", "head_dim": 128, "max_position_embeddings": 40960, "rope_theta": 1e6}
    >>> print(write(stretch(qwen, "yarn", factor=4, trained_len=32768), "llamacpp").text)
    -c 131072 --rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 32768
    """
    place, rules = find(to)
    if place.spell is None:
        raise RefusedError(f"write: {place.remark}. Nearest: --to hf5, and no rope_scaling there.")
    after, own = stretched.after[0].rotary, stretched.parameters
    if (after.rope_type, after.base) != (own["rope_type"], own["rope_theta"]):
        name = spellings.model_of(stretched).name
        raise RefusedError(f"write: transformers' code for {name} has fixed frequencies, which no key changes.")
    spelled = place.spell(stretched, rules, {})
    found = _read_back(place, rules, stretched, spelled)
    if more := _correction(found[0], stretched):
        spelled = place.spell(stretched, rules, more)
        found = _read_back(place, rules, stretched, spelled)
    remarks, scale = [f"{place.name}: {place.remark}"] if place.remark else [], 1.0
    for reading, meaning in zip(found, stretched.after, strict=True):
        if _is_unknown(place, reading, stretched):
            remarks += [f"{rules.project}: unknown for {meaning.rotary.layer_type}: {key}" for key in _unknown(reading)]
            continue
        _check_rotation(place, reading, meaning, stretched)
        ratio = _scores(place, reading, meaning, stretched)
        scale = ratio if meaning is stretched.after[0] else scale
        remarks += _short_texts(reading, meaning, stretched)
    if scale != 1.0:
        remarks.append(f"{rules.project}: multiply the scale of the softmax by {scale:.4f} yourself.")
    if rules.length.gate == "unknown":
        remarks.append(f"{rules.project}: its length limit is unknown ({rules.length.note.source}).")
    return Written(to, rules, spelled.text, spelled.whole, _dropped(spelled, stretched), scale, tuple(remarks))


def can_run(stretched: Stretched) -> dict[str, str]:
    """Return for each destination "" if it can express a longer context, else the reason."""
    reasons = {}
    for name in DESTINATIONS:
        try:
            write(stretched, name)
            reasons[name] = ""
        except RefusedError as error:
            reasons[name] = str(error)
    return reasons


def find(to: str) -> tuple[Destination, Rules]:
    """Return a destination by its name, and the rules of its version.

    Raises:
        ValueError: One of them is unknown.
    """
    name, _, version = to.partition("@")
    name = ALIASES.get(name, name)
    name = f"hf{version[:1] or 5}" if name == "hf" else name
    if name not in DESTINATIONS:
        raise ValueError(f"write: unknown stack {name[:60]!r}. Known: {', '.join(DESTINATIONS)}.")
    place = DESTINATIONS[name]
    (rules,) = choose(place.stack)
    if version:
        (rules,) = choose(f"{rules.stack}@{version}")
    return place, rules


def _read_back(place: Destination, rules: Rules, stretched: Stretched, spelled: Spelled) -> list[Reading]:
    """Return how the stack reads the output, for each kind of layer."""
    source, given = stretched.before[0].source, flags.Given()
    if spelled.whole is not None:
        source = Checked(spelled.whole)
    elif place.loaded:
        given = flags.Given(spelled.fields)
        rules = replace(rules, override=replace(rules.override, when="loaded"))
    else:
        given = flags.parse(spelled.text, rules.stack)
    served = given.length or stretched.target_len
    return [
        read(source, dict(given.fields), rules, one.rotary, main=i == 0, length=served, flags=given.flags)
        for i, one in enumerate(stretched.after)
    ]


def _correction(reading: Reading, stretched: Stretched) -> More:
    """Return parameters that correct a stack's gain, if it has any."""
    meaning, rotation = stretched.after[0], reading.rotation
    if rotation is None:
        return {}
    wanted, gain = meaning.at(stretched.target_len).gain, rotation.gains(stretched.target_len)
    factor = rotation.parameters.get("factor")
    if same([gain], [wanted]):
        return {}
    if "attn_factor" in rotation.times:
        return {"attn_factor": wanted / gain * (rotation.parameters.get("attn_factor") or 1.0)}
    if rotation.gain == ("ratio",) and factor and factor > 1 and not meaning.rotary.scales_scores:
        return {"mscale": (wanted - 1) / (0.1 * math.log(factor)), "mscale_all_dim": 0.0}
    return {}


def _is_unknown(place: Destination, reading: Reading, stretched: Stretched) -> bool:
    """Return whether a rule for a kind of layer is unknown.

    Raises:
        RefusedError: The stack refuses a key, or its rule for the rope_type is unknown.
    """
    if reading.state == "error":
        errors = [f"{key.key}: {key.said}" for key in reading.keys if key.use == "error"]
        raise _refusal(place, reading, stretched, "; ".join(errors))
    rule = reading.rules.types.get(stretched.parameters["rope_type"])
    if rule is not None and rule.formula == "unknown":
        raise _refusal(place, reading, stretched, rule.said)
    return reading.state == "unknown"


def _unknown(reading: Reading) -> list[str]:
    return [f"{key.key}, {key.said}" if key.said else key.key for key in reading.keys if key.use == "unknown"]


def _check_rotation(place: Destination, reading: Reading, meaning: Meaning, stretched: Stretched) -> None:
    """Raise RefusedError unless the frequencies of texts beyond the trained length are as meant."""
    trained, target = stretched.trained_len, stretched.target_len
    for text in {target, max((trained + target) // 2, min(trained + 2, target))}:  # SGLang's long list starts one later
        if reading.rotation is None or not same(reading.rotation.inv_freq(text), meaning.at(text).inv_freq):
            why = "its frequencies differ"
            ignored = [key.key for key in reading.keys if key.use == "ignored" and measured.BY in key.source]
            if ignored:
                why = f"its code for {spellings.model_of(stretched).name} does not read {', '.join(ignored)}"
            if reading.rotation is not None and reading.rotation.length != "text":
                why = "it computes the base of dynamic NTK once and not for each text"
            raise _refusal(place, reading, stretched, why)


def _scores(place: Destination, reading: Reading, meaning: Meaning, stretched: Stretched) -> float:
    """Return the factor by which the user must multiply scores.

    Raises:
        RefusedError: The scores differ from those meant, and the user cannot correct them.
    """
    text = stretched.target_len
    if reading.rotation is None or reading.score is None:
        return 1.0
    ratio = meaning.logits(text) / (reading.rotation.gains(text) ** 2 * reading.score)
    if same([ratio], [1.0]):
        return 1.0
    if not place.by_hand:
        raise _refusal(place, reading, stretched, f"its scores are {1 / ratio:.4f} times those meant")
    return ratio


def _short_texts(reading: Reading, meaning: Meaning, stretched: Stretched) -> list[str]:
    """Return a remark if texts up to the trained length rotate differently from transformers."""
    trained, rotation = stretched.trained_len, reading.rotation
    if rotation is None or trained >= stretched.target_len:
        return []
    if same(rotation.inv_freq(trained), meaning.at(trained).inv_freq):
        return []
    return [
        f"{reading.rules.project}: texts of up to {trained:,} positions rotate as longer ones do; transformers uses "
        "short_factor for them."
    ]


def _refusal(place: Destination, reading: Reading, stretched: Stretched, why: str) -> RefusedError:
    """Return the error: what the stack does not read or do, and the nearest alternative."""
    rules, own = reading.rules, stretched.parameters
    taken = {key.key.rpartition(".")[2] for key in reading.keys if key.use == "read"}
    unread = [
        key for key in stretched.method.takes if key in own and key not in taken and own[key] != _UNREAD.get(key, ...)
    ]
    nearest = _NEAREST.get(stretched.method.name, "--method yarn, or ntk" if place.name == "hf5" else "--to hf5")
    if unread:
        why = f"it does not read {' and '.join(unread)}; {why}"
        nearest = " and ".join(place.instead.get(key) or _usual(key) for key in unread)
    return RefusedError(
        f"write: {rules.project} {rules.version} cannot express {stretched.method.title} exactly: {why}. "
        f"Nearest: {nearest}."
    )


def _usual(key: str) -> str:
    return f"--option {key}={str(_UNREAD[key]).lower()}" if key in _UNREAD else f"no {key}"


def _dropped(spelled: Spelled, stretched: Stretched) -> tuple[str, ...]:
    """Return fields of a config.json that are other spellings of the written ones."""
    if spelled.whole is None:
        return ()
    shipped = spellings.model_of(stretched).fields
    old = {*spellings.OLD, "rope_parameters"}
    return tuple(key for key, value in shipped.items() if key in old and key not in spelled.fields and value)
