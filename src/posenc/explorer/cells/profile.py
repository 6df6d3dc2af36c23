"""Explain a score of the profile: the first draw step by step, and the mean of all draws."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from posenc import measure
from posenc.defined import definition_of
from posenc.definitions.written import braced, number
from posenc.encoding import Encoding
from posenc.explorer.cells.explanation import Explanation
from posenc.explorer.cells.pairs import follow_bias
from posenc.languages import tr
from posenc.measure.asking import embeds, exact, place, place_both, sites
from posenc.piecewise import Piecewise

_WHO = "explore"


class Draws(TorchFunctionMode):
    """Record what a measurement draws from N(0, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a torch function and record the result of `randn`."""
        out = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") == "randn":
            self.found.append(out)
        return out


def explain_score(encoding: Encoding, formula: str, asked: Mapping[str, Any], distance: int, head: int) -> Explanation:
    """Explain a score of the profile: the score of the first draw, and the mean of all draws."""
    content, n_draws, q_pos = asked["content"], asked["draws"], asked["q_pos"]
    with Draws() as seen, torch.no_grad():
        picture = measure.profile(encoding, [distance], content=content, n_draws=n_draws, q_pos=q_pos)
    drawn = [out[:1] for out in seen.found]
    value = float(picture.mean[head, 0])
    why = Explanation(formula, value)
    why.step(tr("Distance m = q_pos - k_pos = {distance:,}; head {head:d}.", distance=distance, head=head))
    with torch.no_grad():
        contents = drawn[0], drawn[0 if content == "same" else 1]
        text = drawn[1 if content == "same" else 2] if encoding.reads_x else None
        score = _follow_draw(why, encoding, contents, text, (distance, q_pos), head)
    low, high = (number(float(edge[head, 0])) for edge in (picture.low, picture.high))
    why.step(
        tr(
            "Over {n:d} draws of {content:s} from N(0, 1) the scores are on average {mean:s}, and 90 % of them are "
            "from {low:s} to {high:s}.",
            n=n_draws,
            content="q = k" if content == "same" else tr("q and k"),
            mean=number(value),
            low=low,
            high=high,
        )
    )
    rest = n_draws * value - score if n_draws > 1 else 0.0
    if n_draws > 1:
        why.step(tr("The scores of the other {n:,} draws add up to {sum:s}.", n=n_draws - 1, sum=number(rest)))
    mean = (score + rest) / n_draws
    quotient = f"({number(score)} + {braced(rest)}) / {n_draws}"
    why.end(mean, tr("The mean of the draws is shown: {quotient:s} = {mean:s}.", quotient=quotient, mean=number(mean)))
    return why


def _follow_draw(
    why: Explanation,
    encoding: Encoding,
    contents: tuple[Tensor, Tensor],
    text: Tensor | None,
    where: tuple[int, int],
    head: int,
) -> float:
    """Compute the score of one draw step by step and return it.

    Args:
        why: Receives the steps.
        encoding: The encoding of the picture.
        contents: Query and key, (1, n_heads, 1, head_dim); or tokens (1, d_model) if position is added to tokens.
        text: The tokens (1, length, d_model), for an encoding that reads them.
        where: The distance, and the position of the query.
        head: The query head.
    """
    q, k = contents
    at, k_at = sites(_WHO, encoding, [where[0]], where[1])
    model = exact(encoding, at, k_at)
    if text is not None:
        row = place(model, torch.arange(text.shape[1]), text)
        placed, k_placed = (row.rows(int(p), int(p) + 1) for p in (at, k_at))
    else:
        placed, k_placed = place_both(_WHO, model, at, k_at)
    if embeds(model, at):
        why.step(tr("Query and key are token vectors with position added, split into heads in order."))
        n_heads = len(measure.profile(encoding, [0], n_draws=1, q_pos=0).mean)
        q, k = (
            model.embed(t[:, None], p).unflatten(-1, (n_heads, -1)).transpose(1, 2)
            for t, p in ((q, placed), (k, k_placed))
        )
    one, placed = model.layer(0, placed)
    k_placed = model.layer(0, k_placed)[1]
    if isinstance(one, Piecewise):
        apart = float(one.distances(at, k_at)[0][0])
        why.step(
            tr(
                "{name:s} maps it to the distance {distance:s}: the query is rotated by that, the key is not rotated.",
                name=one.name,
                distance=number(apart),
            )
        )
        one = one.rope
        placed, k_placed = (place(one, torch.tensor([p], dtype=torch.float64)) for p in (apart, 0.0))
    rotated, k_rotated = (t[0, :, 0].numpy() for t in one.rotate(q, k, placed, k_placed))
    scale = one.score_scale(q.shape[-1])
    total = why.dot(rotated[head], k_rotated[head], tr("In the first draw the product of query and key"))
    product = f"{number(total)} · {number(scale)} = {number(scale * total)}"
    why.step(tr("Times the scale it is {product:s}.", product=product))
    scores = torch.from_numpy(scale * (rotated * k_rotated).sum(-1))
    bias = one.bias(q, k, placed, k_placed)
    if bias is not None:
        follow_bias(why, one, (at, k_at), (q[0], k[0]), head, text)
        before, added = float(scores[head]), float(bias[0, head, 0, 0])
        scores = scores + bias[0, :, 0, 0]
        why.step(
            tr("With the bias it is {sum:s}.", sum=f"{number(before)} + {braced(added)} = {number(before + added)}")
        )
    return _follow_rescored(why, one, scores, (q, k), (at, k_at), head, text) if one.rescores else float(scores[head])


def _follow_rescored(
    why: Explanation,
    one: Any,
    scores: Tensor,
    contents: tuple[Tensor, Tensor],
    places: tuple[Tensor, Tensor],
    head: int,
    text: Tensor | None,
) -> float:
    """Follow the definition of a score map and return the new score; all keys have the same contents.

    Args:
        why: Receives the steps.
        one: The score map.
        scores: Its input for each key, (n_heads,).
        contents: Query and key, (1, n_heads, 1, head_dim).
        places: Positions of query and key.
        head: The query head.
        text: The tokens (1, length, d_model), of a map that reads them.
    """
    define = definition_of(one)
    assert define is not None
    why.step(tr("{name:s} maps the score {score:s}.", name=one.name, score=number(float(scores[head]))))
    known = inspect.signature(define.func).parameters
    if "bias" in known:  # the map treats each key separately, but mixes all heads
        term = definition_of(one.encoding)
        assert term is not None
        bias = term(*(p.numpy() for p in places))
        biases = ", ".join(map(number, bias[:, 0, 0]))
        why.step(tr("{name:s} gives the biases {biases:s}, one per head.", name=one.encoding.name, biases=biases))
        return why.follow(define, (head, 0, 0), scores[:, None, None].numpy(), bias, np.ones((1, 1), dtype=bool))
    n_keys = int(torch.cat(places).max()) + 1 - int(places[1])  # the map counts the keys from this one to the query
    if text is not None:
        pos = np.arange(int(places[1]), int(places[1]) + n_keys)
        rows = np.repeat(scores[:, None, None].numpy(), n_keys, 2)
        return why.follow(define, (head, 0, 0), rows, text[0, pos].numpy(), pos, np.ones((1, n_keys), dtype=bool))
    q, k = (t[0, head : head + 1].numpy() for t in contents)
    row = np.full((1, 1, n_keys), float(scores[head]))
    return why.follow(define, (0, 0, 0), row, q, np.repeat(k, n_keys, 1), np.ones((1, n_keys), dtype=bool))
