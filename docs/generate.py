"""Write encodings.md from the registry, laws.md from the laws, stacks.md from the rules of parity, and the list of
conventions in verify.md.

A test keeps them in step. `python docs/generate.py stacks.md` writes one.
"""

import inspect
import json
import sys
import textwrap
from pathlib import Path

import posenc
from posenc import laws
from posenc.character import Character
from posenc.cli import table
from posenc.cli.listing import NEEDS, order_families
from posenc.cli.show import read_arguments
from posenc.laws.exceptions import EXCEPTIONS
from posenc.parity import loading
from posenc.parity import table as rules_table
from posenc.verify import explain, spec
from posenc.verify.conventions import CONVENTIONS

HERE = Path(__file__).parent


def encodings() -> str:
    """Return the page of encodings: what `posenc list --table` prints, and a section for each."""
    cards = [posenc.card(name) for name in posenc.names()]
    facts, reach, form = table.tabulate([card for members in order_families(cards).values() for card in members])
    lines = ["# Encodings", "", "Generated from the registry by `python docs/generate.py`.", ""]
    lines += [*_by_need(cards), "", *_table(facts.join(_peers(facts)))]
    lines += ["", "Peer code: other libraries, and the models of transformers, whose numbers tests compare with."]
    lines += ["", "## Character", "", "As `posenc list --table` measures it on each card's example. "]
    lines[-1] += _prose(Character)
    lines += ["", *_table(reach), "", *_table(form), ""]
    lines += [f"- `{trait}`: {meaning}" for trait, meaning in read_arguments(Character.__doc__ or "").items()]
    lines += ["", "`posenc list --json` and `posenc show` print the declared traits; tests compare them with these."]
    for card in cards:
        source = f"{card.paper} ({card.year}" + (f", arXiv {card.arxiv})" if card.arxiv else ")")
        lines += ["", f"## {card.name}", "", f"`posenc.{card.cls.__name__}({', '.join(card.options)})`", ""]
        lines += [f"    {card.formula}", "", f"{source}.", "", _prose(card.cls)]
        if card.plans:
            lines += ["", "Plans of papers:", "", *(f"- `{call}`" for call in card.plan_calls.values())]
        if card.used_by:
            lines += ["", f"Used by: {', '.join(card.used_by)}."]
    return "\n".join(lines) + "\n"


def _peers(facts: table.Grid) -> table.Grid:
    """Return the column of the peers that tests compare each encoding with, from peers.json."""
    peers = json.loads((HERE / "peers.json").read_text())
    rows = []
    for name, *_ in facts.rows:
        of = peers.get(name, {}).items()
        rows.append((name, "; ".join(f"{lib}: {', '.join(models)}" if models else lib for lib, models in of) or "-"))
    return table.Grid(("name", "peer code"), rows)


def _by_need(cards: list[posenc.Card]) -> list[str]:
    """Return a table of the encodings for each need, as `posenc list --for` chooses it."""
    lines = ["| `posenc list --for` | what for | encodings |", "|---|---|---|"]
    for need, meaning in NEEDS.items():
        links = " ".join(f"[`{card.name}`](#{card.name})" for card in cards if need in card.serves)
        lines.append(f"| `{need}` | {meaning} | {links} |")
    return lines


def _table(grid: table.Grid) -> list[str]:
    """Return a grid in Markdown, with names that lead to their sections."""
    titles = (title.replace("\n", " ") for title in grid.titles)
    rows = [(f"[`{name}`](#{name})", *rest) for name, *rest in grid.rows]
    return [f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(grid.titles), *rows)]


def _prose(cls: type) -> str:
    """Return a class's docstring up to its arguments, as one paragraph."""
    text = inspect.cleandoc(cls.__doc__ or "")
    text = text.split("\nArgs:")[0].split("\nRaises:")[0].split("\n>>>")[0]
    return " ".join(text.split())


def laws_page() -> str:
    """Return the page of laws."""
    lines = ["# Laws", "", "Generated from `posenc.laws` by `python docs/generate.py`.", ""]
    lines += [
        "Before each law every parameter is drawn from N(0, 1). Tolerances: 1e-12 of the largest score in float64, "
        "4e-6 in float32; in half precision 1.5 times the error of plain attention.",
        "",
        "| law | what holds |",
        "|---|---|",
    ]
    lines += [f"| {law.name} | {law.text} |" for law in laws.LAWS.values()]
    lines += ["", "## Exceptions", "", "This list is complete; every other failure is a bug.", ""]
    lines += [f"- {cls.__name__}, {law}: {reason}." for (cls, law), reason in EXCEPTIONS.items()]
    return "\n".join(lines) + "\n"


def stacks() -> str:
    """Return the page of stacks: a hand-written head, the table of differences, and the results of the check."""
    head = (HERE / "stacks_head.md").read_text()
    titles, *rows = rules_table.rows(loading.choose(None))
    lines = ["## What each stack reads", ""]
    lines += [f"| {' | '.join(cells)} |" for cells in (titles, ["---"] * len(titles), *rows)]
    lines += [
        "",
        "## How the rules are known",
        "",
        "| stack | rules read in source | run on a CPU | unknown |",
        "|---|---|---|---|",
    ]
    for name, rules in loading.known().items():
        seen = [note.seen for note in rules.every_note()]
        lines.append(f"| {name} | {' | '.join(str(seen.count(how)) for how in ('read', 'run', 'unknown'))} |")
    lines += ["", *_outcome()]
    for rules in loading.known().values():
        lines += [f"- {rules.project} {rules.version}: {note}" for note in rules.notes]
    return head + "\n" + "\n".join(lines) + "\n"


def _outcome() -> list[str]:
    """Return the results of the last run of benchmarks/parity_check.py."""
    found = json.loads((HERE.parent / "benchmarks/parity_check.json").read_text())
    said = (
        f"Checked against the stacks' published packages on {found['date']} by `benchmarks/parity_check.py`: each "
        f"stack's own classes construct the rotation of {len(found['cases'])} configurations on a CPU."
    )
    lines = [said, ""]
    for name, rows in found["stacks"].items():
        asked = {case: said for case, said in rows.items() if said != "-"}
        wrong = [f"{case} ({said})" for case, said in asked.items() if said]
        lines.append(
            f"- {name}: {len(asked) - len(wrong)} of {len(asked)} agree{'; not: ' + '; '.join(wrong) if wrong else ''}."
        )
    lines += ["", "The cases: " + "; ".join(found["cases"]) + ".", "", "Notes:", ""]
    return lines


BEGIN, END = "<!-- generated by docs/generate.py -->\n", "<!-- end -->\n"


def verify_page() -> str:
    """Return verify.md with its list of conventions, words and values: code blocks, which need no translation."""
    head, _, rest = (HERE / "verify.md").read_text().partition(BEGIN)
    lines = ["```text"]
    for name, row in CONVENTIONS.items():
        lines += [name, _wrapped(row.call, 4), _wrapped(f"encoding: {row.encodings or 'any'}", 4)]
    groups: dict[str, list[str]] = {}
    for name, words in spec.READS.items():
        groups.setdefault(" ".join(dict.fromkeys(words.split())), []).append(name)
    lines += ["```", "", "```text"]
    for words, names in groups.items():
        lines += [_wrapped(" ".join(names), 0), _wrapped("every word" if names == ["encoding"] else words, 4)]
    lines += ["```", "", "```text"]
    values: dict[str, list[str]] = {}
    for word in sorted(spec.WORDS - {"kind"}):
        values.setdefault(explain.values_of(word), []).append(word)
    lines += [_wrapped(f"{' '.join(words)}: {value.replace('`', '')}", 0, 4) for value, words in values.items()]
    lines += [_wrapped("rope_type: " + ", ".join(sorted(spec.SCALINGS | spec.ONLY_CONFIG)), 0, 4), "```"]
    return head + BEGIN + "\n".join(lines) + "\n" + END + rest.partition(END)[2]


def _wrapped(words: str, indent: int, hang: int | None = None) -> str:
    more = " " * (indent if hang is None else hang)
    return textwrap.fill(words, 72, initial_indent=" " * indent, subsequent_indent=more, break_on_hyphens=False)


PAGES = {"encodings.md": encodings, "laws.md": laws_page, "stacks.md": stacks, "verify.md": verify_page}

if __name__ == "__main__":
    for name in sys.argv[1:] or PAGES:
        (HERE / name).write_text(PAGES[name]())
