"""What a run has judged so far, in a folder: of each file, as long as nothing changes that its mutants depend on.

Beside that the folder remembers by which subject a mutant was found before, whatever the checks were then: a run asks
that subject first, and with `--trust` it takes the word of the earlier check, since checks only grow.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
JUDGES = ("verify/**/*.py", "laws/*.py", "definitions/*.py")  # below the package
NOT_JUDGES = ("reasons.py", "reasons_like.py", "results.py")
MAKERS = ("mutants.py", "operators.py")  # what says which change a site is

Site = tuple[int, int]


class Kept:
    """A folder of results, or nothing where none is given.

    Args:
        folder: Made if it is not there; None keeps nothing.
        root: The package.
    """

    def __init__(self, folder: Path | None, root: Path) -> None:
        self.folder, self.root = folder, root
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        own = (path for path in HERE.glob("*.py") if path.name not in NOT_JUDGES)
        self._makers = _digest(HERE / name for name in MAKERS)
        self._judges = _digest((*own, *(path for pattern in JUDGES for path in root.glob(pattern))))

    def judged(self, file: str) -> dict[Site, list[str]]:
        """Return (fate, subject, cause) of the mutants of a file that are judged, by their sites."""
        return _read(self._path(file, self._judges))

    def before(self, file: str) -> dict[Site, list[str]]:
        """Return (fate, subject, cause) of the mutants of a file as they were judged last, by whatever checks."""
        return _read(self._path(file, self._makers))

    def keep(self, file: str, site: Site, fate: Iterable[str]) -> None:
        """Keep what is judged of one mutant."""
        for key in (self._judges, self._makers):
            path = self._path(file, key)
            if path is not None:
                with path.open("a") as out:
                    out.write(json.dumps([site, list(fate)]) + "\n")

    def known(self) -> dict[str, Any] | None:
        """Return what was found of the correct subjects, if nothing in the package has changed since."""
        path = self._path_of_known()
        if path is None or not path.exists():
            return None
        found = json.loads(path.read_text())
        return {name: [*rest, {file: set(n) for file, n in lines.items()}] for name, (*rest, lines) in found.items()}

    def keep_known(self, known: dict[str, Any]) -> None:
        """Keep what was found of the correct subjects."""
        path = self._path_of_known()
        if path is not None:
            path.write_text(json.dumps(known, default=sorted))  # lines are sets

    def _path(self, file: str, key: str) -> Path | None:
        if self.folder is None:
            return None
        digest = _digest([self.root / file], key)
        return self.folder / f"{file.replace('/', '-')}-{digest}.jsonl"

    def _path_of_known(self) -> Path | None:
        every = _digest(self.root.rglob("*.py"), self._judges)
        return None if self.folder is None else self.folder / f"known-{every}.json"


def _read(path: Path | None) -> dict[Site, list[str]]:
    lines = path.read_text().splitlines() if path is not None and path.exists() else []
    return {tuple(site): fate for site, fate in map(json.loads, lines)}


def _digest(paths: Iterable[Path], begin: str = "") -> str:
    found = hashlib.sha256(begin.encode())
    for path in sorted(paths):
        found.update(path.read_bytes())
    return found.hexdigest()[:12]
