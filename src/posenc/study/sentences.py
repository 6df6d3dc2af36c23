"""Sentences that name encodings, in the current language, as parts that a page can format."""

from collections.abc import Iterable
from string import Formatter

from posenc.languages import template, tr


class Name(str):
    """The name of an encoding within a sentence, so that a page can format it."""


Parts = tuple[str, ...]


def said(text: str, /, **values: str | Parts) -> Parts:
    """Return a text in the current language as parts, with `values` in the place of {their names}.

    >>> said("{first} is ahead of {others}.", first=Name("rope"), others=listed([(Name("t5"),), (Name("nope"),)]))
    ('rope', ' is ahead of ', 't5', ' and ', 'nope', '.')
    """
    parts: list[str] = []
    for words, name, _, _ in Formatter().parse(template(text)):
        value = values[name] if name else ()
        parts += [words] if words else []
        parts += [value] if isinstance(value, str) else value
    return tuple(parts)


def joined(items: Iterable[Parts], separator: str) -> Parts:
    """Join sentence parts with a separator."""
    found = list(items)
    return tuple(part for place, parts in enumerate(found) for part in ((separator, *parts) if place else parts))


def listed(items: Iterable[Parts]) -> Parts:
    """Join sentence parts as in "a, b and c"."""
    found = list(items)
    if len(found) < 2:
        return joined(found, "")
    return said("{first} and {last}", first=joined(found[:-1], tr(", ")), last=found[-1])
