"""Golden vectors for ports: of every encoding, of one model's configuration, and the check of what a port wrote.

Those of a configuration need no torch; those of every encoding and the check do, and import it when they are called.
"""

from pathlib import Path
from typing import Any

from posenc.golden.configured import write_config
from posenc.golden.writing import FORMATS, MANIFEST

__all__ = ["FORMATS", "MANIFEST", "check", "write", "write_config"]


def write(out: str | Path) -> dict[str, Any]:
    """Write the golden vectors of every registered encoding and return the manifest.

    Args:
        out: A new or empty directory, or one that `posenc golden` has written, whose vectors are replaced.

    Raises:
        ValueError: The directory holds something else, or is none.
    """
    from posenc.golden import encodings

    return encodings.write(out)


def check(directory: str | Path, against: str | Path, *, dtype: str | None = None) -> Any:
    """Compare what a port wrote with the golden vectors of a configuration, and name what explains the difference.

    Args:
        directory: What `write_config` has written.
        against: What the port wrote for these inputs: files of the same names. Those that are missing are not judged.
        dtype: "float32" or "bfloat16", in which the port computes; None takes the dtype of each file.

    Returns:
        A `posenc.verify.Report`.

    Raises:
        ValueError: A directory holds no golden vectors of a configuration, or a file cannot be read.
    """
    from posenc.golden import checked

    return checked.check(Path(directory), Path(against), dtype=dtype)
