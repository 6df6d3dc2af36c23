"""DeBERTa-v2 and v3: each layer projects one table of relative embeddings to vectors of its own, at each call."""

from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from posenc.encoding import Encoding
from posenc.encodings import DeBERTa, NoPE
from posenc.interop.hf import patching
from posenc.interop.hf.interface import attend_cached, route_masks, with_tables
from posenc.interop.tables import clipped_rows


def refuses(host: nn.Module) -> str | None:
    """Return why this encoder cannot be routed, or None."""
    layers = attentions(host)
    sentences = (patching.taken(module, "forward") for module in layers)
    sentence = patching.taken(host, "get_attention_mask", "get_rel_pos") or next(filter(None, sentences), None)
    if sentence or not _terms(layers[0]):
        return sentence
    try:
        encoding = _encoding(layers[0])
    except ValueError as error:
        return f"posenc.DeBERTa does not take its options: {error}"
    distance = torch.arange(2 * encoding.max_distance)
    for sign in (1, -1):
        ours = encoding.row(sign * distance)
        if not torch.equal(
            ours if (of := _rows(layers[0])) is None else of[ours], _their_rows(layers[0], distance, sign)
        ):
            return "its buckets are others than those of posenc.DeBERTa"
    return None


def route(host: nn.Module) -> None:
    """Replace the forward of each attention, and let the encoder build neither masks nor distances of pairs."""
    layers = attentions(host)
    encoding = _encoding(layers[0]) if _terms(layers[0]) else NoPE()
    patching.replace(layers, forward=partial(_forward, encoding=encoding))
    patching.replace([host], get_attention_mask=_get_attention_mask, get_rel_pos=_get_rel_pos)
    route_masks(host)


def said(host: nn.Module) -> str:
    """Return in a few words what runs."""
    layers = attentions(host)
    encoding = _encoding(layers[0]) if _terms(layers[0]) else NoPE()
    return f"self attention of {len(layers)} layers by {encoding.name}({encoding.extra_repr()})"


def _get_attention_mask(host: nn.Module, attention_mask: Tensor) -> Tensor | None:
    """Keep a mask of padding (batch, 1, 1, k_len); padded queries then see what others see, and say nothing."""
    if attention_mask.dim() > 2:
        return attention_mask.bool() if attention_mask.dim() == 4 else attention_mask[:, None].bool()
    if not torch.compiler.is_compiling() and bool(attention_mask.all()):
        return None
    return attention_mask[:, None, None].bool()


def _get_rel_pos(
    host: nn.Module, hidden_states: Tensor, query_states: Tensor | None = None, relative_pos: Tensor | None = None
) -> None:
    """Leave distances to the positions.

    Raises:
        ValueError: The caller has distances of its own.
    """
    if relative_pos is not None:
        raise ValueError(
            "posenc.hf: DeBERTa was routed with positions 0, 1, 2, ..., which have no room for distances of the "
            f"caller's own; got relative_pos of shape {tuple(relative_pos.shape)}. Call posenc.hf.restore(model) first."
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
    q, k, v = (
        _heads(module, linear(x)).transpose(1, 2)
        for linear, x in (
            (module.query_proj, queries),
            (module.key_proj, hidden_states),
            (module.value_proj, hidden_states),
        )
    )
    if rel_embeddings is not None and isinstance(encoding, DeBERTa):
        encoding = _projected(encoding, module, module.pos_dropout(rel_embeddings))
    terms = sum(term in module.pos_att_type for term in ("c2p", "p2c"))
    out = attend_cached(
        q,
        k,
        v,
        encoding,
        causal=False,
        mask=attention_mask,
        scale=float((q.shape[-1] * (1 + terms)) ** -0.5),
        dropout_p=module.dropout.p if module.training else 0.0,
    )
    return out.transpose(1, 2).flatten(2), None


def _projected(encoding: DeBERTa, module: Any, embeddings: Tensor) -> DeBERTa:
    """Return the encoding with this layer's tables: another object, which a backward pass finds as it was."""
    embeddings = embeddings[: 2 * module.pos_ebd_size]
    key, query = ("key_proj", "query_proj") if module.share_att_key else ("pos_key_proj", "pos_query_proj")
    tables: dict[str, Any] = {}
    for term, name, projection in (("c2p", "key_table", key), ("p2c", "query_table", query)):
        if term in encoding.terms:
            table = _heads(module, getattr(module, projection)(embeddings)).transpose(0, 1)
            tables[name] = table if (rows := _rows(module)) is None else table[:, rows.to(table.device)]
    return with_tables(encoding, **tables)  # type: ignore[no-any-return]


def _encoding(module: Any) -> DeBERTa:
    span = module.pos_ebd_size
    bucketed = module.position_buckets > 0
    with torch.device("meta"):  # its own tables are never used, and draw no random numbers
        return DeBERTa(
            n_heads=module.num_attention_heads,
            head_dim=module.attention_head_size,
            n_buckets=span if bucketed else 2 * span,
            max_distance=module.max_relative_positions if bucketed else span + 2,
            terms=_terms(module),
        )


def _rows(module: Any) -> Tensor | None:
    """Return which row of the model's table is ours, or None if they are the same."""
    return None if module.position_buckets > 0 else clipped_rows(module.pos_ebd_size)


def _their_rows(module: Any, distance: Tensor, sign: int) -> Tensor:
    theirs = import_module(type(module).__module__)
    here, there = torch.empty(1, len(distance), 0), torch.empty(1, 1, 0)
    relative = theirs.build_relative_position(here, there, module.position_buckets, module.max_relative_positions)
    span = module.pos_ebd_size
    rows: Tensor = (sign * relative[0, :, 0] + span).clamp(0, 2 * span - 1)
    return rows


def _terms(module: Any) -> tuple[str, ...]:
    return tuple(term for term in ("c2p", "p2c") if module.relative_attention and term in module.pos_att_type)


def _heads(module: Any, x: Tensor) -> Tensor:
    heads: Tensor = x.unflatten(-1, (module.num_attention_heads, module.attention_head_size))
    return heads


def attentions(host: Any) -> list[Any]:
    """Return the attentions of an encoder."""
    return [layer.attention.self for layer in host.layer]
