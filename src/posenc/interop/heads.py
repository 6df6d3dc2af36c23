"""The heads of each layer by a model's configuration: their number, their width and their rotated dimensions."""

from typing import NamedTuple

from posenc import config
from posenc.config import kinds, values
from posenc.config.model import Model
from posenc.interop.layouts import REMOTE, Parts

_WHO = "convert_pairing"
_KV_HEADS = ("kv_n_heads", "num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
# Keys that set the number of heads for single layers, and types that vary it without a key: their tensors give it.
_OWN_NUMBERS = (
    "num_attention_heads_per_layer", "num_global_key_value_heads", "swa_num_attention_heads",
    "swa_num_key_value_heads", "per_layer_config", "attention_other_setting",
)  # fmt: skip
_OWN_NUMBERS_BY_TYPE = {"mimo_v2_flash"}


class Heads(NamedTuple):
    """The heads of one kind of layer."""

    numbers: tuple[int, int] | None  # of query and of key heads; None if they vary between layers
    head_dim: int
    rotary_dim: int  # the number of dimensions that rotate
    first: int  # the first of them
    compressed: int | None  # the latent width of keys and values in multi-head latent attention, if the file gives it
    values_are_keys: bool  # one projection for both, so values are permuted with keys

    def starts(self, parts: Parts, rows: int) -> tuple[int, ...]:
        """Return the first row of every slice of rows that rotates.

        Raises:
            ValueError: The number of rows does not match the heads.
        """
        if parts[0] == "ck":  # one slice of keys that all heads share, after the latent
            first = max(rows - self.rotary_dim, 0) if self.compressed is None else self.compressed
            starts, expected = [first], first + self.rotary_dim
        else:
            heads = self._order(*parts, rows)
            starts = [i * self.head_dim + self.first for i, part in enumerate(heads) if part in "qk"]
            expected = len(heads) * self.head_dim
        if rows != expected:
            raise ValueError(f"has {rows} rows, but {expected} by the configuration")
        return tuple(starts)

    def _order(self, order: str, split: str, rows: int) -> str:
        """Return the letter of each head's part in the order of the rows."""
        if self.numbers is None:
            if order in ("q", "k"):
                return order * max(rows // self.head_dim, 1)
            raise ValueError("cannot be split, since the number of heads varies between layers")
        queries, keys = self.numbers
        groups = {"one": 1, "n_heads": queries, "n_kv_heads": keys, "four": 4}[split]
        if queries % groups or (keys % groups and set(order) & set("kv")):
            raise ValueError(f"has {groups} groups, which do not divide {queries} and {keys} heads")
        return "".join(part * ((queries if part in "qg" else keys) // groups) for part in order) * groups


class Layers(NamedTuple):
    """The rotation of each layer of a model."""

    pairing: config.Pairing  # the present pairing
    kinds: list[str]  # of each layer
    heads: dict[str, Heads]  # of each kind that rotates

    def find(self, number: int) -> Heads | None:
        """Return the heads of a layer, or None if it does not rotate.

        Layers after the last, for multi-token prediction, have the heads of the others if all of these are alike.

        Raises:
            ValueError: The layers differ, so the heads of a layer after the last are unknown.
        """
        if number < len(self.kinds):
            return self.heads.get(self.kinds[number])
        if len(set(self.heads.values())) == 1 and kinds.NOPE not in self.kinds:
            return next(iter(self.heads.values()))
        raise ValueError("is of a layer after the last, and the layers of this model differ")


def read_layers(model: Model, of: config.Pairing | None) -> Layers:
    """Return the rotation of each layer of a model; `of` is their pairing, None for that of the type.

    Raises:
        ValueError: The type's pairing is unknown, no layer rotates, or the configuration is incomplete.
        TypeError: A value of the configuration has a wrong type.
    """
    usual, further = REMOTE.get(model.name, (None, {}))
    fields = {**model.fields, "model_type": model.model_type, **further}
    found = kinds.layers(model)
    rotating = [kind for kind in dict.fromkeys(found) if kinds.rotates(kind)]
    if not rotating:
        raise ValueError(f"{_WHO}: no layer of this model rotates, so it has no pairing; got {model.name}.")
    rotations = {kind: config.rotary(fields, kind, pairing=of or usual) for kind in rotating}
    pairing = rotations[rotating[0]].pairing
    return Layers(pairing, found, {kind: _heads(model, kind, rotary) for kind, rotary in rotations.items()})


def _heads(model: Model, kind: str, rotary: config.Rotary) -> Heads:
    fields, n_heads = model.fields, model.size("n_heads")
    compressed = fields.get("kv_lora_rank")
    varies = model.name in _OWN_NUMBERS_BY_TYPE or any(fields.get(key) is not None for key in _OWN_NUMBERS)
    if n_heads is None:
        raise ValueError(f"{_WHO}: num_attention_heads is missing, so rows cannot be split into heads. Add it.")
    return Heads(
        numbers=None if varies else (n_heads, _n_kv_heads(model, n_heads)),
        head_dim=rotary.head_dim,
        rotary_dim=rotary.rotary_dim,
        first=rotary.head_dim - rotary.rotary_dim if rotary.rotary_side == "last" else 0,
        compressed=None if compressed is None else values.integer(_WHO, "kv_lora_rank", compressed, high=1 << 24),
        values_are_keys=bool(fields.get("attention_k_eq_v")) and kind == kinds.FULL,
    )


def _n_kv_heads(model: Model, n_heads: int) -> int:
    """Return the number of key heads: that of query heads if the file has none."""
    fields = model.fields
    if model.name == "falcon" and not fields.get("new_decoder_architecture") and fields.get("multi_query", True):
        return 1
    if isinstance(inner := fields.get("attn_config"), dict):  # DBRX
        fields = {**fields, **inner}
    key = next((key for key in _KV_HEADS if fields.get(key) is not None), None)
    return n_heads if key is None else values.integer(_WHO, key, fields[key], high=1 << 16)
