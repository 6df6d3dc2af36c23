"""The heads of each layer of a model, as its configuration has them: how many, how wide, and which lanes turn."""

from typing import NamedTuple

from posenc import config
from posenc.config import kinds, values
from posenc.config.model import Model
from posenc.interop.layouts import REMOTE, Parts

_WHO = "convert_pairing"
_KV_HEADS = ("kv_n_heads", "num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
# Keys that give single layers numbers of heads of their own, and types that do so without one: their tensors say them.
_OWN_NUMBERS = (
    "num_attention_heads_per_layer", "num_global_key_value_heads", "swa_num_attention_heads",
    "swa_num_key_value_heads", "per_layer_config", "attention_other_setting",
)  # fmt: skip
_OWN_NUMBERS_BY_TYPE = {"mimo_v2_flash"}


class Heads(NamedTuple):
    """The heads of one kind of layer; widths in lanes."""

    numbers: tuple[int, int] | None  # of query and of key heads; None where layers have numbers of their own
    head_dim: int
    rotary_dim: int  # of which so many turn
    first: int  # from this one on
    compressed: int | None  # what multi-head latent attention compresses keys and values to, as far as the file says
    values_are_keys: bool  # one projection for both, so that lanes of values move with those of keys

    def starts(self, parts: Parts, rows: int) -> tuple[int, ...]:
        """Return the first row of every slice of rows that turns.

        Raises:
            ValueError: A projection with such heads has another number of rows.
        """
        if parts[0] == "ck":  # one slice of keys that all heads share, behind what is compressed
            first = max(rows - self.rotary_dim, 0) if self.compressed is None else self.compressed
            starts, expected = [first], first + self.rotary_dim
        else:
            heads = self._order(*parts, rows)
            starts = [i * self.head_dim + self.first for i, part in enumerate(heads) if part in "qk"]
            expected = len(heads) * self.head_dim
        if rows != expected:
            raise ValueError(f"has {rows} rows where the configuration has {expected}")
        return tuple(starts)

    def _order(self, order: str, split: str, rows: int) -> str:
        """Return the part of each head in the order of the rows, a letter each."""
        if self.numbers is None:
            if order in ("q", "k"):
                return order * max(rows // self.head_dim, 1)
            raise ValueError("holds layers with numbers of heads of their own, which one tensor cannot be split by")
        queries, keys = self.numbers
        groups = {"one": 1, "n_heads": queries, "n_kv_heads": keys, "four": 4}[split]
        if queries % groups or (keys % groups and set(order) & set("kv")):
            raise ValueError(f"has {groups} groups, by which {queries} and {keys} heads cannot be divided")
        return "".join(part * ((queries if part in "qg" else keys) // groups) for part in order) * groups


class Layers(NamedTuple):
    """What each layer of a model does with lanes."""

    pairing: config.Pairing  # how they are paired now
    kinds: list[str]  # of each layer
    heads: dict[str, Heads]  # of each kind that rotates

    def find(self, number: int) -> Heads | None:
        """Return the heads of a layer, None of one that does not rotate.

        Those behind the last, which predict several tokens, are like the others if all that have attention are alike.

        Raises:
            ValueError: They differ, so that it is unknown what this one is like.
        """
        if number < len(self.kinds):
            return self.heads.get(self.kinds[number])
        if len(set(self.heads.values())) == 1 and kinds.NOPE not in self.kinds:
            return next(iter(self.heads.values()))
        raise ValueError("is of a layer behind the last, and the layers of this model differ")


def read_layers(model: Model, of: config.Pairing | None) -> Layers:
    """Return what the layers of a model do with lanes; `of` is their pairing, None for what the type has.

    Raises:
        ValueError: The type's pairing is unknown, no layer rotates, or the configuration lacks something.
        TypeError: A value of it is of a wrong kind.
    """
    usual, further = REMOTE.get(model.name, (None, {}))
    fields = {**model.fields, "model_type": model.model_type, **further}
    found = kinds.layers(model)
    turning = [kind for kind in dict.fromkeys(found) if kinds.turns(kind)]
    if not turning:
        raise ValueError(f"{_WHO}: no layer of this model rotates, so it has no pairing; got {model.name}.")
    rotations = {kind: config.rotary(fields, kind, pairing=of or usual) for kind in turning}
    pairing = rotations[turning[0]].pairing
    return Layers(pairing, found, {kind: _heads(model, kind, rotary) for kind, rotary in rotations.items()})


def _heads(model: Model, kind: str, rotary: config.Rotary) -> Heads:
    fields, n_heads = model.fields, model.size("n_heads")
    compressed = fields.get("kv_lora_rank")
    varies = model.name in _OWN_NUMBERS_BY_TYPE or any(fields.get(key) is not None for key in _OWN_NUMBERS)
    if n_heads is None:
        raise ValueError(f"{_WHO}: num_attention_heads is missing, so heads cannot be told apart. Add it.")
    return Heads(
        numbers=None if varies else (n_heads, _n_kv_heads(model, n_heads)),
        head_dim=rotary.head_dim,
        rotary_dim=rotary.rotary_dim,
        first=rotary.head_dim - rotary.rotary_dim if rotary.rotary_side == "last" else 0,
        compressed=None if compressed is None else values.integer(_WHO, "kv_lora_rank", compressed, high=1 << 24),
        values_are_keys=bool(fields.get("attention_k_eq_v")) and kind == kinds.FULL,
    )


def _n_kv_heads(model: Model, n_heads: int) -> int:
    """Return the number of key heads: as many as query heads where a file has no number."""
    fields = model.fields
    if model.name == "falcon" and not fields.get("new_decoder_architecture") and fields.get("multi_query", True):
        return 1
    if isinstance(inner := fields.get("attn_config"), dict):  # DBRX
        fields = {**fields, **inner}
    key = next((key for key in _KV_HEADS if fields.get(key) is not None), None)
    return n_heads if key is None else values.integer(_WHO, key, fields[key], high=1 << 16)
