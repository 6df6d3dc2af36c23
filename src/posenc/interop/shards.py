"""The header of a file of safetensors, read without trusting it."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from posenc.config.values import short
from posenc.interop.plan import Sort

KEY = "posenc_pairing"  # in the metadata of a file: the pairing of its weights
METADATA = "__metadata__"


@dataclass(frozen=True)
class Shard:
    """A file with weights: its header as it stands, and where its data begins."""

    path: Path
    header: dict[str, Any] = field(repr=False)
    data: int

    @property
    def pairing(self) -> object:
        """What its metadata says of the pairing, None if nothing."""
        return self.header.get(METADATA, {}).get(KEY)

    @property
    def sorts(self) -> dict[str, Sort]:
        """Shape and dtype of its tensors by name."""
        return {
            name: Sort(tuple(entry["shape"]), entry["dtype"], entry["dtype"] in ("F64", "F32", "F16", "BF16"))
            for name, entry in self.header.items()
            if name != METADATA
        }


def open_shard(path: Path) -> Shard:
    """Read a file's header.

    Raises:
        ValueError: The file is no whole safetensors file, or names something twice.
    """
    try:
        with safe_open(path, framework="pt"):  # checks that shapes, dtypes and offsets fit each other and the file
            pass
    except (SafetensorError, OSError) as error:
        why = short(str(error))
        raise ValueError(f"convert: {short(path.name)} is damaged or no safetensors: {why}. Restore it.") from error
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return Shard(path, parse(file.read(length), path.name), 8 + length)


def parse(data: bytes, name: str) -> dict[str, Any]:
    """Return an object of JSON, in which no key stands twice.

    Raises:
        ValueError: It is none.
    """
    try:
        found = json.loads(data.decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"convert: {short(name)} is not JSON that can be read: {short(str(error))}. Restore it."
        ) from error
    if not isinstance(found, dict):
        raise ValueError(f"convert: {short(name)} must hold a JSON object; got {type(found).__name__}. Restore it.")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        raise ValueError("a key stands there twice")
    return found
