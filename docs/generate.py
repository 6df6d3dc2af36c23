"""Write encodings.md from the registry, laws.md from the laws, stacks.md from the rules of parity, and the list of
conventions in verify.md.

A test keeps them in step. `python docs/generate.py stacks.md` writes one.
"""

import inspect
import json
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import posenc
from posenc import laws
from posenc.character import Character
from posenc.cli import table
from posenc.cli.listing import NEEDS, order_families
from posenc.cli.show import read_arguments
from posenc.laws.exceptions import EXCEPTIONS
from posenc.parity import loading, measured
from posenc.parity import table as rules_table
from posenc.verify import explain, spec
from posenc.verify.conventions import CONVENTIONS
from posenc.verify.families import added_words, rotation_asked

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
        "4e-6 in float32 and for a class of your own that computes in it; in half precision 1.5 times the error of "
        "plain attention.",
        "",
        "| law | what holds |",
        "|---|---|",
    ]
    lines += [f"| {law.name} | {law.text} |" for law in laws.LAWS.values()]
    lines += ["", "## Exceptions", "", "This list is complete; every other failure is a bug.", ""]
    lines += [f"- {cls.__name__}, {law}: {reason}." for (cls, law), reason in EXCEPTIONS.items()]
    return "\n".join(lines) + "\n"


def stacks() -> str:
    """Return the page of stacks: a hand-written head, the table of differences, and the age of each measurement."""
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
    lines += ["", *_measured()]
    for rules in loading.known().values():
        lines += [f"- {rules.project} {rules.version}: {note}" for note in rules.notes]
    return head + "\n" + "\n".join(lines) + "\n"


def _measured() -> list[str]:
    """Return how old each table of measurements is, and what it holds."""
    lines = [
        "Measured by `benchmarks/stacks`, which builds small models of each type with the stack's own classes and "
        "changes one key at a time. A model type that is not measured is unknown.",
        "",
        "| stack | measured on | model types | with departures from the rules | could not be built |",
        "|---|---|---|---|---|",
    ]
    for name, rules in loading.known().items():
        if found := measured.table(rules.stack, rules.version):
            models = found["models"]
            counts = (len(models), sum(bool(outcomes) for outcomes in models.values()), len(found["unbuilt"]))
            lines.append(f"| {name} | {found['date']} | {' | '.join(map(str, counts))} |")
    return [*lines, "", "Notes:", ""]


# the frequency f of pair k, in Python; w is base ** (-2 * k / d), d the rotated width, n the length of the text, and L
# original_max_position_embeddings. A gain other than 1 multiplies q and k
_STRETCHED = "original_max_position_embeddings"
SCALINGS = {
    "default": "f = w",
    "linear": "f = w / factor",
    "ntk_alpha": "f = (base * alpha ** (d / (d - 2))) ** (-2 * k / d)",
    "dynamic": "f = (base * (factor * max(n, L) / L - factor + 1) ** (d / (d - 2))) ** (-2 * k / d)",
    "yarn": (
        "low = floor(d * log(L / (2 * pi * beta_fast)) / (2 * log(base))); "
        "high = ceil(d * log(L / (2 * pi * beta_slow)) / (2 * log(base))); "
        "f = w / factor + (w - w / factor) * clip((high - k) / (high - low), 0, 1); gain = 0.1 * log(factor) + 1"
    ),
    "llama3": (
        "part = (L * w / (2 * pi) - low_freq_factor) / (high_freq_factor - low_freq_factor); "
        "f = w / factor + (w - w / factor) * clip(part, 0, 1)"
    ),
    "longrope": "f = w / (short_factor if n <= L else long_factor); gain = sqrt(1 + log(factor) / log(L))",
    "proportional": "f = w * (k < rotary_dim / 2)",
}
SAME = {"default": "none mrope", "longrope": "su"}  # other names
REMARKS = {"proportional": "(d = head_dim)", "ntk_alpha": "(HunYuan's; its files name it dynamic)"}
_WORDS = {
    **{"max_positions": 8192, "alpha": 8.0, "factor": 4.0, _STRETCHED: 1024, "rotary_dim": 16},
    **{"low_freq_factor": 1.0, "high_freq_factor": 4.0, "short_factor": [1.0] * 16, "long_factor": [2.0] * 16},
    **{"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 0.7, "mscale_all_dim": 0.5, "attention_factor": 1.1},
    **{"truncate": False},
}  # each in turn is left out; what is refused then is needed


_MEANT = {
    **{"half": "all sines first", "interleaved": "sines and cosines in turn"},
    **{"xy": "x first", "yx": "y first", "woven_xy": "x and y in turn"},
}
# variants of other encodings than sinusoids
_OTHERS = {
    "authors": "ALiBi; beyond a power of two, heads get every other slope of the next one (also the default)",
    "geometric paper": "ALiBi; head i of n has slope 2 ** (-8 * i / n), whatever n",
    "falcon": "ALiBi; slope, position and product are rounded to bfloat16",
    "learned": "ALiBi; any slopes",
    "symmetric": "ALiBi; keys ahead get the same penalty as keys behind",
    "one-sided": "ALiBi; keys ahead get none",
    "c2p p2c": "DeBERTa; one of the two terms, else both",
}


def scaling_spec(name: str) -> dict[str, Any]:
    """Return a specification of a scaling with the words that it needs, as `posenc verify` refuses it without them."""
    said: dict[str, Any] = {"head_dim": 32, "base": 10000.0, "scaling": {"rope_type": name}, **_WORDS}
    if name != "proportional":
        del said["rotary_dim"]
    for word in [word for word in _WORDS if word in said and (name, word) != ("proportional", "rotary_dim")]:
        less = {key: value for key, value in said.items() if key != word}
        with suppress(ValueError):
            asked = rotation_asked.read(spec.read(less, "rope_fn")[0])
            asked.inv_freq(1), asked.inv_freq(asked.original + 1)
            said = less
    return said


def _scalings() -> list[str]:
    """Return the formula and the needed words of each rope_type."""
    lines = [_wrapped("rope_type, its frequency f of pair k, and the words that it needs; w = base ** (-2 * k / d)", 0)]
    for name, formula in SCALINGS.items():
        needed = [word for word in scaling_spec(name) if word in _WORDS]
        names = " ".join((name, SAME.get(name, ""), REMARKS.get(name, ""))).split()
        lines += [" ".join(names), *(_wrapped(part, 4, 8) for part in formula.split("; "))]
        lines += [_wrapped(f"needs {' '.join(needed)}", 4)] if needed else []
    return lines


def _variants() -> list[str]:
    """Return what each variant of a sinusoid fixes, for texts and for images: what differs from a spec without it."""
    fixed: dict[str, list[str]] = {}
    for name in spec.FORMULAS.split():
        words = [*_differs(name, image=False)]
        words += [f"{said} (images)" for said in _differs(name, image=True) if said not in words]
        fixed.setdefault("; ".join(words) or "nothing beyond the paper's formula", []).append(name)
    fixed |= {words: [names] for names, words in _OTHERS.items()}
    return [_wrapped(f"{' '.join(names)}: {words}", 0, 4) for words, names in fixed.items()]


def _differs(name: str, *, image: bool) -> Iterator[str]:
    plain, own = (added_words.read({"dim": 16, **said}, image=image)[0] for said in ({}, {"variant": name}))
    for key, what in (("rule", ""), ("order", ""), ("join", ""), ("start", "first position ")):
        said = dict.fromkeys(one[key] for one in own)
        if said != dict.fromkeys(one[key] for one in plain):
            names = (_MEANT.get(one, f"{one}".split(", ")[0].removesuffix(".0")) for one in said)
            yield what + " or ".join(names)
    said = dict.fromkeys("divided" if one["over"] else "as they are" for one in own)
    if said.keys() != {"as they are"}:
        yield f"positions {' or '.join(said)} by the size, times 2 pi"


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
    lines += ["```", "", "```text", *_scalings(), "```", "", "```text", *_variants(), "```"]
    return head + BEGIN + "\n".join(lines) + "\n" + END + rest.partition(END)[2]


def _wrapped(words: str, indent: int, hang: int | None = None) -> str:
    more = " " * (indent if hang is None else hang)
    return textwrap.fill(words, 72, initial_indent=" " * indent, subsequent_indent=more, break_on_hyphens=False)


PAGES = {"encodings.md": encodings, "laws.md": laws_page, "stacks.md": stacks, "verify.md": verify_page}

if __name__ == "__main__":
    for name in sys.argv[1:] or PAGES:
        (HERE / name).write_text(PAGES[name]())
