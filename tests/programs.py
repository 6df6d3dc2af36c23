"""Programs that `verify` is tried on: correct ones, and the same with a fault or with a harmless change.

`verify/programs/*.py` are correct, each with STYLE (its convention), SPEC, EXPECT and build(). `verify/faults.toml`
changes them by replacing text, each old text occurring once:

    [corpus.NAME]  # a fault of a public report; [unseen.NAME]: of an author who had not seen the checks;
                      # [drawn.NAME]: one that is easy to make, of an author of the checks
    program = "hf_plain"
    spec = {head_dim = 16}              # what the caller says otherwise than SPEC, where that differs
    given = [["old text", "new text"]]  # what is correct but different in this case, where something is
    old = "cos, sin"                    # the fault; several places: change = [["old", "new"], ["old", "new"]]
    new = "sin, cos"
    expect = "rope.layout.wrong_pairing"
    report = "https://..."

[innocent.NAME] has the same keys, and expects "pass" or "equivalent".
"""

import linecache
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).parent / "verify"


@dataclass(frozen=True)
class Case:
    """One program.

    Args:
        name: Its set and its own name, as in corpus/NAME.
        source: What is run.
        expect: The first code, or "pass" or "equivalent".
        before: The source without the fault or the harmless change.
        report: Where a fault was reported.
    """

    name: str
    source: str
    expect: str
    before: str = ""
    report: str = ""

    @property
    def is_fault(self) -> bool:
        """Say whether verify is to find something."""
        return self.expect not in ("pass", "equivalent")

    def load(self) -> ModuleType:
        """Run the source as a module, whose lines tracebacks and `inspect` find."""
        module, path = ModuleType(self.name.replace("/", "_")), f"<{self.name}>"
        linecache.cache[path] = (len(self.source), None, self.source.splitlines(keepends=True), path)
        exec(compile(self.source, path, "exec"), module.__dict__)
        return module


def changed(name: str, source: str, pairs: Iterable[tuple[str, str]]) -> str:
    """Replace texts, each of which must occur exactly once, so that no change silently does nothing."""
    for old, new in pairs:
        if (count := source.count(old)) != 1:
            raise ValueError(f"{name} replaces {old!r}, which must occur once in its program; it occurs {count} times")
        if old == new:
            raise ValueError(f"{name} replaces {old!r} by itself, which changes nothing")
        source = source.replace(old, new)
    return source


def from_entry(name: str, entry: dict[str, Any], program: str) -> Case:
    """Return what an entry of faults.toml makes of the source of its program."""
    before = changed(name, program, entry.get("given", ()))
    if "spec" in entry:
        before += f"\nSPEC = SPEC | {entry['spec']!r}\n"
    pairs = entry.get("change", [(entry["old"], entry["new"])] if "old" in entry else [])
    return Case(name, changed(name, before, pairs), entry["expect"], before, entry.get("report", ""))


@cache
def cases() -> dict[str, Case]:
    """Return every program by its name: programs/NAME, GROUP/NAME for each group of the file, and before/NAME.

    before/NAME is what a fault is compared with, where that is not its program as it stands.
    """
    found = {}
    for path in sorted(HERE.glob("programs/*.py")):
        source = path.read_text(encoding="utf-8")
        expect = "equivalent" if '\nEXPECT = "equivalent"\n' in source else "pass"
        found[f"programs/{path.stem}"] = Case(f"programs/{path.stem}", source, expect)
    for group, entries in tomllib.loads((HERE / "faults.toml").read_text(encoding="utf-8")).items():
        for stem, entry in entries.items():
            program = found[f"programs/{entry['program']}"].source
            case = found[f"{group}/{stem}"] = from_entry(f"{group}/{stem}", entry, program)
            if case.is_fault and case.before != program:
                found[f"before/{stem}"] = Case(f"before/{stem}", case.before, "pass")
    return found
