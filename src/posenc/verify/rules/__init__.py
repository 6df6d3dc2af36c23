"""Explanations of finding codes: one JSON file for each family, read on first use."""

import difflib
import functools
import json
import string
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FOUND, ASKED = {"used", "found", "speed", "at"}, {"asked", "wanted", "position"}  # slots of messages
FIELDS = {"title", "says", "why", "fix", "reports", "like"}


@dataclass(frozen=True)
class Rule:
    """One fault that a check can name.

    Args:
        code: family.aspect.fault; those of configurations are single words, as in `posenc inspect`.
        family: The code's first word, or the name of its file.
        title: The fault in one line.
        why: Why it hurts.
        fix: How to fix it.
        says: The message of a finding, with {slots} for measurements; if it is empty, the finding's own words or the
            title.
        reports: Links to public reports of the fault.
    """

    code: str
    family: str
    title: str
    why: str
    fix: str
    says: str = ""
    reports: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the rule ready for JSON."""
        return {name: value for name, value in asdict(self).items() if name != "says"}

    def says_nothing(self, values: Mapping[str, Any]) -> bool:
        """Return whether its message would print the same value for what was found and what was asked.

        >>> find("rope.frequency.base").says_nothing({"used": 10_000 + 1e-9, "asked": 10_000.0})
        True
        """
        said = {}
        for _, name, form, how in string.Formatter().parse(self.says):
            if name in values and name in FOUND | ASKED:
                said[name] = f"{{{name}{'!' + how if how else ''}:{form or ''}}}".format(**values)
        return not {said[name] for name in FOUND & set(said)}.isdisjoint(said[name] for name in ASKED & set(said))


@functools.cache
def known() -> Mapping[str, Rule]:
    """Return all rules by code, in the order of families and names.

    A rule inherits missing fields, except the reports, from the rule that its "like" names. A code such as
    "alibi|t5.no_effect" stands for one code of each family.

    Raises:
        ValueError: A file of rules is broken, or two files contain the same code.

    >>> known()["subject.raises"].title
    'The code raises an error when it is called by its convention'
    """
    read: dict[str, dict[str, Any]] = {}
    for path in sorted(Path(__file__).parent.glob("*.json")):
        for names, fields in json.loads(path.read_text(encoding="utf-8")).items():
            families, dot, rest = names.partition(".")
            for family in families.split("|"):
                code = f"{family}{dot}{rest}"
                if code in read:
                    raise ValueError(f"rules: {code} is in two files, one of them {path.name}. Remove one.")
                if unknown := set(fields) - FIELDS:
                    raise ValueError(f"rules: {code} in {path.name} has unknown fields {unknown}; use {FIELDS}.")
                read[code] = {"family": family if dot else path.stem, **fields}
    found = {}
    for code in sorted(read, key=lambda code: (read[code]["family"], code)):
        whole = {"says": "", "reports": [], **_whole(read, code)}
        if missing := {"title", "why", "fix"} - set(whole):
            raise ValueError(f"rules: {code} must have title, why and fix; {missing} are missing.")
        reports = tuple(whole.pop("reports"))
        found[code] = Rule(code, **{name: said for name, said in whole.items() if name != "like"}, reports=reports)
    return found


def _whole(read: Mapping[str, dict[str, Any]], code: str) -> dict[str, Any]:
    """Return the fields of a rule, with missing ones from the rule that its "like" names."""
    fields = read[code]
    if (like := fields.get("like")) is None:
        return fields
    if like not in read:
        raise ValueError(f"rules: a rule is like {like!r}, which is in no file.")
    return {**_whole(read, like), "reports": [], **fields}


def find(code: str) -> Rule:
    """Return the rule of a code.

    Raises:
        ValueError: The code is unknown; the message names the nearest ones.
    """
    every = known()
    if code in every:
        return every[code]
    asked = code[:100].lower()
    near = difflib.get_close_matches(asked, every, 3, 0.5)
    near += [name for name in every if asked and asked.split(".")[-1] in name.split(".") and name not in near][:3]
    hint = f"did you mean {' or '.join(map(repr, near[:3]))}?" if near else "`posenc rule` lists all."
    raise ValueError(f"rule: unknown code {code[:100]!r}: {hint}")


def families() -> Mapping[str, list[Rule]]:
    """Return the rules by their codes' first word."""
    found: dict[str, list[Rule]] = {}
    for each in known().values():
        family, dot, _ = each.code.partition(".")
        found.setdefault(family if dot else "config", []).append(each)  # configuration codes are single words
    return found
