"""Read a directory with a model's weights in safetensors, without trusting its contents."""

import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from posenc.config.values import short
from posenc.interop.plan import Sort

KEY = "posenc_pairing"  # in the metadata of a file: the pairing of its weights
METADATA = "__metadata__"
MAX_INDEX = 1 << 26  # bytes; the longest known are below 16 MiB
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_SHARD = re.compile(r"(?!\.)[\w.+-]{1,200}\.safetensors", re.ASCII)
# Other files that are copied with weights and cannot contain a pickle: settings, vocabularies, code and texts.
_SMALL = re.compile(
    r"(?!\.|.*\.bin\.index\.json)[\w.+ -]{1,200}\.(?:json|jsonl|txt|md|model|jinja|tiktoken|vocab|bpe|yaml|yml|py)"
    r"|LICENSE|NOTICE|README",
    re.ASCII,
)


class Shard(NamedTuple):
    """A file with weights."""

    path: Path
    header: dict[str, Any]  # as in the file
    data: int  # the offset at which the data begins

    @property
    def pairing(self) -> object:
        """The pairing in its metadata, None if there is none."""
        return self.header.get(METADATA, {}).get(KEY)

    @property
    def sorts(self) -> dict[str, Sort]:
        """The shapes and dtypes of its tensors by name."""
        return {
            name: Sort(tuple(entry["shape"]), entry["dtype"], entry["dtype"] in ("F64", "F32", "F16", "BF16"))
            for name, entry in self.header.items()
            if name != METADATA
        }


class Checkpoint(NamedTuple):
    """The contents of a directory."""

    shards: tuple[Shard, ...]  # the files with weights
    small: tuple[Path, ...]  # the other files, which are copied
    left_out: tuple[str, ...]  # names that are not copied: other formats, directories, unknown files


def open_checkpoint(path: Path) -> Checkpoint:
    """Read the contents of a directory, and of its weights only the headers.

    Raises:
        ValueError: It is not a directory, it has no weights in safetensors, a link leads out of it, its index and its
            files disagree, or a file is damaged.
    """
    if not path.is_dir():
        raise ValueError(
            f"convert: {short(str(path))} is not a directory. Pass one with config.json and *.safetensors."
        )
    try:
        return _open(path.resolve())
    except OSError as error:
        raise ValueError(f"convert: {short(str(path))} cannot be read: {error.strerror or error}.") from error


def _open(root: Path) -> Checkpoint:
    names = sorted(os.listdir(root))
    chosen, mapped = _choose(names), None
    files = [chosen]
    if chosen.endswith(".json"):
        mapped = _read_index(_inside(root, chosen))
        files = sorted(set(mapped.values()))
    shards = tuple(open_shard(_inside(root, name)) for name in files)
    held = {(tensor, shard.path.name) for shard in shards for tensor in shard.sorts}
    listed = held if mapped is None else set(mapped.items())
    for tensor, file in held - listed:
        raise ValueError(f"convert: the index does not list {short(tensor)} of {short(file)}. Restore the checkpoint.")
    for tensor, _ in listed - held:
        raise ValueError(f"convert: the index lists {short(tensor)}, but no file has it. Restore the checkpoint.")
    small = [name for name in names if _SMALL.fullmatch(name) and not (root / name).is_dir()]
    left_out = tuple(name for name in names if name not in {*small, *files})
    return Checkpoint(shards, tuple(_inside(root, name) for name in small), left_out)


def _inside(root: Path, name: str) -> Path:
    """Return the path of a regular file in a directory, under its own name.

    Raises:
        ValueError: It does not exist, or is a link that leads out of the directory.
    """
    path = root / name
    if not path.resolve().is_relative_to(root):
        raise ValueError(
            f"convert: {short(name)} is a link that leads out of its directory, and such links are not followed. "
            f"Copy the directory with its links resolved (cp -rL) and convert the copy."
        )
    if not path.is_file():
        raise ValueError(f"convert: {short(name)} does not exist, or is not a regular file. Complete the directory.")
    return path


def _choose(names: list[str]) -> str:
    """Return the file with all weights, or the index of the files with weights."""
    files = [name for name in names if name.endswith(".safetensors")]
    if not files:
        pickled = next((name for name in names if name.endswith(PICKLES)), None)
        found = "no weights" if pickled is None else f"{short(pickled)}, which may be pickled code and is not opened"
        raise ValueError(
            f"convert: weights must be in safetensors; got {found}. If you trust the model, load it and save it with "
            f"save_pretrained, which writes model.safetensors."
        )
    indices = [name for name in names if name.endswith(".safetensors.index.json")]
    usual = [name for name in files if name == "model.safetensors"]
    choice = [*indices, *(name for name in files if f"{name}.index.json" in indices)] or usual or files
    if len(choice) > 1:
        raise ValueError(
            f"convert: the directory must have one set of weights; got {short(choice[0])} and {short(choice[1])}. Keep "
            f"one, or add the index that lists the files that belong together."
        )
    return choice[0]


def _read_index(path: Path) -> dict[str, str]:
    """Return the file of each tensor, all in this directory."""
    if path.stat().st_size > MAX_INDEX:
        raise ValueError(f"convert: {short(path.name)} must be at most {MAX_INDEX} bytes; got more. Restore it.")
    mapped = parse(path.read_bytes(), path.name).get("weight_map")
    if not isinstance(mapped, dict) or not mapped:
        raise ValueError(f"convert: {short(path.name)} has no weight_map from tensors to files. Restore it.")
    for shard in mapped.values():
        if not isinstance(shard, str) or not _SHARD.fullmatch(shard):
            raise ValueError(
                f"convert: an index may only name *.safetensors in its own directory; got {short(shard)}. Correct it."
            )
    return mapped


def open_shard(path: Path) -> Shard:
    """Read a file's header.

    Raises:
        ValueError: The file is not a complete safetensors file, or has a duplicate key.
    """
    try:
        with safe_open(path, framework="pt"):  # checks that shapes, dtypes, offsets and the size of the file agree
            pass
    except (SafetensorError, OSError) as error:
        why = short(str(error))
        raise ValueError(
            f"convert: {short(path.name)} is damaged or not a safetensors file: {why}. Restore it."
        ) from error
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return Shard(path, parse(file.read(length), path.name), 8 + length)


def parse(data: bytes, name: str) -> dict[str, Any]:
    """Return a JSON object without duplicate keys.

    Raises:
        ValueError: The data is not such an object.
    """
    try:
        found = json.loads(data.decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"convert: {short(name)} is not valid JSON: {short(str(error))}. Restore it.") from error
    if not isinstance(found, dict):
        raise ValueError(f"convert: {short(name)} must hold a JSON object; got {type(found).__name__}. Restore it.")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        raise ValueError("it has a duplicate key")
    return found
