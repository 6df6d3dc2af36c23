"""Golden vectors for ports: of every encoding, or of one model's configuration, and the check of a port's files.

Those of a configuration need no torch; those of every encoding and the check import it when they are called.
"""

from pathlib import Path
from typing import Any

from posenc.golden.configured import write_config
from posenc.golden.writing import FORMATS, MANIFEST

__all__ = ["FORMATS", "MANIFEST", "check", "write", "write_config"]


def write(out: str | Path) -> dict[str, Any]:
    """Write the golden vectors of every registered encoding and return the manifest.

    Args:
        out: A new or empty directory, or an earlier output of `posenc golden`, whose vectors are replaced.

    Raises:
        ValueError: The directory contains other files, or is not a directory.
    """
    from posenc.golden import encodings

    return encodings.write(out)


def check(directory: str | Path, against: str | Path, *, dtype: str | None = None) -> Any:
    """Compare a port's files with the golden vectors of a configuration, and name the fault behind a difference.

    Args:
        directory: A directory written by `write_config`.
        against: The port's arrays for these inputs, in files of the same names. Missing files are not judged.
        dtype: "float32" or "bfloat16", the dtype in which the port computes; None uses the dtype of each file.

    Returns:
        A `posenc.verify.Report`.

    Raises:
        ValueError: A directory contains no golden vectors of a configuration, or a file cannot be read.
    """
    from posenc.golden import checked

    return checked.check(Path(directory), Path(against), dtype=dtype)
