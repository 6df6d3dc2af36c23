"""The character of an encoding: what is said of it in prose, measured by the code that runs in models.

`measure` looks at one encoding; `check` holds what a card declares against it. Whatever is learned is drawn
from N(0, 1), several times where a trait must hold for every draw, on a copy in evaluation mode.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from posenc.encoding import Encoding, Placed
from posenc.probe import DOORS, REFUSALS, Probe, count_numbers
from posenc.registry import TRAITS, Card

CAP = 65_536  # positions that are compared; "distinct" ends here
SEEDS = (2017, 2018, 2019)  # of what is learned and of the projections; among the first draws are both signs
NEAR, WINDOW, FAR = 1024, 256, (10_000, 100_000, 1_000_000)  # windows end at the far positions
NEIGHBOURS = 4096
SMOOTH = 0.4  # of the diameter; a turn by an eighth steps 0.38, and points at random are further apart
BOUNDED = 1.5  # of the largest near lane; a logarithm of the position grows by more from 1,024 to 1,000,000
LINEAR = 1e-6  # of the signatures' size, left over on held-out positions
EXACT = 1e-9  # of the largest score, in float64
SHIFTS = (1, 10, 100)
MOVES = ((9, 21), (5, 3), (2, 1))  # positions looked at, and how far they move; the first that fit
ROUNDINGS = 0.02  # of a count of distinct positions: a declaration within it is right
NOISE = 1e-10  # of the largest in a lane, and of the largest lane; float64 knows 65,536 radians to 1e-11
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_Found = TypeVar("_Found")
_MISSING = object()


@dataclass(frozen=True)
class Character:
    """What was measured of an encoding; None where it cannot be measured or does not apply.

    A position's signature is what becomes of the same content there: the vector of a token, a turned query, or, one
    number a head, the bias of a query against a key at position 0, and what a score map makes of a score of zero
    between them. With several axes, axis 0 moves and the others stay at 0. What depends on the length is resolved for
    1,024.

    Args:
        distinct: How many positions from 0 on (for a bias: distances) have signatures that all differ, as stored in
            each dtype: the first that repeats another one. At most 65,536, which means that or more.
        longest: The largest position that is not refused; None if there is none.
        real_positions: Fractional positions are accepted.
        smooth: The signatures of neighbours among 0..4096 are nearer than 0.4 of the diameter of all.
        step: The largest of those steps between neighbours, as a part of the diameter.
        bounded: No lane of a signature up to position 1,000,000 is beyond 1.5 times the largest below 1,024; up to
            10,000, of an encoding that reads the tokens.
        shift_invariant: Scores stay as they are when all positions move.
        symmetric: Scores stay as they are when query and key change places and keep their content: blind to direction.
        recency: Looking back, the score of the same content never rises with distance, and falls, in every draw.
        linear_shift: There is a matrix T(k) with PE(p + k) = T(k) PE(p), for vectors and turned queries.
        residual: What such a matrix, fitted by least squares, leaves over on other positions, as a part of their size.
        length_dependent: It must be resolved for a length, or means different things at different lengths.
        learned: How many numbers are learned, by all layers of a `PerLayer`.
        cost: What grows with the text: "nothing", "token" (numbers are computed for each token) or "score" (and for
            each pair of tokens).
        per_token: How many numbers one layer with its embeddings computes for each token, once they are placed.
        per_score: How many it computes for each pair, in all heads.
    """

    distinct: Mapping[str, int] | None
    longest: int | None
    real_positions: bool | None
    smooth: bool | None
    step: float | None
    bounded: bool | None
    shift_invariant: bool | None
    symmetric: bool | None
    recency: bool | None
    linear_shift: bool | None
    residual: float | None
    length_dependent: bool | None
    learned: int
    cost: str | None
    per_token: float | None
    per_score: float | None

    def as_dict(self) -> dict[str, Any]:
        """Return all that was measured as plain JSON values."""
        return asdict(self)

    def traits(self) -> dict[str, Any]:
        """Return what a card declares: everything but the numbers behind smooth, linear_shift and cost."""
        return {trait: value for trait, value in self.as_dict().items() if trait in TRAITS}


def measure(encoding: Encoding) -> Character:
    """Measure the character of an encoding.

    Args:
        encoding: Any `Encoding`; it is copied, not changed, and no global random state is touched. Of a `PerLayer`
            the first layer is measured.

    Returns:
        The traits and the numbers behind them, each None where it cannot be measured.

    >>> from posenc import ALiBi
    >>> alibi = measure(ALiBi(n_heads=4))
    >>> alibi.recency, alibi.symmetric, alibi.distinct["bfloat16"]
    (True, True, 257)
    """
    learned = sum(p.numel() for p in encoding.parameters())
    stored = [Probe(encoding, torch.float32, seed=seed) for seed in (SEEDS if learned else SEEDS[:1])]
    exact = [Probe(encoding, torch.float64, seed=seed) for seed in SEEDS]  # the projections are drawn, too
    step = _attempt(lambda: max(map(largest_step, stored)))
    moved = _attempt(lambda: _worst(map(shift_change, exact)))
    residual = _attempt(lambda: _worst(map(shift_residual, exact[: len(stored)])))
    cost, per_token, per_score = _attempt(lambda: count_work(stored[0])) or (None, None, None)
    return Character(
        distinct=_attempt(lambda: count_distinct(stored)),
        longest=_attempt(lambda: stored[0].longest),
        real_positions=_attempt(lambda: accepts_real(stored[0])),
        smooth=None if step is None else step < SMOOTH,
        step=step,
        bounded=_attempt(lambda: all(map(is_bounded, stored))),
        shift_invariant=None if moved is None else moved < EXACT,
        symmetric=_attempt(lambda: all(map(is_symmetric, exact))),
        recency=_attempt(lambda: all(map(falls_with_distance, exact))),
        linear_shift=None if residual is None else residual < LINEAR,
        residual=residual,
        length_dependent=_attempt(lambda: depends_on_length(encoding)),
        learned=learned,
        cost=cost,
        per_token=per_token,
        per_score=per_score,
    )


def check(card: Card) -> list[str]:
    """Hold what a card declares against what is measured on its example.

    Returns:
        A sentence for each trait that is declared wrongly, not at all, or under no known name.
    """
    found = measure(card.cls(**card.example)).traits()
    unknown = [trait for trait in card.traits if trait not in TRAITS]
    sentences = [f"{card.name}: {trait!r} is no trait. The traits are {', '.join(TRAITS)}." for trait in unknown]
    for trait, value in found.items():
        said = card.traits.get(trait, _MISSING)
        if said is _MISSING:
            sentences.append(f"{card.name}: does not declare {trait}; measured {value!r}. Declare it.")
        elif not _agree(said, value):
            sentences.append(f"{card.name}: declares {trait}={said!r}; measured {value!r}. Mend one of them.")
    return sentences


def _agree(said: Any, value: Any) -> bool:
    """Whether a declaration is what was measured; counts by dtype hang on roundings, which processors may do apart."""
    if isinstance(said, Mapping) and isinstance(value, Mapping):
        return said.keys() == value.keys() and all(abs(said[k] - n) <= ROUNDINGS * n for k, n in value.items())
    return isinstance(said, bool) == isinstance(value, bool) and bool(said == value)


def count_distinct(draws: Sequence[Probe]) -> dict[str, int]:
    """Return how many positions precede the first whose signature repeats another's, by dtype, in the worst draw."""
    counts = {name: len(draws[0].line(CAP)) for name in DTYPES}
    for probe in draws:
        n = 0
        while n < max(counts.values()):
            n = min(max(64, 32 * n), max(counts.values()))  # few repeat late, so that the last round costs the most
            rows = silence(probe.signatures(probe.line(n)))
            here = {name: first_repetition(rows.to(DTYPES[name])) for name in ("bfloat16", "float16")}
            # what differs when it is rounded differs before
            here["float32"] = None if None in here.values() else first_repetition(rows)
            counts |= {name: min(counts[name], first) for name, first in here.items() if first is not None}
    return counts


def silence(rows: Tensor) -> Tensor:
    """Set to zero what is only the noise of an angle, as of a sine that crosses zero: it tells periods apart."""
    size = rows.abs()
    loud = size.amax(0)
    return rows.where((size > NOISE * loud) & (loud > NOISE * loud.max()), 0.0)


def first_repetition(rows: Tensor) -> int | None:
    """Return the first index of a row that equals an earlier one, bit by bit; None if all differ."""
    lanes = 8 // rows.element_size()
    words = torch.nn.functional.pad(rows, (0, -rows.shape[-1] % lanes)).contiguous().view(torch.int64)
    odd = torch.randint(-(2**62), 2**62, words.shape[-1:], generator=torch.Generator().manual_seed(0)) * 2 + 1
    mixed = words * odd  # wraps, as a hash may; its upper bits then reach the lower ones
    hashes, order = ((mixed ^ (mixed >> 32)) * odd).sum(-1).sort(stable=True)
    again = order[1:][hashes[1:] == hashes[:-1]]
    return int(again.min()) if len(again) else None


def accepts_real(probe: Probe) -> bool:
    """Whether fractional positions are accepted."""
    try:
        probe.signatures(probe.line(2).double() / 2)
    except TypeError:
        return False
    return True


def largest_step(probe: Probe) -> float:
    """Return the largest step between neighbours among 0..4096, as a part of the diameter of all signatures."""
    rows = probe.signatures(probe.line(NEIGHBOURS + 1))
    spread = torch.cat((rows[:64], rows[64::64]))  # all pairs would take a hundred times as long
    diameter = float(torch.cdist(rows, spread).max())
    return float((rows[1:] - rows[:-1]).norm(dim=-1).max()) / diameter if diameter else 0.0


def is_bounded(probe: Probe) -> bool:
    """Whether lanes at far positions stay within 1.5 times the largest lane at near ones; keys count as well."""
    doors = (*DOORS, "rotate_k")
    near = probe.signatures(probe.line(NEAR), doors).abs().max()
    reads = probe.encoding.reads_x  # what runs a sum along the tokens is far where all of them are there
    ends = [end if probe.longest is None else min(end, probe.longest + 1) for end in (FAR[:1] if reads else FAR)]
    lines = [probe.line(end) if reads else probe.line(WINDOW, start=max(end - WINDOW, 0)) for end in ends]
    far = [probe.signatures(line, doors).abs().max() for line in lines]
    return bool(torch.stack(far).max() <= BOUNDED * near)


def shift_change(probe: Probe) -> float | None:
    """Return how much scores change when all positions move on all axes, as a part of the largest.

    None if the encoding has no room to move.
    """
    for n, move in MOVES:
        if probe.longest is None or probe.longest >= n - 1 + move:
            pos = probe.along(probe.line(n))
            x = probe.normal(1, n, probe.d_model)
            try:
                here, there = _scores(probe, x, x, pos), _scores(probe, x, x, pos + move)
            except REFUSALS:  # another axis has less room
                continue
            return float((here - there).abs().max() / here.abs().max())
    return None


def is_symmetric(probe: Probe) -> bool:
    """Whether query and key may change places: the matrix of scores, one content in q and one in k, is symmetric."""
    pos = probe.along(probe.line(48))
    tokens = probe.normal(2, 1, 1, probe.d_model).expand(-1, -1, len(pos), -1)
    scores = _scores(probe, tokens[0], tokens[1], pos)
    return bool((scores - scores.mT).abs().max() <= EXACT * scores.abs().max())


def falls_with_distance(probe: Probe) -> bool:
    """Whether the score of one content never rises with distance in any head, and falls in one."""
    end = CAP if probe.longest is None else min(CAP, probe.longest)
    distances = [d for d in (*range(257), *(2**i for i in range(9, 17))) if d <= end]
    pos = probe.along(end - torch.tensor(distances).flip(0))  # in order, for sums along the tokens
    x = probe.normal(1, 1, probe.d_model).expand(-1, len(pos), -1)
    by_distance = _scores(probe, x, x, pos)[0, :, -1].flip(-1)
    slack = EXACT * by_distance.abs().max()
    never_rises = (by_distance.diff() <= slack).all()
    return bool(never_rises and (by_distance[:, 0] - by_distance[:, -1] > slack).any())


def shift_residual(probe: Probe) -> float | None:
    """Return what the best matrix T(k) leaves over of PE(p + k) on held-out positions, as a part of its size.

    Fitted by least squares in float64; the worst of several k. None for what is neither embedded nor turned, for
    what is the same everywhere or depends on the neighbours, and where there are too few positions to tell a law
    from a coincidence.
    """
    doors = ("embed", "rotate_q")
    alone = probe.signatures(probe.line(1), doors)
    if not torch.allclose(alone, probe.signatures(probe.line(2), doors)[:1]):
        return None
    seen, width = len(probe.line(CAP)), alone.shape[-1]
    left = []
    for k in (k for k in SHIFTS if seen - k >= 3 * width):
        chosen = torch.randperm(seen - k, generator=probe.random)[: 4 * width + 512]
        before, after = probe.signatures(chosen, doors), probe.signatures(chosen + k, doors)
        if bool((before == before[:1]).all()):
            return None
        half = len(chosen) // 2
        matrix = torch.linalg.lstsq(before[:half], after[:half], driver="gelsd").solution
        left.append(float((before[half:] @ matrix - after[half:]).norm() / after[half:].norm()))
    return max(left, default=None)


def count_work(probe: Probe) -> tuple[str, float, float]:
    """Return what the work grows with, and the numbers that are computed for each token and for each pair."""
    lengths, seen = (16, 32, 48), []
    for n in lengths:
        pos = probe.along(torch.arange(n) % len(probe.line(n)))  # a short table is read again
        x = probe.normal(1, n, probe.d_model)
        placed = probe.place(pos, x)
        seen.append(count_numbers(lambda x=x, placed=placed: _doors(probe, x, placed)))  # type: ignore[misc]
    lines = torch.tensor([[1.0, n, n * n] for n in lengths], dtype=torch.float64)
    _, per_token, per_score = torch.linalg.solve(lines, torch.tensor(seen, dtype=torch.float64)).tolist()
    grows = "score" if per_score > 0.5 else "token" if per_token > 0.5 else "nothing"
    return grows, abs(round(per_token, 1)), abs(round(per_score, 1))


def _doors(probe: Probe, x: Tensor, placed: Placed) -> None:
    """Go through the doors of one layer with one head of keys a head of queries."""
    encoding, here = probe.encoding.layer(probe.index, placed)
    probe.encoding.embed(x, placed)
    q = x.new_zeros(()).expand(1, probe.n_heads, x.shape[1], probe.head_dim)
    encoding.rotate(q, q, here)
    encoding.bias(q, q, here, here)
    if encoding.rescores:
        scores = q.new_zeros(()).expand(*q.shape[:3], x.shape[1])
        encoding.rescore(scores, q, q, here, here, None)


def depends_on_length(encoding: Encoding) -> bool:
    """Whether it refuses to work unresolved, or resolves to other things for other lengths."""
    near, *others = (Probe(encoding, torch.float32, length=n) for n in (64, 128, CAP))
    near.signatures(near.line(1))  # what fails resolved, too, does not wait for a length
    try:
        Probe(encoding, torch.float32, length=None).signatures(near.line(1))
    except REFUSALS:
        return True
    pos = near.line(16)
    return any(not torch.equal(near.signatures(pos), other.signatures(pos)) for other in others)


def _scores(probe: Probe, of_query: Tensor, of_key: Tensor, pos: Tensor) -> Tensor:
    """Return the scores (1, n_heads, n, n) of tokens that become queries and tokens that become keys."""
    with torch.no_grad():
        placed = probe.place(pos, of_query)
        q, k = probe.project(of_query, placed)[0], probe.project(of_key, placed)[1]
        return probe.scores(q, k, placed)


def _attempt(look: Callable[[], _Found]) -> _Found | None:
    """Return what a measurement finds, or None where the encoding refuses it."""
    try:
        return look()
    except (*REFUSALS, TypeError):
        return None


def _worst(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
