"""Convert a checkpoint on disk into a new directory that appears only when it is complete."""

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from posenc import config
from posenc.config.model import Model, open_model
from posenc.config.models import READS_INTERLEAVE
from posenc.config.values import short
from posenc.interop.checkpoint import KEY, METADATA, Checkpoint, Shard, open_checkpoint, open_shard
from posenc.interop.plan import Permutation, Plan, plan

_CONFIG = "config.json"
_FLAG = "rope_interleave"


@dataclass(frozen=True)
class Conversion:
    """The result of a conversion.

    Args:
        out: The new directory.
        plan: The tensors that were permuted, and the queries and keys that were left, with the reason.
        n_tensors: The number of tensors.
        copied: Names of the other files that were copied.
        left_out: Names of the files and directories that were not copied.
        flag: The new value of rope_interleave in config.json; None for types that do not read this key.
    """

    out: Path
    plan: Plan
    n_tensors: int
    copied: tuple[str, ...]
    left_out: tuple[str, ...]
    flag: bool | None


def convert_checkpoint(
    directory: str | os.PathLike[str],
    out: str | os.PathLike[str],
    to: config.Pairing,
    *,
    of: config.Pairing | None = None,
    source: config.Source | None = None,
) -> Conversion:
    """Convert the safetensors of a directory as `convert_pairing` does, with one tensor in memory at a time.

    All checks run before anything is written. The new directory is written next to `out` under another name, forced to
    disk and then renamed, so `out` is always complete. The pairing is written to the metadata of the weights, and a
    second conversion to that pairing is refused.

    Args:
        directory: Weights in one file or in shards with their index, config.json, and the tokenizer's files.
        out: The new directory, which must not exist or be empty.
        to: The new pairing.
        of: The present pairing; None reads it from the weights' metadata, or else from the model type.
        source: The model's configuration, for LoRA factors without config.json; None reads config.json.

    Raises:
        ValueError: As for `convert_pairing`; `out` exists or cannot be written; there are no safetensors, a file is
            damaged, or a link leads out of the directory.
        TypeError: A value of the configuration has a wrong type.
    """
    found, target = open_checkpoint(Path(directory)), Path(os.path.abspath(out))
    if os.path.lexists(target) and (target.is_symlink() or not target.is_dir() or any(target.iterdir())):
        raise ValueError(
            f"convert: --out {short(str(target))} exists and is not an empty directory; nothing was changed. "
            f"Choose another --out."
        )
    given = next((path for path in found.small if path.name == _CONFIG), None) if source is None else source
    if given is None:
        raise ValueError(
            f"convert: there is no config.json in {short(str(directory))}. For LoRA factors, pass their model's "
            f"configuration with --config (source)."
        )
    fields = config.read(given)
    model = open_model(fields)
    sorts = {name: sort for shard in found.shards for name, sort in shard.sorts.items()}
    planned = plan(sorts, fields, to, _present(found, model, to, of))
    flag = to == "interleaved" if source is None and model.name in READS_INTERLEAVE else None
    size = sum(path.stat().st_size for path in (*found.small, *(shard.path for shard in found.shards)))
    free = shutil.disk_usage(next(parent for parent in target.parents if parent.exists())).free
    if size > free:
        raise ValueError(f"convert: --out needs {size:,} bytes, but {free:,} are free. Choose another --out.")
    _write(found, planned, target, None if flag is None else _flagged(fields, model.fields, flag))
    copied = tuple(path.name for path in found.small)
    return Conversion(target, planned, len(sorts), copied, found.left_out, flag)


def _present(found: Checkpoint, model: Model, to: config.Pairing, of: config.Pairing | None) -> config.Pairing | None:
    """Return the present pairing from the caller or the weights' metadata, None if neither gives it."""
    stated = {shard.pairing for shard in found.shards}
    if len(stated) > 1 or not stated <= {None, "half", "interleaved"}:
        raise ValueError(
            f"convert: the metadata of all files must agree on {KEY}; got {', '.join(map(short, stated))[:200]}. "
            f"Restore the weights."
        )
    (noted,) = stated
    if noted is None:
        return of
    if noted == to:
        raise ValueError(
            f"convert: these weights are {to} already, according to their metadata ({KEY}), so there is nothing to do. "
            f"Use them as they are, or convert to the other pairing."
        )
    flag = model.fields.get(_FLAG) if model.name in READS_INTERLEAVE else None
    if of not in (None, noted) or flag not in (None, noted == "interleaved"):
        other = f"of={of}" if of not in (None, noted) else f"config.json, with {_FLAG} {flag}"
        raise ValueError(f"convert: the weights' metadata has {noted}, but {other} differs. Correct one of them.")
    return "half" if noted == "half" else "interleaved"


def _flagged(fields: dict[str, Any], own: dict[str, Any], flag: bool) -> dict[str, Any]:
    """Return a configuration with the flag among the language model's own fields."""
    if fields == own:
        return {**fields, _FLAG: flag}
    return {key: _flagged(value, own, flag) if isinstance(value, dict) else value for key, value in fields.items()}


def _write(found: Checkpoint, planned: Plan, target: Path, new_config: dict[str, Any] | None) -> None:
    """Write all files to a directory next to the target, and rename it when they are on disk."""
    aside = target.with_name(f".{target.name}-{secrets.token_hex(8)}.partial")
    try:
        aside.mkdir(parents=True)
        for shard in found.shards:
            write_shard(shard, aside / shard.path.name, planned.turns, planned.to)
        for path in found.small:
            shutil.copyfile(path, aside / path.name)
        if new_config is not None:
            (aside / _CONFIG).write_text(json.dumps(new_config, indent=2) + "\n")
        _sync(*aside.iterdir(), aside)
        if target.exists():
            target.rmdir()  # fails if it is no longer empty
        aside.rename(target)
        _sync(target.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValueError(
            f"convert: cannot write --out {short(str(target))}: {reason}. Choose another --out."
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def write_shard(shard: Shard, out: Path, turns: Mapping[str, Permutation], pairing: config.Pairing) -> None:
    """Copy a file with the pairing in its metadata, and permute the tensors of `turns` in the copy, one at a time.

    All other data is copied as bytes, so the file may have dtypes that torch does not support.
    """
    metadata = {**shard.header.get(METADATA, {}), KEY: pairing}
    header = json.dumps({**shard.header, METADATA: metadata}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with shard.path.open("rb") as source, out.open("xb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        source.seek(shard.data)
        shutil.copyfileobj(source, file, 1 << 24)
    start = open_shard(out).data  # refuses the copy if the source was truncated meanwhile
    with out.open("r+b") as file:
        for name in turns.keys() & shard.header.keys():
            begin, end = shard.header[name]["data_offsets"]
            if begin < end:
                file.seek(start + begin)
                held = torch.frombuffer(bytearray(file.read(end - begin)), dtype=torch.uint8)
                file.seek(start + begin)
                file.write(turns[name].apply(held.view(*shard.header[name]["shape"], -1)).numpy().data)


def _sync(*paths: Path) -> None:
    """Force files and directory entries to disk, on POSIX systems."""
    for path in paths if os.name == "posix" else ():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
