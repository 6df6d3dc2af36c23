"""The heads of each layer of a model, as its configuration has them: how many, how wide, and which lanes turn."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from posenc import config
from posenc.config import kinds, values
from posenc.config.model import Model, open_model
from posenc.interop.layouts import REMOTE, Layout, Parts, layout

_WHO = "convert_pairing"
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
# Keys that give single layers numbers of heads of their own, and types that do so without one: their tensors say them.
_OWN_NUMBERS = (
    "num_attention_heads_per_layer", "num_global_key_value_heads", "swa_num_attention_heads",
    "swa_num_key_value_heads", "per_layer_config", "attention_other_setting",
)  # fmt: skip
_OWN_NUMBERS_BY_TYPE = {"mimo_v2_flash"}


@dataclass(frozen=True)
class Heads:
    """The heads of one kind of layer; widths in lanes.

    Args:
        n_heads: Query heads; None where layers have numbers of their own.
        n_kv_heads: Key heads; None likewise.
        head_dim: Lanes of a head.
        rotary_dim: How many of them turn.
        first: The first of these.
        compressed: What multi-head latent attention compresses keys and values to, as far as the file says.
        values_are_keys: Whether there is one projection for both, so that lanes of values move with those of keys.
    """

    n_heads: int | None
    n_kv_heads: int | None
    head_dim: int
    rotary_dim: int
    first: int
    compressed: int | None
    values_are_keys: bool

    def starts(self, parts: Parts, rows: int) -> tuple[int, ...]:
        """Return the first row of every slice of rows that turns.

        Raises:
            ValueError: A projection with such heads has another number of rows.
        """
        starts, row = [], 0
        for part, width in self._segments(parts, rows):
            if part in "qk":
                starts.append(row + (self.first if width == self.head_dim else 0))
            row += width
        if row != rows or not starts:
            raise ValueError(f"has {rows} rows where the configuration has {row}")
        return tuple(starts)

    def _segments(self, parts: Parts, rows: int) -> list[tuple[str, int]]:
        """Return part and width of each head in the order of the rows."""
        if parts.order == "ck":  # one slice of keys that all heads share, behind what is compressed
            still = rows - self.rotary_dim if self.compressed is None else self.compressed
            return [("c", still), ("k", self.rotary_dim)]
        queries, keys = self.n_heads, self.n_kv_heads
        if parts.groups == "one" and parts.order in ("q", "k"):
            known = queries if parts.order == "q" else keys
            return [(parts.order, self.head_dim)] * (known or max(rows // self.head_dim, 1))
        if queries is None or keys is None:
            raise ValueError("holds layers with numbers of heads of their own, which one tensor cannot be split by")
        groups = {"one": 1, "n_heads": queries, "n_kv_heads": keys, "four": 4}[parts.groups]
        if queries % groups or (keys % groups and set(parts.order) & set("kv")):
            raise ValueError(f"has {groups} groups, by which {queries} and {keys} heads cannot be divided")
        numbers = {"q": queries // groups, "g": queries // groups, "k": keys // groups, "v": keys // groups}
        group = [(part, self.head_dim) for part in parts.order for _ in range(numbers[part])]
        return group * groups


class Layers:
    """What each layer of a model does with lanes.

    Args:
        source: A configuration, as for `config.read`.
        of: The present pairing, None for what the model type has.

    Raises:
        ValueError: The type's layout or pairing is unknown, no layer rotates, or the configuration lacks something.
        TypeError: A value of it is of a wrong kind.
    """

    def __init__(self, source: config.Source, of: config.Pairing | None = None) -> None:
        self.model: Model = open_model(source)
        self.layout: Layout = layout(self.model)
        self._fields: dict[str, Any] = {**self.model.fields, "model_type": self.model.model_type}
        if self.model.name in REMOTE:
            usual, further = REMOTE[self.model.name]
            self._fields |= further
            of = usual if of is None else of
        self._kinds: Sequence[str] = kinds.layers(self.model)
        turning = dict.fromkeys(kind for kind in self._kinds if kinds.turns(kind))
        rotations = {kind: config.rotary(self._fields, kind, pairing=of) for kind in turning}
        if not rotations:
            raise ValueError(f"{_WHO}: no layer of this model rotates, so it has no pairing; got {self.model.name}.")
        self.pairing: config.Pairing = next(iter(rotations.values())).pairing
        self._heads = {kind: self._read(kind, found) for kind, found in rotations.items()}

    def heads(self, number: int, *, extra: bool = False) -> Heads | None:
        """Return the heads of a layer, None of one that does not rotate.

        Args:
            number: Which layer.
            extra: Whether it is counted apart, as those are that predict several tokens. Such layers, and those
                behind the last, are like the others if all that have attention are alike.

        Raises:
            ValueError: Layers differ, so that nobody knows what this one is like.
        """
        if not extra and number < len(self._kinds):
            return self._heads.get(self._kinds[number])
        if len(set(self._heads.values())) == 1 and kinds.NOPE not in self._kinds:
            return next(iter(self._heads.values()))
        raise ValueError("is of a layer behind the last, and the layers of this model differ")

    def _read(self, kind: str, found: config.Rotary) -> Heads:
        fields = self.model.fields
        varies = self.model.name in _OWN_NUMBERS_BY_TYPE or any(fields.get(key) is not None for key in _OWN_NUMBERS)
        n_heads = self.model.size("n_heads")
        if n_heads is None:
            raise ValueError(f"{_WHO}: num_attention_heads is missing, so heads cannot be told apart. Add it.")
        compressed = fields.get("kv_lora_rank")
        return Heads(
            n_heads=None if varies else n_heads,
            n_kv_heads=None if varies else self._n_kv_heads(n_heads),
            head_dim=found.head_dim,
            rotary_dim=found.rotary_dim,
            first=found.head_dim - found.rotary_dim if found.rotary_side == "last" else 0,
            compressed=None if compressed is None else values.integer(_WHO, "kv_lora_rank", compressed, high=1 << 24),
            values_are_keys=bool(fields.get("attention_k_eq_v")) and kind == kinds.FULL,
        )

    def _n_kv_heads(self, n_heads: int) -> int:
        """Return the number of key heads: as many as query heads where a file has no number."""
        fields = self.model.fields
        if (
            self.model.name == "falcon"
            and not fields.get("new_decoder_architecture")
            and fields.get("multi_query", True)
        ):
            return 1
        if isinstance(fields.get("attn_config"), dict):  # DBRX
            fields = {**fields, "num_key_value_heads": fields["attn_config"].get("kv_n_heads")}
        key = next((key for key in _KV_HEADS if fields.get(key) is not None), None)
        return n_heads if key is None else values.integer(_WHO, key, fields[key], high=1 << 16)
