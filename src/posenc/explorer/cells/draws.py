"""Why a score of the profile has its number: one draw worked out, and the mean of all."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from posenc import measure
from posenc.encoding import Encoding, Placed
from posenc.explorer.cells.biases import say_bias
from posenc.explorer.cells.explanation import Explanation, Floats, braced, dot_of, number, sum_of
from posenc.explorer.cells.maps import explain_distance
from posenc.explorer.cells.pair import Pair, Watch
from posenc.explorer.cells.rescored import say_rescored
from posenc.explorer.cells.turns import Turn, say_length, say_rotation, say_turned
from posenc.families import Rotary
from posenc.measure.asking import embeds, exact, place, place_both, sites, turning
from posenc.piecewise import Piecewise

_WHO = "explore"


@dataclass(frozen=True)
class Draw:
    """The first of the contents that the profile drew.

    Args:
        q: Of the query: lanes of its heads (1, n_heads, 1, head_dim), or a token (1, d_model).
        k: The same of the key.
        text: The tokens (1, length, d_model), of an encoding that reads them.
    """

    q: Float64[Tensor, "1 *lanes"]
    k: Float64[Tensor, "1 *lanes"]
    text: Float64[Tensor, "1 length d_model"] | None


@dataclass(frozen=True)
class Site:
    """One layer's encoding, with what was placed for the query and for the key."""

    encoding: Any
    placed: Placed
    k_placed: Placed


def explain_score(
    encoding: Encoding, formula: str, asked: dict[str, object], distance: float, head: int
) -> Explanation:
    """Explain a score of the profile: what it is on average without chance, in one draw, and over all draws."""
    content, n_draws = str(asked["content"]), int(str(asked["draws"]))
    with Watch("randn") as seen, torch.no_grad():
        picture = measure.profile(encoding, [int(distance)], content=content, n_draws=n_draws, q_pos=asked["q_pos"])  # type: ignore[arg-type]
    drawn = [out[:1] for out in seen.results("randn")]
    value = float(picture.mean[head, 0])
    why = Explanation(formula, value)
    why.say(f"Distance m = q_pos - k_pos = {number(distance)}; head {head}.")
    _say_expected(why, encoding, distance, head, content)
    draw = Draw(drawn[0], drawn[0 if content == "same" else 1], drawn[-1] if encoding.reads_x else None)
    q_pos = float(str(asked["q_pos"]))
    with torch.no_grad():
        score = _say_draw(why, encoding, draw, q_pos, q_pos - distance, head)
    why.say(
        f"Over {n_draws} draws of {'q = k' if content == 'same' else 'q and k'} from N(0, 1) the scores are on average "
        f"{number(value)}, and 90 % of them are from {number(float(picture.low[head, 0]))} to "
        f"{number(float(picture.high[head, 0]))}."
    )
    rest = n_draws * value - score if n_draws > 1 else 0.0
    if n_draws > 1:
        why.say(f"The scores of the other {n_draws - 1:,} draws add up to {number(rest)}.")
    told = (score + rest) / n_draws
    why.end(told, f"The mean of the draws is shown: ({number(score)} + {braced(rest)}) / {n_draws} = {number(told)}.")
    return why


def _say_draw(why: Explanation, encoding: Encoding, draw: Draw, q_pos: float, k_pos: float, head: int) -> float:
    """Work out the score of one draw, and return it."""
    at, k_at = sites(_WHO, encoding, [int(q_pos - k_pos)], int(q_pos))
    model = exact(encoding, at, k_at)
    n_heads = len(measure.profile(encoding, [0], n_draws=1, q_pos=0).mean)
    q, k = draw.q, draw.k
    if draw.text is not None:
        row = place(model, torch.arange(draw.text.shape[1]), draw.text)
        placed, k_placed = (row.rows(int(p), int(p) + 1) for p in (at, k_at))
    else:
        placed, k_placed = place_both(_WHO, model, at, k_at)
    before = q, k
    if embeds(model, at):
        q, k = (
            model.embed(t[:, None], p).unflatten(-1, (n_heads, -1)).transpose(1, 2)
            for t, p in ((q, placed), (k, k_placed))
        )
    one, here = model.layer(0, placed)
    site = Site(one, here, model.layer(0, k_placed)[1])
    pair = Pair(one, q_pos, k_pos, head, q[0, :, 0], k[0, :, 0], draw.text)
    if isinstance(one, Piecewise):
        site, pair = _say_mapped(why, encoding, pair)
    base = _say_product(why, site, pair, _embedding(model, (placed, k_placed), before) if before[0] is not q else None)
    bias = one.bias(q, k, site.placed, site.k_placed) if site.encoding is one else None
    if bias is not None:
        base = base + bias[0, :, 0, 0]
        _say_joined(why, pair, float(bias[0, head, 0, 0]), float(base[head]))
    if one.rescores:
        return say_rescored(why, pair, base, int(torch.cat((at, k_at)).max()) + 1)
    return float(base[head])


def _say_mapped(why: Explanation, encoding: Encoding, pair: Pair) -> tuple[Site, Pair]:
    """Say the distance that an index map makes of one, and return the rotation by that."""
    value = float(measure.effective_distance(encoding, [int(pair.q_pos)], [int(pair.k_pos)])[0, 0])
    why.say(*explain_distance(pair.encoding, why.formula, pair.q_pos, pair.k_pos, value).steps[1:])
    why.say(f"Only that distance counts, so the query is turned as at {number(value)}, and the key as at 0.")
    rope = pair.encoding.rope
    placed, k_placed = (place(rope, torch.tensor([p], dtype=torch.float64)) for p in (value, 0.0))
    return Site(rope, placed, k_placed), Pair(rope, value, 0.0, pair.head, pair.q, pair.k)


def _embedding(
    model: Encoding, placed: tuple[Placed, Placed], tokens: tuple[Tensor, Tensor]
) -> list[tuple[Turn, Floats]]:
    """Return how position comes into two tokens, and the tokens."""

    def into(here: Placed) -> Turn:
        return lambda rows: model.embed(rows[:, None], here)[:, 0]

    return [(into(here), token[0].numpy()) for here, token in zip(placed, tokens, strict=True)]


def _say_product(
    why: Explanation, site: Site, pair: Pair, embedded: list[tuple[Turn, Floats]] | None
) -> Float64[Tensor, " n_heads"]:
    """Say the product of query and key, one lane of it in full, and return it with its scale in all heads."""
    assert pair.q is not None
    assert pair.k is not None
    one, head = site.encoding, pair.head
    q, k = (t[None, :, None] for t in (pair.q, pair.k))
    turned = [t[0, :, 0] for t in one.rotate(q, k, site.placed, site.k_placed)]
    of_head = [t[head].numpy() for t in turned]
    lane = int(np.abs(of_head[0] * of_head[1]).argmax())
    sides = (("the query", one.rotate_q, site.placed, pair.q), ("the key", one.rotate_k, site.k_placed, pair.k))
    for i, (who, rotate, placed, content) in enumerate(sides):
        if embedded is not None:
            say_turned(why, f"{who}'s token", embedded[i][0], embedded[i][1], lane + head * content.shape[-1])
        for member, part in turning(one, placed):
            say_rotation(why, who, member, pair, part, lane)
            say_turned(why, who, _of_head(rotate, placed, head, len(content)), content[head].numpy(), lane)
            say_length(why, who, member, content[head].numpy(), of_head[i], lane)
    total, said = dot_of(of_head[0], of_head[1], "In the first draw the product of query and key")
    scale = one.score_scale(pair.q.shape[-1])
    why.say(*said, f"The sum is {number(total)}.")
    why.say(f"Times the scale it is {number(total)} · {number(scale)} = {number(scale * total)}.")
    in_all_heads: Tensor = scale * (turned[0] * turned[1]).sum(-1)
    return in_all_heads


def _of_head(rotate: Any, placed: Placed, head: int, n_heads: int) -> Turn:
    return lambda rows: rotate(rows[:, None, None].expand(-1, n_heads, 1, -1), placed)[:, head, 0]


def _say_joined(why: Explanation, pair: Pair, bias: float, total: float) -> None:
    """Say the bias, and the score with it."""
    own = Explanation(why.formula, bias)
    say_bias(own, pair)
    why.say(*own.steps)
    why.say(f"With the bias the score is {number(total - bias)} + {braced(bias)} = {number(total)}.")


def _say_expected(why: Explanation, encoding: Encoding, distance: float, head: int, content: str) -> None:
    """Say the average over all contents of a score that pairs of lanes make by turning."""
    if content != "same" or not isinstance(encoding, Rotary):
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
    weights = [number(float(scale * gain)) for gain in gains]
    names = [
        f"pair {i}, {weights[i]} · 2 · cos({number(distance)} · {number(float(f))})" for i, f in enumerate(of_axis)
    ]
    still = width - 2 * len(of_axis)
    total, said = sum_of(terms, names, "Without chance, the average over all q = k")
    why.say(f"Each pair of lanes gives scale · 2·cos(m·ω) on average, with scale = {number(scale)}.")
    why.say(*said, f"The sum is {number(total)}.")
    rest = ""
    if still:
        why.say(f"The {still} lanes that do not turn add {number(scale)} · {still} = {number(scale * still)}.")
        rest = f"{number(total)} + {number(scale * still)} = "
    why.say(f"So the average without chance is {rest}{number(total + scale * still)}.")
