"""Encodings of other packages: entry points in the group `posenc.encodings`, name = "package.module:Class".

A package is imported when the name of its encoding is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "posenc.encodings"


def points(taken: Callable[[], Iterable[str]]) -> dict[str, EntryPoint]:
    """Return the encodings of installed packages by name, without importing them.

    Args:
        taken: A function that returns posenc's own names; called only if there are entry points.

    Raises:
        ValueError: Two packages, or a package and posenc, give the same name.
    """
    from importlib.metadata import entry_points  # slow to import, and rarely needed

    offers = entry_points(group=GROUP)
    givers = dict.fromkeys(taken() if offers else (), "posenc")
    found = {}
    for point in offers:
        if (other := givers.get(point.name)) is not None:
            raise ValueError(
                f"registry: two packages have an encoding named {point.name!r}: {other} and {giver(point)}. "
                f"Uninstall {giver(point)}, or rename its entry point in {GROUP}."
            )
        givers[point.name], found[point.name] = giver(point), point
    return found


def giver(point: EntryPoint) -> str:
    """Return the package of an entry point, with the entry point's value."""
    package = point.dist.name if point.dist else "a package"
    return f"{package} ({point.value})"


def load(point: EntryPoint) -> Any:
    """Import the object of an entry point.

    Raises:
        ValueError: The import raises an error.
    """
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # a package may raise any error
        raise ValueError(
            f"registry: the encoding {point.name!r} of {giver(point)} cannot be loaded: {type(error).__name__}: "
            f"{error}. Repair or uninstall that package."
        ) from error
