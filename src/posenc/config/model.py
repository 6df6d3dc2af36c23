"""The part of a configuration that describes one language model, with the warnings collected while reading it."""

from dataclasses import dataclass, field
from typing import Any

from posenc.config import published, values
from posenc.config.models import TYPES
from posenc.config.parts import FLAT, TEXT
from posenc.config.reading import Checked, Source, read

WHO = "config"
_INNER = ("text_config", "thinker_config", "language_config", "llm_config", "vlm_config", "global_config")
_STACKS = (("encoder", "decoder"), ("encoder_config", "decoder_config"))
_SIZES = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "n_heads": ("num_attention_heads", "n_head", "n_heads", "decoder_num_attention_heads"),
    "n_layers": ("num_hidden_layers", "n_layer", "n_layers", "decoder_num_hidden_layers", "num_layers"),
    "head_dim": ("head_dim", "attention_head_dim"),
    "max_len": ("max_position_embeddings", "n_positions", "max_seq_len", "model_max_length"),
    "window": ("sliding_window", "attention_window_size", "local_attention", "sliding_window_size"),
}
# in files for code that is not in transformers, whose types do not read these keys (JetMoe reads one)
_FOREIGN = {"n_heads": ("num_heads",), "head_dim": ("kv_channels", "head_size", "hidden_size_per_head")}
_MOST = {"hidden_size": 1 << 24, "n_heads": 1 << 16, "n_layers": 10_000, "head_dim": 8192}


@dataclass(frozen=True)
class ConfigWarning:
    """A warning about a configuration with which the model still runs.

    Args:
        code: A short name of the kind of warning.
        key: The key in the file.
        message: One sentence for the user.
        value: The value in the file, None if the key is missing.
        allowed: A description of the allowed values.
        meanings: Alternatives for the entry, and the meaning of each.
        fix: The suggested change.
    """

    code: str
    key: str
    message: str
    value: Any = field(default=None, hash=False)
    allowed: str = ""
    meanings: values.Meanings = ()
    fix: str = ""


@dataclass
class Model:
    """The fields of the language model, its type as in `models`, and the warnings so far.

    `outer` has the levels that contain it: the key of the next inner part, and the fields at that level. `native` is
    the name of its publisher's own format, "" for a config.json.
    """

    fields: dict[str, Any]
    model_type: str | None
    warnings: list[ConfigWarning] = field(default_factory=list)
    outer: tuple[tuple[str, dict[str, Any]], ...] = ()
    native: str = ""

    def warn(
        self,
        code: str,
        key: str,
        message: str,
        *,
        value: Any,
        allowed: str,
        meanings: values.Meanings = (),
        fix: str,
    ) -> None:
        """Add a warning."""
        self.warnings.append(ConfigWarning(code, key, message, value, allowed, meanings, fix))

    def assume(self, key: str, default: int, allowed: str) -> None:
        """Add a warning about a missing number for which transformers has a default, once."""
        if any((one.code, one.key) == ("assumed", key) for one in self.warnings):
            return
        self.warn(
            "assumed",
            key,
            f"{key} is missing; {default} is used, the default of transformers for {self.name}.",
            value=None,
            allowed=allowed,
            meanings=(
                ("left out", f"{default}, but other programs may use another value"),
                (f'"{key}": {default}', f"{default} everywhere"),
            ),
            fix=f'Write "{key}": {default} into the file, or the value of the weights.',
        )

    @property
    def name(self) -> str:
        """The type by which facts are looked up; a vision model counts as its text part."""
        plain = self.model_type or ""
        return f"{plain}_text" if plain not in TYPES and f"{plain}_text" in TYPES else plain

    @property
    def is_known(self) -> bool:
        """Whether the facts of the type are known."""
        return self.name in TYPES

    def size(self, name: str, default: int | None = None) -> int | None:
        """Return a positive integer under any of its names, None if it is null or missing.

        Args:
            name: A key of `_SIZES`.
            default: The default of transformers for a missing number; using it adds a warning.

        Raises:
            TypeError: It is not an integer.
            ValueError: It is not positive, or larger than in any model.
        """
        foreign = () if self.is_known and self.name != "jetmoe" else _FOREIGN.get(name, ())
        for key in (*_SIZES[name], *foreign):
            if self.fields.get(key) is not None:
                return values.integer(WHO, key, self.fields[key], high=_MOST.get(name, values.LONGEST))
        if default is not None:
            self.assume(_SIZES[name][0], default, f"from 1 to {_MOST.get(name, values.LONGEST)}")
        return default


def open_model(source: Source) -> Model:
    """Read a configuration and return the part of its language model.

    Raises:
        TypeError: Its type is not a string.
        ValueError: The file has several models, and the language model is ambiguous.
    """
    fields = read(source)
    model_type, outer = fields.get("model_type"), []
    for _ in range(3):  # an omni model contains a thinker, which contains the text model
        key = next((key for key in _INNER if isinstance(fields.get(key), dict) and fields[key]), None)
        if key is None:
            break
        outer.append((key, fields))
        fields, model_type = fields[key], fields[key].get("model_type", TEXT.get(str(model_type), model_type))
    if not outer and isinstance(model_type, str) and model_type in FLAT:
        model_type = TEXT[model_type]
    if model_type is not None:
        values.text(WHO, "model_type", model_type)
    model = Model(fields, model_type, outer=tuple(outer))
    sized = any(fields.get(key) is not None for name in ("n_layers", "hidden_size") for key in _SIZES[name])
    if parts := {} if sized else _parts(fields):
        listed = ", ".join(f"{values.short(key)} ({values.short(part['model_type'])})" for key, part in parts.items())
        first = values.short(next(iter(parts)))
        raise values.elsewhere(
            f"{WHO}: a configuration must be of one model; got {values.short(model_type)} with parts {listed[:300]}. "
            f"Pass one of them, such as posenc.config.read(source)[{first}].",
            model_type,
        )
    published.rewrite(model)
    return model


def stacks(source: Source) -> dict[str, Checked]:
    """Return the configurations of the encoder and the decoder if a file has both, and else {"": the whole file}."""
    fields = read(source)
    parts = {} if any(fields.get(key) for key in _INNER) else _parts(fields)
    pair = next((keys for keys in _STACKS if parts.keys() >= set(keys)), None)
    if pair is None or any(parts[key].get("model_type") == fields.get("model_type") for key in pair):
        return {"": Checked(fields)}
    return {name: Checked(parts[key]) for name, key in zip(("encoder", "decoder"), pair, strict=True)}


def _parts(fields: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the configurations of models that a configuration contains."""
    return {key: part for key, part in fields.items() if isinstance(part, dict) and part.get("model_type")}
