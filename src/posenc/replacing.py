"""Files that are there whole, or as they were before."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Give a path next to a file's, whose content takes the file's place at the end; a link stays a link.

    Raises:
        OSError: The file cannot be written there; it is as it was before.
    """
    target = Path(os.path.realpath(path))
    aside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield aside
        os.replace(aside, target)
    finally:
        aside.unlink(missing_ok=True)
