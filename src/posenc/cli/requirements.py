"""Requirements in a distribution's metadata, in the forms that posenc's own metadata uses.

`packaging` reads every form, but it is no dependency of posenc, and the doctor must run where
packages are missing.
"""

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace

_BOUND = r"(?:>=|<)\s*[\w.]+"
_FORM = re.compile(
    rf"(?P<package>[\w.-]+)\s*(?P<options>\[[^\]]*\])?\s*(?P<bounds>(?:{_BOUND}\s*(?:,\s*{_BOUND})?)?)"
    r"(?:\s*;\s*(?:\(?sys_platform\s*==\s*['\"](?P<system>\w+)['\"]\)?\s+and\s+)?"
    r"extra\s*==\s*['\"](?P<extra>[\w.-]+)['\"])?"
)


@dataclass(frozen=True)
class Requirement:
    """One line of the metadata: `ray[tune]>=2.40; extra == 'ray'`, whose options are ("tune",)."""

    package: str
    minimum: str
    below: str
    extra: str
    spelling: str
    options: tuple[str, ...] = ()

    @property
    def bounds(self) -> str:
        """The accepted versions: `>=2.40`, `>=5.23,<5.24`, or nothing."""
        return ",".join(sign + version for sign, version in ((">=", self.minimum), ("<", self.below)) if version)


def read_requirements(lines: Iterable[str]) -> list[Requirement]:
    """Read requirements of the form package[options]>=version,<version; extra == 'name', also for only one system.

    Raises:
        ValueError: A line has another form.

    >>> read_requirements(["ray[tune]>=2.40; extra == 'ray'"])
    [Requirement(package='ray', minimum='2.40', below='', extra='ray', spelling='ray[tune]>=2.40', options=('tune',))]
    """
    read = []
    for line in lines:
        found = _FORM.fullmatch(line.strip())
        if not found:
            raise ValueError(
                f"doctor: cannot read the requirement {line!r} in posenc's metadata, because only "
                "package[options]>=version,<version; extra == 'name' is known. Extend posenc.cli.requirements."
            )
        if found["system"] and found["system"] != sys.platform:
            continue  # for another system
        spelling = line.split(";")[0].strip()
        bounds = dict(re.findall(r"(>=|<)\s*([\w.]+)", found["bounds"]))
        least, below = bounds.get(">=", ""), bounds.get("<", "")
        options = tuple(re.findall(r"[\w.-]+", found["options"] or ""))
        read.append(Requirement(found["package"], least, below, found["extra"] or "", spelling, options))
    return read


def whole(requirements: list[Requirement], package: str = "posenc") -> list[Requirement]:
    """Replace an extra that another extra of the same package names by the requirements of the first.

    >>> torch, plot = read_requirements(["torch; extra == 'torch'", "posenc[torch]; extra == 'plot'"])
    >>> [(one.package, one.extra) for one in whole([torch, plot])]
    [('torch', 'torch'), ('torch', 'plot')]
    """
    found = []
    for one in requirements:
        if one.package != package:
            found.append(one)
            continue
        within = [r for r in whole([r for r in requirements if r != one], package) if r.extra in one.options]
        found += [replace(r, extra=one.extra) for r in within]
    return list(dict.fromkeys(found))


def is_at_least(version: str, minimum: str) -> bool:
    """Compare the numbers of two versions; suffixes (rc1, +cpu) do not count.

    >>> is_at_least("2.13.0+cpu", "2.13"), is_at_least("2.9", "2.13"), is_at_least("3", "")
    (True, False, True)
    """
    have, need = _numbers(version), _numbers(minimum)
    length = max(len(have), len(need))
    return have + [0] * (length - len(have)) >= need + [0] * (length - len(need))


def _numbers(version: str) -> list[int]:
    found = re.match(r"\d+(\.\d+)*", version)
    return [int(part) for part in found[0].split(".")] if found else []
