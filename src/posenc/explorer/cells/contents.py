"""Why a bias that looks at contents has its number: what a query, a key or the tokens between them say."""

import math

import numpy as np
import torch

from posenc.explorer.cells.explanation import Explanation, braced, dot_of, number, sum_of
from posenc.explorer.cells.pair import Pair, Watch
from posenc.measure.asking import place


def explain_shaw(why: Explanation, pair: Pair) -> None:
    """Multiply the query with the vector of the clipped distance."""
    encoding = pair.encoding
    clipped = max(-encoding.max_ahead, min(encoding.max_distance, round(pair.distance)))
    why.say(f"Clipped to -{encoding.max_ahead}..{encoding.max_distance}, the distance is {clipped}.")
    _say_contents(why, pair, "query")
    vector = encoding.vectors(torch.tensor([round(pair.distance)]), torch.float64)[0, 0].numpy()
    total, said = dot_of(pair.of_query(), vector, f"q · a[{clipped}]")
    why.say(*said, f"The sum is {number(total)}.")
    told = encoding.score_scale(encoding.head_dim) * total
    why.end(told, f"Over √d: {number(total)} / √{encoding.head_dim} = {number(told)}.")


def explain_deberta(why: Explanation, pair: Pair) -> None:
    """Multiply query and key with the rows of the distance's bucket."""
    encoding, head = pair.encoding, pair.head
    row = int(encoding.row(torch.tensor(round(pair.distance))))
    why.say(f"The distance {number(pair.distance)} has row δ = {row} of 0..{2 * encoding.n_buckets - 1}.")
    _say_contents(why, pair, "query", "key")
    sides = (("q", "K", pair.of_query(), encoding.key_table), ("k", "Q", pair.of_key(), encoding.query_table))
    totals = []
    for small, large, lanes, table in sides:
        if table is not None:
            total, said = dot_of(lanes, table[head, row].numpy(), f"{small} · {large}[{row}]")
            why.say(*said, f"The sum is {number(total)}.")
            totals.append(total)
    told = sum(totals) * encoding.score_scale(encoding.head_dim)
    n = 1 + len(totals)
    top = " + ".join([number(totals[0]), *map(braced, totals[1:])])
    why.end(told, f"Over √({n}d): ({top}) / √({n} · {encoding.head_dim}) = {number(told)}.")


def explain_decomposed(why: Explanation, pair: Pair) -> None:
    """Multiply the query with the vector of the rows between, and with that of the columns."""
    encoding, apart = pair.encoding, round(pair.distance)
    why.say(f"Positions run along the rows: Δrow = {apart}, Δcolumn = 0.")
    _say_contents(why, pair, "query")
    totals = []
    for name, difference, table in (("R_h", apart, encoding.rel_h), ("R_w", 0, encoding.rel_w)):
        total, said = dot_of(pair.of_query(), table[difference + len(table) // 2].numpy(), f"q · {name}[{difference}]")
        why.say(*said, f"The sum is {number(total)}.")
        totals.append(total)
    told = sum(totals)
    why.end(told, f"Both together: {number(totals[0])} + {braced(totals[1])} = {number(told)}.")


def explain_xl(why: Explanation, pair: Pair) -> None:
    """Multiply the query with the projected sinusoid of the distance, and the key with u."""
    encoding, head = pair.encoding, pair.head
    distance = torch.tensor([pair.distance], dtype=torch.float64)
    sin, cos = (part[0].numpy() for part in encoding.parts(distance, None, None, torch.float64))
    n = number(pair.distance)
    why.say(
        f"The sinusoid r of the distance starts with sin({n}) = {number(float(sin[0]))} and, behind {len(sin)} sines, "
        f"cos({n}) = {number(float(cos[0]))}."
    )
    projected = encoding.vectors(distance, torch.float64)[head, 0].numpy()
    first, said = dot_of(encoding.weight[head, 0].numpy(), np.concatenate((sin, cos)), "Lane 0 of W_R r")
    why.say(*said, f"The sum is {number(first)}.")
    _say_contents(why, pair, "query", "key")
    of_query, said = dot_of(pair.of_query() + encoding.v[head].numpy(), projected, "(q + v) · W_R r")
    why.say(*said, f"The sum is {number(of_query)}.")
    of_key, said = dot_of(encoding.u[head].numpy(), pair.of_key(), "u · k")
    why.say(*said, f"The sum is {number(of_key)}.")
    told = (of_key + of_query) * encoding.score_scale(encoding.head_dim)
    over = f"({number(of_key)} + {braced(of_query)}) / √{encoding.head_dim}"
    why.end(told, f"Over √d: {over} = {number(told)}.")


def explain_fox(why: Explanation, pair: Pair) -> None:
    """Add the logarithms of the gates between query and key."""
    encoding, head, text = pair.encoding, pair.head, pair.text
    assert text is not None  # it reads one
    with Watch("log_sigmoid", "logsigmoid") as seen:
        placed = place(encoding, torch.arange(text.shape[1]), text)
    inputs, gates = (t[0, :, head].numpy() for t in (seen.seen[0].given[0], seen.seen[0].out))
    i, j = round(pair.q_pos), round(pair.k_pos)
    sums = (placed.parts[0] + placed.parts[1])[0, :, head].numpy()
    why.say(
        "This term reads the tokens: a text drawn from N(0, 1) is taken here. F_t = Σ log σ(w·x + b) up to token t."
    )
    z, said = dot_of(encoding.weight[head].numpy(), text[0, i].numpy(), f"w·x of token {i}")
    gate = float(encoding.b[head])
    why.say(*said, f"The sum is {number(z)}.")
    why.say(f"With b its gate opens by {number(z)} + {braced(gate)} = {number(z + gate)}.")
    first, last = sorted((i, j))
    names = [f"token {t}, log(1 / (1 + exp(-({number(float(inputs[t]))}))))" for t in range(first + 1, last + 1)]
    if not names:
        why.end(0.0, f"There is no token between: F_{i} - F_{j} = 0.")
        return
    total, said = sum_of(gates[first + 1 : last + 1], names, f"Σ log σ over the tokens {first + 1} to {last}")
    why.say(*said, f"The sum is {number(total)}.")
    told = float(sums[i] - sums[j])
    ahead = " The key is ahead, so it counts with the other sign." if j > i else ""
    assert math.isclose(told, total if i > j else -total, abs_tol=1e-9)
    why.end(told, f"F_{i} - F_{j} = {number(float(sums[i]))} - {braced(float(sums[j]))} = {number(told)}.{ahead}")


def _say_contents(why: Explanation, pair: Pair, *which: str) -> None:
    if pair.q is None:
        said = f"the {which[0]}; one of ones is" if len(which) == 1 else "contents; queries and keys of ones are"
        why.say(f"This term looks at {said} taken here.")
