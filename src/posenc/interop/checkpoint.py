"""A directory with a model's weights in safetensors: what is in it, read without trusting it."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from posenc.config.values import short
from posenc.interop.plan import Sort
from posenc.interop.shards import Shard, open_shard, parse

MAX_INDEX = 1 << 26  # bytes; the longest known are below 16 MiB
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_SHARD = re.compile(r"(?!\.)[\w.+-]{1,200}\.safetensors", re.ASCII)
# What stands beside weights and holds no pickle: settings, vocabularies, code to read, words for people.
_BESIDE = re.compile(
    r"(?!\.|.*\.bin\.index\.json)[\w.+ -]{1,200}\.(?:json|jsonl|txt|md|model|jinja|tiktoken|vocab|bpe|yaml|yml|py)"
    r"|LICENSE|NOTICE|README",
    re.ASCII,
)


@dataclass(frozen=True)
class Checkpoint:
    """What a directory holds.

    Args:
        shards: The files with weights.
        sorts: Shape and dtype of all tensors by name.
        beside: The small files that are copied.
        left_out: Names of what is not: other formats, directories, files of an unknown kind.
    """

    shards: tuple[Shard, ...]
    sorts: dict[str, Sort] = field(repr=False)
    beside: tuple[Path, ...]
    left_out: tuple[str, ...]

    @property
    def size(self) -> int:
        """How many bytes a copy takes."""
        return sum(path.stat().st_size for path in (*self.beside, *(shard.path for shard in self.shards)))


def open_checkpoint(path: Path) -> Checkpoint:
    """Read what a directory holds; of weights the headers alone.

    Raises:
        ValueError: It is no directory, has no weights in safetensors, a link in it leads elsewhere, an index and the
            files disagree, or a file is damaged.
    """
    if not path.is_dir():
        raise ValueError(f"convert: {short(str(path))} is no directory. Name one with config.json and *.safetensors.")
    try:
        return _open(path.resolve())
    except OSError as error:
        raise ValueError(f"convert: {short(str(path))} cannot be read: {error.strerror or error}.") from error


def _open(root: Path) -> Checkpoint:
    names = sorted(os.listdir(root))
    files, index = _choose(names)
    if index is not None:
        mapped = _read_index(_inside(root, index))
        files = sorted(set(mapped.values()))
    shards = tuple(open_shard(_inside(root, name)) for name in files)
    held = {(tensor, shard.path.name) for shard in shards for tensor in shard.sorts}
    said = held if index is None else set(mapped.items())
    for tensor, file in held - said:
        raise ValueError(f"convert: {short(file)} holds {short(tensor)}, and the index says otherwise. Restore them.")
    for tensor, _ in said - held:
        raise ValueError(f"convert: the index names {short(tensor)}, which no file holds. Restore them.")
    sorts = {name: sort for shard in shards for name, sort in shard.sorts.items()}
    beside = [name for name in names if _BESIDE.fullmatch(name) and not (root / name).is_dir()]
    left_out = tuple(name for name in names if name not in {*beside, *files})
    return Checkpoint(shards, sorts, tuple(_inside(root, name) for name in beside), left_out)


def _inside(root: Path, name: str) -> Path:
    """Return the path of a regular file in a directory, under its own name.

    Raises:
        ValueError: There is none, or it is a link that leads out of the directory.
    """
    path = root / name
    if not path.resolve().is_relative_to(root):
        raise ValueError(
            f"convert: {short(name)} is a link that leads out of its directory, and such links are not followed. "
            f"Copy the directory with what its links mean (cp -rL) and convert the copy."
        )
    if not path.is_file():
        raise ValueError(f"convert: {short(name)} is not there, or is no regular file. Complete the directory.")
    return path


def _choose(names: list[str]) -> tuple[list[str], str | None]:
    """Return the files with weights, or the index that says which they are."""
    files = [name for name in names if name.endswith(".safetensors")]
    indices = [name for name in names if name.endswith(".safetensors.index.json")]
    if not files:
        pickled = next((name for name in names if name.endswith(PICKLES)), None)
        found = "no weights" if pickled is None else f"{short(pickled)}, which may be pickled code and is not opened"
        raise ValueError(
            f"convert: weights must be in safetensors; got {found}. Load the model where you trust it and save it with "
            f"save_pretrained, which writes model.safetensors."
        )
    if len(indices) > 1 or (indices and indices[0].removesuffix(".index.json") in names):
        raise ValueError(
            f"convert: it must be clear which weights are meant; got {short(indices[0])} and another index or "
            f"a file of all weights. Remove one."
        )
    if not indices and len(files) > 1 and "model.safetensors" not in files:
        raise ValueError(
            f"convert: an index must say which files belong together; got {len(files)} and none. "
            f"Add model.safetensors.index.json, or leave one file."
        )
    return (["model.safetensors"] if len(files) > 1 else files), next(iter(indices), None)


def _read_index(path: Path) -> dict[str, str]:
    """Return which file of this directory holds which tensor."""
    if path.stat().st_size > MAX_INDEX:
        raise ValueError(f"convert: {short(path.name)} must be at most {MAX_INDEX} bytes; got more. Restore it.")
    mapped = parse(path.read_bytes(), path.name).get("weight_map")
    if not isinstance(mapped, dict) or not mapped:
        raise ValueError(f"convert: {short(path.name)} has no weight_map of tensors to files. Restore it.")
    for shard in mapped.values():
        if not isinstance(shard, str) or not _SHARD.fullmatch(shard):
            raise ValueError(
                f"convert: an index may only name *.safetensors in its own directory; got {short(shard)}. Correct it."
            )
    return mapped
