"""Why a map of scores makes the score that it makes: counts of gates, or a network of all heads."""

import math
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from posenc.encodings import DAPE, CoPE
from posenc.explorer.cells.biases import say_bias
from posenc.explorer.cells.explanation import Explanation, Floats, braced, dot_of, listed, number
from posenc.explorer.cells.pair import Pair, Watch
from posenc.measure.asking import place


def say_rescored(why: Explanation, pair: Pair, scores: Float64[Tensor, " n_heads"], n_keys: int) -> float:
    """Say what becomes of the score of one key in one head, and return it.

    Args:
        why: Is told.
        pair: Of the query and the key; all keys of the profile have the contents of the latter.
        scores: What the map is given for that key.
        n_keys: The keys that there are, at positions 0 .. n_keys - 1.
    """
    encoding, head = pair.encoding, pair.head
    if isinstance(encoding, CoPE):
        return _say_counted(why, pair, scores, n_keys)
    if isinstance(encoding, DAPE):
        return _say_adapted(why, pair, scores)
    row = _rescored(encoding, pair, scores, n_keys)
    told = float(row[head, int(pair.k_pos)])
    why.say(f"{encoding.name} makes of the score {number(float(scores[head]))} by its own code {number(told)}.")
    return told


def _rescored(encoding: Any, pair: Pair, scores: Tensor, n_keys: int) -> Float64[Tensor, "n_heads n_keys"]:
    """Return what the map makes of the same score at all positions."""
    assert pair.q is not None
    assert pair.k is not None
    row, keys = scores[None, :, None, None].expand(-1, -1, 1, n_keys), pair.k[None, :, None].expand(-1, -1, n_keys, -1)
    placed, k_placed = Pair.placed(encoding, pair.q_pos), place(encoding, torch.arange(n_keys))
    found: Tensor = encoding.rescore(row, pair.q[None, :, None], keys, placed, k_placed, None)
    return found[0, :, 0]


def _say_counted(why: Explanation, pair: Pair, scores: Tensor, n_keys: int) -> float:
    """Say CoPE's gate, its count, and the vector between two counts."""
    encoding, score = pair.encoding, float(scores[pair.head])
    row, k_placed = scores[None, :, None, None].expand(-1, -1, 1, n_keys), place(encoding, torch.arange(n_keys))
    j, most = int(pair.k_pos), encoding.max_count - 1
    count = float(encoding.counts(row, k_placed, None)[0, pair.head, 0, j])
    gate, n = float(scores[pair.head].sigmoid()), n_keys - j
    cut = f", of which counts go to P - 1 = {most} at most: {number(count)}" if n * gate > most else ""
    why.say(
        f"All keys have the same content here, so the gate of each is σ(s) = 1 / (1 + exp(-({number(score)}))) = "
        f"{number(gate)}.",
        f"From key {j} to key {n_keys - 1} they count {n} · {number(gate)} = {number(n * gate)}{cut}.",
    )
    below, products = math.floor(count), []
    for whole in range(below, math.ceil(count) + 1):
        total, said = dot_of(pair.of_query(), encoding.weight[:, whole].numpy(), f"q · e[{whole}]")
        why.say(*said, f"The sum is {number(total)}.")
        products.append(total)
    low, high = products[0], products[-1]
    told = score + low + (high - low) * (count - below)
    mixed = "" if count == below else f" + ({number(high)} - {braced(low)}) · ({number(count)} - {below})"
    why.say(f"The score becomes {number(score)} + {braced(low)}{mixed} = {number(told)}.")
    return told


def _say_adapted(why: Explanation, pair: Pair, scores: Tensor) -> float:
    """Say DAPE's bias, its network's hidden units, and their sum."""
    encoding, head = pair.encoding, pair.head
    inner = replace(pair, encoding=encoding.encoding)
    biases = pair.bias_of(encoding.encoding)
    with Watch("linear", "leaky_relu") as seen:
        _rescored(encoding, pair, scores, int(pair.k_pos) + 1)
    formed, units = (seen.results(name)[0].reshape(-1, encoding.width)[-1].numpy() for name in ("linear", "leaky_relu"))
    own = Explanation(why.formula, float(biases[head]))
    say_bias(own, inner)
    why.say(f"The bias B is that of {encoding.encoding.name}.", *own.steps)
    both = torch.cat((scores, biases)).numpy()
    why.say(f"In all heads A is {_all(scores.numpy())}, and B is {_all(biases.numpy())}; the network sees these.")
    total, said = dot_of(encoding.w1[0].numpy(), both, "Hidden unit 0, W1·[A; B],", "number")
    shift = float(encoding.b1[0])
    why.say(*said, f"The sum is {number(total)}.")
    why.say(
        f"With b1 it is {number(total)} + {braced(shift)} = {number(float(formed[0]))}, and leaky ReLU, which takes a "
        f"hundredth of what is below 0, makes {number(float(units[0]))} of it.",
        f"All hidden units: {listed(units)}.",
    )
    total, said = dot_of(encoding.w2[head].numpy(), units, f"f of head {head}, W2·unit,", "unit")
    why.say(*said, f"The sum is {number(total)}.")
    score, bias, shift = float(scores[head]), float(biases[head]), float(encoding.b2[head])
    made, told = total + shift, score + bias + total + shift
    why.say(f"With b2 it is {number(total)} + {braced(shift)} = {number(made)}.")
    why.say(f"The score becomes A + B + f = {number(score)} + {braced(bias)} + {braced(made)} = {number(told)}.")
    return told


def _all(values: Floats) -> str:
    return ", ".join(number(float(v)) for v in values)
