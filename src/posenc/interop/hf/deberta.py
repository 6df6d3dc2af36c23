"""DeBERTa-v2 and v3, in which each layer projects one shared table of relative embeddings at each call."""

from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from posenc.encoding import Encoding
from posenc.encodings import DeBERTa
from posenc.interop.hf import patching
from posenc.interop.hf.interface import Bias, Mask, attend_cached, configured, note, padding, with_masks, with_tables
from posenc.interop.hf.patching import LeftError, Plan
from posenc.interop.tables import clipped_rows

_FIELDS = ("num_attention_heads", "attention_head_size", "relative_attention", "pos_att_type", "position_buckets",
           "max_relative_positions")  # fmt: skip  # attributes of an attention that are named as in its configuration


def planned(host: Any) -> Plan:
    """Replace the forward of each attention layer, and the encoder's methods that build masks and distances."""
    layers = [layer.attention.self for layer in host.layer]
    patching.check_own([host], "get_attention_mask", "get_rel_pos")
    patching.check_own(layers, "forward")
    own = layers[0]
    fields = {key: getattr(own, key) for key in _FIELDS if hasattr(own, key)}
    sizes = {"num_hidden_layers": len(layers), "hidden_size": own.all_head_size}
    encoding = configured(fields | sizes | {"model_type": "deberta-v2"})
    if isinstance(encoding, DeBERTa):
        _check_buckets(own, encoding)
    methods: patching.Methods = {
        "get_attention_mask": _get_attention_mask,
        "get_rel_pos": _get_rel_pos,
        "forward": with_masks(host),
    }
    forward: patching.Methods = {"forward": partial(_forward, encoding=encoding)}
    return Plan(layers, {host: note(layers, encoding)}, {**dict.fromkeys(layers, forward), host: methods})


def _get_attention_mask(host: nn.Module, attention_mask: Tensor) -> Tensor | None:
    """Keep a padding mask (batch, 1, 1, k_len): padded queries see the same keys as others, and are not used."""
    if attention_mask.dim() > 2:
        return attention_mask.bool() if attention_mask.dim() == 4 else attention_mask[:, None].bool()
    return padding(attention_mask)


def _get_rel_pos(
    host: nn.Module, hidden_states: Tensor, query_states: Tensor | None = None, relative_pos: Tensor | None = None
) -> None:
    """Return no distances, since positions imply them.

    Raises:
        ValueError: The caller passes its own distances.
    """
    if relative_pos is not None:
        raise ValueError(
            "posenc.hf: DeBERTa has positions 0, 1, 2, ... here and cannot use the caller's own distances; "
            f"got relative_pos of shape {tuple(relative_pos.shape)}. Call posenc.hf.restore(model) first."
        )


def _forward(
    module: Any,
    hidden_states: Tensor,
    attention_mask: Tensor | None,
    output_attentions: bool = False,
    query_states: Tensor | None = None,
    relative_pos: Tensor | None = None,
    rel_embeddings: Tensor | None = None,
    *,
    encoding: Encoding,
) -> tuple[Tensor, None]:
    queries = hidden_states if query_states is None else query_states
    projected = module.query_proj(queries), module.key_proj(hidden_states), module.value_proj(hidden_states)
    q, k, v = (_heads(module, x).transpose(1, 2) for x in projected)
    if rel_embeddings is not None and isinstance(encoding, DeBERTa):
        encoding = _projected(encoding, module, module.pos_dropout(rel_embeddings))
    scale = float((q.shape[-1] * (1 + sum(term in module.pos_att_type for term in ("c2p", "p2c")))) ** -0.5)
    dropout_p = module.dropout.p if module.training else 0.0
    mask = Mask(attention_mask, causal=False)
    return attend_cached(q, k, v, Bias(encoding), mask, scale=scale, dropout_p=dropout_p).flatten(2), None


def _projected(encoding: DeBERTa, module: Any, embeddings: Tensor) -> DeBERTa:
    """Return a copy of the encoding with this layer's tables; a backward pass needs the original unchanged."""
    key, query = ("key_proj", "query_proj") if module.share_att_key else ("pos_key_proj", "pos_query_proj")
    rows = _rows(module)
    tables: dict[str, Any] = {}
    for term, name, projection in (("c2p", "key_table", key), ("p2c", "query_table", query)):
        if term in encoding.terms:
            table = _heads(module, getattr(module, projection)(embeddings[: 2 * module.pos_ebd_size])).transpose(0, 1)
            tables[name] = table if rows is None else table[:, rows.to(table.device)]
    return with_tables(encoding, **tables)  # type: ignore[no-any-return]


def _rows(module: Any) -> Tensor | None:
    """Return the row of the model's table for each of our rows, or None if they agree."""
    return None if module.position_buckets > 0 else clipped_rows(module.pos_ebd_size)


def _check_buckets(module: Any, encoding: DeBERTa) -> None:
    """Raise an error if the model's table rows for distances differ from ours."""
    theirs, rows, span = import_module(type(module).__module__), _rows(module), module.pos_ebd_size
    distance = torch.arange(2 * encoding.max_distance)
    x, y = torch.empty(1, len(distance), 0), torch.empty(1, 1, 0)
    relative = theirs.build_relative_position(x, y, module.position_buckets, module.max_relative_positions)[0, :, 0]
    for sign in (1, -1):
        ours = encoding.row(sign * distance)
        if not torch.equal(ours if rows is None else rows[ours], (sign * relative + span).clamp(0, 2 * span - 1)):
            raise LeftError("its buckets differ from those of posenc.DeBERTa")


def _heads(module: Any, x: Tensor) -> Tensor:
    heads: Tensor = x.unflatten(-1, (module.num_attention_heads, module.attention_head_size))
    return heads
