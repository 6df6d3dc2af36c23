"""Published encodings with their tables, read from a checkpoint: those of T5, DeBERTa, Swin and BLOOM."""

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

from posenc import config
from posenc.config.values import flag, integer, number, sequence, short, text
from posenc.encoding import Encoding
from posenc.encodings.alibi import ALiBi
from posenc.encodings.deberta import DeBERTa
from posenc.encodings.swin import Swin
from posenc.encodings.t5 import T5
from posenc.interop.checkpoint import PICKLES, open_checkpoint
from posenc.interop.plan import Sort
from posenc.interop.shards import Shard, open_shard

_WHO = "load_tables"
_LAYERS, _HEADS, _BUCKETS, _WINDOW, _WIDTH, _FAR = 10_000, 10_000, 4_096, 256, 1 << 20, 1 << 20


def load_tables(checkpoint: str | os.PathLike[str]) -> dict[str, Encoding]:
    """Return the encoding of each attention layer of a published model, with its learned table.

    A layer is named by the path of its attention in the checkpoint, such as "encoder.block.0.layer.0.SelfAttention".
    Layers that share a table share the encoding: T5's first block has the table of its stack, and BLOOM's slopes are
    the same in all, so that `PerLayer` places them once. DeBERTa has one table for all layers, which each projects
    its own way; its projections are folded in, and a projection in half precision is done in float32.
    Only the tensors of tables are read, by safetensors: nothing in a file is executed.

    Args:
        checkpoint: A directory with config.json and *.safetensors, or one such file beside its config.json.

    Returns:
        The encodings in the order of the layers. T5 does not divide q·k by √d, DeBERTa divides by √(d (1 + terms)):
        their `score_scale` says so.

    Raises:
        FileNotFoundError: There is no config.json.
        ValueError: A type of model that is not known here; weights that are missing, damaged, in another format, not
            finite, or of other sizes than the configuration's.
        TypeError: The configuration has a value of another kind.

    Source: the checkpoints of t5, mt5, umt5, deberta-v2, swin and bloom as transformers writes them.
    """
    path = Path(checkpoint)
    fields = config.read(path if path.is_dir() else path.parent)
    kind = fields.get("model_type")
    if not isinstance(kind, str) or kind not in _READERS:
        raise ValueError(
            f"{_WHO}: knows the tables of {', '.join(_READERS)}; got model_type={short(kind)}. Set the parameters of "
            "its encoding from the tensors that you know."
        )
    found = _READERS[kind](fields, _open(path))
    if not found:
        raise ValueError(f"{_WHO}: {short(path.name)} holds no table of {kind}. Name the directory of the whole model.")
    return found


@dataclass(frozen=True)
class _Weights:
    """Which tensor is in which file, and of what sort; read one at a time."""

    homes: Mapping[str, Path]
    sorts: Mapping[str, Sort]

    def path(self, pattern: str) -> re.Match[str] | None:
        """Return the one name that matches as a whole behind any path, None without one."""
        found = [m for name in self.homes if (m := re.fullmatch(rf"(?P<before>(?:\w+\.)*?){pattern}", name))]
        if len(found) > 1:
            raise ValueError(
                f"{_WHO}: it must be clear which table is meant; got {short(found[0][0])} and {short(found[1][0])}. "
                "Remove the other model's tensors."
            )
        return found[0] if found else None

    def read(self, name: str, *shape: int) -> Tensor:
        """Return a tensor of that shape in the precision of the file."""
        if name not in self.homes:
            raise ValueError(f"{_WHO}: {short(name)} is missing. Complete the checkpoint.")
        sort = self.sorts[name]
        if sort.shape != shape or not sort.plain:
            raise ValueError(
                f"{_WHO}: {short(name)} must be a floating tensor {shape}, by what config.json says; got "
                f"{sort.dtype} {sort.shape}. Restore the checkpoint, or its configuration."
            )
        try:
            with safe_open(self.homes[name], framework="pt") as file:
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
            f"{_WHO}: the checkpoint must be a directory or a file in safetensors; got {short(path.name)}. Load the "
            "model where you trust it and save it with save_pretrained, which writes model.safetensors."
        )
    try:
        shards: tuple[Shard, ...] = open_checkpoint(path).shards if path.is_dir() else (open_shard(path),)
    except ValueError as error:  # written for the conversion of checkpoints, which reads them the same way
        raise ValueError(f"{_WHO}: {str(error).removeprefix('convert: ')}") from error
    homes = {name: shard.path for shard in shards for name in shard.sorts}
    return _Weights(homes, {name: sort for shard in shards for name, sort in shard.sorts.items()})


def _whole(fields: Mapping[str, Any], *keys: str, high: int, default: int | None = None) -> int:
    """Return a whole number that stands under one of several names, the first of them first."""
    key = next((key for key in keys if fields.get(key) is not None), keys[0])
    given = fields.get(key)
    if given is None and default is None:
        raise ValueError(f"{_WHO}: config.json must have {key}; got none. Complete it.")
    return integer(_WHO, key, default if given is None else given, high=high)


def _filled(encoding: Encoding, **tables: Tensor) -> Encoding:
    """Put tables into an encoding, in their own precision."""
    for name, table in tables.items():
        setattr(encoding, name, torch.nn.Parameter(table.contiguous()))
    return encoding


def _t5(fields: Mapping[str, Any], weights: _Weights) -> dict[str, Encoding]:
    n_heads = _whole(fields, "num_heads", high=_HEADS)
    n_buckets = _whole(fields, "relative_attention_num_buckets", high=_BUCKETS, default=32)
    far = _whole(fields, "relative_attention_max_distance", high=_FAR, default=128)
    n_layers = _whole(fields, "num_layers", high=_LAYERS)
    depths = {
        "encoder": n_layers,
        "decoder": _whole(fields, "num_decoder_layers", high=_LAYERS, default=n_layers),
    }
    inside, found = "layer.0.SelfAttention", dict[str, Encoding]()
    for stack, depth in depths.items():
        first = weights.path(rf"{stack}\.block\.0\.{inside}\.relative_attention_bias\.weight")
        if first is None:  # a stack that this model does not have
            continue
        homes = [f"{first['before']}{stack}.block.{i}.{inside}" for i in range(depth)]
        own = homes if fields["model_type"] == "umt5" else homes[:1]  # in the others all layers share the first's
        options: dict[str, Any] = {"n_buckets": n_buckets, "max_distance": far, "bidirectional": stack == "encoder"}
        for home in own:
            table = weights.read(f"{home}.relative_attention_bias.weight", n_buckets, n_heads)
            found[home] = _filled(T5(n_heads=n_heads, score_scale=1.0, **options), weight=table)
        found |= {home: found[homes[0]] for home in homes if home not in found}
    return found


def _swin(fields: Mapping[str, Any], weights: _Weights) -> dict[str, Encoding]:
    window = _whole(fields, "window_size", high=_WINDOW)
    depths, heads = (sequence(_WHO, key, fields.get(key), longest=64) for key in ("depths", "num_heads"))
    if len(depths) != len(heads):
        raise ValueError(f"{_WHO}: depths and num_heads must be equally long; got {len(depths)} and {len(heads)}.")
    ending = r"(?P<home>attention(?:\.self|\.relative_position_bias))\.relative_position_bias_table"
    first = weights.path(rf"encoder\.layers\.0\.blocks\.0\.{ending}")
    if first is None:
        return {}
    found = dict[str, Encoding]()
    for stage, (depth, n) in enumerate(zip(depths, heads, strict=True)):
        n_heads = integer(_WHO, f"num_heads[{stage}]", n, high=_HEADS)
        for block in range(integer(_WHO, f"depths[{stage}]", depth, high=_LAYERS)):
            name = f"{first['before']}encoder.layers.{stage}.blocks.{block}.{first['home']}"
            table = weights.read(f"{name}.relative_position_bias_table", (2 * window - 1) ** 2, n_heads)
            found[name] = _filled(Swin(n_heads=n_heads, window=(window, window)), weight=table)
    return found


def _bloom(fields: Mapping[str, Any], weights: _Weights) -> dict[str, Encoding]:
    alibi = ALiBi(n_heads=_whole(fields, "n_head", "num_attention_heads", high=_HEADS))
    first = weights.path(r"h\.0\.self_attention\.query_key_value\.weight")
    depth = _whole(fields, "n_layer", "num_hidden_layers", high=_LAYERS)
    return {f"{first['before']}h.{i}.self_attention": alibi for i in range(depth)} if first else {}


def _deberta(fields: Mapping[str, Any], weights: _Weights) -> dict[str, Encoding]:
    first = weights.path(r"encoder\.rel_embeddings\.weight")
    if first is None:
        return {}
    root = f"{first['before']}encoder"
    n_heads, width = (_whole(fields, key, high=_WIDTH) for key in ("num_attention_heads", "hidden_size"))
    head_dim = _whole(fields, "attention_head_size", high=_WIDTH, default=max(width // n_heads, 1))
    terms = _terms(fields.get("pos_att_type"))
    far, n_buckets, rows = _span(fields)
    table = weights.read(f"{root}.rel_embeddings.weight", 2 * _rows_of(fields), width).float()
    norms = text(_WHO, "norm_rel_ebd", fields.get("norm_rel_ebd", "none")).lower().split("|")
    if "layer_norm" in [norm.strip() for norm in norms]:
        scale, shift = (weights.read(f"{root}.LayerNorm.{part}", width).float() for part in ("weight", "bias"))
        eps = number(_WHO, "layer_norm_eps", fields.get("layer_norm_eps", 1e-7), low=0.0, high=1.0)
        table = F.layer_norm(table, (width,), scale, shift, eps)
    own = "" if flag(_WHO, "share_att_key", fields.get("share_att_key", False)) else "pos_"
    projections = {"c2p": ("key_table", f"{own}key_proj"), "p2c": ("query_table", f"{own}query_proj")}
    found = dict[str, Encoding]()
    for i in range(_whole(fields, "num_hidden_layers", high=_LAYERS)):
        name = f"{root}.layer.{i}.attention.self"
        folded = {}
        for term in terms:
            own_name, projection = projections[term]
            turned = weights.linear(f"{name}.{projection}", n_heads * head_dim, width, table)
            folded[own_name] = turned.unflatten(-1, (n_heads, head_dim)).transpose(0, 1)[:, rows]
        options: dict[str, Any] = {"n_buckets": n_buckets, "max_distance": far, "terms": terms}
        found[name] = _filled(DeBERTa(n_heads=n_heads, head_dim=head_dim, **options), **folded)
    return found


def _reach(fields: Mapping[str, Any]) -> int:
    """Return how far a DeBERTa looks: max_relative_positions, where that is no positive number the longest text."""
    given = fields.get("max_relative_positions", -1)
    if integer(_WHO, "max_relative_positions", given, low=-1, high=_FAR) > 0:
        return int(given)
    return _whole(fields, "max_position_embeddings", high=_FAR, default=512)


def _rows_of(fields: Mapping[str, Any]) -> int:
    """Return the rows that a DeBERTa's table has on either side."""
    given = fields.get("position_buckets", -1)
    return given if integer(_WHO, "position_buckets", given, low=-1, high=_BUCKETS) > 0 else _reach(fields)


def _span(fields: Mapping[str, Any]) -> tuple[int, int, Tensor]:
    """Return max_distance and n_buckets of an encoding, and which row of the published table each of its rows is."""
    n, far = _rows_of(fields), _reach(fields)
    if fields.get("position_buckets", -1) > 0:
        return far, n, torch.arange(2 * n)
    if n > _BUCKETS // 2:
        raise ValueError(f"{_WHO}: max_relative_positions must be at most {_BUCKETS // 2}; got {n} without buckets.")
    # without buckets each distance up to n has a row, and buckets are exact up to half of their number
    return n + 2, 2 * n, (torch.arange(4 * n) - n).clamp(0, 2 * n - 1)


def _terms(given: Any) -> tuple[str, ...]:
    """Return which products a DeBERTa adds, from "p2c|c2p" or a list of them."""
    words = given.lower().split("|") if isinstance(given, str) else sequence(_WHO, "pos_att_type", given, longest=3)
    terms = tuple(term for term in ("c2p", "p2c") if term in [str(word).strip().lower() for word in words])
    if not terms:
        raise ValueError(f"{_WHO}: pos_att_type must name c2p, p2c or both; got {short(given)}. Correct the file.")
    return terms


_Reader = Callable[[Mapping[str, Any], _Weights], dict[str, Encoding]]
_READERS: dict[str, _Reader] = {
    "t5": _t5,
    "mt5": _t5,
    "umt5": _t5,
    "deberta-v2": _deberta,
    "swin": _swin,
    "bloom": _bloom,
}
