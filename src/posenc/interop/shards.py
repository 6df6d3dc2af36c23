"""One file of safetensors: its header read without trusting it, and a copy with some tensors permuted."""

import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open

from posenc.config.values import short
from posenc.interop.plan import Sort, Turn

_WHO = "convert"
KEY = "posenc_pairing"  # in the metadata of a file: the pairing of its weights
MAX_HEADER = 100_000_000  # bytes; what safetensors itself reads
# widths of what is permuted: only places change, so that bits are moved as integers
_PLAIN = {"F64": torch.int64, "F32": torch.int32, "F16": torch.int16, "BF16": torch.int16}
_METADATA = "__metadata__"
_CHUNK = 1 << 24
_SHORT = "a file became shorter while it was read"


@dataclass(frozen=True)
class Shard:
    """A file with weights: its header as it stands, and where its data begins."""

    path: Path
    header: dict[str, Any] = field(repr=False)
    data: int

    @property
    def pairing(self) -> object:
        """What its metadata says of the pairing, None if nothing."""
        return self.header.get(_METADATA, {}).get(KEY)

    @property
    def sorts(self) -> dict[str, Sort]:
        """Shape and dtype of its tensors by name."""
        return {
            name: Sort(tuple(entry["shape"]), entry["dtype"], entry["dtype"] in _PLAIN)
            for name, entry in self.header.items()
            if name != _METADATA
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
        raise ValueError(f"{_WHO}: {short(path.name)} is damaged or no safetensors: {why}. Restore it.") from error
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = parse(file.read(min(length, MAX_HEADER)), path.name)
    return Shard(path, header, 8 + length)


def parse(data: bytes, name: str) -> dict[str, Any]:
    """Return an object of JSON, in which no key stands twice.

    Raises:
        ValueError: It is none.
    """
    try:
        found = json.loads(data.decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{_WHO}: {short(name)} is not JSON that can be read: {short(str(error))}. Restore it."
        ) from error
    if not isinstance(found, dict):
        raise ValueError(f"{_WHO}: {short(name)} must hold a JSON object; got {type(found).__name__}. Restore it.")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        raise ValueError("a key stands there twice")
    return found


def write_shard(shard: Shard, out: Path, turns: Mapping[str, Turn], pairing: str) -> None:
    """Write a copy of a file in which the tensors of `turns` are permuted and the metadata names the pairing.

    One tensor is in memory at a time. Every other byte of the data is copied as it is, so that dtypes which torch does
    not know pass too.
    """
    metadata = {**shard.header.get(_METADATA, {}), KEY: pairing}
    header = {_METADATA: metadata, **{name: entry for name, entry in shard.header.items() if name != _METADATA}}
    written = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    written += b" " * (-len(written) % 8)
    order = sorted(shard.sorts, key=lambda name: shard.header[name]["data_offsets"])
    with shard.path.open("rb") as source, out.open("xb") as file:
        file.write(struct.pack("<Q", len(written)) + written)
        for name in order:
            entry = shard.header[name]
            begin, end = entry["data_offsets"]
            source.seek(shard.data + begin)
            if name in turns and begin < end:
                held = bytearray(end - begin)
                if source.readinto(held) != len(held):
                    raise OSError(_SHORT)
                tensor = torch.frombuffer(held, dtype=_PLAIN[entry["dtype"]]).view(entry["shape"])
                file.write(turns[name].apply(tensor).numpy().data)
            else:
                copy(source, file, end - begin)
        file.flush()
        os.fsync(file.fileno())


def copy(source: BinaryIO, out: BinaryIO, size: int) -> None:
    """Copy so many bytes in pieces."""
    while size > 0:
        piece = source.read(min(size, _CHUNK))
        if not piece:
            raise OSError(_SHORT)
        out.write(piece)
        size -= len(piece)
