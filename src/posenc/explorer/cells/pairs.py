"""Why two positions have their number: a product of vectors, a distance that is mapped, a bias."""

import inspect
from functools import partial

import numpy as np
import torch

from posenc import definitions
from posenc.defined import card_of, definition_of, of_text
from posenc.definitions.written import number
from posenc.encoding import Encoding
from posenc.explorer.cells.explanation import Explanation, Floats
from posenc.measure.asking import exact, heads, read_positions

_WHO = "explore"


def explain_product(
    vectors: Floats, formula: str, names: tuple[str, str], value: float, *, cosine: bool
) -> Explanation:
    """Explain the dot product, or the cosine, of two vectors.

    Args:
        vectors: (2, lanes).
        formula: The mathematics in one line.
        names: What the two are called.
        value: The picture's number.
        cosine: Whether it is over the lengths of both.
    """
    why = Explanation(formula, value)
    total = why.dot(vectors[0], vectors[1], f"The dot product of {names[0]} and {names[1]}")
    if cosine:
        sizes = np.linalg.norm(vectors, axis=1)
        why.say(f"The vectors have lengths {number(sizes[0])} and {number(sizes[1])}.")
        found = float(total / sizes.prod()) if sizes.all() else 0.0
        product = f"{number(total)} / ({number(sizes[0])} · {number(sizes[1])})"
        why.end(
            found, f"The cosine is {product} = {number(found)}." if sizes.all() else "A vector is zero, so it is 0."
        )
    return why.rounded()


def explain_distance(encoding: Encoding, formula: str, q_pos: int, k_pos: int, value: float) -> Explanation:
    """Explain the distance by which an index map rotates a query and a key."""
    why = Explanation(formula, value)
    why.say(f"Query at {q_pos:,}, key at {k_pos:,}: distance i - j = {q_pos - k_pos:,}.")
    card = card_of(encoding)
    define = definitions.find(f"{card.name}_distance") if card else None
    if define is not None:
        known = {k: v for k, v in encoding.options().items() if k in inspect.signature(define).parameters}
        why.follow(partial(define, **known), (0, 0), np.array([q_pos]), np.array([k_pos]))
        why.say(f"Query and key are rotated by the distance {number(value)}.")
    return why.or_code(encoding.name)


def explain_bias(
    encoding: Encoding, formula: str, q_pos: int, k_pos: int, head: int, value: float, text: torch.Tensor | None
) -> Explanation:
    """Explain the bias of one query and one key in one head; terms that look at contents see ones.

    Args:
        encoding: As the picture has it.
        formula: The mathematics in one line.
        q_pos: Along axis 0, where there are several.
        k_pos: The same of the key.
        head: Of the queries.
        value: The picture's number.
        text: The tokens (1, length, d_model) from position 0 on, of an encoding that reads them.
    """
    why = Explanation(formula, value)
    distance = q_pos - k_pos
    side = "looks back" if distance > 0 else "looks ahead" if distance < 0 else "is the token itself"
    why.say(f"Query at {q_pos:,}, key at {k_pos:,}: distance i - j = {distance:,}, which {side}. Head h = {head}.")
    at, k_at = (read_positions(_WHO, encoding, p) for p in (q_pos, k_pos))
    model = exact(encoding, at, k_at)
    n_heads, head_dim = heads(model)
    ones = torch.ones(n_heads, 1, head_dim, dtype=torch.float64)
    if model.reads_qk:
        why.say("The term looks at contents; query and key are ones here.")
    say_bias(why, model, (at, k_at), (ones, ones), head, text)
    return why.or_code(encoding.name).rounded()


def say_bias(
    why: Explanation,
    model: Encoding,
    places: tuple[torch.Tensor, torch.Tensor],
    contents: tuple[torch.Tensor, torch.Tensor],
    head: int,
    text: torch.Tensor | None,
) -> float | None:
    """Follow the definition of a bias, and return its number; None where there is no definition.

    Args:
        why: Gets the steps.
        model: In float64, resolved.
        places: Positions of query and key, as `read_positions` returns them.
        contents: Query and key (n_heads, 1, head_dim).
        head: Of the queries.
        text: The tokens (1, length, d_model), of an encoding that reads them.
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
