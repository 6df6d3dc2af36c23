"""The study's answer in three sentences: which encodings hold past the trained length, which break, and the cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

from posenc.languages import tr

from .measures import BREAK, FLAT, TEXT, Measures, Stat, signed, sizes_of, task_name, tasks_of, tied, with_spread
from .sentences import Name, Parts, joined, listed, said

Groups = dict[str, list[str]]  # names of encodings, each with its tasks


def _grouped(groups: Groups, of: int) -> Parts:
    """List encodings by the tasks they share, as in "rope and t5 on copy and parity"; `of` tasks are all of them."""
    shared: dict[tuple[str, ...], list[str]] = {}
    for name, tasks in groups.items():
        shared.setdefault(tuple(tasks), []).append(name)
    pieces: list[Parts] = []
    for labels, names in shared.items():
        every = len(labels) == of > 2
        where = said("all {count} tasks", count=str(of)) if every else listed((task_name(label),) for label in labels)
        pieces.append(said("{names} on {tasks}", names=listed((Name(n),) for n in names), tasks=where))
    return _chained(pieces)


def _chained(clauses: Iterable[Parts]) -> Parts:
    """Join clauses by commas."""
    return reduce(lambda some, clause: said("{clauses}, {clause}", clauses=some, clause=clause), clauses)


def _ranged(stats: Mapping[str, Stat], names: Sequence[str]) -> Parts:
    """List names, then the value of a single one, or the range of the means of several."""
    shown = with_spread(stats[names[0]], sign=True)
    if len(names) > 1:
        means = sorted(stats[n].mean for n in names)
        shown = tr("{low} to {high}", low=signed(means[0]), high=signed(means[-1]))
    return said("{names} ({value} bits per byte)", names=listed((Name(n),) for n in names), value=shown)


def _of_text(study: Measures, unsure: Groups) -> tuple[Parts, Parts]:
    """List who keeps its loss and who breaks, in every seed; add to `unsure` those whose seeds disagree."""
    longest = study.longest
    if longest is None:
        return said("on text no sufficiently trained encoding was measured past the trained length"), ()
    far = tr("{bytes} bytes ({times} the trained length)", bytes=f"{longest:,}", times=study.times(longest))
    found: list[tuple[dict[str, Stat], list[str]]] = []
    for at in ("worst", "change"):
        stats = {e.name: Stat(tuple(v.values())) for e in study.sound if (v := study.by_seed(e.name, at))}
        holds = {n: [v <= FLAT if at == "worst" else v > BREAK for v in s.values] for n, s in stats.items()}
        for name in (n for n in holds if any(holds[n]) and not all(holds[n])):
            unsure.setdefault(name, [TEXT])
        found.append((stats, sorted((n for n in holds if all(holds[n])), key=lambda n: stats[n].mean)))
    (worst, keep), (change, broken) = found
    if len(keep) > 1:
        keeps = said("{names} keep the loss on text up to {far}", names=_ranged(worst, keep), far=far)
    elif keep:
        keeps = said("{name} keeps the loss on text up to {far}", name=_ranged(worst, keep), far=far)
    else:
        keeps = said(
            "no sufficiently trained encoding keeps its loss on text within {flat} bits per byte up to {far} in every "
            "seed",
            flat=str(FLAT),
            far=far,
        )
    limit = f"{BREAK:.2f}"
    if len(broken) > 1:
        breaks = said("{names} lose more than {limit} there", names=_ranged(change, broken), limit=limit)
    elif broken:
        breaks = said("{name} loses more than {limit} there", name=_ranged(change, broken), limit=limit)
    else:
        breaks = said(
            "no sufficiently trained encoding loses more than {limit} bits per byte there in every seed", limit=limit
        )
    return keeps, breaks


def _of_tasks(studies: Sequence[Measures], unsure: Groups) -> tuple[Parts, Parts]:
    """List who solves the longest lines of which task in every seed, and who in none."""
    solved: Groups = {}
    failed: Groups = {}
    tested = [study for study in studies if study.longest]
    for study in tested:
        for e in study.sound:
            count, total = study.solved(e.name, study.longest or 0)
            if total:
                group = solved if count == total else unsure if count else failed
                group.setdefault(e.name, []).append(study.task)
    if not tested:
        return said("on the tasks no sufficiently trained encoding was measured past the trained length"), ()
    reach = {study.times(study.longest or 0) for study in tested}
    lines = tr("the longest lines")
    if len(reach) == 1:
        lines = tr("the longest lines ({times} the longest trained)", times=reach.pop())
    keeps = said("no sufficiently trained encoding solves {lines} of any task in every seed", lines=lines)
    if solved:
        keeps = said("{lines} are solved in every seed by {names}", lines=lines, names=_grouped(solved, len(studies)))
    breaks = said("no sufficiently trained encoding fails on {lines} in every seed", lines=lines)
    if failed:
        breaks = said(
            "{lines} are not solved in any seed by {names}", lines=lines, names=_grouped(failed, len(studies))
        )
    return keeps, breaks


def _cost(study: Measures) -> Parts:
    """Give the range of the steps' cost, and the most expensive encoding if seeds separate it."""
    reference = study.reference()
    steps = {e.name: e.step_ms for e in study.encodings.values() if e.step_ms}
    ranked = sorted((n for n in steps if reference and n != reference.name), key=lambda n: steps[n].mean)
    if not reference or not reference.step_ms or not ranked:
        return said("no other encoding was timed, so costs cannot be compared")
    noise, base = study.step_noise(), Name(reference.name)
    if all(tied(steps[n], reference.step_ms, noise) for n in ranked):
        return said("no training step differs measurably in cost from that of {base}", base=base)
    means = [ratio.mean for n in ranked if (ratio := study.ratio(study.encodings[n]))]
    low, high = (f"{mean:.2f}×" for mean in (means[0], means[-1]))
    span = low if low == high else tr("{low} to {high}", low=low, high=high)
    if len(ranked) > 1 and not tied(steps[ranked[-1]], steps[ranked[-2]], noise):
        return said(
            "a training step costs {span} that of {base}, the most with {most}",
            span=span,
            base=base,
            most=Name(ranked[-1]),
        )
    return said("a training step costs {span} that of {base}", span=span, base=base)


def _open(studies: Sequence[Measures], unsure: Groups, missing: int) -> list[Parts]:
    """List what the study leaves open, and why."""
    reasons: list[Parts] = []
    weak: Groups = {}
    for study in studies:
        for e in study.encodings.values():
            if e.undertrained:
                weak.setdefault(e.name, []).append(study.task)
    if unsure:
        reasons.append(said("seeds disagree about {names}", names=_grouped(unsure, len(studies))))
    if weak:
        reasons.append(said("too little training for {names}", names=_grouped(weak, len(studies))))
    if missing == 1:
        reasons.append(said("1 cell is missing"))
    elif missing:
        reasons.append(said("{count} cells are missing", count=str(missing)))
    if max(study.seed_count for study in studies) == 1:
        reasons.append(said("a single seed does not show how much seeds differ"))
    return reasons


def _sentence(clauses: Iterable[Parts]) -> Parts:
    """Join clauses to one sentence, with a capital unless it starts with a name."""
    first, *rest = said("{clauses}.", clauses=joined(filter(None, clauses), tr("; ")))
    return (first if isinstance(first, Name) else first[:1].upper() + first[1:], *rest)


def form_answer(run: Mapping[str, Any], cells: Sequence[Mapping[str, Any]], missing: int = 0) -> tuple[Parts, ...]:
    """Return three sentences about the first size, or one sentence if no cell is measured.

    Takes a study's `run` and `cells` as saved, and the number of `missing` cells. Raises nothing for missing data.
    """
    sizes = sizes_of(run, cells)
    studies = [Measures(run, cells, task, sizes[0]) for task in tasks_of(run, cells)]
    studies = [study for study in studies if study.encodings]
    if not studies:
        return (said("No cell has been measured yet, so there is no answer yet."),)
    unsure: Groups = {}
    text = [study for study in studies if study.task == TEXT]
    tasks = [study for study in studies if study.task != TEXT]
    clauses = [_of_text(study, unsure) for study in text] + ([_of_tasks(tasks, unsure)] if tasks else [])
    keeps, breaks = ([clause[place] for clause in clauses] for place in (0, 1))
    if not any(breaks):
        breaks = [said("so the study cannot show which encodings break")]
    if len(sizes) > 1:
        keeps[0] = said("at size {size}, {clause}", size=sizes[0], clause=keeps[0])
    last = [_cost(studies[0])]
    if unknown := _open(studies, unsure, missing):
        last.append(said("some of this is open: {reasons}", reasons=_chained(unknown)))
    return _sentence(keeps), _sentence(breaks), _sentence(last)
