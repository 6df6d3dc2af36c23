"""Read the encodings of published models with their learned tables: T5, DeBERTa, Swin and BLOOM."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn import functional as F

from posenc import config, registry
from posenc.config.model import open_model
from posenc.config.reading import Checked
from posenc.config.unrotated import Way, ways
from posenc.config.values import flag, number, short, text
from posenc.encoding import Encoding
from posenc.interop.checkpoint import PICKLES, Shard, open_checkpoint, open_shard

_WHO = "load_tables"


def load_tables(checkpoint: str | os.PathLike[str]) -> dict[str, Encoding]:
    """Return the encoding of each attention layer of a published model, with its learned table.

    A layer is named by the path of its attention in the checkpoint, such as "encoder.block.0.layer.0.SelfAttention".
    Layers that share a table share one encoding, so `PerLayer` places it once: T5's first block has the table of its
    stack, and BLOOM's slopes are the same in all layers. DeBERTa has one table that each layer projects differently;
    the projections are folded into the tables, in float32 for half precision weights. Only the tensors of tables are
    read, by safetensors, and nothing in a file is executed.

    Args:
        checkpoint: A directory with config.json and *.safetensors, or one such file next to its config.json.

    Returns:
        The encodings in the order of the layers. Their `score_scale` follows the model: T5 does not divide q·k by √d,
        and DeBERTa divides by √(d (1 + terms)).

    Raises:
        FileNotFoundError: There is no config.json.
        ValueError: The model type is not supported, or weights are missing, damaged, in another format, not finite, or
            of other sizes than in the configuration.
        TypeError: A value of the configuration has a wrong type.

    Source: the checkpoints of t5, mt5, umt5, deberta-v2, swin and bloom that transformers writes.
    """
    path = Path(checkpoint)
    fields = config.read(path if path.is_dir() else path.parent)
    kind = fields.get("model_type")
    if not isinstance(kind, str) or kind not in _READERS:
        raise ValueError(
            f"{_WHO}: reads the tables of {', '.join(_READERS)}; got model_type={short(kind)}. For other types, "
            "construct the encoding and set its parameters from the model's tensors."
        )
    found = _READERS[kind](fields, ways(open_model(Checked(fields))) or [], _open(path))
    if not found:
        raise ValueError(f"{_WHO}: {short(path.name)} has no table of {kind}. Pass the directory of the whole model.")
    return found


@dataclass(frozen=True)
class _Weights:
    """The file of each tensor; tensors are read one at a time."""

    shards: Mapping[str, Shard]

    def path(self, pattern: str) -> re.Match[str] | None:
        """Return the one name that matches after any path, or None."""
        found = [m for name in self.shards if (m := re.fullmatch(rf"(?P<before>(?:\w+\.)*?){pattern}", name))]
        if len(found) > 1:
            raise ValueError(
                f"{_WHO}: the checkpoint must have one such table; got {short(found[0][0])} and "
                f"{short(found[1][0])}. Remove the other model's tensors."
            )
        return found[0] if found else None

    def read(self, name: str, *shape: int) -> Tensor:
        """Return the tensor with this name, which must have this shape, in the precision of the file."""
        if name not in self.shards:
            raise ValueError(f"{_WHO}: {short(name)} is missing. Complete the checkpoint.")
        sort = self.shards[name].sorts[name]
        if sort.shape != shape or not sort.plain:
            raise ValueError(
                f"{_WHO}: {short(name)} must be a floating tensor of shape {shape}, by config.json; got "
                f"{sort.dtype} {sort.shape}. Restore the checkpoint, or its configuration."
            )
        try:
            with safe_open(self.shards[name].path, framework="pt") as file:
                tensor: Tensor = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{_WHO}: {short(name)} cannot be read: {short(str(error))}. Restore it.") from error
        if not tensor.isfinite().all():
            raise ValueError(f"{_WHO}: {short(name)} must be finite; got NaN or infinity. Restore the checkpoint.")
        return tensor

    def linear(self, name: str, rows: int, columns: int, x: Tensor) -> Tensor:
        """Project by a layer's weight and bias, in float32 or wider."""
        weight, shift = self.read(f"{name}.weight", rows, columns), self.read(f"{name}.bias", rows)
        dtype = torch.promote_types(x.dtype, weight.dtype)
        return F.linear(x.to(dtype), weight.to(dtype), shift.to(dtype))


def _open(path: Path) -> _Weights:
    if path.suffix in PICKLES or not path.exists():
        raise ValueError(
            f"{_WHO}: the checkpoint must be a directory or a file in safetensors; got {short(path.name)}. If you "
            "trust the model, load it and save it with save_pretrained, which writes model.safetensors."
        )
    try:
        shards: tuple[Shard, ...] = open_checkpoint(path).shards if path.is_dir() else (open_shard(path),)
    except ValueError as error:  # open_checkpoint is shared with `convert`, whose name its errors have
        raise ValueError(f"{_WHO}: {str(error).removeprefix('convert: ')}") from error
    return _Weights({name: shard for shard in shards for name in shard.sorts})


def _filled(way: Way, **tables: Tensor) -> Encoding:
    """Construct the encoding of a layer, with tables in the precision of the file."""
    encoding: Encoding = registry.create(way.encoding, **way.options)
    for name, table in tables.items():
        setattr(encoding, name, torch.nn.Parameter(table.contiguous()))
    return encoding


def _by_layer(way: Way, homes: list[str], weights: _Weights, table: str, *shape: int) -> dict[str, Encoding]:
    """Read the table of each layer, or only the first if layers share it."""
    own = homes[:1] if way.shared else homes
    read: list[Encoding] = [_filled(way, weight=weights.read(f"{home}.{table}", *shape)) for home in own]
    return {home: read[0 if way.shared else i] for i, home in enumerate(homes)}


def _t5(fields: Mapping[str, Any], ways: list[Way], weights: _Weights) -> dict[str, Encoding]:
    inside, table, found = "layer.0.SelfAttention", "relative_attention_bias.weight", dict[str, Encoding]()
    for way in ways:
        first = weights.path(rf"{way.part}\.block\.0\.{inside}\.{re.escape(table)}")
        if first is not None:  # None for a stack that this model does not have
            homes = [f"{first['before']}{way.part}.block.{i}.{inside}" for i in range(way.count)]
            found |= _by_layer(way, homes, weights, table, way.options["n_buckets"], way.options["n_heads"])
    return found


def _swin(fields: Mapping[str, Any], ways: list[Way], weights: _Weights) -> dict[str, Encoding]:
    table, found = "relative_position_bias_table", dict[str, Encoding]()
    inside = r"(?P<inside>attention(?:\.self|\.relative_position_bias))"
    if (first := weights.path(rf"encoder\.layers\.0\.blocks\.0\.{inside}\.{table}")) is None:
        return {}
    for stage, way in enumerate(ways):
        home, (rows, columns) = f"{first['before']}encoder.layers.{stage}.blocks", way.options["window"]
        homes = [f"{home}.{i}.{first['inside']}" for i in range(way.count)]
        shape = ((2 * rows - 1) * (2 * columns - 1), way.options["n_heads"])
        found |= _by_layer(way, homes, weights, table, *shape)
    return found


def _bloom(fields: Mapping[str, Any], ways: list[Way], weights: _Weights) -> dict[str, Encoding]:
    (way,) = ways
    first, alibi = weights.path(r"h\.0\.self_attention\.query_key_value\.weight"), _filled(way)
    return {f"{first['before']}h.{i}.self_attention": alibi for i in range(way.count)} if first else {}


def _deberta(fields: Mapping[str, Any], ways: list[Way], weights: _Weights) -> dict[str, Encoding]:
    (way,) = ways
    if way.encoding != "deberta":
        raise ValueError(
            f"{_WHO}: layers have a table only if relative_attention is true and pos_att_type has c2p or p2c; "
            f"got relative_attention={short(fields.get('relative_attention'))} and "
            f"pos_att_type={short(fields.get('pos_att_type'))}. Correct the file."
        )
    first = weights.path(r"encoder\.rel_embeddings\.weight")
    if first is None:
        return {}
    root = f"{first['before']}encoder"
    n_heads, head_dim, width = way.options["n_heads"], way.options["head_dim"], fields["hidden_size"]
    bucketed = fields.get("position_buckets", -1) > 0
    span = way.options["n_buckets"] if bucketed else way.options["n_buckets"] // 2
    table = weights.read(f"{root}.rel_embeddings.weight", 2 * span, width).float()
    norms = text(_WHO, "norm_rel_ebd", fields.get("norm_rel_ebd", "none")).lower().split("|")
    if "layer_norm" in [norm.strip() for norm in norms]:
        scale, shift = (weights.read(f"{root}.LayerNorm.{part}", width).float() for part in ("weight", "bias"))
        eps = number(_WHO, "layer_norm_eps", fields.get("layer_norm_eps", 1e-7), low=0.0, high=1.0)
        table = F.layer_norm(table, (width,), scale, shift, eps)
    own = "" if flag(_WHO, "share_att_key", fields.get("share_att_key", False)) else "pos_"
    projections = {"c2p": ("key_table", f"{own}key_proj"), "p2c": ("query_table", f"{own}query_proj")}
    rows, found = slice(None) if bucketed else clipped_rows(span), dict[str, Encoding]()
    for i in range(way.count):
        name = f"{root}.layer.{i}.attention.self"
        folded = {}
        for term in way.options["terms"]:
            own_name, projection = projections[term]
            projected = weights.linear(f"{name}.{projection}", n_heads * head_dim, width, table)
            folded[own_name] = projected.unflatten(-1, (n_heads, head_dim)).transpose(0, 1)[:, rows]
        found[name] = _filled(way, **folded)
    return found


def clipped_rows(span: int) -> Tensor:
    """Return the row of a DeBERTa table without buckets for each row of `posenc.DeBERTa`.

    The model clips distances to -span .. span - 1. `posenc.DeBERTa` has twice as many rows: half of them have one
    distance each, and the others repeat the rows at the ends.
    """
    return (torch.arange(4 * span) - span).clamp(0, 2 * span - 1)


_Reader = Callable[[Mapping[str, Any], list[Way], _Weights], dict[str, Encoding]]
_READERS: dict[str, _Reader] = {
    **dict.fromkeys(("t5", "mt5", "umt5"), _t5),
    "deberta-v2": _deberta,
    "swin": _swin,
    "bloom": _bloom,
}
