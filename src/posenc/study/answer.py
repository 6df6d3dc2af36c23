"""The study's answer in three sentences: which encodings hold past the trained length, which break, and the cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .findings import Name, Parts, listed
from .measures import BREAK, FLAT, TEXT, Measures, Stat, signed, sizes_of, tasks_of, tied, with_spread

NONE_SOUND = "no sufficiently trained encoding"
Groups = dict[str, list[str]]  # names of encodings, each with its tasks


def _grouped(groups: Groups, of: int) -> Parts:
    """List encodings by the tasks they share, as in "rope and t5 on copy and parity"; `of` tasks are all of them."""
    shared: dict[tuple[str, ...], list[str]] = {}
    for name, tasks in groups.items():
        shared.setdefault(tuple(tasks), []).append(name)
    pieces: list[Parts] = []
    for labels, names in shared.items():
        where = f"all {of} tasks" if len(labels) == of > 2 else "".join(listed((label,) for label in labels))
        pieces.append((*listed((Name(n),) for n in names), f" on {where}"))
    return pieces[0] if len(pieces) == 1 else tuple(part for p in pieces for part in (", ", *p))[1:]


def _ranged(stats: Mapping[str, Stat], names: Sequence[str]) -> Parts:
    """List names, then the value of a single one, or the range of the means of several."""
    shown = with_spread(stats[names[0]], sign=True)
    if len(names) > 1:
        means = sorted(stats[n].mean for n in names)
        shown = f"{signed(means[0])} to {signed(means[-1])}"
    return (*listed((Name(n),) for n in names), f" ({shown} bits per byte)")


def _of_text(study: Measures, unsure: Groups) -> tuple[Parts, Parts]:
    """List who keeps its loss and who breaks, in every seed; add to `unsure` those whose seeds disagree."""
    longest = study.longest
    if longest is None:
        return (f"on text {NONE_SOUND} was measured past the trained length",), ()
    far = f"{longest:,} bytes ({study.times(longest)} the trained length)"
    found: list[tuple[dict[str, Stat], list[str]]] = []
    for at in ("worst", "change"):
        stats = {e.name: Stat(tuple(v.values())) for e in study.sound if (v := study.by_seed(e.name, at))}
        holds = {n: [v <= FLAT if at == "worst" else v > BREAK for v in s.values] for n, s in stats.items()}
        for name in (n for n in holds if any(holds[n]) and not all(holds[n])):
            unsure.setdefault(name, [TEXT])
        found.append((stats, sorted((n for n in holds if all(holds[n])), key=lambda n: stats[n].mean)))
    (worst, keep), (change, broken) = found
    keeps: Parts = (f"{NONE_SOUND} keeps its loss on text within {FLAT} bits per byte up to {far} in every seed",)
    if keep:
        keeps = (*_ranged(worst, keep), f" keep{'s' * (len(keep) == 1)} the loss on text up to {far}")
    breaks: Parts = (f"{NONE_SOUND} loses more than {BREAK:.2f} bits per byte there in every seed",)
    if broken:
        breaks = (*_ranged(change, broken), f" lose{'s' * (len(broken) == 1)} more than {BREAK:.2f} there")
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
        return (f"on the tasks {NONE_SOUND} was measured past the trained length",), ()
    reach = {study.times(study.longest or 0) for study in tested}
    lines = "the longest lines" + (f" ({reach.pop()} the longest trained)" if len(reach) == 1 else "")
    keeps: Parts = (f"{NONE_SOUND} solves {lines} of any task in every seed",)
    if solved:
        keeps = (f"{lines} are solved in every seed by ", *_grouped(solved, len(studies)))
    breaks: Parts = (f"{NONE_SOUND} fails on {lines} in every seed",)
    if failed:
        breaks = (f"{lines} are solved in no seed by ", *_grouped(failed, len(studies)))
    return keeps, breaks


def _cost(study: Measures) -> Parts:
    """Give the range of the steps' cost, and the most expensive encoding if seeds separate it."""
    reference = study.reference()
    steps = {e.name: e.step_ms for e in study.encodings.values() if e.step_ms}
    ranked = sorted((n for n in steps if reference and n != reference.name), key=lambda n: steps[n].mean)
    if not reference or not reference.step_ms or not ranked:
        return ("no other encoding was timed, so costs cannot be compared",)
    noise = study.step_noise()
    if all(tied(steps[n], reference.step_ms, noise) for n in ranked):
        return ("no training step differs measurably in cost from that of ", Name(reference.name))
    means = [ratio.mean for n in ranked if (ratio := study.ratio(study.encodings[n]))]
    span = " to ".join(dict.fromkeys(f"{mean:.2f}×" for mean in (means[0], means[-1])))
    parts: Parts = (f"a training step costs {span} that of ", Name(reference.name))
    if len(ranked) > 1 and not tied(steps[ranked[-1]], steps[ranked[-2]], noise):
        parts += (", the most with ", Name(ranked[-1]))
    return parts


def _open(studies: Sequence[Measures], unsure: Groups, missing: int) -> list[Parts]:
    """List what the study leaves open, and why."""
    reasons: list[Parts] = []
    weak: Groups = {}
    for study in studies:
        for e in study.encodings.values():
            if e.undertrained:
                weak.setdefault(e.name, []).append(study.task)
    for words, groups in (("seeds disagree about ", unsure), ("too little training for ", weak)):
        if groups:
            reasons.append((words, *_grouped(groups, len(studies))))
    if missing:
        reasons.append((f"{missing} {'cell is' if missing == 1 else 'cells are'} missing",))
    if max(study.seed_count for study in studies) == 1:
        reasons.append(("a single seed does not show how much seeds differ",))
    return reasons


def _sentence(parts: Iterable[Parts]) -> Parts:
    """Join clauses to one sentence, with a capital unless it starts with a name."""
    joined = tuple(part for clause in parts if clause for part in ("; ", *clause))[1:]
    first = joined[0] if isinstance(joined[0], Name) else joined[0][:1].upper() + joined[0][1:]
    return (first, *joined[1:], ".")


def form_answer(run: Mapping[str, Any], cells: Sequence[Mapping[str, Any]], missing: int = 0) -> tuple[Parts, ...]:
    """Return three sentences about the first size, or one sentence if no cell is measured.

    Takes a study's `run` and `cells` as saved, and the number of `missing` cells. Raises nothing for missing data.
    """
    sizes = sizes_of(run, cells)
    studies = [Measures(run, cells, task, sizes[0]) for task in tasks_of(run, cells)]
    studies = [study for study in studies if study.encodings]
    if not studies:
        return (("No cell has been measured yet, so there is no answer yet.",),)
    unsure: Groups = {}
    text = [study for study in studies if study.task == TEXT]
    tasks = [study for study in studies if study.task != TEXT]
    clauses = [_of_text(study, unsure) for study in text] + ([_of_tasks(tasks, unsure)] if tasks else [])
    keeps, breaks = ([clause[place] for clause in clauses] for place in (0, 1))
    if not any(breaks):
        breaks = [("so the study cannot show which encodings break",)]
    if len(sizes) > 1:
        keeps[0] = (f"at size {sizes[0]}, ", *keeps[0])
    unknown = _open(studies, unsure, missing)
    last = [_cost(studies[0])]
    if unknown:
        last.append(
            tuple(
                part for k, clause in enumerate(unknown) for part in (", " if k else "some of this is open: ", *clause)
            )
        )
    return _sentence(keeps), _sentence(breaks), _sentence(last)
