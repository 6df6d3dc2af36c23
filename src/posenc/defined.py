"""The definition of an encoding, with its options and learned numbers filled in."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from posenc import definitions, registry
from posenc.encoding import Encoding


def card_of(encoding: Encoding) -> registry.Card | None:
    """Return the card of an encoding's class; None if the class is not registered."""
    return registry.card_of(type(encoding))


def definition_of(encoding: Encoding, **facts: Any) -> partial[Any] | None:
    """Return the definition of an encoding as a function of positions and contents.

    Options that the definition does not have are left out, such as the initialisation of learned numbers.

    Args:
        encoding: The encoding, resolved if it depends on the length.
        facts: Arguments of definitions that the encoding does not have: head_dim.

    Returns:
        The definition, or None if the class has none.

    >>> from posenc import ALiBi
    >>> definition_of(ALiBi(n_heads=1, bias_max=1.0))(np.array([3]), np.array([0, 1])).tolist()
    [[[-1.5, -1.0]]]
    """
    card = card_of(encoding)
    define = definitions.find(card.name) if card else None
    return None if define is None else partial(define, **arguments(define, encoding, **facts))


def arguments(define: Callable[..., Any], encoding: Encoding, **facts: Any) -> dict[str, Any]:
    """Return the arguments of a definition from facts, options and learned tensors, the last in float64."""
    options = encoding.options()
    learned = {name: p.detach().double().numpy() for name, p in encoding.named_parameters()}
    if options.get("inv_freq") is not None:
        options["inv_freq"] = np.array(options["inv_freq"])
    known = inspect.signature(define).parameters
    return {name: value for name, value in (facts | options | learned).items() if name in known}


def of_text(define: Callable[..., Any], x: Any, pos: Any) -> tuple[Any, ...]:
    """Return the arguments of a definition that reads tokens: the tokens, and positions if it has them."""
    return (x, pos) if "pos" in inspect.signature(define).parameters else (x,)


def matrices(define: Callable[..., Any], pos: Any, x: Any = None) -> tuple[Any, Any]:
    """Return the matrices (n, [n_kv_heads,] d, d) by which a definition rotates queries, and those for keys.

    Args:
        define: The definition of a rotation, with its options.
        pos: Positions (n,) or (n, n_axes).
        x: The tokens (n, d_model), for a definition that reads them.
    """
    if x is not None:
        of_q, of_k = define(*of_text(define, x, pos))
        return of_q, of_k
    each = [define(float(p) if np.ndim(p) == 0 else np.asarray(p, float)) for p in pos]
    of_q, of_k, *_ = (np.stack(side) for side in zip(*each, strict=True))  # others are those of values and outputs
    return of_q, of_k
