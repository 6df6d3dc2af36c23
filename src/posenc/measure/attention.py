"""The attention weights of a trained model, by layer, head and distance."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from posenc.attention import attend
from posenc.encoding import Placed
from posenc.mapped import Wrapper
from posenc.measure.values import Array, Numbers, numbers
from posenc.nn import LanguageModel

_WHO = "attention_maps"
_MOST = 2**28  # weights, 2 GiB


class _PlainValues(Wrapper):
    """An encoding that does not rotate values, so that unit vectors as values return the weights."""

    def seen(self, pos: Tensor) -> Tensor:
        return pos

    def rotate_v(self, v: Tensor, placed: Placed) -> Tensor:
        return v

    def unrotate_out(self, out: Tensor, placed: Placed) -> Tensor:
        return out


@torch.no_grad()
def attention_maps(model: LanguageModel, tokens: Numbers) -> Float64[Array, "n_layers n_heads L L"]:
    """Return the attention weights for one text: row i holds the weights of query i, and sums to 1.

    They are computed by the reference backend in float64 from the queries and keys of a forward pass. They may take at
    most 2 GiB.

    Args:
        model: The model; it runs in evaluation mode, and its mode is restored.
        tokens: Token ids, (L,).

    >>> from posenc import ALiBi
    >>> model = LanguageModel(vocab_size=5, d_model=8, n_layers=2, n_heads=2, encoding=ALiBi(n_heads=2))
    >>> attention_maps(model, [0, 3, 1]).shape
    (2, 2, 3, 3)
    """
    if not isinstance(model, LanguageModel):
        raise TypeError(f"{_WHO}: model must be a posenc.nn.LanguageModel; got {type(model).__name__}.")
    ids, maps, training = _ids(model, tokens), list[Tensor](), model.training

    def look(attention: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        x, encoding, *placed = args
        q, k, _ = (t.double() for t in attention.project(x, x))
        every = torch.eye(k.shape[2], dtype=q.dtype).expand(*k.shape[:2], -1, -1)  # values are unit vectors
        both = (Placed(p.pos, (p,), p.n_axes) for p in placed)
        maps.append(attend(q, k, every, _PlainValues(encoding, encoding.n_axes), *both, backend="reference-float64")[0])

    blocks: list[Any] = list(model.eval().blocks)
    hooks = [block.attention.register_forward_pre_hook(look, with_kwargs=True) for block in blocks]
    try:
        model(ids[None], last=1)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return torch.stack(maps).numpy()


def attention_by_distance(maps: Numbers) -> Float64[Array, "*layers L"]:
    """Return the mean weight by distance of maps (.., L, L), over all queries with a key at that distance.

    >>> attention_by_distance(np.array([[1.0, 0.0], [0.25, 0.75]]))
    array([0.875, 0.25 ])
    """
    form = "have a row and a column for each token"
    found = numbers("attention_by_distance", "maps", maps, form, lambda s: len(s) > 1 and s[-1] == s[-2])
    return np.stack([np.diagonal(found, -d, -2, -1).mean(-1) for d in range(found.shape[-1])], -1).astype(np.float64)


def _ids(model: LanguageModel, tokens: Numbers) -> Tensor:
    ids = numbers(_WHO, "tokens", tokens, "be one text of at least one token", lambda shape: len(shape) == 1)
    if ids.dtype.kind == "f":
        raise TypeError(f"{_WHO}: tokens must be integers; got {ids.dtype}. Pass ids of the vocabulary.")
    n = model.embedding.tokens.num_embeddings
    if int(ids.min()) < 0 or int(ids.max()) >= n:
        raise ValueError(
            f"{_WHO}: tokens must be from 0 to {n - 1}; got {int(ids.min())} to {int(ids.max())}. Check the vocabulary."
        )
    blocks: list[Any] = list(model.blocks)
    heads = model.embedding.tokens.embedding_dim // blocks[0].attention.head_dim
    if len(blocks) * heads * len(ids) ** 2 > _MOST:
        raise ValueError(f"{_WHO}: maps of {len(ids):,} tokens would take over 2 GiB. Pass fewer tokens.")
    return torch.from_numpy(ids.astype(np.int64))
