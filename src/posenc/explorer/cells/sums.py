"""Why a product of two vectors has its number: its terms, the largest first."""

import numpy as np

from posenc.explorer.cells.explanation import Explanation, Floats, dot_of, number, rounded


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
    total, said = dot_of(vectors[0], vectors[1], f"The dot product of {names[0]} and {names[1]}")
    why.say(*said)
    if not cosine:
        why.end(total, f"The sum is {number(total)}.")
        why.say(rounded(total))
        return why
    sizes = np.linalg.norm(vectors, axis=1)
    why.say(f"The sum is {number(total)}.", f"The vectors have lengths {number(sizes[0])} and {number(sizes[1])}.")
    told = float(total / (sizes[0] * sizes[1])) if sizes.all() else 0.0
    product = f"{number(total)} / ({number(sizes[0])} · {number(sizes[1])})"
    why.end(told, f"The cosine is {product} = {number(told)}." if sizes.all() else "A vector is zero, so it is 0.")
    return why
