"""A report for people: lines for a terminal, and tables for a committed page."""

from posenc.bench.told import Found

_WIDTH = 27  # of a candidate's name
_GOALS = {
    "ratio": ("time", "at most {:.2f} of plain SDPA"),
    "of_q": ("memory", "under {:g} times q"),
    "of_dense": ("memory", "under {:.0%} of SDPA with a built mask"),
    "total_mib": ("process", "within {:,.0f} MiB"),
}
_VERDICT = {True: "reached", False: "missed", None: "not measured"}
HEADING = f"{'':{_WIDTH}} {'a call':>10} {'ratio':>7}  {'middle half':<14} {'memory':>9} {'of q':>6}"
NOTE = (
    "Ratios are to plain SDPA in the same round: median and middle half. Peers have rounds of their own, with plain "
    "SDPA once more, since they leave little of a cache. Memory is what a call adds to the peak of a fresh process "
    "beyond its inputs, its output included."
)


def row_lines(row: Found) -> list[str]:
    """Return one row as lines of at most 80 characters, sentences about what was skipped aside."""
    lines = [_title(row)]
    if row["skipped"]:
        return [*lines, f"  {row['skipped']}"]
    for candidate in row["candidates"]:
        if candidate["skipped"]:
            lines.append(f"  {candidate['title']}: skipped, {candidate['skipped']}")
        else:
            lines.append(f"  {candidate['title']:{_WIDTH - 2}.{_WIDTH - 2}} {_numbers(candidate)}".rstrip())
    notes = {c["memory_note"] for c in row["candidates"] if c["memory_note"]}
    lines += [f"  memory: {note}" for note in sorted(notes)]
    disturbed = sum(c["disturbed"] or 0 for c in row["candidates"])
    if disturbed:
        lines.append(f"  {disturbed} samples were disturbed by other work, however often they were taken again")
    return lines + [f"  goal: {sentence}" for sentence in goal_sentences(row)]


def verdict_lines(row: Found) -> list[str]:
    """Return what the backends say of a row."""
    lines = [_title(row)]
    if row["skipped"]:
        return [*lines, f"  {row['skipped']}"]
    for said in row["verdicts"]:
        size = f"{said['memory_mib']:,.1f} MiB" + ("" if said["of_q"] is None else f", {said['of_q']:,.1f} q")
        lines.append(f"  {said['backend']:18} {size:>24}  {said['verdict']}")
    return lines


def growth_lines(growth: Found) -> list[str]:
    """Return the exponents in length."""
    first, last = growth["lengths"][0], growth["lengths"][-1]
    lines = [f"{growth['name']}, {growth['dtype']}: cost = c * length ** p from {first:,} to {last:,} tokens"]
    for side in growth["candidates"]:
        told = [f"{what} p = {_or_none(side[what])}" for what in ("time", "memory")]
        lines.append(f"  {side['title']:{_WIDTH - 2}} {', '.join(told)}")
    goal, met = growth["goal"], {what: _VERDICT[reached] for what, reached in growth["met"].items()}
    return [
        *lines,
        f"  goal: memory p at most {goal['memory']:g}: {met['memory']}",
        f"  goal: time p {goal['time']}: {met['time']}",
    ]


def goal_sentences(row: Found) -> list[str]:
    """Return each goal of a row and whether it was reached."""
    sentences = []
    for key, value in row["goal"].items():
        what, how = _GOALS[key]
        sentences.append(f"{what} {how.format(value)}: {_VERDICT[row['met'].get(key)]}")
    return sentences


def markdown(report: Found, machine: str) -> str:
    """Return the whole report as a page."""
    parts = [f"# Attention with a position bias, measured\n\n{NOTE}\n\nMachine: {machine}."]
    for row in report["rows"]:
        lines = [f"## {_title(row)}", ""]
        if row["skipped"]:
            parts.append("\n".join([*lines, row["skipped"] + "."]))
            continue
        if row["goal"]:
            lines += ["Goal: " + "; ".join(goal_sentences(row)) + ".", ""]
        lines += ["| what | a call | ratio | middle half | memory, MiB | of q |", "|---|---|---|---|---|---|"]
        for c in row["candidates"]:
            numbers = f"skipped, {c['skipped']} | | | |" if c["skipped"] else f"{' | '.join(_cells(c))} |"
            lines.append(f"| {c['title']} | {numbers}")
        parts.append("\n".join(lines))
    for growth in report["growth"]:
        head, *rest = growth_lines(growth)
        parts.append("\n".join([f"## {head}", "", *(f"- {line.strip()}" for line in rest)]))
    return "\n\n".join(parts) + "\n"


def _title(row: Found) -> str:
    keys = "keys" if row["mode"] == "decode" else "tokens"
    more = [f"window {row['window']}"] if row["window"] else []
    more += [f"{row['documents']} documents"] if row["documents"] else []
    more += ["" if row["causal"] else "bidirectional", "" if row["device"] == "cpu" else row["device"]]
    items = f"{row['batch']} x " if row["batch"] > 1 else ""
    facts = [f"{items}{row['length']:,} {keys}", row["dtype"], *(m for m in more if m and m not in row["name"])]
    return f"{row['name']}: {', '.join(facts)}"


def _numbers(candidate: Found) -> str:
    seconds, ratio, half, memory, of_q = _cells(candidate)
    size = f"{memory} MiB" if memory else ""
    return f"{seconds:>10} {ratio:>7}  {half:<14} {size:>9} {of_q:>6}"


def _cells(candidate: Found) -> list[str]:
    ratio = candidate["ratio"]
    memory, of_q = candidate["memory_mib"], candidate["of_q"]
    return [
        duration(candidate["seconds"]["median"]),
        f"{ratio['median']:.2f}",
        f"{ratio['low']:.2f} .. {ratio['high']:.2f}",
        "" if memory is None else f"{memory:,.0f}" if memory >= 100 else f"{memory:.1f}",
        "" if of_q is None else f"{of_q:,.0f}" if of_q >= 100 else f"{of_q:.1f}",
    ]


def duration(seconds: float) -> str:
    """Return a duration in three digits.

    >>> duration(0.0123), duration(2.5), duration(0.000045)
    ('12.3 ms', '2.50 s', '45.0 us')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size or unit == "us":
            number = seconds / size
            return f"{number:.{2 if number < 10 else 1 if number < 100 else 0}f} {unit}"
    raise AssertionError


def _or_none(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.2f}"
