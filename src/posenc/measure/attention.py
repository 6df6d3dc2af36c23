"""Where a trained model looks: its attention weights, by layer, head and distance."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from posenc.attention import attend
from posenc.measure.values import Numbers
from posenc.nn import LanguageModel

Array = np.ndarray
_WHO = "attention_maps"
_MOST = 2**28  # weights, 2 GiB


def attention_maps(model: LanguageModel, tokens: Numbers) -> Float64[Array, "n_layers n_heads L L"]:
    """Return the attention weights of one text: row i holds what token i looks at, and sums to 1.

    They are those of the scores that the model forms itself, computed by the literal law in float64 from the queries
    and keys of a plain forward pass.

    Args:
        model: As it stands; it runs in evaluation, and is put back.
        tokens: Ids of the text's tokens, (L,).

    Raises:
        TypeError: The model is none of `posenc.nn`, or the tokens are no integers.
        ValueError: There are none, one is outside the vocabulary, or the maps would take over 2 GiB.

    >>> from posenc import ALiBi
    >>> model = LanguageModel(vocab_size=5, d_model=8, n_layers=2, n_heads=2, encoding=ALiBi(n_heads=2))
    >>> attention_maps(model, [0, 3, 1]).shape
    (2, 2, 3, 3)
    """
    if not isinstance(model, LanguageModel):
        raise TypeError(f"{_WHO}: model must be a posenc.nn.LanguageModel; got {type(model).__name__}. Pass one.")
    ids = _ids(model, tokens)
    maps: list[Tensor] = []
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), _watch(model, maps):
            model(ids[None], last=1)
    finally:
        model.train(training)
    return torch.stack(maps).numpy()


def attention_by_distance(maps: Numbers) -> Float64[Array, "*layers L"]:
    """Return the mean weight by distance: over all queries that have a key so far back.

    Args:
        maps: (.., L, L): what `attention_maps` returns, or any part of it.

    Raises:
        ValueError: The last two dimensions differ.

    >>> attention_by_distance(np.array([[1.0, 0.0], [0.25, 0.75]]))
    array([0.875, 0.25 ])
    """
    found = np.asarray(maps, dtype=np.float64)
    if found.ndim < 2 or found.shape[-1] != found.shape[-2] or not found.shape[-1]:
        raise ValueError(
            f"attention_by_distance: maps must have a row and a column for each token; got shape {found.shape}."
        )
    diagonals = (np.diagonal(found, -d, -2, -1).mean(-1) for d in range(found.shape[-1]))
    return np.stack(list(diagonals), -1)


def _ids(model: LanguageModel, tokens: Numbers) -> Tensor:
    ids = torch.as_tensor(tokens if isinstance(tokens, Tensor) else np.asarray(tokens))
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise TypeError(f"{_WHO}: tokens must be integers; got {ids.dtype}. Pass ids of the vocabulary.")
    if ids.ndim != 1 or not len(ids):
        raise ValueError(f"{_WHO}: tokens must be one text of at least one token; got shape {tuple(ids.shape)}.")
    n = model.embedding.tokens.num_embeddings
    if int(ids.min()) < 0 or int(ids.max()) >= n:
        raise ValueError(
            f"{_WHO}: tokens must be from 0 to {n - 1}; got {int(ids.min())} to {int(ids.max())}. Check the vocabulary."
        )
    blocks: list[Any] = list(model.blocks)
    heads = model.embedding.tokens.embedding_dim // blocks[0].attention.head_dim
    if len(blocks) * heads * len(ids) ** 2 > _MOST:
        raise ValueError(f"{_WHO}: maps of {len(ids):,} tokens would take over 2 GiB. Pass fewer tokens.")
    return ids.long()


@contextmanager
def _watch(model: LanguageModel, maps: list[Tensor]) -> Iterator[None]:
    """Form the weights of each layer while the model runs."""

    def look(attention: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        x, encoding, placed, k_placed = args
        q, k, _ = (t.double() for t in attention.project(x, x))
        every = torch.eye(k.shape[2], dtype=q.dtype).expand(*k.shape[:2], -1, -1)  # what is looked at, marked
        weights = attend(q, k, every, encoding, placed, k_placed, backend="reference-float64")
        maps.append(weights[0])

    blocks: list[Any] = list(model.blocks)
    hooks = [block.attention.register_forward_pre_hook(look, with_kwargs=True) for block in blocks]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
