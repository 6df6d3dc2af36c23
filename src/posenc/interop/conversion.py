"""A checkpoint on disk, converted into a directory that appears whole or not at all."""

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
from posenc.interop.plan import Plan, Turn, plan

_CONFIG = "config.json"
_FLAG = "rope_interleave"


@dataclass(frozen=True)
class Conversion:
    """What was done.

    Args:
        out: The new directory.
        plan: Which tensors were permuted, and which queries and keys were left, with the reason.
        n_tensors: How many tensors there are.
        copied: Names of the other files that were copied.
        left_out: Names of what was not.
        flag: What config.json now says under rope_interleave; None for the types that read no such key.
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
    """Convert the safetensors of a directory as `convert_pairing` does, one tensor in memory at a time.

    Everything is checked before anything is written. The new directory is made next to `out` under another name,
    forced to disk and then renamed, so that what is called `out` is complete. Its weights say in their metadata which
    pairing they have, and a second conversion to that pairing is refused.

    Args:
        directory: Weights in one file or in shards with their index, config.json, and the tokenizer's files.
        out: The new directory: not there yet, or empty.
        to: The new pairing.
        of: The present one; None takes what the weights' metadata says, else what the model type has.
        source: The model's configuration, for LoRA factors whose directory has none; None takes config.json.

    Raises:
        ValueError: As `convert_pairing` does; `out` is taken or cannot be written; there are no safetensors, a file is
            damaged, or a link leads out of the directory.
        TypeError: A value of the configuration is of a wrong kind.
    """
    found, target = open_checkpoint(Path(directory)), Path(os.path.abspath(out))
    if os.path.lexists(target) and (target.is_symlink() or not target.is_dir() or any(target.iterdir())):
        raise ValueError(
            f"convert: --out {short(str(target))} is there and is no empty directory; nothing was touched. "
            f"Choose another --out."
        )
    given = next((path for path in found.small if path.name == _CONFIG), None) if source is None else source
    if given is None:
        raise ValueError(
            f"convert: there is no config.json in {short(str(directory))}. For LoRA factors, name their model's "
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
        raise ValueError(f"convert: --out needs {size:,} bytes, and {free:,} are free. Choose another --out.")
    _write(found, planned, target, None if flag is None else _flagged(fields, model.fields, flag))
    copied = tuple(path.name for path in found.small)
    return Conversion(target, planned, len(sorts), copied, found.left_out, flag)


def _present(found: Checkpoint, model: Model, to: config.Pairing, of: config.Pairing | None) -> config.Pairing | None:
    """Return the present pairing, as far as the caller or the weights say it."""
    said = {shard.pairing for shard in found.shards}
    if len(said) > 1 or not said <= {None, "half", "interleaved"}:
        raise ValueError(
            f"convert: the metadata of all files must agree on {KEY}; got {', '.join(map(short, said))[:200]}. "
            f"Restore the weights."
        )
    (noted,) = said
    if noted is None:
        return of
    if noted == to:
        raise ValueError(
            f"convert: these weights were converted to {to} before, as their metadata says ({KEY}); nothing is left to "
            f"do. Use them as they are, or convert to the other pairing."
        )
    flag = model.fields.get(_FLAG) if model.name in READS_INTERLEAVE else None
    if of not in (None, noted) or flag not in (None, noted == "interleaved"):
        other = f"of={of}" if of not in (None, noted) else f"config.json, with {_FLAG} {flag}"
        raise ValueError(f"convert: the weights' metadata says {noted}, and {other} differs. Correct what is wrong.")
    return "half" if noted == "half" else "interleaved"


def _flagged(fields: dict[str, Any], own: dict[str, Any], flag: bool) -> dict[str, Any]:
    """Return a configuration with the flag where the language model's own fields stand."""
    if fields == own:
        return {**fields, _FLAG: flag}
    return {key: _flagged(value, own, flag) if isinstance(value, dict) else value for key, value in fields.items()}


def _write(found: Checkpoint, planned: Plan, target: Path, new_config: dict[str, Any] | None) -> None:
    """Write all files under another name next to the target, and give them its name when they are on disk."""
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
            target.rmdir()  # it was empty; if it is not any more, this fails
        aside.rename(target)
        _sync(target.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValueError(
            f"convert: cannot write --out {short(str(target))}: {reason}. Choose another --out."
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def write_shard(shard: Shard, out: Path, turns: Mapping[str, Turn], pairing: config.Pairing) -> None:
    """Copy a file with the pairing in its metadata, and permute the tensors of `turns` in the copy, one at a time.

    All other bytes of the data stay as they are, so that dtypes which torch does not know pass too.
    """
    metadata = {**shard.header.get(METADATA, {}), KEY: pairing}
    header = json.dumps({**shard.header, METADATA: metadata}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with shard.path.open("rb") as source, out.open("xb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        source.seek(shard.data)
        shutil.copyfileobj(source, file, 1 << 24)
    start = open_shard(out).data  # which refuses the copy of a file that became shorter meanwhile
    with out.open("r+b") as file:
        for name in turns.keys() & shard.header.keys():
            begin, end = shard.header[name]["data_offsets"]
            if begin < end:
                file.seek(start + begin)
                held = torch.frombuffer(bytearray(file.read(end - begin)), dtype=torch.uint8)
                file.seek(start + begin)
                file.write(turns[name].apply(held.view(*shard.header[name]["shape"], -1)).numpy().data)


def _sync(*paths: Path) -> None:
    """Force files, and the names in directories, to disk, where the system can."""
    for path in paths if os.name == "posix" else ():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
