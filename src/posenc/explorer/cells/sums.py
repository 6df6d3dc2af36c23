"""Why a product of two vectors has its number: its terms, the largest first."""

import numpy as np

from posenc import measure
from posenc.encoding import Encoding
from posenc.explorer.cells.explanation import Explanation, Floats, number, rounded, sum_of


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
    terms = vectors[0] * vectors[1]
    lanes = [f"lane {i}, {number(float(a), 4)} · {number(float(b), 4)}" for i, (a, b) in enumerate(vectors.T)]
    total, said = sum_of(terms, lanes, f"The dot product of {names[0]} and {names[1]}")
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


def explain_score(
    encoding: Encoding, formula: str, asked: dict[str, object], distance: float, head: int
) -> Explanation:
    """Explain a score of the profile: what it is on average without chance, pair by pair, and over these draws."""
    content, n_draws = str(asked["content"]), int(str(asked["draws"]))
    picture = measure.profile(encoding, [int(distance)], content=content, n_draws=n_draws, q_pos=asked["q_pos"])  # type: ignore[arg-type]
    value = float(picture.mean[head, 0])
    why = Explanation(formula, value)
    why.say(f"Distance m = q_pos - k_pos = {number(distance)}; head {head}.")
    _say_expected(why, encoding, distance, head, content)
    why.say(
        f"Over {n_draws} draws of {'q = k' if content == 'same' else 'q and k'} from N(0, 1) the scores are on average "
        f"{number(value)}, and 90 % of them are from {number(float(picture.low[head, 0]))} to "
        f"{number(float(picture.high[head, 0]))}."
    )
    why.end(value, f"The mean of the draws is shown: {number(value)}.")
    return why


def _say_expected(why: Explanation, encoding: Encoding, distance: float, head: int, content: str) -> None:
    """Say the average over all contents of a score that pairs of lanes make by turning."""
    turns = hasattr(encoding, "frequencies") and not encoding.reads_qk
    if content != "same" or not turns:
        return
    try:
        frequencies = measure.frequencies_of(encoding)
        gains = np.abs(measure.by_pair(encoding, [0], head=0)[0]) ** 2
    except ValueError:
        return
    own = frequencies.reshape(-1, *frequencies.shape[-2:])
    n_heads, of_axis = len(own), own[min(head, len(own) - 1), 0]
    width = int(getattr(encoding, "head_dim", 2 * len(of_axis)))
    scale = encoding.score_scale(width)
    if len(gains) != len(of_axis) or n_heads > 1 or type(encoding).__name__ in ("XPos", "RetNet"):
        return
    terms = scale * gains * 2 * np.cos(distance * of_axis)
    names = [f"pair {i}, scale · 2·cos({number(distance)} · {number(float(f), 4)})" for i, f in enumerate(of_axis)]
    still = width - 2 * len(of_axis)
    total, said = sum_of(terms, names, "Without chance, the average over all q = k")
    why.say(f"Each pair of lanes gives scale · 2·cos(m·ω) on average, with scale = {number(scale)}.", *said)
    if still:
        why.say(f"The {still} lanes that do not turn add scale · {still} = {number(scale * still)}.")
    why.say(f"So the average without chance is {number(total + scale * still)}.")
