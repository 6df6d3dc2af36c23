"""A directory with a model's weights in safetensors: what is in it, read without trusting it."""

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
# Other files that are copied with weights, and hold no pickle: settings, vocabularies, code to read, texts for people.
_SMALL = re.compile(
    r"(?!\.|.*\.bin\.index\.json)[\w.+ -]{1,200}\.(?:json|jsonl|txt|md|model|jinja|tiktoken|vocab|bpe|yaml|yml|py)"
    r"|LICENSE|NOTICE|README",
    re.ASCII,
)


class Shard(NamedTuple):
    """A file with weights."""

    path: Path
    header: dict[str, Any]  # as it stands in the file
    data: int  # where the data begins

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


class Checkpoint(NamedTuple):
    """What a directory holds."""

    shards: tuple[Shard, ...]  # the files with weights
    small: tuple[Path, ...]  # the other files, which are copied
    left_out: tuple[str, ...]  # names of what is not: other formats, directories, files of an unknown kind


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
    chosen, mapped = _choose(names), None
    files = [chosen]
    if chosen.endswith(".json"):
        mapped = _read_index(_inside(root, chosen))
        files = sorted(set(mapped.values()))
    shards = tuple(open_shard(_inside(root, name)) for name in files)
    held = {(tensor, shard.path.name) for shard in shards for tensor in shard.sorts}
    said = held if mapped is None else set(mapped.items())
    for tensor, file in held - said:
        raise ValueError(f"convert: {short(file)} holds {short(tensor)}, and the index says otherwise. Restore them.")
    for tensor, _ in said - held:
        raise ValueError(f"convert: the index names {short(tensor)}, which no file holds. Restore them.")
    small = [name for name in names if _SMALL.fullmatch(name) and not (root / name).is_dir()]
    left_out = tuple(name for name in names if name not in {*small, *files})
    return Checkpoint(shards, tuple(_inside(root, name) for name in small), left_out)


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


def _choose(names: list[str]) -> str:
    """Return the file with all weights, or the index that says which files hold them."""
    files = [name for name in names if name.endswith(".safetensors")]
    if not files:
        pickled = next((name for name in names if name.endswith(PICKLES)), None)
        found = "no weights" if pickled is None else f"{short(pickled)}, which may be pickled code and is not opened"
        raise ValueError(
            f"convert: weights must be in safetensors; got {found}. Load the model where you trust it and save it with "
            f"save_pretrained, which writes model.safetensors."
        )
    indices = [name for name in names if name.endswith(".safetensors.index.json")]
    usual = [name for name in files if name == "model.safetensors"]
    choice = [*indices, *(name for name in files if f"{name}.index.json" in indices)] or usual or files
    if len(choice) > 1:
        raise ValueError(
            f"convert: it must be clear which weights are meant; got {short(choice[0])} and {short(choice[1])}. Leave "
            f"one, or add the index that says which files belong together."
        )
    return choice[0]


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
