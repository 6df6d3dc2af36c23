"""What an earlier commit's RESULTS.md says was found, in functions that have not changed since.

Checks only grow, so that what they found stays found; what survived then, and every mutant of a function that has
changed, is judged anew.
"""

import ast
import subprocess
from pathlib import Path

from mutants import Mutant
from reasons import UNCALLED

PAGE = "benchmarks/mutations/RESULTS.md"


class Since:
    """A commit, and its page.

    Args:
        commit: Of the project, as git names it.
        root: The package.

    Raises:
        subprocess.CalledProcessError: There is no such commit, or it has no page.
    """

    def __init__(self, commit: str, root: Path) -> None:
        self.commit, self.root = commit, root
        self._survivors: dict[str, set[str]] = {}
        file = ""
        for line in self._read(PAGE).splitlines():
            file = line.removeprefix("### ") if line.startswith("### ") else file
            if line.startswith("- ") and file:
                self._survivors.setdefault(file, set()).add(line.split(", ", 1)[1])

    def found(self, file: str, source: str, made: list[Mutant]) -> list[Mutant]:
        """Return those of a file's mutants that were found then, and would be made of the same function now."""
        try:
            then = _functions(self._read(f"src/posenc/{file}"))
        except subprocess.CalledProcessError:
            return []  # a new file
        now, left = _functions(source), self._survivors.get(file, set())

        def survived(mutant: Mutant) -> bool:
            reported = f"`{mutant.function or 'module'}`: `{mutant.change}`. "
            return any(line.startswith(reported) for line in left)

        same = {name for name, text in now.items() if then.get(name) == text}
        known = [m for m in made if f"{file} {m.function}" not in UNCALLED]  # those were found by nothing
        return [m for m in known if not m.excluded and m.function in same and not survived(m)]

    def _read(self, path: str) -> str:
        command = ["git", "show", f"{self.commit}:{path}"]
        return subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=True).stdout


def _functions(source: str) -> dict[str, str]:
    """Return the syntax of each outermost function by its name, and of what stands in none by its class's."""
    found: dict[str, str] = {}

    def walk(body: list[ast.stmt], owner: str) -> None:
        for node in body:
            name = f"{owner}.{getattr(node, 'name', '')}".strip(".")
            if isinstance(node, ast.ClassDef):
                walk(node.body, name)
            elif isinstance(node, ast.FunctionDef):
                found[name] = found.get(name, "") + ast.dump(node)
            else:
                found[owner] = found.get(owner, "") + ast.dump(node)

    walk(ast.parse(source).body, "")
    return found
