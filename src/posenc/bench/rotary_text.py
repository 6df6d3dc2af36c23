"""The report of `posenc bench rotary` for people: lines for a terminal, and tables for a committed page."""

from posenc.bench.measure import TRIES
from posenc.bench.rotary import Found
from posenc.bench.rotary_calls import title
from posenc.bench.text import duration

_WIDTH = 30  # of a candidate's name
HEADING = f"{'':{_WIDTH}} {'a call':>10} {'ratio':>7}  {'middle half':<16} {'faults':>9}"
NOTE = (
    "Ratios are to a row's first line in the same round: median and middle half. A sample in which a thread lost its "
    f"core is taken again, up to {TRIES} times. Faults are a call's page faults: memory that the system had to find."
)
_STATES = {"fresh": "new pages for each large tensor (stock)", "reused": "reused pages"}


def row_lines(row: Found) -> list[str]:
    """Return one row as lines of at most 80 characters, sentences about what was skipped aside."""
    lines = [row_title(row)]
    if row["skipped"]:
        return [*lines, f"  {row['skipped']}"]
    for candidate in row["candidates"]:
        if candidate["skipped"]:
            lines.append(f"  {candidate['title']}: not measured, {candidate['skipped']}")
        else:
            seconds, ratio, half, faults, *rate = cells(candidate)
            numbers = f"{seconds:>10} {ratio:>7}  {half:<16} {faults:>9}".rstrip()
            lines.append(f"  {candidate['title']:{_WIDTH - 2}.{_WIDTH - 2}} {numbers}")
            lines += [f"    {each} tokens per second" for each in rate]
    lines += [f"  memory: {sentence}" for sentence in page_sentences(row)]
    disturbed = sum(c["disturbed"] or 0 for c in row["candidates"])
    if disturbed:
        lines.append(f"  {disturbed} samples were disturbed by other work, however often they were taken again")
    return lines + [f"  goal: {sentence}" for sentence in goal_sentences(row)]


def page_sentences(row: Found) -> list[str]:
    """Return the state of the allocator in this row, measured."""
    if not row["pages"]:
        return []
    clone, faults = row["pages"]["clone"], row["pages"]["faults"]
    counted = "" if faults is None else f" and {faults:,} page faults"
    return [f"{_STATES[row['pages']['state']]}: a clone takes {clone['median']:.2f} copies{counted}"]


def goal_sentences(row: Found) -> list[str]:
    """Return each goal of a row and whether it was reached."""
    return [_say_goal(goal) for goal in row["goals"]]


def markdown(rows: list[Found], heading: str) -> str:
    """Return rows as sections of a page, under a heading of their own."""
    parts = [f"## {heading}"]
    for row in rows:
        lines = [f"### {row_title(row)}", ""]
        if row["skipped"]:
            parts.append("\n".join([*lines, row["skipped"] + "."]))
            continue
        if row["pages"]:
            lines += [f"Memory: {page_sentences(row)[0]}.", ""]
        lines += ["| what | a call | ratio | middle half | faults |", "|---|---|---|---|---|"]
        for c in row["candidates"]:
            seconds, ratio, half, faults, *rate = ("", "", "", "") if c["skipped"] else cells(c)
            what = f"{c['title']}, not measured: {c['skipped']}" if c["skipped"] else c["title"]
            what += "".join(f", {each} tokens per second" for each in rate)
            lines.append(f"| {what} | {seconds} | {ratio} | {half} | {faults} |")
        parts.append("\n".join(lines))
        if row["goals"]:
            parts.append("\n".join(f"- {sentence}" for sentence in goal_sentences(row)))
    return "\n\n".join(parts)


def row_title(row: Found) -> str:
    """Return what a row is, with its shapes."""
    shape = row["shape"]
    if row["kind"] == "prefill":
        return f"{row['name']}: a small Llama reads {shape['length']:,} tokens, {row['dtype']}"
    if row["kind"] == "generate":
        return f"{row['name']}: a small Llama generates, batch {shape['batch']}, {row['dtype']}"
    heads = f"{shape['n_heads']}+{shape['n_kv_heads']}"
    sizes = (shape["batch"], heads, shape["length"], shape["head_dim"])
    memory = ", tokens first in memory" if row["transposed"] else ""
    return f"{row['name']}: ({', '.join(map(str, sizes))}), {row['dtype']}{memory}"


def cells(candidate: Found) -> list[str]:
    """Return a candidate's numbers: a call, ratio, middle half, faults, and tokens per second of a model."""
    ratio, rate, faults = candidate["ratio"], candidate["tokens_per_s"], candidate["faults"]
    numbers = [
        duration(candidate["seconds"]["median"]),
        f"{ratio['median']:.2f}",
        f"{ratio['low']:.2f} .. {ratio['high']:.2f}",
        "" if faults is None else f"{faults:,}",
    ]
    return numbers + ([f"{rate['median']:,.0f}"] if rate else [])


def _say_goal(goal: Found) -> str:
    limit = f"{goal['title']}: at most {goal['limit']:.2f} of {_short(goal['beside'])}"
    if goal["ratio"] is None:
        return f"{limit}: not measured"
    got = f"{goal['ratio']['median']:.2f} by {goal['by'].partition(':')[2] or goal['by']}"
    if goal["reached"] is None:
        return f"{limit}: {got}, set for {'stock' if goal['state'] == 'fresh' else 'reused pages'}"
    return f"{limit}: {'reached' if goal['reached'] else 'missed'}, {got}"


def _short(name: str) -> str:
    return {"copy": "a copy", "clone": "clone"}.get(name) or title(name)
