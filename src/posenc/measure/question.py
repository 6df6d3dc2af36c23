"""A language model's loss or logit as a function of its token vectors, for the Taylor view."""

import copy
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from posenc import positions
from posenc.measure.taylor import Function
from posenc.nn import LanguageModel


class TaylorQuestion(NamedTuple):
    """The arguments of `taylor_terms`: a function of token vectors, the vectors, and the added position vectors."""

    function: Function
    x: Tensor
    p: Tensor


def taylor_question(model: LanguageModel, tokens: Tensor, *, logit: int | None = None) -> TaylorQuestion:
    """Return a language model's loss or logit as a function of token vectors, with its own x and p, in float64.

    At x + p the function is the model itself; at x it is the model without position in its tokens. The model is copied,
    not changed. Pass the result on: `taylor_terms(*taylor_question(model, tokens))`.

    Args:
        model: A model whose encoding adds vectors to the embeddings (sinusoidal, learned, ..), or a composition of one.
        tokens: Token ids, (seq,).
        logit: The id whose logit after the last token is taken; if left out, the mean loss of predicting each token
            from those before it.

    >>> from posenc import Sinusoidal
    >>> model = LanguageModel(vocab_size=9, d_model=8, n_layers=1, n_heads=2, encoding=Sinusoidal(d_model=8))
    >>> taylor_question(model, torch.tensor([1, 2, 3])).p[0].tolist()
    [0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0]
    """
    who = "taylor_question"
    if not isinstance(model, LanguageModel):
        raise TypeError(
            f"{who}: model must be a posenc.nn.LanguageModel; got {type(model).__name__}. For other models, pass "
            "your own function of token vectors to taylor_terms."
        )
    vocab = model.head.out_features
    fits = not tokens.is_floating_point() and tokens.ndim == 1 and len(tokens) > (logit is None)
    if not fits or not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab:
        raise ValueError(
            f"{who}: tokens must be (seq,) ids below {vocab}, the size of the vocabulary, at least 2 for a loss; got "
            f"{tokens.dtype} of shape {tuple(tokens.shape)}. Pass one text at a time."
        )
    if logit is not None and not 0 <= logit < vocab:
        raise ValueError(f"{who}: logit must be an id from 0 to {vocab - 1}; got {logit}.")
    model = copy.deepcopy(model).double().eval().requires_grad_(False)
    rows = model.embedding.tokens.weight[tokens]
    p, ids = _vectors(model, rows), torch.arange(len(tokens), device=tokens.device)[None]

    def function(z: Tensor) -> Tensor:
        weight = (z - p) / model.embedding.scale  # the model adds p again
        logits: Tensor = functional_call(model, {"embedding.tokens.weight": weight}, (ids,))[0]
        return F.cross_entropy(logits[:-1], tokens[1:]) if logit is None else logits[-1, logit]

    return TaylorQuestion(function, rows * model.embedding.scale, p)


def _vectors(model: LanguageModel, rows: Tensor) -> Tensor:
    """Return the vectors that a model's encoding adds; they must not depend on the tokens."""
    whole = model.encoding.resolve(len(rows))
    pos = positions.arange(len(rows), device=rows.device)
    tokens = torch.stack((rows, torch.zeros_like(rows))) * model.embedding.scale
    placed = whole.place(pos, tokens if whole.reads_x else None)
    added: Tensor = whole.embed(tokens, placed) - tokens
    if not torch.allclose(added[0], added[1]) or not added.any():
        what = "adds nothing to the embeddings" if not added.any() else "does more to the embeddings than add to them"
        raise ValueError(
            f"taylor_question: {whole.name} {what}, so there is no p. Use a model with an additive encoding."
        )
    return added[1]
