"""Why a bias that a small network forms has its number: what goes in, the hidden units, and their sum."""

import math
from typing import Any

import numpy as np

from posenc.encodings.dynamic_position_bias import _NORM_EPS
from posenc.explorer.cells.explanation import Explanation, Floats, braced, dot_of, listed, number, sum_of
from posenc.explorer.cells.pair import Pair, Watch


def explain_fire(why: Explanation, pair: Pair) -> None:
    """Put numbers into ψ, the ratio, and the units of the network."""
    encoding, head = pair.encoding, pair.head
    far, c = abs(pair.distance), float(encoding.log_c.exp())
    threshold = abs(float(encoding.threshold_scale)) * float(encoding.init_threshold)
    over = max(abs(pair.q_pos), threshold)
    top, bottom = math.log1p(c * far), math.log1p(c * over) + encoding.eps
    t = top / bottom
    said = f"log({number(c)} · {number(far)} + 1) / (log({number(c)} · {number(over)} + 1) + {encoding.eps:g})"
    why.say(
        f"ψ(x) = log(c·x + 1) with c = {number(c)}; beyond L = {number(threshold)} the query's own position counts.",
        f"t = ψ({number(far)}) / (ψ({number(over)}) + {encoding.eps:g}) = {said} = {number(t)}.",
    )
    w1, b1, w2 = (p.numpy() for p in (encoding.w1, encoding.b1, encoding.w2[head]))
    units = w2 * (w1 * t + b1).clip(min=0)
    names = [f"unit {i}, {_unit(w2[i], [w1[i]], [t], b1[i])}" for i in range(len(w1))]
    total, said_of_sum = sum_of(units, names, "The network Σ w2·relu(w1·t + b1)")
    _end(why, total, said_of_sum, float(encoding.b2[head]))


def explain_swin_v2(why: Explanation, pair: Pair) -> None:
    """Put numbers into the logarithm, the units of the network, and the sigmoid."""
    encoding, head = pair.encoding, pair.head
    with Watch("relu") as seen:
        pair.bias_of(encoding)
    hidden = seen.results("relu")[0].reshape(-1).numpy()
    apart, side = pair.distance, max((encoding.pretrained_window or encoding.window)[0] - 1, 1)
    down = math.copysign(math.log(1 + 8 * abs(apart) / side) / math.log(8), apart)
    sign = "-" if apart < 0 else ""
    why.say("Positions run along the rows of the window; all columns are 0 here, so δ of columns is 0.")
    why.say(
        "δ of rows = sign(Δ)·log(1 + 8·|Δ| / (window - 1)) / log(8) = "
        f"{sign}log(1 + 8 · {number(abs(apart))} / {side}) / log(8) = {number(down)}."
    )
    w1, b1, w2 = (p.numpy() for p in (encoding.w1, encoding.b1, encoding.w2[head]))
    names = [f"unit {i}, {_unit(w2[i], w1[i], [down, 0.0], b1[i])}" for i in range(len(w2))]
    total, said = sum_of(w2 * hidden, names, "The network z = Σ w2·relu(W1 δ + b1)")
    why.say(*said, f"The sum is {number(total)}.")
    told = 16 / (1 + math.exp(-total))
    why.end(told, f"16·σ(z) = 16 / (1 + exp(-({number(total)}))) = {number(told)}.")


def explain_dynamic(why: Explanation, pair: Pair) -> None:
    """Go through the network layer by layer."""
    encoding, head = pair.encoding, pair.head
    with Watch("linear", "layer_norm", "relu", "silu") as seen:
        pair.bias_of(encoding)
    x = _input(why, pair)
    others = " Other axes are 0 here." if encoding.n_axes > 1 else ""
    w, b = float(encoding.w_in[0, 0]), float(encoding.b_in[0])
    why.say(
        f"Layer 1 has {encoding.width} units; unit 0 gets w·{'x' if encoding.log_distance else 'd'} + b = "
        f"{number(w)} · {number(x)} + {number(b)} = {number(w * x + b)}.{others}"
    )
    layer, formed = 0, np.empty(0)
    for call in seen.seen:
        name, values = call.name, call.out.reshape(-1).numpy()
        if name == "linear":
            layer, formed = layer + 1, values
            if layer <= encoding.depth:  # the last one forms what comes out
                why.say(f"Layer {layer} forms {listed(values)}.")
        elif name == "layer_norm":
            _say_norm(why, layer, formed, values, encoding)
        else:
            why.say(f"After {'ReLU' if name == 'relu' else 'SiLU'}: {listed(values)}.")
            units = values
    total, said = dot_of(encoding.w_out[head].numpy(), units, f"The output of head {head}, Σ w·unit,", "unit")
    _end(why, total, said, float(encoding.b_out[head]))


def _input(why: Explanation, pair: Pair) -> float:
    """Say what the network sees of the distance, and return it."""
    d = pair.distance
    if not pair.encoding.log_distance:
        why.say(f"The network sees d = i - j = {number(pair.q_pos)} - {number(pair.k_pos)} = {number(d)}.")
        return d
    x = math.copysign(math.log1p(abs(d)), d)
    sign = "-" if d < 0 else ""
    why.say(f"The network sees x = sign(d)·log(1 + |d|) = {sign}log(1 + {number(abs(d))}) = {number(x)}.")
    return x


def _say_norm(why: Explanation, layer: int, before: Floats, after: Floats, encoding: Any) -> None:
    """Say what LayerNorm makes of a layer, and of its unit 0."""
    mean, variance = float(before.mean()), float(before.var())
    gain, shift = float(encoding.ln_g[layer - 1, 0]), float(encoding.ln_b[layer - 1, 0])
    why.say(
        f"Their mean is {number(mean)} and their variance {number(variance)}; LayerNorm makes of unit 0 "
        f"({number(float(before[0]))} - {braced(mean)}) / √({number(variance)} + {_NORM_EPS:g}) · {braced(gain)} + "
        f"{braced(shift)} = {number(float(after[0]))}."
    )


def _unit(weight: float, inner: Any, inputs: Any, shift: float) -> str:
    """Write one unit of a network of one hidden layer."""
    inside = " + ".join(f"{braced(float(w))} · {braced(float(x))}" for w, x in zip(inner, inputs, strict=True))
    return f"{number(float(weight))} · relu({inside} + {braced(float(shift))})"


def _end(why: Explanation, total: float, said: list[str], shift: float) -> None:
    why.say(*said, f"The sum is {number(total)}.")
    why.end(total + shift, f"With b2 the value is {number(total)} + {braced(shift)} = {number(total + shift)}.")
