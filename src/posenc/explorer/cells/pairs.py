"""Explain the number of two positions: a product of vectors, a mapped distance, or a bias."""

import inspect
from functools import partial

import numpy as np
import torch

from posenc import definitions
from posenc.defined import card_of, definition_of, of_text
from posenc.definitions.written import number
from posenc.encoding import Encoding
from posenc.explorer.cells.explanation import Explanation, Floats
from posenc.languages import tr
from posenc.measure.asking import exact, heads, read_positions

_WHO = "explore"


def explain_product(
    vectors: Floats, formula: str, names: tuple[str, str], value: float, *, cosine: bool
) -> Explanation:
    """Explain the dot product, or the cosine, of two vectors.

    Args:
        vectors: (2, n).
        formula: The encoding's formula in one line.
        names: The names of the two vectors.
        value: The number in the picture.
        cosine: Whether the product is divided by the lengths of both.
    """
    why = Explanation(formula, value)
    total = why.dot(vectors[0], vectors[1], tr("The dot product of {a:s} and {b:s}", a=names[0], b=names[1]))
    if cosine:
        sizes = np.linalg.norm(vectors, axis=1)
        why.step(tr("The vectors have lengths {a:s} and {b:s}.", a=number(sizes[0]), b=number(sizes[1])))
        if sizes.all():
            found = float(total / sizes.prod())
            product = f"{number(total)} / ({number(sizes[0])} · {number(sizes[1])})"
            why.end(found, tr("The cosine is {product:s} = {cosine:s}.", product=product, cosine=number(found)))
        else:
            why.end(0.0, tr("A vector is zero, so it is 0."))
    return why.rounded()


def explain_distance(encoding: Encoding, formula: str, q_pos: int, k_pos: int, value: float) -> Explanation:
    """Explain the distance to which an index map sends a query and a key."""
    why = Explanation(formula, value)
    where = {"query": q_pos, "key": k_pos, "distance": q_pos - k_pos}
    why.step(tr("Query at {query:,}, key at {key:,}: distance i - j = {distance:,}.", **where))
    card = card_of(encoding)
    define = definitions.find(f"{card.name}_distance") if card else None
    if define is not None:
        known = {k: v for k, v in encoding.options().items() if k in inspect.signature(define).parameters}
        why.follow(partial(define, **known), (0, 0), np.array([q_pos]), np.array([k_pos]))
        why.step(tr("Query and key are rotated by the distance {distance:s}.", distance=number(value)))
    return why.or_code(encoding.name)


def explain_bias(
    encoding: Encoding, formula: str, q_pos: int, k_pos: int, head: int, value: float, text: torch.Tensor | None
) -> Explanation:
    """Explain the bias of one query and one key in one head; content terms get vectors of ones.

    Args:
        encoding: The encoding of the picture.
        formula: The encoding's formula in one line.
        q_pos: Position of the query; along axis 0 if there are several axes.
        k_pos: Position of the key, likewise.
        head: The query head.
        value: The number in the picture.
        text: The tokens (1, length, d_model) from position 0 on, for an encoding that reads them.
    """
    why = Explanation(formula, value)
    side = tr("looks back") if q_pos > k_pos else tr("looks ahead") if q_pos < k_pos else tr("is the token itself")
    why.step(
        tr(
            "Query at {query:,}, key at {key:,}: distance i - j = {distance:,}, which {side:s}. Head h = {head:d}.",
            query=q_pos,
            key=k_pos,
            distance=q_pos - k_pos,
            side=side,
            head=head,
        )
    )
    at, k_at = (read_positions(_WHO, encoding, p) for p in (q_pos, k_pos))
    model = exact(encoding, at, k_at)
    n_heads, head_dim = heads(model)
    ones = torch.ones(n_heads, 1, head_dim, dtype=torch.float64)
    if model.reads_qk:
        why.step(tr("The term depends on query and key; both are vectors of ones here."))
    follow_bias(why, model, (at, k_at), (ones, ones), head, text)
    return why.or_code(encoding.name).rounded()


def follow_bias(
    why: Explanation,
    model: Encoding,
    places: tuple[torch.Tensor, torch.Tensor],
    contents: tuple[torch.Tensor, torch.Tensor],
    head: int,
    text: torch.Tensor | None,
) -> float | None:
    """Follow the definition of a bias and return its result; None if there is no definition.

    Args:
        why: Receives the steps.
        model: The encoding, resolved and in float64.
        places: Positions of query and key, from `read_positions`.
        contents: Query and key (n_heads, 1, head_dim).
        head: The query head.
        text: The tokens (1, length, d_model), for an encoding that reads them.
    """
    define, card = definition_of(model, head_dim=contents[0].shape[-1]), card_of(model)
    if define is None or card is None:
        return None
    q_at, k_at = (p.numpy() for p in places)
    if text is not None:
        given = of_text(define, text[0].numpy(), np.arange(text.shape[1]))
        return why.follow(define, (head, int(q_at[0]), int(k_at[0])), *given)
    both = [t.numpy() for t in contents] if card.family == "content_bias" else []
    return why.follow(define, (head, 0, 0), *both, q_at, k_at)
