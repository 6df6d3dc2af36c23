"""Why a bias that is looked up has its number: which row of which table."""

import torch

from posenc.explorer.cells.explanation import Explanation, dot_of, number
from posenc.explorer.cells.pair import Pair
from posenc.families.windows import cell


def explain_t5(why: Explanation, pair: Pair) -> None:
    """Name the bucket of the distance, and who shares it."""
    encoding, head = pair.encoding, pair.head
    distance = torch.tensor(round(pair.distance))
    bucket = int(encoding.bucket(distance))
    n = encoding.n_buckets // 2 if encoding.bidirectional else encoding.n_buckets
    shared = [d for d in range(4 * encoding.max_distance) if int(encoding.bucket(torch.tensor(d))) == bucket]
    if not encoding.bidirectional and distance < 0:
        why.say("Keys ahead count as distance 0.")
    with_it = f", which {len(shared):,} distances from {shared[0]:,} on share" if len(shared) > 1 else ""
    why.say(
        f"{n // 2} distances have a bucket of their own, the others up to {encoding.max_distance:,} share logarithmic "
        f"ones: bucket({int(distance)}) = {bucket}{with_it}."
    )
    found = float(encoding.weight[bucket, head])
    why.end(found, f"W[{bucket}, {head}] = {number(found)}, which is learned.")


def explain_relative(why: Explanation, pair: Pair) -> None:
    """Name the clipped distance."""
    encoding, most = pair.encoding, pair.encoding.max_distance
    clipped = max(-most, min(most, round(pair.distance)))
    why.say(f"Clipped to -{most}..{most}, the distance is {clipped}.")
    found = float(encoding.weight[pair.head, clipped + most])
    why.end(found, f"W[{pair.head}, {clipped}] = {number(found)}, which is learned.")


def explain_swin(why: Explanation, pair: Pair) -> None:
    """Name the row of the table of differences; BEiT has the same, and rows for a class token that is not met here."""
    encoding, head = pair.encoding, pair.head
    rows, columns = encoding.window
    apart = round(pair.distance)
    row = int(cell((torch.tensor(apart), torch.tensor(0)), encoding.window))
    why.say("Positions run along the rows of the window; all columns are 0 here.")
    why.say(
        f"Row of the table = (Δrow + {rows} - 1)·(2·{columns} - 1) + Δcolumn + {columns} - 1 = "
        f"({apart} + {rows} - 1)·(2·{columns} - 1) + 0 + {columns} - 1 = {row}."
    )
    found = float(encoding.weight[row, head])
    why.end(found, f"W[{row}, {head}] = {number(found)}, which is learned.")


def explain_graphormer(why: Explanation, pair: Pair) -> None:
    """Name the shortest path between two nodes."""
    encoding, table = pair.encoding, pair.encoding.distances.table
    i, j = round(pair.q_pos), round(pair.k_pos)
    if encoding.n_axes > 1:
        why.say("Positions run over graphs; the node is number 0 of its graph.")
        path = int(table[i, 0, 0]) if i == j else -1
    else:
        path = int(table[i, j])
    column = path if path >= 0 else encoding.max_distance + 1
    why.say(
        f"The shortest path from node {i} to node {j} has {path} edges."
        if path >= 0
        else f"There is no path from {i} to {j}, which is the last column, {column}."
    )
    found = float(encoding.weight[pair.head, column])
    why.end(found, f"W[{pair.head}, {column}] = {number(found)}, which is learned.")


def explain_tupe(why: Explanation, pair: Pair) -> None:
    """Multiply the rows of two positions, unless [CLS] is one of them."""
    encoding, head = pair.encoding, pair.head
    i, j = round(pair.q_pos), round(pair.k_pos)
    if encoding.untie_cls and 0 in (i, j):
        name, said = ("cls_to", "the query is") if i == 0 else ("to_cls", "the key is")
        found = float(getattr(encoding, name)[head])
        why.say(f"Position 0 is that of [CLS], and {said} [CLS]: no rows are multiplied.")
        why.end(found, f"{name}[{head}] = {number(found)}, which is learned.")
        return
    rows = encoding.q_table[head, i].numpy(), encoding.k_table[head, j].numpy()
    total, said_of_sum = dot_of(*rows, f"The product of row {i} of Q and row {j} of K, both learned,")
    told = total * encoding.score_scale(encoding.head_dim)
    why.say(*said_of_sum, f"The sum is {number(total)}.")
    why.end(told, f"Over √(2d): {number(total)} / √(2 · {encoding.head_dim}) = {number(told)}.")
