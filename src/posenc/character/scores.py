"""Properties of the scores and values of pairs of tokens, and their cost."""

import torch
from torch import Tensor

from posenc.character.signatures import CAP
from posenc.encoding import Placed
from posenc.families import of_each_head
from posenc.probe import REFUSALS, Probe, count_numbers

EXACT = 1e-9  # relative to the largest score, in float64
MOVES = ((9, 21), (5, 3), (2, 1))  # number of positions and their move; the first that the encoding accepts counts


def shift_change(probe: Probe) -> float | None:
    """Return the change of scores, and of rotated values, when all positions move by the same amount on all axes.

    It is relative to the largest; None if the encoding has too few positions for a move.
    """
    for n, move in MOVES:
        if probe.longest is None or probe.longest >= n - 1 + move:
            pos = probe.along(probe.line(n))
            x = probe.normal(1, n, probe.d_model)
            try:
                here, there = _of_pairs(probe, x, x, pos), _of_pairs(probe, x, x, pos + move)
            except REFUSALS:  # another axis is shorter
                continue
            return max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(here, there, strict=True))
    return None


def is_symmetric(probe: Probe) -> bool:
    """Return whether scores and rotated values stay the same when query and key swap positions."""
    pos = probe.along(probe.line(48))
    tokens = probe.normal(2, 1, 1, probe.d_model).expand(-1, -1, len(pos), -1)
    found = _of_pairs(probe, tokens[0], tokens[1], pos)
    return all(bool((t - t.mT).abs().max() <= EXACT * t.abs().max()) for t in found)


def falls_with_distance(probe: Probe) -> bool:
    """Return whether the score of one content never rises with distance in any head, and falls in one."""
    end = CAP if probe.longest is None else min(CAP, probe.longest)
    distances = [d for d in (*range(257), *(2**i for i in range(9, 17))) if d <= end]
    pos = probe.along(end - torch.tensor(distances).flip(0))  # ascending, for sums along the tokens
    x = probe.normal(1, 1, probe.d_model).expand(-1, len(pos), -1)
    by_distance = _scores(probe, x, x, pos)[0, :, -1].flip(-1)
    slack = EXACT * by_distance.abs().max()
    never_rises = (by_distance.diff() <= slack).all()
    return bool(never_rises and (by_distance[:, 0] - by_distance[:, -1] > slack).any())


def count_work(probe: Probe) -> tuple[str, float, float]:
    """Return the unit that the work grows with, and the numbers computed for each token and for each pair."""
    lengths, seen = (16, 32, 48), []
    for n in lengths:
        pos = probe.along(torch.arange(n) % len(probe.line(n)))  # a short table is read repeatedly
        x = probe.normal(1, n, probe.d_model)
        placed = probe.place(pos, x)
        seen.append(count_numbers(lambda x=x, placed=placed: _call_hooks(probe, x, placed)))  # type: ignore[misc]
    lines = torch.tensor([[1.0, n, n * n] for n in lengths], dtype=torch.float64)
    _, per_token, per_score = torch.linalg.solve(lines, torch.tensor(seen, dtype=torch.float64)).tolist()
    grows = "score" if per_score > 0.5 else "token" if per_token > 0.5 else "nothing"
    return grows, abs(round(per_token, 1)), abs(round(per_score, 1))


def _call_hooks(probe: Probe, x: Tensor, placed: Placed) -> None:
    """Call the hooks of one layer, with one key head per query head."""
    encoding, here = probe.encoding.layer(probe.index, placed)
    probe.encoding.embed(x, placed)
    q = x.new_zeros(()).expand(1, probe.n_heads, x.shape[1], probe.head_dim)
    encoding.rotate(q, q, here)
    encoding.unrotate_out(encoding.rotate_v(q, here), here)
    encoding.bias(q, q, here, here)
    if encoding.rescores:
        scores = q.new_zeros(()).expand(*q.shape[:3], x.shape[1])
        encoding.rescore(scores, q, q, here, here, None)


def _scores(probe: Probe, of_query: Tensor, of_key: Tensor, pos: Tensor) -> Tensor:
    """Return the scores (1, n_heads, n, n) of queries and keys projected from tokens."""
    with torch.no_grad():
        placed = probe.place(pos, of_query)
        q, k = probe.project(of_query, placed)[0], probe.project(of_key, placed)[1]
        return probe.scores(q, k, placed)


def _of_pairs(probe: Probe, of_query: Tensor, of_key: Tensor, pos: Tensor) -> list[Tensor]:
    """Return the scores, and if values rotate, the value that each query gets from each key, (width, n_heads, n, n)."""
    return [_scores(probe, of_query, of_key, pos), *_received(probe, of_key, pos)]


@torch.no_grad()
def _received(probe: Probe, of_key: Tensor, pos: Tensor) -> list[Tensor]:
    placed = probe.place(pos, of_key)
    v = probe.project(of_key, placed)[2]
    encoding, placed = probe.encoding.layer(probe.index, placed)
    rotated = encoding.rotate_v(v, placed)
    if rotated is v:
        return []
    by_key = of_each_head(rotated, probe.n_heads)[0].transpose(0, 1)[:, :, None]  # each key becomes an item of a batch
    outs = encoding.unrotate_out(by_key.expand(-1, -1, len(pos), -1), placed)
    return [outs.permute(3, 1, 2, 0)]
